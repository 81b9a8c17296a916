/** A table that keeps only the rows on screen in the document, so that a thousand rows cost as much as thirty. */

import { Component, html } from "./html.js";

const SPARE = 12; // rows above and below the screen, for fast scrolling and for the Tab key
const FIRST = 40; // rows before the height of a row is known
const HEIGHT_PX = 34;

/**
 * Props: `label`; `columns`, each `{name, title, cell(row), value(row) to sort by, number}`; `rows` in their own order;
 * `rowKey(row)`; `rowClass(row)`; `empty`, the text instead of rows.
 */
export class Table extends Component {
  state = { by: null, down: true, first: 0, last: FIRST };

  componentDidMount() {
    this.measure = () => this.window();
    addEventListener("scroll", this.measure, { passive: true });
    addEventListener("resize", this.measure);
    this.window();
  }

  componentDidUpdate() {
    this.window();
  }

  componentWillUnmount() {
    removeEventListener("scroll", this.measure);
    removeEventListener("resize", this.measure);
  }

  get height() {
    return this.body?.querySelector("[data-index]")?.offsetHeight || HEIGHT_PX;
  }

  /** Choose the rows to render, in steps of half of `SPARE`. */
  window() {
    const above = -this.body.getBoundingClientRect().top / this.height;
    const step = SPARE / 2;
    const first = Math.max(0, Math.floor(above / step) * step - SPARE);
    const last = Math.ceil((above + innerHeight / this.height) / step) * step + SPARE;
    if (first !== this.state.first || last !== this.state.last) this.setState({ first, last });
  }

  sort(name) {
    this.setState(({ by, down }) => (by !== name ? { by: name, down: true } : down ? { down: false } : { by: null, down: true }));
  }

  sorted() {
    const column = this.props.columns.find((each) => each.name === this.state.by);
    if (!column) return this.props.rows;
    const sign = this.state.down ? -1 : 1;
    return [...this.props.rows].sort((one, other) => {
      const [left, right] = [column.value(one), column.value(other)];
      if (left == null || right == null) return (left == null) - (right == null); // unknown values last
      return sign * (typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right);
    });
  }

  /** Move the focus between rows by the arrow keys, Home and End. */
  move(event) {
    const row = event.target.closest("[data-index]");
    const end = this.props.rows.length - 1;
    const at = row && Number(row.dataset.index);
    const to = row && { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: end }[event.key];
    if (to == null || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = Math.min(Math.max(to, 0), end);
    const top = this.body.getBoundingClientRect().top + next * this.height;
    if (top < 4 * this.height) scrollBy(0, top - 4 * this.height);
    else if (top + 2 * this.height > innerHeight) scrollBy(0, top + 2 * this.height - innerHeight);
    this.window();
    this.setState({}, () => this.body.querySelector(`[data-index="${next}"] a`)?.focus({ preventScroll: true }));
  }

  render({ label, columns, rowKey, rowClass, empty }, { by, down, first, last }) {
    const rows = this.sorted();
    const end = Math.min(last, rows.length);
    const begin = Math.min(first, end);
    const padding = { paddingTop: `${begin * this.height}px`, paddingBottom: `${(rows.length - end) * this.height}px` };
    const cell = (column) => `cell ${column.name}${column.number ? " number" : ""}`;
    return html`<div class="table" role="table" aria-label=${label} aria-rowcount=${rows.length + 1}>
      <div role="rowgroup" class="head">
        <div role="row" class="row" aria-rowindex="1">
          ${columns.map((column) => html`<div role="columnheader" class=${cell(column)} key=${column.name}
            aria-sort=${column.value && (by !== column.name ? "none" : down ? "descending" : "ascending")}>
            ${column.value ? html`<button type="button" onClick=${() => this.sort(column.name)}>${column.title}</button>` : column.title}
          </div>`)}
        </div>
      </div>
      <div role="rowgroup" class="body" style=${padding} ref=${(body) => (this.body = body)} onKeyDown=${(event) => this.move(event)}>
        ${rows.slice(begin, end).map((row, at) => html`<div role="row" class="row ${rowClass?.(row) ?? ""}" key=${rowKey(row)}
          aria-rowindex=${begin + at + 2} data-index=${begin + at}>
          ${columns.map((column) => html`<div role="cell" class=${cell(column)} key=${column.name}>${column.cell(row)}</div>`)}
        </div>`)}
      </div>
      ${!rows.length && html`<p class="empty">${empty}</p>`}
    </div>`;
  }
}
