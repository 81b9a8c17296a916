/** Controls that several views share. */

import { html } from "./html.js";
import { route, setOptions } from "./route.js";

/** A choice of one of several: `options`, texts by value. */
export const Choice = ({ label, options, value, choose }) => html`<div class="choice" role="group" aria-label=${label}>
  ${Object.entries(options).map(([each, text]) => html`<button type="button" key=${each} aria-pressed=${each === value}
    onClick=${() => choose(each)}>${text}</button>`)}
</div>`;

/** A box to tick. */
export const Check = ({ text, checked, set }) => html`<label class="check">
  <input type="checkbox" checked=${checked} onChange=${(event) => set(event.target.checked)} /> ${text}</label>`;

/** A field for words that rows must contain. The words are in the address. */
export const Filter = ({ label }) => html`<input type="search" placeholder="Filter" aria-label=${label}
  value=${route().options.get("q") ?? ""} onInput=${(event) => setOptions({ q: event.target.value })} />`;

/** Return the words of `Filter`, in lower case. */
export const wordsOfFilter = () => (route().options.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);

/** A line that is filled up to a part of it, 0 to 1. */
export const Track = ({ part }) => html`<span class="track" aria-hidden="true">
  <span style=${{ width: `${100 * Math.min(part, 1)}%` }}></span></span>`;
