/** A chart over time or frames. Its cursor follows the pointer and the arrow keys; the values under it are text above the chart. */

import { moment } from "./format.js";
import { Component, html } from "./html.js";

const scheme = matchMedia("(prefers-color-scheme: dark)");
const DAY_S = 86_400;
const SPANS_S = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200]; // between ticks
for (const days of [1, 2, 7, 14, 30]) SPANS_S.push(days * DAY_S);

/** Return a colour of the stylesheet, such as `accent`. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Return a colour with hatching: a second kind of area that differs by more than its colour. */
function hatched(name) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const context = tile.getContext("2d");
  context.fillStyle = colour("surface");
  context.fillRect(0, 0, 6, 6);
  context.strokeStyle = colour(name);
  context.lineWidth = 1.6;
  context.beginPath();
  for (const at of [-6, 0, 6]) {
    context.moveTo(at, 6);
    context.lineTo(at + 6, 0);
  }
  context.stroke();
  return context.createPattern(tile, "repeat");
}

/**
 * Props:
 * - `title`, and a `note` beside the values until there is a cursor;
 * - `x`, ascending; `xIs`: `time` (epoch seconds), `age` (seconds), `frames` or `version`; `xFormat` for the last three;
 * - `series`, each `{name, values, colour, dash, steps, area: "plain" | "hatched", part}`; `part`: what to read of a sum;
 * - `format` of values; `range` of y, `[0, null]` for an open end; `marks`, events, each `{x, text}`;
 * - `size`: `tall`, `low`, `strip` or `wall`; `bare`, without labels of x; `together`: charts of one name share a cursor.
 */
export class Chart extends Component {
  state = { at: null };

  componentDidMount() {
    this.resized = new ResizeObserver(() => this.plot?.setSize(this.box()));
    this.resized.observe(this.element);
    this.rebuild = () => this.build();
    scheme.addEventListener("change", this.rebuild);
    this.build();
  }

  componentDidUpdate(before) {
    const shape = ({ title, xIs, series }) => [title, xIs, ...series.map(({ name }) => name)].join("\n");
    if (!this.plot || shape(before) !== shape(this.props)) this.build();
    else if (before.x !== this.props.x || before.series !== this.props.series) this.plot.setData(this.data());
  }

  componentWillUnmount() {
    scheme.removeEventListener("change", this.rebuild);
    this.resized.disconnect();
    this.plot?.destroy();
  }

  box() {
    return { width: this.element.clientWidth, height: this.element.clientHeight };
  }

  data() {
    return [this.props.x, ...this.props.series.map((each) => each.values)];
  }

