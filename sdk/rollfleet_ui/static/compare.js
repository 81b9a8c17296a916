/** The curves of several jobs over each other. */

import { jobPath, repeated, Resource } from "./api.js";
import { Chart } from "./chart.js";
import { Choice } from "./controls.js";
import { count, elapsed, number, percent } from "./format.js";
import { Component, html } from "./html.js";
import { MOST_COMPARED } from "./jobs.js";
import { sortedBy } from "./overview.js";
import { jobLink, link, route } from "./route.js";

const METRICS = {
  meanReturn: ["Mean return", number, [null, null]],
  framesPerSecond: ["Frames/s", count, [0, null]],
  lag: ["Lag", count, [0, null]],
  version: ["Version", count, [0, null]],
  workersReady: ["Workers ready", count, [0, null]],
  learnerWait: ["Learner waits for batches", percent, [0, 1]],
  workersWaitLearner: ["Workers wait for the learner", percent, [0, 1]],
  workersWaitWeights: ["Workers wait for weights", percent, [0, 1]],
};
const AXES = { age: "Since start", frames: "Over frames", version: "Over versions", time: "Over time" };
const DASHES = [undefined, [10, 4], [4, 3], [12, 3, 3, 3]];

/** Props: `keys` of the jobs. */
export class Compare extends Component {
  state = { histories: {}, errors: {} };

  componentDidMount() {
    this.resources = this.props.keys.slice(0, MOST_COMPARED).map((key) => {
      const take = (value, error) =>
        this.setState(({ histories, errors }) => ({
          histories: { ...histories, [key]: value ?? histories[key] },
          errors: { ...errors, [key]: error?.message },
        }));
      return new Resource(`${jobPath(key)}/history`, take);
    });
    this.stop = repeated(() => this.resources.forEach((each) => each.read()));
  }

  componentWillUnmount() {
    this.stop();
    this.resources.forEach((each) => each.close());
  }

  render({ keys }, { histories, errors }) {
    const { options } = route();
    const metric = Object.hasOwn(METRICS, options.get("metric")) ? options.get("metric") : "meanReturn";
    const axis = Object.hasOwn(AXES, options.get("x")) ? options.get("x") : "age";
    const [title, format, range] = METRICS[metric];
    const to = (changes) => link(["compare"], { job: keys, metric: options.get("metric"), x: options.get("x"), ...changes });
    const compared = keys.slice(0, MOST_COMPARED);
    const [x, ...columns] = joined(compared.map((key) => curve(histories[key], metric, axis)));
    const series = compared.map((key, at) => ({
      name: key,
      values: columns[at],
      part: filled(columns[at]),
      colour: `curve-${at % 4}`,
      dash: DASHES[(at + Math.floor(at / 4)) % 4],
    }));
    return html`
      <div class="bar">
        <h1 tabindex="-1">Compare</h1>
        <div class="filters">
          <select aria-label="Number to compare" value=${metric} onChange=${(event) => location.replace(to({ metric: event.target.value }))}>
            ${Object.entries(METRICS).map(([name, [text]]) => html`<option key=${name} value=${name}>${text}</option>`)}
          </select>
          <${Choice} label="Horizontal axis" options=${AXES} value=${axis} choose=${(name) => location.replace(to({ x: name }))} />
        </div>
      </div>
      <div class="compared">
        <${Chart} title=${title} x=${x} xIs=${axis} xFormat=${{ frames: count, version: number, age: elapsed }[axis]}
          format=${format} range=${range} size="wall" series=${series} note="newest values" />
        <ul class="compared-jobs">
          ${compared.map((key) => html`<li key=${key}><a href=${jobLink(key)}>${key}</a>
            ${errors[key] && html`<span class="dim">${errors[key]}</span>`}
            <a class="button" aria-label="Remove ${key}" href=${to({ job: keys.filter((each) => each !== key) })}>Remove</a></li>`)}
        </ul>
        ${!compared.length && html`<p class="empty">No job is chosen. <a href="#/">Choose jobs</a> in the list.</p>`}
      </div>`;
  }
}

/** Return a job's curve as two columns. */
function curve(history, metric, axis) {
  if (!history) return [[], []];
  const { x, ...series } = ["frames", "version"].includes(axis) ? sortedBy(axis, history) : { x: history.time, ...history.series };
  return [axis === "age" ? x.map((time) => time - history.time[0]) : x, series[metric]];
}

/** Return curves on one x: the union of all, without values between a curve's points. */
function joined(curves) {
  const x = [...new Set(curves.flatMap(([own]) => own))].sort((one, other) => one - other);
  const at = new Map(x.map((value, index) => [value, index]));
  return [x, ...curves.map(([own, values]) => {
    const column = new Array(x.length).fill(undefined);
    own.forEach((value, index) => (column[at.get(value)] = values[index]));
    return column;
  })];
}

/** Return a column with each unknown value replaced by the one before: what a reader sees under the cursor. */
function filled(column) {
  let last = null;
  return column.map((value) => (last = value ?? last));
}
