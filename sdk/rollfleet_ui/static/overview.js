/** A job's curves: is it learning, is it fast, and who waits for whom. */

import { Chart } from "./chart.js";
import { Choice } from "./controls.js";
import { count, number, percent } from "./format.js";
import { Component, html } from "./html.js";
import { jobLink, route, setOptions } from "./route.js";
import { Moments } from "./timeline.js";

const NEWEST = 6;
const FAINT = { colour: "dim", dash: [3, 3] };
const MEAN = "mean."; // and the name of a number of episodes
const VERSION = "mean.last_version"; // that episodes ended on
const AXES = { "": "Over time", frames: "Over frames", version: "Over versions" };
const X_FORMATS = { frames: (value) => `${count(value)} frames`, version: (value) => `version ${number(value)}` };

/** Return the curves' horizontal axis that the address asks for, one of `AXES`. */
export function axis() {
  const asked = route().options.get("x") ?? "";
  return Object.hasOwn(AXES, asked) ? asked : "";
}

/** The choice of the curves' horizontal axis. */
export const Axis = () =>
  html`<${Choice} label="Horizontal axis" options=${AXES} value=${axis()} choose=${(x) => setOptions({ x })} />`;

/** Props: `job`, its key; `over`, the axis; `page`, `history` and `timeline` of the API, null before the first answer. */
export class Overview extends Component {
  shouldComponentUpdate(next) {
    return Object.keys(next).some((name) => next[name] !== this.props[name]); // the clock alone changes nothing here
  }

  render({ job, over, page, history, timeline }) {
    const curves = history && (over ? sortedBy(over, history) : { x: history.time, ...history.series });
    const events = (timeline ?? []).filter((each) => each.kind !== "Version");
    const x = over
      ? { xIs: over, xFormat: X_FORMATS[over] }
      : { xIs: "time", marks: events.map(({ time, text }) => ({ x: time, text })) };
    const chart = (title, series, more = {}) => html`<${Chart} title=${title} x=${curves.x} ...${x} format=${count}
      series=${series.map((each) => ({ name: title, ...each }))} together="job" ...${more} />`;
    const episodes = (name, mean) => [
      { values: mean },
      ...["min", "max"].flatMap((end) => (curves[`${end}.${name}`] ? [{ name: end, values: curves[`${end}.${name}`], ...FAINT }] : [])),
    ];
    const part = { format: percent, range: [0, 1], size: "strip" };
    const { learnerWait, workersWaitLearner, workersWaitWeights } = curves ?? {};
    const bothWaits = curves && sum(workersWaitLearner, workersWaitWeights);
    return html`<div class="overview">
      <section class="curves" aria-label="Curves">
        ${curves && html`
          ${chart("Mean return", episodes("return", curves.meanReturn), { format: number, size: "tall", note: "last 100 episodes" })}
          <div class="waits">
            <h2>Who waits for whom</h2>
            <p class="bottleneck">${page.status.bottleneck || "Not known."}</p>
            ${chart("Learner", [{ name: "waits for batches", values: learnerWait, area: "plain" }], { ...part, bare: true })}
            ${chart("Workers", [
              { name: "wait for the learner", values: bothWaits, part: workersWaitLearner, area: "plain" },
              { name: "wait for weights", values: workersWaitWeights, area: "hatched" },
            ], part)}
          </div>
          <div class="small">
            ${chart("Frames/s", [{ values: curves.framesPerSecond }], { range: [0, null] })}
            ${chart("Version", [{ values: curves.version, steps: true }], { range: [0, null] })}
            ${chart("Lag", [{ values: curves.lag, steps: true }], { range: [0, null], note: "versions" })}
            ${chart("Workers ready", [{ values: curves.workersReady, steps: true }], { range: [0, null] })}
            ${Object.keys(curves).filter((name) => name.startsWith(MEAN) && name !== VERSION).map((key) => {
              const name = key.slice(MEAN.length);
              return chart(name, episodes(name, curves[key]), { key, format: number, note: "mean of the last 100 episodes" });
            })}
          </div>`}
      </section>
      <section class="latest" aria-label="Latest events">
        <h2>Latest events</h2>
        <${Moments} moments=${events.slice(-NEWEST).reverse()} />
        <a href=${jobLink(job, "timeline")}>Whole timeline</a>
      </section>
    </div>`;
  }
}

const sum = (one, other) => one.map((value, at) => (value == null || other[at] == null ? null : Math.min(1, value + other[at])));

/**
 * Return the series of a history over frames, or over the versions that the last 100 episodes ended on.
 * A learner that begins again counts again: its points stand in order.
 */
export function sortedBy(over, { time, series }) {
  const along = { frames: series.frames, version: series[VERSION] ?? [] }[over];
  const order = [...time.keys()].filter((at) => along[at] != null).sort((one, other) => along[one] - along[other]);
  const picked = Object.entries(series).map(([name, values]) => [name, order.map((at) => values[at])]);
  return { ...Object.fromEntries(picked), x: order.map((at) => along[at]) };
}
