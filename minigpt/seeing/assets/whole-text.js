// From a typed text to the ids that the run's tokenizer gives it: a character, a byte, or a piece of bytes each.

/** The bytes of UTF-8 of a text, a character (U+0000 to U+00FF) each. @param {string} text */
const utf8 = (text) => Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");

/**
 * The pieces of a word: the pair that was merged first in training is merged first, until no pair is left.
 * @param {string} word its bytes @param {Map<string, number>} ranks @returns {number[]}
 */
function merged(word, ranks) {
  const whole = ranks.get(word);
  if (whole !== undefined) return [whole];
  const parts = [...word];
  while (parts.length > 1) {
    let [best, at] = [Infinity, -1];
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = ranks.get(parts[i] + parts[i + 1]);
      if (rank !== undefined && rank < best) [best, at] = [rank, i];
    }
    if (at < 0) break;
    parts.splice(at, 2, parts[at] + parts[at + 1]);
  }
  return parts.map((part) => /** @type {number} */ (ranks.get(part)));
}

/**
 * The ids of a text, or a sentence why it has none.
 * @param {Cutter} cutter @param {string} text @returns {{ids: number[], problem: string}}
 */
function idsOf(cutter, text) {
  const half = text.match(/\p{Surrogate}/u);
  if (half) return { ids: [], problem: "Half a surrogate pair is no character." };
  if (cutter.kind === "byte") return { ids: Array.from(new TextEncoder().encode(text)), problem: "" };
  const pieces = cutter.pieces || [];
  if (cutter.kind === "char") {
    const known = new Map(pieces.map((piece, id) => [piece, id]));
    const unknown = [...text].find((one) => !known.has(one));
    if (unknown !== undefined) return { ids: [], problem: `This run does not know ${quoted(unknown)}.` };
    return { ids: [...text].map((one) => /** @type {number} */ (known.get(one))), problem: "" };
  }
  const ranks = new Map(pieces.map((piece, i) => [piece, 256 + i]));
  for (let byte = 0; byte < 256; byte++) ranks.set(String.fromCharCode(byte), byte);
  const words = text.match(new RegExp(cutter.pattern || "", "gu")) || [];
  return { ids: words.flatMap((word) => merged(utf8(word), ranks)), problem: "" };
}

/**
 * The tokens of a typed text with what stands in front of the run's texts, or a sentence why the page cannot read it.
 * @param {Run} run @param {string} text @returns {{tokens?: string[], ids?: number[], problem: string}}
 */
function tokensOf(run, text) {
  const front = run.tokens[0] === "\n" && !text.startsWith("\n") ? run.ids.slice(0, 1) : [];
  const { ids, problem } = idsOf(run.cutter, text);
  if (problem || !ids.length) return { problem: problem || "Type at least one token." };
  const all = [...front, ...ids];
  const read = all.slice(0, run.context);
  return { ids: read, tokens: read.map((id) => run.vocabulary[id]), problem: all.length > run.context ? `Only the first ${run.context} tokens are read: the context.` : "" };
}
