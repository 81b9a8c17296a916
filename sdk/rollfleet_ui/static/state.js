/** The states of jobs and workers: one shape for each, always beside its word. */

import { html } from "./html.js";

const SHAPES = {
  trouble: "M8 1.8 15 14H1Z",
  failed: "M4 1.8 8 5.8l4-4L14.2 4l-4 4 4 4-2.2 2.2-4-4-4 4L1.8 12l4-4-4-4Z",
  pending: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11Zm0 2.2a3.3 3.3 0 1 1 0 6.6 3.3 3.3 0 0 1 0-6.6Z",
  running: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11Z",
  suspended: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z",
  complete: "M6.3 13.2 1.6 8.5l1.9-1.9 2.8 2.8 6.2-6.2 1.9 1.9Z",
  deleted: "M2 6.5h12v3H2z",
};
const ORDER = Object.keys(SHAPES);

/** A state's shape. The word stands beside it. */
export const Shape = ({ kind }) =>
  html`<svg class="shape ${kind}" viewBox="0 0 16 16" aria-hidden="true"><path d=${SHAPES[kind]} /></svg>`;

const JOBS = { Failed: "failed", Running: "running", Suspended: "suspended", Stopped: "suspended", Complete: "complete", Cut: "deleted" };

/** Return the kind of a job's state. */
export function kindOfJob({ diagnosis }) {
  const kind = JOBS[diagnosis.state] ?? "pending";
  return diagnosis.isProblem && kind !== "failed" ? "trouble" : kind;
}

const WORKERS = {
  failed: /^Failed/,
  trouble: /^Silent|Error|BackOff/,
  running: /^(Collecting|Connected|Running|Waiting)/,
  suspended: /^Paused/,
  complete: /^Complete/,
  deleted: /^(Ended|Left|Terminating)/,
};

/** Return the kind of a worker's state, or of its pod's. */
export const kindOfWorker = (row) => Object.keys(WORKERS).find((kind) => WORKERS[kind].test(row.state)) ?? "pending";

/** Return the name of a worker, an evaluation worker or the learner, as a title. */
export const titleOf = (row) => row.process[0].toUpperCase() + row.process.slice(1);

/** Return rows with trouble first, in an order that stays: by kind, then by `among`. */
export function troubleFirst(rows, kind, among) {
  const rank = new Map(rows.map((row) => [row, ORDER.indexOf(kind(row))]));
  return [...rows].sort((one, other) => rank.get(one) - rank.get(other) || among(one, other));
}
