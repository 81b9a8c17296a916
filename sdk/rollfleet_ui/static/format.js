/** Numbers and times as text. An unknown value is a dash. */

const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });
const precise = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });

/** A count or a rate: `12,345`, `1.23M`. */
export const count = (value) => (value == null ? UNKNOWN : (value < 10 ? tenths : value < 100_000 ? whole : short).format(value));

/** A measured number, with four digits: `183.2`. */
export const number = (value) => (value == null ? UNKNOWN : (Math.abs(value) < 10_000 ? precise : short).format(value));

/** A part of a whole: `63 %`. */
export const percent = (value) => (value == null ? UNKNOWN : `${Math.round(100 * value)} %`);

/** A time span, as kubectl shows it: `45s`, `12m`, `3h`, `9d`. */
export function span(seconds) {
  for (const [unit, letter] of [[86_400, "d"], [3_600, "h"], [60, "m"]]) {
    if (seconds >= 2 * unit) return `${Math.floor(seconds / unit)}${letter}`;
  }
  return `${Math.max(0, Math.round(seconds))}s`;
}

/** The time since a start, precisely: `2:30`, `1:02:30`. */
export function elapsed(seconds) {
  const [hours, minutes, rest] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** The time span from a time until now. */
export const since = (time) => (time == null ? UNKNOWN : span(Date.now() / 1000 - time));

const two = (value) => String(value).padStart(2, "0");

/** The time of day: `14:03:07`. */
export function clock(time) {
  const date = new Date(1000 * time);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** The day and the time of day: `2026-11-22 14:03:07`. */
export function moment(time) {
  const date = new Date(1000 * time);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(time)}`;
}
