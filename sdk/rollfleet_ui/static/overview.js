/** A job's curves: is it learning, is it fast, and who waits for whom. */

import { Chart } from "./chart.js";
import { Choice } from "./controls.js";
import { count, number, percent } from "./format.js";
import { Component, html } from "./html.js";
import { jobLink, route, setOptions } from "./route.js";
import { Moments } from "./timeline.js";

const NEWEST = 6;
const INFO = "info."; // and the name of a number that environments say of an episode

/** Return whether the address asks for curves over frames. */
export const isOverFrames = () => route().options.get("x") === "frames";

/** The choice of the curves' horizontal axis. */
export function Axis() {
  const options = { "": "Over time", frames: "Over frames" };
  const value = isOverFrames() ? "frames" : "";
  return html`<${Choice} label="Horizontal axis" options=${options} value=${value} choose=${(x) => setOptions({ x })} />`;
}

/** Props: `job`, its key; `overFrames`; `page`, `history` and `timeline` of the API, null before the first answer. */
export class Overview extends Component {
  shouldComponentUpdate(next) {
    return Object.keys(next).some((name) => next[name] !== this.props[name]); // the clock alone changes nothing here
  }

  render({ job, overFrames, page, history, timeline }) {
    const curves = history && (overFrames ? sortedByFrames(history) : { x: history.time, ...history.series });
    const events = (timeline ?? []).filter((each) => each.kind !== "Version");
    const x = overFrames
      ? { xIs: "frames", xFormat: (value) => `${count(value)} frames` }
      : { xIs: "time", marks: events.map(({ time, text }) => ({ x: time, text })) };
    const chart = (title, series, more = {}) => html`<${Chart} title=${title} x=${curves.x} ...${x} format=${count}
      series=${series.map((each) => ({ name: title, ...each }))} together="job" ...${more} />`;
    const part = { format: percent, range: [0, 1], size: "strip" };
    const { learnerWait, workersWaitLearner, workersWaitWeights } = curves ?? {};
    const bothWaits = curves && sum(workersWaitLearner, workersWaitWeights);
    return html`<div class="overview">
      <section class="curves" aria-label="Curves">
        ${curves && html`
          ${chart("Mean return", [{ values: curves.meanReturn }], { format: number, size: "tall", note: "last 100 episodes" })}
          <div class="waits">
            <h2>Who waits for whom</h2>
            <p class="bottleneck">${page.bottleneck || "Not known."}</p>
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
            ${Object.entries(curves).filter(([name]) => name.startsWith(INFO)).map(([name, values]) =>
              chart(name.slice(INFO.length), [{ values }], { key: name, format: number, note: "mean of the last 100 episodes" }))}
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

/** Return the series of a history over frames. A learner that begins again counts frames again: its points stand in order. */
export function sortedByFrames({ time, series }) {
  const { frames } = series;
  const order = [...time.keys()].filter((at) => frames[at] != null).sort((one, other) => frames[one] - frames[other]);
  const picked = Object.entries(series).map(([name, values]) => [name, order.map((at) => values[at])]);
  return { ...Object.fromEntries(picked), x: order.map((at) => frames[at]) };
}
