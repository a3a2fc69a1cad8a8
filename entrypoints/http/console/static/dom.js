/**
 * The only maker of nodes. All text becomes text nodes, so nothing that a model or a client wrote
 * is ever markup; attributes and tags that could run something are not known here.
 */

const SVG = "http://www.w3.org/2000/svg";

const TAGS = new Set(
  ("a article aside b blockquote br button caption code dd details dialog div dl dt em fieldset figcaption figure footer " +
    "form h1 h2 h3 h4 header hr img input kbd label legend li main mark meter nav ol optgroup option output p " +
    "pre progress section select small span strong summary table tbody td textarea tfoot th thead time tr ul").split(" "),
);
const SVG_TAGS = new Set("svg g rect line text title circle path".split(" "));

const ATTRIBUTES = new Set(
  ("accept alt autocomplete autofocus checked class cols colspan datetime dir disabled download enctype for " +
    "height hidden href id inputmode lang list low high max maxlength min minlength multiple name open optimum " +
    "pattern placeholder readonly rel required role rows rowspan scope selected size spellcheck src start step " +
    "tabindex target title type value width wrap").split(" "),
);
const SVG_ATTRIBUTES = new Set(
  ("class cx cy d fill focusable height id r role rx ry text-anchor transform viewBox width x x1 x2 y y1 y2 " +
    "preserveAspectRatio").split(" "),
);
const PROPERTIES = new Set(["value", "checked", "selected", "indeterminate"]);

/**
 * Make an element.
 * @param {string} tag
 * @param {Object<string, any>|null} [attributes] `class`, `id`, `aria-*`, `data-*`; `onClick` and
 *   other listeners as functions; `href` only http(s), mailto or relative. null, undefined and false are
 *   left out; true is an empty attribute.
 * @param {...any} children nodes, strings, numbers, arrays of them; null and false are nothing
 * @returns {HTMLElement}
 */
export function el(tag, attributes, ...children) {
  if (!TAGS.has(tag)) throw new TypeError(`unknown tag: ${tag}`);
  return filled(document.createElement(tag), ATTRIBUTES, attributes, children);
}

/**
 * Make an element of a drawing: as `el`.
 * @returns {SVGElement}
 */
export function svg(tag, attributes, ...children) {
  if (!SVG_TAGS.has(tag)) throw new TypeError(`unknown tag: ${tag}`);
  return filled(document.createElementNS(SVG, tag), SVG_ATTRIBUTES, attributes, children);
}

/** Replace all children of a node. */
export function replace(parent, ...children) {
  parent.replaceChildren(...nodes(children));
  return parent;
}

/** Add children to a node. */
export function append(parent, ...children) {
  parent.append(...nodes(children));
  return parent;
}

/** Make a text node of any value; null and undefined are empty. */
export function text(value) {
  return document.createTextNode(value === null || value === undefined ? "" : String(value));
}

/** Let the browser save bytes as a file. */
export function save(blob, name) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = String(name).replaceAll(/[^\w.@ -]+/g, "_") || "file";
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
}

const LINKED = new Set(["http:", "https:", "mailto:"]);

/** Return the URL if it is http(s), mailto or relative, or null. */
export function safeHref(value) {
  try {
    const url = new URL(String(value), document.baseURI);
    return LINKED.has(url.protocol) ? String(value) : null;
  } catch {
    return null;
  }
}

/** Return the URL of an image if it is a blob or image data, or null: no other host is asked. */
export function safeSource(value) {
  return /^(blob:|data:image\/(png|jpeg|gif|webp|svg\+xml|bmp|avif)[;,])/i.test(String(value)) ? String(value) : null;
}

function filled(node, known, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) listen(node, name, value);
    else set(node, known, name, value);
  }
  node.append(...nodes(children));
  return node;
}

function listen(node, name, listener) {
  if (typeof listener !== "function") throw new TypeError(`${name} must be a function`);
  node.addEventListener(name.slice(2).toLowerCase(), listener);
}

function set(node, known, name, value) {
  if (!known.has(name) && !/^(aria|data)-[a-z0-9-]+$/.test(name)) throw new TypeError(`unknown attribute: ${name}`);
  if (name === "href") value = safeHref(value);
  if (name === "src") value = safeSource(value);
  if (value === null) return;
  if (PROPERTIES.has(name) && name in node && node.localName !== "option") node[name] = value;
  else node.setAttribute(name, value === true ? "" : String(value));
}

function nodes(children) {
  return children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (each instanceof Node ? each : text(each)));
}
