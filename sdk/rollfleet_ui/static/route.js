/** Addresses inside the page: `#/path/of/parts?name=value`. The server never sees them, so the page works below any path. */

/** Return the parts of the present address and its options. */
export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), options: new URLSearchParams(query) };
}

/** Return the link to an address. Options that are empty are left out. */
export function link(parts, options = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options)) {
    for (const each of [value].flat()) if (each) query.append(name, each);
  }
  return `#/${parts.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

/** Return the link to a part of a job's page. */
export const jobLink = (key, ...parts) => link(["jobs", ...key.split("/"), ...parts]);

/** Change options of the present address, without a step back in the browser's history. */
export function setOptions(changes) {
  const { parts, options } = route();
  location.replace(link(parts, { ...Object.fromEntries(options), ...changes }));
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
