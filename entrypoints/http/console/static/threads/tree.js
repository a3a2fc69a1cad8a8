/** A thread as a tree: which response continues which. */

/**
 * @typedef {{response: Object, number: number, next: Node|null, branches: Node[], size: number}} Node
 *   `next` is the continuation that is read on; `branches` are the others. `number` counts from the
 *   beginning of the thread, `size` the responses from here on
 */

/**
 * Return the beginnings of the thread; there are several only if what they continue is gone.
 * @param {Object[]} responses the oldest first
 * @param {string} id of the response whose way is read on at a fork; elsewhere, the newest is
 * @param {(response: Object, index: number) => string|null} beforeOf the response that one continues
 * @returns {Node[]}
 */
export function treeOf(responses, id, beforeOf) {
  const nodes = new Map(responses.map((response, index) => [response.id, { response, number: 1, next: null, branches: [], size: 1, newest: index, isOnWay: response.id === id }]));
  const before = (node, index) => nodes.get(beforeOf(node.response, index));
  const all = [...nodes.values()];
  // What continues a response is behind it: so the last ones are complete first.
  for (const [index, node] of [...all.entries()].reverse()) {
    const parent = before(node, index);
    if (parent === undefined) continue;
    parent.branches.unshift(node);
    parent.size += node.size;
    parent.newest = Math.max(parent.newest, node.newest);
    parent.isOnWay ||= node.isOnWay;
  }
  for (const [index, node] of all.entries()) {
    node.number = (before(node, index)?.number ?? 0) + 1;
    node.next = node.branches.find((each) => each.isOnWay) ?? node.branches.toSorted((one, other) => other.newest - one.newest)[0] ?? null;
    node.branches = node.branches.filter((each) => each !== node.next);
  }
  return all.filter((node, index) => before(node, index) === undefined);
}

/** Return the nodes from one on, without its branches. */
export function wayFrom(node) {
  const way = [];
  for (let at = node; at !== null; at = at.next) way.push(at);
  return way;
}
