/** The workers of a job, its evaluation workers and its learner, and the log of one of them. */

import { Filter, Track, wordsOfFilter } from "./controls.js";
import { count, number, since } from "./format.js";
import { Component, html } from "./html.js";
import { Log } from "./log.js";
import { jobLink } from "./route.js";
import { kindOfWorker, Shape, titleOf, troubleFirst } from "./state.js";
import { Table } from "./table.js";

const nameOf = (row) => row.process.replace(/^worker /, "");
const isProblem = (row) => ["failed", "trouble"].includes(kindOfWorker(row));
const byIndex = (one, other) => (one.index ?? -1) - (other.index ?? -1);

/** Props: `job`, its key; `row`, the job's; `workers`, null before the first answer; `chosen`, the name of the one with its log. */
export class Workers extends Component {
  render({ job, row, workers, chosen }) {
    if (!workers) return html`<p class="empty" role="status">Loading…</p>`;
    const words = wordsOfFilter();
    const fits = (each) => {
      const searched = `${nameOf(each)} ${each.state} ${each.node} ${each.lastError}`.toLowerCase();
      return words.every((word) => (/^\d+$/.test(word) ? nameOf(each) === word : searched.includes(word)));
    };
    const rows = troubleFirst(workers.filter(fits), kindOfWorker, byIndex);
    const fastest = Math.max(...workers.map((each) => (each.index == null ? 0 : each.framesPerSecond)));
    const open = workers.find((each) => nameOf(each) === chosen);
    return html`<div class="split ${open ? "open" : ""}">
      <div>
        <div class="bar">
          <h2>Workers</h2><span class="dim">${count(workers.filter((each) => each.index != null).length)}</span>
          <div class="filters"><${Filter} label="Filter by index, state, node or error" /></div>
        </div>
        <${Table} label="Workers" rows=${rows} rowKey=${nameOf} columns=${columns(job, fastest)}
          rowClass=${(each) => `workers-row ${isProblem(each) ? "problem" : ""} ${each === open ? "chosen" : ""}`}
          empty=${workers.length ? "No worker matches the filter." : "No worker yet."} />
      </div>
      ${open && html`<${Log} key=${chosen} job=${job} worker=${open} name=${chosen}
        ended=${row.ended != null} />`}
    </div>`;
  }
}

function columns(job, fastest) {
  const amount = (name, title, value) => ({ name, title, number: true, value, cell: (row) => count(value(row)) });
  const text = (name, title, value) => ({ name, title, value, cell: (row) => html`<span title=${value(row)}>${value(row)}</span>` });
  const state = (row) => html`<${Shape} kind=${kindOfWorker(row)} /> ${row.state}`;
  const name = (row) => html`<a href=${jobLink(job, "workers", nameOf(row))}
    aria-label="${titleOf(row)}, log"><b>${nameOf(row)}</b></a>`;
  const rate = (row) => html`<span class="progress">${count(row.framesPerSecond)}
    ${row.index != null && fastest > 0 && html`<${Track} part=${row.framesPerSecond / fastest} />`}</span>`;
  return [
    { name: "state", title: "State", value: (row) => row.state, cell: state },
    { name: "name", title: "Worker", value: (row) => row.index ?? -1, cell: name },
    { ...amount("rate", "Frames/s", (row) => row.framesPerSecond), cell: rate },
    { ...amount("return", "Return", (row) => row.meanReturn), cell: (row) => number(row.meanReturn) },
    amount("frames", "Frames", (row) => row.frames),
    amount("version", "Version", (row) => row.version),
    amount("lag", "Lag", (row) => row.lag),
    amount("incarnation", "Incarn.", (row) => row.incarnation),
    amount("restarts", "Restarts", (row) => row.restarts),
    text("node", "Node", (row) => row.node),
    { ...amount("gpus", "GPUs", (row) => row.gpus), cell: (row) => row.gpus || "" },
    { ...amount("since", "Since", (row) => row.since && -row.since), cell: (row) => since(row.since) },
    text("why", "Last error", (row) => row.lastError || null),
  ];
}
