/** What the server sends: its JSON, and the stream of changes. One stream for the page; it closes while the page is hidden,
 * because a browser has six connections for all pages of one server.
 */

const RETRY_S = [0, 1, 2, 5, 10];

/** An answer of the server that is not the value asked for. */
export class Refusal extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Return the path of a job. */
export const jobPath = (key) => `jobs/${key.split("/").map(encodeURIComponent).join("/")}`;

/** Return the value at a path below `/api/v1/`. */
export async function get(path) {
  const response = await fetch(`api/v1/${path}`, { headers: { Accept: "application/json" } });
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refusal(response.status, value.error ?? `the server answered ${response.status}`);
  return value;
}

/** A value at a path that is read again when it may have changed, never twice at once. */
export class Resource {
  /** `show(value, error)` is called after each read; one of the two is null. */
  constructor(path, show) {
    this.path = path;
    this.show = show;
    this.state = "idle";
  }

  async read() {
    if (this.state !== "idle") {
      if (this.state === "reading") this.state = "stale";
      return;
    }
    this.state = "reading";
    const [value, error] = await get(this.path).then((value) => [value, null], (error) => [null, error]);
    if (this.state === "closed") return;
    const stale = this.state === "stale";
    this.state = "idle";
    this.show(value, error);
    if (stale) this.read();
  }

  close() {
    this.state = "closed";
  }
}

/** The stream of changes. */
export class Changes {
  /**
   * @param on.jobs  Called with changed rows; a row that is gone is `{key, gone: true}`.
   * @param on.began Called when the stream begins, and again after each interruption.
   * @param on.link  Called with the state of the link: `live`, `away` or `refused`.
   */
  constructor(on) {
    this.on = on;
    this.job = null;
    this.failures = 0;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  /** Follow one job, or all with "". */
  follow(job) {
    if (job === this.job) return;
    this.job = job;
    this.stop();
    if (!document.hidden) this.start();
  }

  start() {
    this.stop();
    const source = new EventSource(`api/v1/changes${this.job ? `?job=${encodeURIComponent(this.job)}` : ""}`);
    this.source = source;
    source.addEventListener("hello", (event) => {
      const { version } = JSON.parse(event.data);
      if (this.version && this.version !== version) location.reload();
      this.version = version;
      this.failures = 0;
      this.on.link("live");
      this.on.began();
    });
    source.addEventListener("jobs", (event) => this.on.jobs(JSON.parse(event.data)));
    source.onerror = () => {
      this.stop();
      this.retry();
    };
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
  }

  /** Begin another stream as soon as the server answers and has what it is about. */
  retry() {
    const wait_s = RETRY_S[Math.min(this.failures++, RETRY_S.length - 1)];
    this.timer = setTimeout(async () => {
      const error = await get(this.job ? jobPath(this.job) : "jobs").then(() => null, (error) => error);
      if (document.hidden) return;
      if (!error) return this.start();
      this.on.link(error.status === 401 ? "refused" : error.status < 500 ? "live" : "away");
      this.retry();
    }, 1000 * wait_s);
  }
}
