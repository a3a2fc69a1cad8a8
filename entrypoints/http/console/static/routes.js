/** Addresses of views: `#/responses?status=failed`, `#/responses/resp_…?tab=events`. */

/**
 * Read the fragment of the address.
 * @returns {{name: string, params: Object<string, string>}} `params` are those of the query, and `id`
 */
export function read(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [name, id] = path.split("/").map(decode);
  const params = Object.fromEntries(new URLSearchParams(query));
  if (id) params.id = id;
  return { name, params };
}

/** Return the address of a view; `params.id` goes into the path, empty values are left out. */
export function link(name, params = {}) {
  const { id, ...others } = params;
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(others)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
  const search = query.toString();
  return `#/${name}${id ? `/${encodeURIComponent(id)}` : ""}${search ? `?${search}` : ""}`;
}

/** Show a view. */
export function go(name, params = {}) {
  location.hash = link(name, params);
}

/** Put other parameters into the address without showing the view anew. */
export function note(name, params = {}) {
  history.replaceState(null, "", link(name, params));
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
