/** The page: its address decides what it shows, the server's changes keep it new. */

import { Changes, get } from "./api.js";
import { Compare } from "./compare.js";
import { clock } from "./format.js";
import { Component, html, render } from "./html.js";
import { Job, VIEWS } from "./job.js";
import { Jobs } from "./jobs.js";
import { route } from "./route.js";

const SECOND_MS = 1000;

class Page extends Component {
  state = { jobs: null, error: null, link: "connecting", heard: null };
  scrolls = new Map();
  keep = (view) => (this.view = view); // a job or a comparison, which reads what it shows

  componentDidMount() {
    this.changes = new Changes({
      began: () => this.read(),
      jobs: (rows) => this.take(rows),
      link: (link) => this.setState({ link }),
    });
    addEventListener("hashchange", () => this.go());
    setInterval(() => !document.hidden && this.forceUpdate(), SECOND_MS); // ages
    this.go();
  }

  /** Show what the address names. */
  go() {
    const { parts } = route();
    const job = parts[0] === "jobs" && parts.length > 2 ? `${parts[1]}/${parts[2]}` : "";
    this.changes.follow(job);
    const place = parts.slice(0, 4).join("/");
    if (this.place !== undefined && this.place !== place) {
      this.scrolls.set(this.place, scrollY);
      this.moved = true;
    }
    this.place = place;
    document.title = [job || (parts[0] === "compare" ? "Compare" : "Jobs"), "Rollfleet"].join(" · ");
    this.setState({ job });
  }

  /** Begin a new place with the focus on its heading: at its top, or where the list was left. */
  componentDidUpdate() {
    if (!this.moved || !this.main.querySelector("h1")) return;
    this.moved = false;
    if (this.main.contains(document.activeElement)) return;
    scrollTo(0, this.place ? 0 : this.scrolls.get("") ?? 0);
    this.main.querySelector("h1").focus({ preventScroll: true });
  }

  async read() {
    this.view?.changed();
    if (this.state.job) return this.setState({ heard: Date.now() });
    try {
      const rows = await get("jobs");
      this.setState({ jobs: new Map(rows.map((row) => [row.key, row])), error: null, heard: Date.now() });
    } catch (error) {
      this.setState({ error });
    }
  }

  take(rows) {
    this.setState(({ jobs }) => {
      const next = new Map(jobs);
      for (const row of rows) row.gone ? next.delete(row.key) : next.set(row.key, row);
      return { jobs: jobs && next, heard: Date.now() };
    });
    this.view?.changed();
  }

  render(_, { jobs, error, link, heard, job }) {
    const { parts, options } = route();
    const keys = options.getAll("job");
    return html`
      <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), this.main.focus())}>Skip to content</a>
      <header>
        <a class="brand" href="#/"><img src="static/icon.svg" alt="" /> Rollfleet</a>
        <nav aria-label="Pages"><a href="#/" aria-current=${!parts.length ? "page" : undefined}>Jobs</a></nav>
        <${Link} state=${link} heard=${heard} />
      </header>
      <main id="main" tabindex="-1" ref=${(main) => (this.main = main)}>
        ${job
          ? html`<${Job} key=${job} shown=${this.keep} job=${job} view=${parts[3] in VIEWS ? parts[3] : ""} worker=${parts[4]} />`
          : parts[0] === "compare"
            ? html`<${Compare} key=${keys.join(" ")} shown=${this.keep} keys=${keys} />`
            : html`<${Jobs} jobs=${jobs} error=${error} />`}
      </main>`;
  }
}

/** Whether the page hears its server. */
function Link({ state, heard }) {
  const kept = heard ? ` Its numbers are from ${clock(heard / 1000)}.` : "";
  const text = {
    connecting: "Connecting…",
    live: "Live",
    away: `The server does not answer.${kept} The page goes on when it is back.`,
    refused: "This address has no valid token any more: open the one that the command printed.",
  }[state];
  return html`<p class="link ${state}" role="status"><span class="dot" aria-hidden="true"></span> ${text}</p>`;
}

render(html`<${Page} />`, document.body);
