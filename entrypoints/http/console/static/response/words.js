/** What differs between two texts, word by word. */

const MAX_CELLS = 4_000_000;

/**
 * @param {string} left @param {string} right
 * @returns {{pieces: {side: "both"|"left"|"right", text: string}[], isExact: boolean}} `isExact` is
 *   false if the texts are too long: then all between the first and the last difference differs
 */
export function diffWords(left, right) {
  const [a, b] = [wordsOf(left), wordsOf(right)];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < Math.min(a.length, b.length) - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const [middleA, middleB] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const isExact = middleA.length * middleB.length <= MAX_CELLS;
  const middle = isExact ? longestCommon(middleA, middleB)
    : [...middleA.map((word) => ["left", word]), ...middleB.map((word) => ["right", word])];
  const both = (words) => words.map((word) => ["both", word]);
  return { pieces: joined([...both(a.slice(0, start)), ...middle, ...both(a.slice(a.length - end))]), isExact };
}

/** Words with the space after them, so that they join to the text. */
function wordsOf(text) {
  return text.match(/\s*\S+\s*?(?=\s|$)|\s+$/g) ?? [];
}

/** The longest common subsequence, by the table of its lengths. */
function longestCommon(a, b) {
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] = a[i] === b[j]
        ? lengths[(i + 1) * width + j + 1] + 1
        : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      found.push(["both", a[i]]);
      i += 1;
      j += 1;
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) {
      found.push(["left", a[i]]);
      i += 1;
    } else {
      found.push(["right", b[j]]);
      j += 1;
    }
  }
  return [...found, ...a.slice(i).map((word) => ["left", word]), ...b.slice(j).map((word) => ["right", word])];
}

function joined(words) {
  const pieces = [];
  for (const [side, text] of words) {
    if (pieces.at(-1)?.side === side) pieces.at(-1).text += text;
    else pieces.push({ side, text });
  }
  return pieces;
}
