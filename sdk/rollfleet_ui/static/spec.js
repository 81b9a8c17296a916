/** The spec of a job as applied, and the objects that the job became. */

import { Check } from "./controls.js";
import { Component, html } from "./html.js";

/** Props: `page`, the API's. */
export class Spec extends Component {
  state = { defaults: true };

  render({ page }, { defaults }) {
    const lines = linesWithPaths(page.spec);
    const isDefault = new Set(page.defaulted);
    const shown = defaults ? lines : chosenLines(lines, isDefault);
    return html`<div class="spec">
      <section aria-label="Spec">
        <div class="bar">
          <h2>Spec</h2>
          <${Check} text="Show defaults" checked=${defaults} set=${(defaults) => this.setState({ defaults })} />
        </div>
        <pre class="yaml" tabindex="0" role="region" aria-label="YAML">${shown.map(({ text, path, isField }) =>
          html`<span class=${isDefault.has(path) ? `default ${isField ? "named" : ""}` : ""}>${text}</span>`)}</pre>
      </section>
      <section aria-label="Objects">
        <div class="bar"><h2>Objects</h2><span class="dim">${page.objects.length}</span></div>
        <table class="objects">
          <thead><tr><th scope="col">Kind</th><th scope="col">Name</th><th scope="col">State</th></tr></thead>
          <tbody>${page.objects.map(({ kind, name, state }) => html`<tr key=${`${kind} ${name}`}>
            <td>${kind}</td><td>${name}</td><td>${state}</td></tr>`)}</tbody>
        </table>
        ${!page.objects.length && html`<p class="empty">No object is known.</p>`}
      </section>
    </div>`;
  }
}

const FIELD = /^( *)(?:"([^"]*)"|'([^']*)'|([^\s"'#-][^:]*)):(?: |$)/;

/** Return the lines of a YAML text, each with the path of its field, such as `weights.interval`; lines of a list have the list's. */
export function linesWithPaths(yaml) {
  const fields = []; // [indent, name] of the fields that a line is in
  return yaml.trimEnd().split("\n").map((text) => {
    const depth = text.search(/\S|$/);
    const [, , ...names] = FIELD.exec(text) ?? [];
    const name = names.find((each) => each != null);
    while (fields.length && !text.trimStart().startsWith("-") && fields.at(-1)[0] >= depth) fields.pop();
    if (name != null) fields.push([depth, name]);
    return { text, isField: name != null, path: fields.map(([, each]) => each).join(".") };
  });
}

/** Return the lines without those of defaults, and without fields of which nothing is left. */
function chosenLines(lines, isDefault) {
  const isChosen = ({ path, text, isField }) => !isDefault.has(path) && !(isField && text.endsWith(":"));
  const paths = lines.filter(isChosen).map(({ path }) => path);
  return lines.filter(({ path }) => !isDefault.has(path) && paths.some((each) => `${each}.`.startsWith(`${path}.`)));
}
