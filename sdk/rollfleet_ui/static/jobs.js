/** All jobs: trouble first, with filters. The only job has its curve there. */

import { jobPath, repeated, Resource } from "./api.js";
import { Chart } from "./chart.js";
import { Filter, Track, wordsOfFilter } from "./controls.js";
import { count, number, since } from "./format.js";
import { Component, html } from "./html.js";
import { jobLink, link, route, setOptions } from "./route.js";
import { kindOfJob, Shape, troubleFirst } from "./state.js";
import { Table } from "./table.js";

export const MOST_COMPARED = 8;

const newestFirst = (one, other) => other.created - one.created || one.key.localeCompare(other.key);

/** Props: `jobs`, their rows, or null before the first answer; `error`. */
export class Jobs extends Component {
  state = { chosen: new Set() };

  choose(key) {
    this.setState(({ chosen }) => {
      const next = new Set(chosen);
      if (!next.delete(key) && next.size < MOST_COMPARED) next.add(key);
      return { chosen: next };
    });
  }

  render({ jobs, error }, { chosen }) {
    if (!jobs) return html`<h1>Jobs</h1><p class="empty" role="status">${error ? error.message : "Loading…"}</p>`;
    const { options } = route();
    const [namespace, phase] = ["namespace", "phase"].map((name) => options.get(name) ?? "");
    const namespaces = [...new Set(jobs.map((row) => row.namespace))].sort();
    const words = wordsOfFilter();
    const near = jobs.filter((row) => {
      const { state, reason, message } = row.diagnosis;
      const searched = `${row.key} ${state} ${reason} ${message}`.toLowerCase();
      return (!namespace || row.namespace === namespace) && words.every((word) => searched.includes(word));
    });
    const isIn = (name) => (row) => !name || (name === "Trouble" ? row.diagnosis.isProblem : row.diagnosis.state === name);
    const rows = troubleFirst(near.filter(isIn(phase)), kindOfJob, newestFirst);
    const phases = new Set(["", "Trouble", "Running", ...jobs.map((row) => row.diagnosis.state).sort()]);
    return html`
      <div class="bar">
        <h1>Jobs</h1>
        <div class="chips" role="group" aria-label="Phase">
          ${[...phases].map((name) => html`<button type="button" class="chip" key=${name} aria-pressed=${phase === name}
            onClick=${() => setOptions({ phase: name })}>${name || "All"} <b>${near.filter(isIn(name)).length}</b></button>`)}
        </div>
        <div class="filters">
          ${chosen.size > 0 && html`<a class="button" href=${link(["compare"], { job: [...chosen] })}>Compare ${chosen.size}</a>`}
          ${namespaces.length > 1 && html`<select aria-label="Namespace" value=${namespace}
            onChange=${(event) => setOptions({ namespace: event.target.value })}>
            <option value="">All namespaces</option>
            ${namespaces.map((name) => html`<option key=${name}>${name}</option>`)}
          </select>`}
          <${Filter} label="Filter by name, reason or message" />
        </div>
      </div>
      <${Table} label="Jobs" rows=${rows} rowKey=${(row) => row.key} rowClass=${(row) => `jobs-row ${row.diagnosis.isProblem ? "problem" : ""}`}
        columns=${this.columns(chosen, namespaces.length > 1)} empty=${jobs.length ? "No job matches the filter." : "No jobs yet."} />
      ${jobs.length === 1 && html`<${Curve} key=${jobs[0].key} job=${jobs[0].key} />`}`;
  }

  columns(chosen, withNamespace) {
    const amount = (name, title, value) => ({ name, title, number: true, value, cell: (row) => count(value(row)) });
    const box = (row) => html`<label class="check"><input type="checkbox" aria-label="Compare ${row.key}" checked=${chosen.has(row.key)}
      disabled=${!chosen.has(row.key) && chosen.size >= MOST_COMPARED} onChange=${() => this.choose(row.key)} /></label>`;
    const state = (row) => html`<${Shape} kind=${kindOfJob(row)} /> ${row.diagnosis.state}`;
    const name = (row) => html`<a href=${jobLink(row.key)} title=${row.key}>
      ${withNamespace && html`<span class="dim">${row.namespace}/</span>`}<b>${row.name}</b></a>`;
    const why = ({ diagnosis: { reason, message, isProblem } }) => html`<span title=${message}>
      ${reason && (isProblem ? html`<b>${reason}</b> ` : `${reason}: `)}${message}</span>`;
    const workers = (row) => html`${row.workersReady}<span class="dim">/${row.workersDesired}</span>`;
    const frames = (row) => html`<span class="progress">${count(row.frames)}
      ${row.totalFrames > 0 && html`<${Track} part=${row.frames / row.totalFrames} />`}</span>`;
    const curve = (row) => html`<${Sparkline} values=${row.returns} /><span class="value">${number(row.meanReturn)}</span>`;
    return [
      { name: "pick", title: html`<span class="unseen">Compare</span>`, cell: box },
      { name: "phase", title: "State", value: (row) => row.diagnosis.state, cell: state },
      { name: "name", title: "Job", value: (row) => row.key, cell: name },
      { name: "why", title: "Reason", cell: why },
      { ...amount("workers", "Workers", (row) => row.workersReady), cell: workers },
      { ...amount("frames", "Frames", (row) => row.frames), cell: frames },
      amount("rate", "Frames/s", (row) => row.framesPerSecond),
      { ...amount("return", "Return", (row) => row.meanReturn), cell: curve },
      amount("version", "Version", (row) => row.publishedVersion),
      amount("lag", "Lag", (row) => row.lag),
      { ...amount("age", "Age", (row) => -row.created), cell: (row) => since(row.created) },
    ];
  }
}

/** The mean return of a job over time. Props: `job`, its key. */
class Curve extends Component {
  state = { history: null };

  componentDidMount() {
    this.resource = new Resource(`${jobPath(this.props.job)}/history`, (history) => history && this.setState({ history }));
    this.stop = repeated(() => this.resource.read());
  }

  componentWillUnmount() {
    this.stop();
    this.resource.close();
  }

  render(_, { history }) {
    return history && html`<${Chart} title="Mean return" note="last 100 episodes" x=${history.time} xIs="time" format=${number}
      size="tall" series=${[{ name: "Mean return", values: history.series.meanReturn }]} />`;
  }
}

/** The newest returns as a small line. The number beside it is its last value. */
function Sparkline({ values }) {
  const known = values.filter((value) => value != null);
  if (known.length < 2) return html`<svg class="sparkline" aria-hidden="true" />`;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const height = (value) => (high > low ? 15 - (14 * (value - low)) / (high - low) : 8);
  const points = known.map((value, at) => `${((60 * at) / (known.length - 1)).toFixed(1)} ${height(value).toFixed(1)}`);
  return html`<svg class="sparkline" viewBox="-1 0 62 16" preserveAspectRatio="none" aria-hidden="true">
    <path d="M${points.join("L")}" /></svg>`;
}
