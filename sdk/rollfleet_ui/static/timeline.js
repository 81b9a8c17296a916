/** What happened to a job. */

import { Check } from "./controls.js";
import { clock, moment, since } from "./format.js";
import { Component, html } from "./html.js";
import { Shape } from "./state.js";

const KINDS = {
  WorkerEnded: "trouble", Straggler: "trouble", NatsAway: "trouble", LearnerEnded: "trouble", Failed: "failed", Complete: "complete",
  Suspended: "suspended", Version: "pending", Created: "pending", Edited: "pending", Scaled: "pending",
};

/** Props: `moments`, the oldest first, or null before the first answer. */
export class Timeline extends Component {
  state = { versions: false };

  render({ moments }, { versions }) {
    if (!moments) return html`<p class="empty" role="status">Loading…</p>`;
    const shown = moments.filter((each) => versions || each.kind !== "Version").reverse();
    return html`<section class="timeline" aria-label="Timeline">
      <div class="bar">
        <h2>Timeline</h2>
        <${Check} text="Show versions" checked=${versions} set=${(versions) => this.setState({ versions })} />
      </div>
      <${Moments} moments=${shown} whole />
    </section>`;
  }
}

/** A list of moments. With `whole`: with their days and their details. */
export function Moments({ moments, whole }) {
  if (!moments.length) return html`<p class="empty">Nothing yet.</p>`;
  return html`<ol class="moments">${moments.map((each) => html`<li key=${`${each.time} ${each.kind} ${each.text}`}>
    <time datetime=${new Date(1000 * each.time).toISOString()} title="${moment(each.time)}, ${since(each.time)} ago">
      ${whole ? moment(each.time) : clock(each.time)}</time>
    <${Shape} kind=${KINDS[each.kind] ?? "running"} />
    <b>${spaced(each.kind)}</b>
    <span class="text">${each.text}</span>
    ${whole && each.detail && html`<${Difference} text=${each.detail} />`}
  </li>`)}</ol>`;
}

/** A unified diff, or other lines. */
const Difference = ({ text }) => html`<details><summary>Details</summary><pre class="difference">${text.split("\n").map((line) =>
  html`<span class=${line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : ""}>${`${line}\n`}</span>`)}</pre></details>`;

/** `WorkerEnded` as `Worker ended`. */
const spaced = (kind) => kind.replace(/(?<=[a-z])[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`).replace("Nats", "NATS");
