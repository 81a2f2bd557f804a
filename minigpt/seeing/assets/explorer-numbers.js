// The numbers of the page, read by head, row and name. T tokens, H heads of a layer.

/** Everything that is known, by head (numbered through all layers), row t and key s. */
function numbersOf(data, get) {
  const T = data.tokens.length;
  const heads = data.layers.flatMap((layer, i) => Array.from({ length: layer.heads }, (_, head) => ({ layer: i, head })));
  const layerOf = (h) => data.layers[heads[h].layer];
  const prefix = (h) => `${heads[h].layer}.`;
  /** Row t of an array (1 or H, T, n), as numbers. */
  const row = (h, name, t) => {
    const array = get(prefix(h) + name);
    if (!array) return null;
    const [groups, n] = [array.shape[0], array.shape[2]];
    const group = Math.floor((heads[h].head * groups) / layerOf(h).heads);
    const [found, start] = [new Float32Array(n), (group * T + t) * n];
    for (let i = 0; i < n; i++) found[i] = array.at(start + i);
    return found;
  };
  /** An array (1 or H, T), as numbers. */
  const line = (h, name) => {
    const array = get(prefix(h) + name);
    if (!array) return null;
    const group = Math.floor((heads[h].head * array.shape[0]) / layerOf(h).heads);
    return Float32Array.from({ length: T }, (_, i) => array.at(group * T + i));
  };
  const [surprise, without] = [get("surprise"), get("without")];
  const largest = heads.map(() => null);
  return {
    T, heads, layerOf,
    weights: (h, t) => row(h, "weights", t),
    seen: (h, t) => row(h, "seen", t) || new Float32Array(T).fill(1, 0, t + 1),
    step: (h, name, t) => row(h, `steps.${name}`, t),
    query: (h, t) => row(h, "query", t),
    key: (h, s) => row(h, "key", s),
    gate: (h, name) => line(h, `gates.${name}`),
    /** {step: factor} of the steps of which a step of this head is the sum, or null. */
    partsOf: (h, step) => {
      const parts = layerOf(h).made_of[step];
      return parts ? Object.fromEntries(Object.entries(parts).map(([name, factors]) => [name, factors[heads[h].head]])) : null;
    },
    headGates: (h) => line(h, "head_gates"),
    lengths: (h) => line(h, "lengths"),
    mixed: (h) => line(h, "mixed"),
    /** Of token i >= 1: what the model paid for it, in nats, and what it would have paid without a head. */
    surprise: (i) => surprise.at(i - 1),
    without: (h, i) => without.at(h * (T - 1) + i - 1),
    /** How much likelier a head made token i >= 1: a difference of probabilities. */
    gain: (h, i) => Math.exp(-surprise.at(i - 1)) - Math.exp(-without.at(h * (T - 1) + i - 1)),
    /** The largest weight of a head, whatever its sign; 1 where rows sum to one and none is below zero. */
    largest: (h) => {
      if (largest[h] === null) {
        const shares = layerOf(h).sums && !layerOf(h).signed;
        largest[h] = shares ? 1 : 1e-9;
        for (let t = 0; t < T && !shares; t++) largest[h] = row(h, "weights", t).reduce((a, w) => Math.max(a, Math.abs(w)), largest[h]);
      }
      return largest[h];
    },
  };
}

/** exp(factor * score) of what is seen, its sum, and the softmax: a row of scores, seen (1 or 0), a factor, a sink. */
function softmax(scores, seen, factor = 1, sink = -Infinity) {
  const top = scores.reduce((most, x, s) => (seen[s] ? Math.max(most, factor * x) : most), sink);
  const shift = top > 80 ? top : 0; // e^80 still has a finite sum
  const powers = Float64Array.from(scores, (x, s) => (seen[s] ? Math.exp(factor * x - shift) : 0));
  const taken = Math.exp(sink - shift); // by the sink
  const total = powers.reduce((a, b) => a + b, taken);
  return { powers, total, taken, shift, weights: powers.map((x) => (total ? x / total : 0)) };
}

/** A head hardly matters to a token whose probability it changes by less than this. */
const HARDLY = 0.01;

/** Where the largest number of a row is, whatever its sign. */
const strongest = (row) => row.reduce((best, x, i) => (Math.abs(x) > Math.abs(row[best]) ? i : best), 0);
