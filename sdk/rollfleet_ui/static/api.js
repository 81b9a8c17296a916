/** What the server sends as JSON. */

/** Called with the state of the link after each answer: `live`, `away` or `refused`. */
export const link = { heard: () => {} };
const EVERY_MS = 1000;
let version = null;

/** An answer of the server that is not the value asked for. */
class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Return the path of a job. */
export const jobPath = (key) => `jobs/${key.split("/").map(encodeURIComponent).join("/")}`;

/** Return the value at a path below `/api/v1/`. Another version of the server has another page: it is loaded. */
export async function get(path) {
  const response = await fetch(`api/v1/${path}`, { headers: { Accept: "application/json" } }).catch((error) => {
    link.heard("away");
    throw error;
  });
  const value = await response.json().catch((error) => {
    if (!response.ok) return {};
    link.heard("away"); // the answer was cut
    throw error;
  });
  const found = response.headers.get("Rollfleet-Version");
  if (version && found && version !== found) location.reload();
  version = found ?? version;
  link.heard(response.status === 401 ? "refused" : response.status === 502 ? "away" : "live");
  if (!response.ok) throw new Refusal(response.status, value.error ?? `the server answered ${response.status}`);
  return value;
}

/** A value at a path that is read again and again, never twice at once. */
export class Resource {
  /** `show(value, error)` is called after each read; one of the two is null. */
  constructor(path, show) {
    this.path = path;
    this.show = show;
    this.state = "idle";
  }

  async read() {
    if (this.state !== "idle") return;
    this.state = "reading";
    const [value, error] = await get(this.path).then((value) => [value, null], (error) => [null, error]);
    if (this.state === "closed") return;
    this.state = "idle";
    this.show(value, error);
  }

  close() {
    this.state = "closed";
  }
}

/** Call `read` now, and each second while the page is on screen. Returns how to stop. */
export function repeated(read) {
  const step = () => !document.hidden && read();
  const timer = setInterval(step, EVERY_MS);
  document.addEventListener("visibilitychange", step);
  step();
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", step);
  };
}
