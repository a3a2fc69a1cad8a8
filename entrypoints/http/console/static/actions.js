/** What can be done with a response. */

/** Return the buttons for a response. @param {Object} response @returns {Node[]} */
export function buttons(response) {
  return [];
}
