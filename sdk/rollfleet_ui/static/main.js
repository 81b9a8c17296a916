/** The page: its address decides what it shows. While it is on screen, it reads that again each second. */

import { link, repeated, Resource } from "./api.js";
import { Compare } from "./compare.js";
import { clock } from "./format.js";
import { Component, html, render } from "./html.js";
import { Job, VIEWS } from "./job.js";
import { Jobs } from "./jobs.js";
import { route } from "./route.js";

class Page extends Component {
  state = { jobs: null, error: null, link: "connecting", heard: null };
  scrolls = new Map();

  componentDidMount() {
    link.heard = (state) => this.setState(({ heard }) => ({ link: state, heard: state === "live" ? Date.now() : heard }));
    this.jobs = new Resource("jobs", (rows, error) => this.setState(error ? { error } : { jobs: rows, error: null }));
    addEventListener("hashchange", () => this.go());
    this.go();
    repeated(() => {
      if (!this.state.job) this.jobs.read();
      this.forceUpdate(); // ages
    });
  }

  /** Show what the address names. */
  go() {
    const { parts } = route();
    const job = parts[0] === "jobs" && parts.length > 2 ? `${parts[1]}/${parts[2]}` : "";
    const place = parts.slice(0, 4).join("/");
    if (this.place !== undefined && this.place !== place) {
      this.scrolls.set(this.place, scrollY);
      this.moved = true;
    }
    this.place = place;
    document.title = [job || (parts[0] === "compare" ? "Compare" : "Jobs"), "Rollfleet"].join(" · ");
    if (!job) this.jobs.read();
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
          ? html`<${Job} key=${job} job=${job} view=${Object.hasOwn(VIEWS, parts[3]) ? parts[3] : ""} worker=${parts[4]} />`
          : parts[0] === "compare"
            ? html`<${Compare} key=${keys.join(" ")} keys=${keys} />`
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
