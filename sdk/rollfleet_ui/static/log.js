/** The end of one process's log, of the present incarnation or the one before. */

import { jobPath, repeated, Resource } from "./api.js";
import { Choice } from "./controls.js";
import { since } from "./format.js";
import { Component, html } from "./html.js";
import { jobLink } from "./route.js";
import { titleOf } from "./state.js";

const TAILS = [200, 1000, 10_000];

/** Props: `job`, its key; `worker`, its row; `name`, its index, `evaluation worker 0` or `learner`; `ended`, whether its log grows no more. */
export class Log extends Component {
  state = { previous: false, tail: TAILS[0], text: null, error: null };

  componentDidMount() {
    this.heading.focus();
    this.open();
    this.stop = repeated(() => !this.props.ended && !this.state.previous && this.resource.read());
  }

  componentWillUnmount() {
    this.stop();
    this.resource.close();
  }

  open(changes = {}) {
    this.resource?.close();
    this.setState({ text: null, error: null, ...changes });
    const { previous, tail } = { ...this.state, ...changes };
    const path = `${jobPath(this.props.job)}/logs?worker=${encodeURIComponent(this.props.name)}&previous=${previous}&tail=${tail}`;
    this.resource = new Resource(path, (value, error) => this.setState(error ? { error } : { text: value.text, error: null }));
    this.resource.read();
  }

  /** Keep the newest line in view, unless the reader has scrolled up. */
  getSnapshotBeforeUpdate() {
    return this.lines && this.lines.scrollTop + this.lines.clientHeight >= this.lines.scrollHeight - 8;
  }

  componentDidUpdate(props, state, wasAtEnd) {
    if (props.worker.incarnation !== this.props.worker.incarnation) this.open();
    if (state.text !== this.state.text && (wasAtEnd || state.text == null)) this.lines.scrollTop = this.lines.scrollHeight;
  }

  render({ job, worker, ended }, { previous, tail, text, error }) {
    const title = titleOf(worker);
    return html`<aside class="log" aria-label="Log of ${title}">
      <div class="bar">
        <h2 tabindex="-1" ref=${(heading) => (this.heading = heading)}>${title}</h2>
        <span class="dim">${worker.state} ${!ended && worker.since != null && html`for ${since(worker.since)}`}</span>
        <a class="button close" href=${jobLink(job, "workers")}>Close</a>
      </div>
      ${worker.lastError && html`<p class="last-error"><b>Last error</b> ${worker.lastError}</p>`}
      <div class="bar">
        <${Choice} label="Incarnation" value=${String(previous)} choose=${(value) => this.open({ previous: value === "true" })}
          options=${{ false: `Incarnation ${worker.incarnation}`, ...(worker.hasPrevious && { true: "The one before" }) }} />
        <select aria-label="Number of lines" value=${String(tail)} onChange=${(event) => this.open({ tail: Number(event.target.value) })}>
          ${TAILS.map((each) => html`<option key=${each} value=${String(each)}>Last ${each.toLocaleString("en-US")} lines</option>`)}
        </select>
      </div>
      ${error && html`<p class="notice" role="status">${error.message}</p>`}
      <pre tabindex="0" role="region" aria-label="Lines of the log" ref=${(lines) => (this.lines = lines)}>
        ${text || (text == null && !error ? "Loading…" : "No lines.")}</pre>
    </aside>`;
  }
}