  build() {
    this.plot?.destroy();
    this.plot = null;
    if (!this.props.x.length) return;
    const { xIs, format, series, range = [null, null], size, bare, together } = this.props;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const axis = {
      stroke: colour("dim"),
      font: `${0.72 * rem}px system-ui, sans-serif`,
      grid: { stroke: colour("line"), width: 1 },
      ticks: { stroke: colour("line"), width: 1, size: 4 },
    };
    const line = (each) => ({
      label: each.name,
      stroke: each.area === "hatched" ? colour("dim") : colour(each.colour ?? "accent"),
      width: each.area ? 1.2 : 1.6,
      dash: each.dash,
      fill: each.area === "hatched" ? () => hatched("dim") : each.area && colour("soft"),
      paths: each.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: () => this.props.x.length < 2 },
      spanGaps: false,
    });
    const short = size === "strip";
    this.plot = new uPlot(
      {
        ...this.box(),
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, sync: together && { key: together }, points: { size: 6 } },
        scales: { x: { time: xIs === "time" }, y: { range: (_, low, high) => bounds(range, low, high) } },
        axes: [
          {
            ...axis,
            show: !bare,
            size: 1.45 * rem,
            space: 4.5 * rem,
            incrs: ["frames", "version"].includes(xIs) ? undefined : SPANS_S,
            values: xIs === "time" ? times : (_, ticks) => ticks.map(this.props.xFormat ?? format),
          },
          {
            ...axis,
            size: 3.4 * rem,
            space: (short ? 1 : 2) * rem,
            splits: short ? [0, 0.5, 1] : undefined,
            values: (_, ticks) => ticks.map(format),
          },
        ],
        padding: [6, 1.8 * rem, bare ? 6 : 0, 0],
        series: [{}, ...series.map(line)],
        hooks: { setCursor: [(plot) => this.point(plot.cursor.idx)], drawAxes: [(plot) => this.mark(plot)] },
      },
      this.data(),
      this.element,
    );
  }

  point(at) {
    if (at !== this.state.at) this.setState({ at });
  }

  /** Draw a line at each event. */
  mark({ ctx, bbox, valToPos }) {
    ctx.save();
    ctx.strokeStyle = colour("faint");
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    for (const each of this.props.marks ?? []) {
      const x = Math.round(valToPos(each.x, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
    }
    ctx.stroke();
    ctx.restore();
  }

  /** Return the text of the event at a point, if there is one nearby. */
  event(at) {
    const { x, marks = [] } = this.props;
    const near = (x.at(-1) - x[0]) / 100;
    const found = marks.filter((each) => Math.abs(each.x - x[at]) <= near);
    return found.length ? `${found.at(-1).text} · ` : "";
  }

  step(event) {
    const end = this.props.x.length - 1;
    const at = this.state.at ?? end;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: end }[event.key];
    if (to == null || !this.plot) return;
    event.preventDefault();
    const next = Math.min(Math.max(to, 0), end);
    this.plot.setCursor({ left: this.plot.valToPos(this.props.x[next], "x"), top: 1 });
    this.point(next);
  }

  render({ title, note, x, xIs, xFormat, format, series, size = "low", bare }, { at }) {
    const last = x.length - 1;
    const shown = at == null ? last : Math.min(at, last);
    const where = shown < 0 ? "" : xIs === "time" ? moment(x[shown]) : (xFormat ?? format)(x[shown]);
    const values = series.map((each) => [each, format((each.part ?? each.values)[shown])]);
    const reading = values.map(([each, value]) => `${each.name} ${value}`).join(", ");
    return html`<figure class="chart ${size}">
      <figcaption>
        <b class="title">${title}</b>
        ${values.map(([each, value]) => html`<span class="reading" key=${each.name}>
          ${each.name !== title && html`<${Sample} ...${each} /> <span class="dim">${each.name}</span>`} <b>${value}</b>
        </span>`)}
        <span class="dim where">${at == null ? note : this.event(shown) + where}</span>
      </figcaption>
      <div class="plot ${bare ? "bare" : ""}" role="slider" tabindex="0" aria-label="${title}: read values with the arrow keys"
        aria-valuemin="0" aria-valuemax=${Math.max(last, 0)} aria-valuenow=${Math.max(shown, 0)}
        aria-valuetext=${shown < 0 ? "no data yet" : `${this.event(shown)}${where}: ${reading}`}
        ref=${(element) => (this.element = element)} onKeyDown=${(event) => this.step(event)}>
      </div>
      ${last < 0 && html`<p class="empty">No data yet.</p>`}
    </figure>`;
  }
}

/** A sample of a series' line or area, for its legend. */
function Sample({ colour, dash, area }) {
  return html`<svg class="sample" viewBox="0 0 18 10" aria-hidden="true">
    ${area === "hatched"
      ? html`<path class="hatch" d="M0 10 8 0M5 10 13 0M10 10 18 0" />`
      : area
        ? html`<rect width="18" height="10" class="area" />`
        : html`<path class="line-${colour}" d="M0 5h18" stroke-dasharray=${dash?.join(" ")} />`}
  </svg>`;
}

/** Return the ends of the y axis: fixed ones, or the data's with some air. */
function bounds([fixedLow, fixedHigh], low, high) {
  if (low == null) return [fixedLow ?? 0, fixedHigh ?? 1];
  const air = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  return [fixedLow ?? low - air, fixedHigh ?? high + air];
}

/** Label ticks with the time of day, or with the day where ticks are days apart. */
function times(_, ticks, __, ___, apart) {
  const part = apart >= DAY_S ? [5, 10] : apart >= 60 ? [11, 16] : [11];
  return ticks.map((tick) => moment(tick).slice(...part));
}
