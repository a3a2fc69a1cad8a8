/** What the playground remembers while the tab is open: never a key, nor what may be secret. */

const NAME = "antiphon-playground";
const SECRET = /auth|header|secret|token|password|credential|api.?key/i;
const MAX_CHARS = 200_000;

/** Return whether no name in a value, at any depth, tells of a secret, and no URL in it has one. */
export function isPublic(value) {
  if (typeof value === "string") return !/^[a-z]+:\/\/[^/]*@|^[a-z]+:\/\/.*\?/i.test(value);
  if (typeof value !== "object" || value === null) return true;
  return Object.entries(value).every(([name, each]) => !SECRET.test(name) && isPublic(each));
}

/** Keep the values for a tenant, in place of those before. */
export function remember(tenant, values) {
  const text = JSON.stringify({ tenant, values });
  try {
    if (text.length <= MAX_CHARS) sessionStorage.setItem(NAME, text);
    else sessionStorage.removeItem(NAME);
  } catch {
    // Some browsers keep nothing: then the form lasts as long as the page.
  }
}

/** Return what was kept for a tenant, or null. */
export function recall(tenant) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(NAME));
    return kept?.tenant === tenant ? kept.values : null;
  } catch {
    return null;
  }
}

/** Forget it: somebody else may sign in. */
export function forget() {
  try {
    sessionStorage.removeItem(NAME);
  } catch {
    // Nothing was kept.
  }
}
