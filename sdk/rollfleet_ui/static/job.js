/** One job: its diagnosis and its numbers on top, and below them one of its views. */

import { jobPath, repeated, Resource } from "./api.js";
import { Track } from "./controls.js";
import { count, moment, number, since, span } from "./format.js";
import { Component, html } from "./html.js";
import { Axis, axis, Overview } from "./overview.js";
import { jobLink } from "./route.js";
import { Spec } from "./spec.js";
import { kindOfJob, Shape } from "./state.js";
import { Timeline } from "./timeline.js";
import { Workers } from "./workers.js";

const LONGEST_STEP_S = 30;
export const VIEWS = { "": "Overview", workers: "Workers", timeline: "Timeline", spec: "Spec" };

/**
 * Props: `job`, its key; `view`, one of `VIEWS`; `worker`, the name of the one whose log is open.
 */
export class Job extends Component {
  state = { page: null, workers: null, history: null, timeline: null, error: null };

  componentDidMount() {
    const path = jobPath(this.props.job);
    const into = (name) => (value, error) => this.setState(error ? { error } : { [name]: value, error: null });
    this.resources = {
      page: new Resource(path, into("page")),
      workers: new Resource(`${path}/workers`, into("workers")),
      history: new Resource(`${path}/history`, into("history")),
      timeline: new Resource(`${path}/timeline`, into("timeline")),
    };
    this.stop = repeated(() => this.read());
  }

  componentWillUnmount() {
    this.stop();
    Object.values(this.resources).forEach((each) => each.close());
  }

  /** Read what is on screen. */
  read() {
    const shown = { "": ["history", "timeline"], workers: ["workers"], timeline: ["timeline"], spec: [] }[this.props.view];
    for (const name of ["page", ...shown]) if (name !== "history" || this.isPointDue()) this.resources[name].read();
  }

  /** Return whether the curves have a new point by now. */
  isPointDue() {
    const time = this.state.history?.time ?? [];
    const step_s = time.length > 1 ? (time.at(-1) - time[0]) / (time.length - 1) : 0;
    const isDue = Date.now() - (this.readAt ?? 0) >= 1000 * Math.min(step_s, LONGEST_STEP_S);
    if (isDue) this.readAt = Date.now();
    return isDue;
  }

  componentDidUpdate(before) {
    if (before.view !== this.props.view) this.read();
  }

  render({ job, view, worker }, { page, workers, history, timeline, error }) {
    if (!page) {
      return html`<div class="bar"><h1 tabindex="-1">${job}</h1></div>
        <p class="empty" role="status">${error ? error.message : "Loading…"}</p>`;
    }
    const { row } = page;
    const { diagnosis } = row;
    return html`
      <div class="bar"><h1 tabindex="-1"><span class="dim">${row.namespace}/</span>${row.name}</h1></div>
      ${error?.status === 404 &&
        html`<p class="notice" role="status">This job was deleted. What is shown is its last state.</p>`}
      ${error && error.status !== 404 && html`<p class="notice" role="status">Not updated: ${error.message}</p>`}
      <section class="diagnosis ${diagnosis.isProblem ? "problem" : ""}" aria-label="Diagnosis">
        <p class="verdict"><${Shape} kind=${kindOfJob(row)} /> <b>${diagnosis.state}</b>
          ${diagnosis.reason && diagnosis.reason !== diagnosis.state && html` <span class="reason">${diagnosis.reason}</span>`}
          ${diagnosis.message && html` <span class="message">${diagnosis.message}</span>`}</p>
        ${diagnosis.advice && html`<p class="advice"><b>What to do</b> ${marked(diagnosis.advice)}</p>`}
      </section>
      <${Numbers} row=${row} status=${page.status} />
      <div class="tabs">
        <nav aria-label="Views of this job">
          ${Object.entries(VIEWS).map(([name, title]) => html`<a key=${name} href=${jobLink(job, ...(name ? [name] : []))}
            aria-current=${view === name ? "page" : undefined}>${title}</a>`)}
        </nav>
        ${view === "" && html`<${Axis} />`}
      </div>
      ${view === "" && html`<${Overview} job=${job} over=${axis()} page=${page} history=${history} timeline=${timeline} />`}
      ${view === "workers" && html`<${Workers} job=${job} row=${row} workers=${workers} chosen=${worker} />`}
      ${view === "timeline" && html`<${Timeline} moments=${timeline} />`}
      ${view === "spec" && html`<${Spec} page=${page} />`}`;
  }
}

/** The numbers of a job, in one line where there is room. */
function Numbers({ row, status: { envVersion, evaluation, nonFinite, failedEpisodes = {} } }) {
  const failed = Object.values(failedEpisodes).reduce((sum, each) => sum + each, 0);
  const goal = row.totalFrames > 0;
  const facts = [
    ["Frames", count(row.frames), goal && `of ${count(row.totalFrames)}`, goal && row.frames / row.totalFrames],
    ["Frames/s", count(row.framesPerSecond)],
    ["Mean return", number(row.meanReturn)],
    ...(evaluation ? [["Evaluation", number(evaluation.meanReturn), `at version ${count(evaluation.version)}`]] : []),
    ["Version", count(row.publishedVersion), row.appliedVersion != null && `slowest worker ${count(row.appliedVersion)}`],
    ["Lag", count(row.lag)],
    ...(envVersion ? [["Settings", count(envVersion), "version of the environments' settings"]] : []),
    ...(failed ? [["Failed episodes", count(failed), Object.keys(failedEpisodes).join(", ")]] : []),
    ...(nonFinite ? [["NaN, infinity", count(nonFinite), "frames and versions"]] : []),
    ["Workers", String(row.workersReady), `of ${row.workersDesired}`],
    row.ended ? ["Ran for", span(row.ended - row.created), moment(row.ended)] : ["Age", since(row.created), moment(row.created)],
  ];
  return html`<dl class="numbers">${facts.map(([name, value, rest, part]) => html`<div key=${name}>
    <dt>${name}</dt>
    <dd><b>${value}</b>${rest && html`<span class="dim">${rest}</span>`}
      ${typeof part === "number" && html`<${Track} part=${part} />`}</dd>
  </div>`)}</dl>`;
}

/** Set what stands between backquotes as code. */
const marked = (text) => text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));
