/** Templates of elements. Every value in a template becomes text or an attribute, never markup. */

import htm from "./vendor/htm.js";
import { Component, h, render } from "./vendor/preact.js";

export const html = htm.bind(h);
export { Component, render };
