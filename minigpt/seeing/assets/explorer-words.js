// The sentences of the page. Tokens, layers and heads are counted from 1.

const TAKES = {
  free: "a free choice of the story", local: "the characters just before it", recall: "to recall a name or what someone is",
  copy: "to copy a word", latest: "to know the latest place", order: "to know the order of a list",
  quote: "to repeat a sentence", count: "to count one fewer", agreement: "to agree in gender or number",
  plan: "to know how the story was set up",
};
const STEPS = { scores: "score", "with bias": "with bias", products: "product", left: "is left", index: "index" };
const GATES = {
  kept: ["kept", "share of the past that this token keeps", "how much of the past each token keeps"],
  written: ["written", "how strongly this token is written", "how strongly each token is written"],
  replaced: ["replaced", "share of the old value that it replaces", "how much of an old value each token replaces"],
};
const stepName = (name) => STEPS[name] || name;
const partName = (name) => (GATES[name] ? GATES[name][0] : stepName(name));
const gateWords = (name) => GATES[name] || [name, "a gate of this kind", `${name}, a gate of this kind`];

function wordsOf(data, numbers) {
  const { T, heads, layerOf } = numbers;
  const token = (i) => `${quoted(data.tokens[i])} (${i + 1})`;
  const headName = (h) => `Layer ${heads[h].layer + 1}, head ${heads[h].head + 1}`;
  /** What a head is where its number does not say it: "window view of head 1", or "". */
  const headNote = (h) => layerOf(h).notes[heads[h].head];

  /** Where a row looks, true of its kind: shares of a whole, or amounts that are taken and subtracted. */
  function looks(h, t, row = numbers.weights(h, t)) {
    const order = [...row.keys()].sort((a, b) => Math.abs(row[b]) - Math.abs(row[a])).filter((s) => Math.abs(row[s]) > 0.005);
    const from = `${quoted(data.tokens[t])} (token ${t + 1})`;
    const count = numbers.seen(h, t).reduce((a, b) => a + b, 0);
    if (!order.length) return `${from} takes nothing from anywhere: all its weights are near zero.`;
    if (layerOf(h).sums && !layerOf(h).signed) {
      if (count === 1) return `${from} sees itself alone, so it gives itself all its weight.`;
      const least = numbers.seen(h, t).reduce((a, one, s) => (one ? Math.min(a, row[s]) : a), 1);
      if (row[order[0]] < 1.15 * least) return `${from} looks at all ${count} tokens so far nearly alike: ${percent(1 / count)} each.`;
      const then = order.length > 1 ? `, then at ${token(order[1])} with ${percent(row[order[1]])}` : "";
      return `${from} looks at ${token(order[0])} with ${percent(row[order[0]])} of its weight${then}.`;
    }
    const part = (s) => `${number(Math.abs(row[s]), 2)} of ${token(s)}`;
    const some = (verb, keys) => (keys.length ? [`${verb} ${keys.slice(0, 2).map(part).join(" and ")}`] : []);
    const both = [some("takes", order.filter((s) => row[s] > 0)), some("subtracts", order.filter((s) => row[s] < 0))];
    if (row[order[0]] < 0) both.reverse(); // the larger part first
    return `${from} ${both.flat().join(", and ")}. Its weights add up to ${number(row.reduce((a, b) => a + b, 0), 2)}.`;
  }

  /** What would have come without this head: a cause, not a correlation. */
  function cause(h, t) {
    if (t + 1 >= T) return "The text ends here: nothing came next that this head could have changed.";
    const [p, q] = [Math.exp(-numbers.surprise(t + 1)), Math.exp(-numbers.without(h, t + 1))];
    const token = quoted(data.tokens[t + 1]);
    if (percent(p) === percent(q)) return `With and without this head, ${token} comes as ${percent(p)}: here it hardly matters.`;
    const said = `Without this head, ${token} would have come as ${percent(q)} instead of ${percent(p)}.`;
    return said + (Math.abs(p - q) < HARDLY ? " Here it hardly matters." : q > p ? " Here the head is in the way." : "");
  }

  /** What came after token t, what the model gave it, and what the ideal reader of the stories gives it. */
  function next(t) {
    if (t + 1 >= T) return `The text ends with ${token(t)}. This is what the model expects after it:`;
    const [p, nats] = [Math.exp(-numbers.surprise(t + 1)), numbers.surprise(t + 1)];
    const said = `After ${token(t)} came ${quoted(data.tokens[t + 1])}. The model gave it ${percent(p)} and paid ${nats < 0.005 ? "0.00" : number(nats, 2)} nats`;
    const ideal = data.reader?.ideal[t + 1];
    if (ideal === undefined) return `${said}.`;
    if (ideal === 0) return `${said}; the ideal reader knows no story that goes on so.`;
    const takes = data.reader.takes[t + 1];
    return `${said}; the ideal reader gives it ${percent(ideal)} (it takes ${TAKES[takes] || takes}).`;
  }

  /** Why the page opened at this head and this token, whatever the rank of the head. */
  const opened = "The page opened here because one look shows what this head does; "
    + "below, the heads are ranked by the loss without them on the whole text.";

  return { token, headName, headNote, looks, cause, next, opened };
}

/** Ways to colour the text: {name: [label, legend, amount(i)]}, amounts from -1 to 1. */
function shadesOf(data, numbers, words) {
  const p = (i) => Math.exp(-numbers.surprise(i));
  const found = {
    attention: (h) => ["attention", layerLegend(numbers.layerOf(h)), null],
    surprise: () => ["surprise", "the stronger, the less the model expected this token", (i) => (i ? 1 - p(i) : 0)],
  };
  if (data.reader) {
    found.ideal = () => ["the ideal reader\u2019s surprise",
      "the stronger, the less the best possible reader could expect this character: only free choices surprise it",
      (i) => (i && data.reader.ideal[i] !== undefined ? 1 - data.reader.ideal[i] : 0)];
  }
  found.worth = (h) => ["what this head is worth",
    "blue: this head made the token likelier; orange and dashed: less likely",
    (i) => (i ? numbers.gain(h, i) : 0)];
  for (const name of new Set(data.layers.flatMap((layer) => layer.gates))) {
    found[`gate-${name}`] = (h) => {
      const gate = numbers.gate(h, name);
      const title = `gate: ${gateWords(name)[0]}`;
      if (!gate) return [title, "the layer of this head has no such gate", () => 0];
      const [least, most] = [Math.min(...gate), Math.max(...gate)];
      return [title, `${gateWords(name)[2]}: from ${number(least, 2)} (no colour) to ${number(most, 2)} (the strongest)`,
        (i) => (most - least > 1e-6 ? (gate[i] - least) / (most - least) : 0.5)];
    };
  }
  return found;
}

const layerLegend = (layer) => layer.signed
  ? "the stronger, the more is taken from there; orange and dashed: subtracted"
  : "the stronger, the more the marked token looks there";
