// One forward pass, in plain JavaScript: from tokens to the residual stream at every station, and to the logits. What
// attention and MLPs read comes from the weights where the page holds them (`run.live`), and else from what Python packed:
// queries, keys and values, or weights. Everything after that is summed here, so a sum is the sum of what is shown.
// T tokens, D width of the stream, H heads, d width of a query, e width of a value, V tokens that the page knows.

/**
 * @typedef {{key: string, layer: number, kind: string, norm: string, post: string, start: boolean}} Part
 * @typedef {Float32Array & {shape?: number[]}} Numbers numbers in the order of their shape
 * @typedef {(name: string) => Numbers | null} Arrays
 * @typedef {{kind?: string, pieces?: string[], pattern?: string, why?: string}} Cutter how a text is cut into tokens
 * @typedef {{tokens: string[], ids: number[], vocabulary: string[], context: number, cutter: Cutter, [more: string]: any}} Run
 * @typedef {{name: string, p?: number, h?: number, s?: number, which?: string}} View what is opened
 * @typedef {{top: [number, number][], came: number | null}} Says the likeliest tokens, and the probability of what came
 */

/**
 * Arrays by name, as Float32Array, unpacked when they are first asked for; rows in int8 are multiplied by their scales.
 * @returns {Arrays}
 */
function arraysOf(get) {
  /** @type {Map<string, Numbers | null>} */
  const kept = new Map();
  return (name) => {
    if (kept.has(name)) return kept.get(name);
    const [found, scale] = [get(name), get(`${name}.scale`)];
    /** @type {Numbers | null} */
    let made = null;
    if (found) {
      made = new Float32Array(found.shape.reduce((a, b) => a * b, 1));
      const m = found.shape[found.shape.length - 1];
      if (scale) for (let row = 0, i = 0; i < made.length; row++) for (const by = scale.at(row), end = i + m; i < end; i++) made[i] = by * found.at(i);
      else for (let i = 0; i < made.length; i++) made[i] = found.at(i);
      made.shape = found.shape;
    }
    kept.set(name, made);
    return made;
  };
}

/** x (T, n) times the rows of a matrix (m, n), plus a constant (m): (T, m). */
function linear(x, matrix, constant) {
  const [m, n] = matrix.shape;
  const T = x.length / n;
  const made = new Float32Array(T * m);
  for (let t = 0; t < T; t++) {
    for (let i = 0; i < m; i++) {
      let [a, b, from, row] = [0, 0, t * n, i * n];
      const end = row + n - 1;
      for (; row < end; from += 2, row += 2) { a += x[from] * matrix[row]; b += x[from + 1] * matrix[row + 1]; }
      if (row === end) a += x[from] * matrix[row];
      made[t * m + i] = a + b + (constant ? constant[i] : 0);
    }
  }
  return made;
}

const dot = (a, b, at = 0) => { let sum = 0; for (let i = 0; i < b.length; i++) sum += a[at + i] * b[i]; return sum; };
const size = (vector) => Math.sqrt(dot(vector, vector));
const rowOf = (x, t, n) => x.subarray(t * n, (t + 1) * n);

/** What a norm takes from a vector and divides it by: {mean, deviation}. */
function spread(norm, vector) {
  const mean = norm.kind === "layernorm" ? vector.reduce((a, b) => a + b, 0) / vector.length : 0;
  let sum = 0;
  for (const x of vector) sum += (x - mean) ** 2;
  return { mean, deviation: Math.sqrt(sum / vector.length + norm.epsilon) };
}

/** A norm of each row of x (T, n); `weight` and `bias` may be null. */
function normed(norm, x, n, weight, bias) {
  const made = new Float32Array(x.length);
  for (let from = 0; from < x.length; from += n) {
    const { mean, deviation } = spread(norm, x.subarray(from, from + n));
    for (let i = 0; i < n; i++) made[from + i] = ((x[from + i] - mean) / deviation) * (weight ? weight[i] : 1) + (bias ? bias[i] : 0);
  }
  return made;
}

/** (T, H d) -> (H, T, d). */
function inHeads(x, T, H) {
  const d = x.length / T / H;
  const made = new Float32Array(x.length);
  for (let h = 0; h < H; h++) for (let t = 0; t < T; t++) made.set(x.subarray((t * H + h) * d, (t * H + h + 1) * d), (h * T + t) * d);
  return made;
}

/** erf with an error below 1.5e-7 (Abramowitz and Stegun, 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * Math.exp(-x * x);
  return x < 0 ? tail - 1 : 1 - tail;
}

const ACTIVATIONS = {
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu2: (x) => Math.max(x, 0) ** 2,
  swiglu: (x) => x / (1 + Math.exp(-x)),
};
[ACTIVATIONS.geglu, ACTIVATIONS.geglu_tanh] = [ACTIVATIONS.gelu, ACTIVATIONS.gelu_tanh];

// ---- the parts ----

/** The embeddings of ids with their positions: the row of the table, what the position adds, and their sum, (T, D) each. */
function embed(run, array, ids) {
  const [T, D, how] = [ids.length, run.D, run.embedding];
  if (!run.live) return { token: array("embedded.token"), position: array("embedded.position"), x: array("embedded") };
  const [table, places, shares] = [array("tokens"), array("position"), array("shares")];
  const [token, x] = [new Float32Array(T * D), new Float32Array(T * D)];
  for (let t = 0; t < T; t++) for (let i = 0; i < D; i++) token[t * D + i] = how.scale * table[ids[t] * D + i];
  for (let t = 0; t < T; t++) {
    for (let i = 0; i < D; i++) {
      let sum = token[t * D + i] + (how.position === "table" ? places[t * D + i] : 0);
      if (shares) for (let back = 1; back <= shares.shape[0] && back <= t; back++) sum += shares[(back - 1) * D + i] * token[(t - back) * D + i];
      x[t * D + i] = sum;
    }
  }
  const position = how.position ? x.map((sum, i) => sum - token[i]) : null;
  return { token, position, x: how.norm ? normed(run.norm, x, D, array("embedding_norm.weight"), array("embedding_norm.bias")) : x };
}

/** Queries (H, T, d), keys and values (G, T, d) of a layer, from the weights. */
function queriesKeysValues(layer, array, i, x, T) {
  const name = (what) => `${i}.attention.${what}`;
  const made = (what, heads) => {
    const matrix = array(name(what));
    let found = matrix ? linear(x, matrix, array(name(`${what}.bias`))) : x;
    const weight = array(name(`${what}_norm.weight`));
    if (weight) found = normed({ kind: "rmsnorm", epsilon: layer.epsilon }, found, weight.length, weight, null); // d, or all H d
    return inHeads(found, T, heads);
  };
  const value = made("value", layer.groups);
  if (!layer.d) return { query: new Float32Array(0), key: new Float32Array(0), value };
  const turn = (heads) => rotated(heads, T, layer.d, array(`${i}.cos`), array(`${i}.sin`));
  return { query: turn(made("query", layer.heads)), key: turn(made("key", layer.key_heads)), value };
}

/** Rotary positions: each pair of neighbours in x (H, T, d) turned by an angle whose cosine and sine are in (T, n). */
function rotated(x, T, d, cos, sin) {
  if (!cos) return x;
  const [made, n] = [x.slice(), cos.shape[1]];
  for (let from = 0, t = 0; from < x.length; from += d, t = (t + 1) % T) {
    for (let j = 0; j < n; j++) {
      const [even, odd, c, s] = [x[from + 2 * j], x[from + 2 * j + 1], cos[t * n + j], sin[t * n + j]];
      made[from + 2 * j] = even * c - odd * s;
      made[from + 2 * j + 1] = odd * c + even * s;
    }
  }
  return made;
}

/** Scores, with the slopes of ALiBi where there are some, and their softmax over what is seen: (H, T, T) each. */
function weigh(layer, query, key, slopes, T, isSeen) {
  const [H, d, scale] = [layer.heads, layer.d, layer.scale];
  const [scores, biased, weights] = [new Float32Array(H * T * T), slopes ? new Float32Array(H * T * T) : null, new Float32Array(H * T * T)];
  for (let h = 0; h < H; h++) {
    const group = Math.floor((h * layer.key_heads) / H);
    for (let t = 0; t < T; t++) {
      const row = (h * T + t) * T;
      let most = -Infinity;
      for (let s = 0; s <= t; s++) {
        if (!isSeen(h, t, s)) continue;
        let sum = 0;
        for (let j = 0, q = (h * T + t) * d, k = (group * T + s) * d; j < d; j++) sum += query[q + j] * key[k + j];
        scores[row + s] = scale * sum;
        if (slopes) biased[row + s] = scores[row + s] - slopes[h] * (t - s);
        most = Math.max(most, (biased || scores)[row + s]);
      }
      let total = 0;
      for (let s = 0; s <= t; s++) if (isSeen(h, t, s)) total += weights[row + s] = Math.exp((biased || scores)[row + s] - most);
      for (let s = 0; s <= t; s++) weights[row + s] /= total || 1;
    }
  }
  return { scores, biased, weights };
}

/** One attention: {query, key, value, scores, biased, weights, mixed, add, matrix}; x (T, D) is what it reads. */
function attend(run, array, part, x, T, off) {
  const [i, layer, D] = [part.layer, run.layers[part.layer], run.D];
  const packed = (what) => array(`${i}.${what}`);
  const [seen, H, e] = [packed("seen"), layer.heads, layer.e];
  const hidden = new Set([...off].filter((key) => key[0] === "t").map((key) => Number(key.slice(1)) - 1));
  const isSeen = (h, t, s) => (!hidden.has(s) || s === t)
    && (seen ? seen[((seen.shape[0] > 1 ? h : 0) * T + t) * T + s] > 0 : layer.itself || s < t || t === 0);
  const made = run.live ? queriesKeysValues(layer, array, i, x, T) : { query: packed("query"), key: packed("key"), value: packed("value") };
  const known = packed("weights");
  Object.assign(made, known ? { weights: known } : weigh(layer, made.query, made.key, packed("slopes"), T, isSeen));
  made.mixed = new Float32Array(H * T * e);
  for (let h = 0; h < H; h++) {
    if (off.has(`h${i + 1}.${h + 1}`)) continue;
    const group = Math.floor((h * layer.groups) / H);
    for (let t = 0; t < T; t++) {
      const [row, to] = [(h * T + t) * T, (h * T + t) * e];
      for (let s = 0; s < T; s++) {
        const w = made.weights[row + s];
        if (w) for (let j = 0, from = (group * T + s) * e; j < e; j++) made.mixed[to + j] += w * made.value[from + j];
      }
    }
  }
  made.isSeen = seen || hidden.size || !layer.itself ? isSeen : null;
  made.matrix = run.live ? array(`${i}.attention.project`) : packed("project");
  made.bias = run.live ? array(`${i}.attention.project.bias`) : packed("project.bias");
  [made.writes, made.rest, made.gate] = [packed("writes"), packed("rest"), packed("gate")];
  made.handed = packed("handed") || made.mixed; // what the projection reads of each head
  if (made.matrix) {
    const joined = new Float32Array(T * H * e);
    for (let h = 0; h < H; h++) for (let t = 0; t < T; t++) joined.set(made.handed.subarray((h * T + t) * e, (h * T + t + 1) * e), (t * H + h) * e);
    made.add = linear(joined, made.matrix, made.bias);
  } else if (made.writes) {
    made.add = made.rest.slice();
    for (let h = 0; h < H; h++) for (let j = 0; j < T * D; j++) made.add[j] += made.writes[h * T * D + j];
  } else made.add = run.live ? made.mixed.slice() : packed("add");
  return made;
}

/** One MLP: {hidden (T, width), add (T, D)}. */
function think(run, array, part, x) {
  const i = part.layer;
  if (!run.live) return { hidden: array(`${i}.hidden`), add: array(`${i}.mlp`) };
  const layer = (what, from) => linear(from, array(`${i}.mlp.${what}`), array(`${i}.mlp.${what}.bias`));
  const [up, act] = [layer("up", x), ACTIVATIONS[run.mlp]];
  const gate = array(`${i}.mlp.gate`) ? layer("gate", x) : null;
  /** @type {Numbers} */
  const hidden = gate ? up.map((value, j) => act(gate[j]) * value) : up.map(act);
  hidden.shape = [x.length / run.D, array(`${i}.mlp.up`).shape[0]];
  return { hidden, add: layer("project", hidden), up: gate ? up : null, gate };
}

// ---- the pass ----

/**
 * One reading of ids by a run, with the parts in `off` switched off (only a live page can do that).
 * x: the stream at each station; parts: what each part reads, does and adds.
 */
function forward(run, array, ids, off = new Set()) {
  const [T, D] = [ids.length, run.D];
  const embedding = embed(run, array, ids);
  const x = [embedding.x];
  const normName = (part, which) => `${part.layer}.${part[which]}`;
  let [block, blockStart] = [-1, null];
  const parts = run.parts.map((part) => {
    if (part.layer !== block) [block, blockStart] = [part.layer, x[x.length - 1]];
    const reads = part.start ? blockStart : x[x.length - 1];
    const through = (which, vectors) => (part[which] && run.norm
      ? normed(run.norm, vectors, D, array(`${normName(part, which)}.weight`), array(`${normName(part, which)}.bias`)) : vectors);
    const input = through("norm", reads);
    const done = part.kind === "attention" ? attend(run, array, part, input, T, off) : part.kind === "mlp" ? think(run, array, part, input)
      : { add: array(`${part.layer}.block`) };
    const raw = done.add;
    let add = off.has(part.key) ? new Float32Array(T * D) : raw;
    if (run.live && !off.has(part.key)) add = through("post", raw);
    x.push(x[x.length - 1].map((value, i) => value + add[i]));
    return { ...done, part, reads, input, raw, add };
  });
  return reading({ run, array, ids, off, T, D, embedding, x, parts });
}

/** A pass with what it says: the logit lens at each station, and votes. */
function reading(pass) {
  const { run, array, ids, T, D, x, parts } = pass;
  const head = array("head") || array("tokens");
  const [weight, bias, constant] = [array("norm.weight"), array("norm.bias"), array("head.bias")];
  const tops = run.live ? null : [array("base.top"), array("base.top_surprise"), array("base.came_surprise")];
  const last = x.length - 1;
  const capped = (logit) => (run.cap ? run.cap * Math.tanh(logit / run.cap) : logit);

  /** The logits of the tokens that the page knows, at station s and token t. */
  pass.logits = (s, t) => {
    const read = normed(run.norm, rowOf(x[s], t, D), D, weight, bias);
    return Float32Array.from(linear(read, head, constant), capped);
  };

  /** What the model would say after token t if it ended at station s. */
  const said = new Map();
  pass.says = (s, t, many = 3) => {
    const key = s * T + t;
    if (!said.has(key)) {
      const at = s * T + t;
      if (!run.norm) said.set(key, { top: [[tops[0][at], Math.exp(-tops[1][at])]], came: t + 1 < T ? Math.exp(-tops[2][at]) : null });
      else {
        const logits = pass.logits(s, t);
        const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
        const total = run.all ? Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0)) + most : logits[tops[0][at]] + tops[1][at];
        const order = [...logits.keys()].sort((a, b) => logits[b] - logits[a]);
        const p = (v) => Math.exp(logits[v] - total);
        said.set(key, { top: order.slice(0, 12).map((v) => [v, p(v)]), came: t + 1 < T ? p(ids[t + 1]) : null, p, logits, total });
      }
    }
    const found = said.get(key);
    return { ...found, top: found.top.slice(0, many) };
  };
  /** -ln of the probability of token i >= 1. */
  pass.surprise = (i) => -Math.log(Math.max(pass.says(last, i - 1).came, 1e-30));
  pass.loss = () => { let sum = 0; for (let i = 1; i < T; i++) sum += pass.surprise(i); return T > 1 ? sum / (T - 1) : 0; };

  /** What head h of the attention at parts[p] writes into the stream at token t, (D), or null where it does not split. */
  pass.writes = (p, h, t) => {
    const [made, { heads: H, e }] = [parts[p], run.layers[parts[p].part.layer]];
    if (pass.off.has(made.part.key) || pass.off.has(`h${made.part.layer + 1}.${h + 1}`)) return new Float32Array(D);
    let found = null;
    if (made.writes) return made.writes.subarray((h * T + t) * D, (h * T + t + 1) * D);
    if (made.matrix) {
      found = new Float32Array(D);
      const handed = made.handed.subarray((h * T + t) * e, (h * T + t + 1) * e);
      for (let i = 0; i < D; i++) found[i] = dot(made.matrix, handed, i * H * e + h * e);
    } else if (run.live) found = rowOf(made.mixed, t, D);
    return found && run.live && made.part.post ? held(`${made.part.layer}.${made.part.post}`, rowOf(made.raw, t, D))(found) : found;
  };

  /** A norm as a linear function of what is summed in a vector: its deviation is held fixed, and its bias left out. */
  const held = (name, total) => {
    const [{ deviation }, by] = [spread(run.norm, total), array(`${name}.weight`)];
    return (vector) => {
      const mean = run.norm.kind === "layernorm" ? vector.reduce((a, b) => a + b, 0) / D : 0;
      return vector.map((value, i) => ((value - mean) / deviation) * (by ? by[i] : 1));
    };
  };

  /** The last norm, its deviation held, and the row of the head for token v, as one vector: times what a part writes, its vote. */
  pass.reader = (t, v) => {
    const { deviation } = spread(run.norm, rowOf(x[last], t, D));
    const reader = new Float32Array(D);
    for (let i = 0; i < D; i++) reader[i] = (head[v * D + i] * (weight ? weight[i] : 1)) / deviation;
    const mean = run.norm.kind === "layernorm" ? reader.reduce((a, b) => a + b, 0) / D : 0;
    return reader.map((value) => value - mean);
  };

  /** The direct votes for token v after token t: [{key, vote}], which add up to its logit (before a cap). */
  pass.votes = (t, v) => {
    if (!run.norm) return null;
    const reader = pass.reader(t, v);
    const found = [{ key: "e", vote: dot(reader, rowOf(x[0], t, D)) }];
    parts.forEach((made, p) => {
      const whole = dot(reader, rowOf(made.add, t, D));
      const layer = run.layers[made.part.layer];
      const heads = made.part.kind !== "attention" ? [] : Array.from({ length: layer.heads }, (_, h) => pass.writes(p, h, t));
      if (!heads.length || heads.some((one) => !one)) { found.push({ key: made.part.key, vote: whole }); return; }
      const each = heads.map((one) => dot(reader, one));
      each.forEach((vote, h) => found.push({ key: `h${made.part.layer + 1}.${h + 1}`, vote }));
      const rest = whole - each.reduce((a, b) => a + b, 0);
      if (Math.abs(rest) > 1e-4) found.push({ key: `c${made.part.layer + 1}`, vote: rest });
    });
    const fixed = (bias ? dot(bias, head.subarray(v * D, (v + 1) * D)) : 0) + (constant ? constant[v] : 0);
    if (fixed) found.push({ key: "c", vote: fixed });
    return found;
  };

  /** What each hidden unit of the MLP at parts[p] votes for token v after t, (width), or null where that is not known. */
  pass.unitVotes = (p, t, v) => {
    const { hidden, part } = parts[p];
    if (!hidden || part.post || !run.norm) return null;
    const width = hidden.shape[1];
    const [table, matrix] = [array(`${part.layer}.units`), run.live ? array(`${part.layer}.mlp.project`) : null];
    if (!table && !matrix) return null;
    const reader = pass.reader(t, v);
    const { deviation } = spread(run.norm, rowOf(x[last], t, D));
    return Float32Array.from({ length: width }, (_, u) => {
      let by = 0;
      if (table) by = table[v * width + u] / deviation;
      else for (let i = 0; i < D; i++) by += reader[i] * matrix[i * width + u];
      return by * hidden[t * width + u];
    });
  };
  return pass;
}

/** What Python computed with one part off: a reading that knows what the model says, and no vectors. */
function packedSwitch(base, array, key, from) {
  const { T } = base;
  const name = `off.${key}`;
  const [top, paid, came] = [array(`${name}.top`), array(`${name}.top_surprise`), array(`${name}.came_surprise`)];
  const last = base.x.length - 1;
  const made = { ...base, x: null, off: new Set([key]), from };
  made.says = (s, t, many = 3) => {
    if (s < from) return base.says(s, t, many);
    const at = (s - from) * T + t;
    return { top: [[top[at], Math.exp(-paid[at])]], came: t + 1 < T ? Math.exp(-came[at]) : null };
  };
  made.surprise = (i) => came[(last - from) * T + i - 1];
  made.loss = () => { let sum = 0; for (let i = 1; i < T; i++) sum += made.surprise(i); return T > 1 ? sum / (T - 1) : 0; };
  return made;
}

/** The arrays of a pass under the names of the explorer's: what numbersOf asks of get(name). */
function asExplorers(pass, get) {
  const { run, T, parts } = pass;
  const flat = (array, shape) => (array ? { at: (i) => array[i], shape } : null);
  return (name) => {
    const [, i, what] = name.match(/^(\d+)\.(.+)$/) || [];
    const made = i === undefined ? null : parts.find(({ part }) => part.layer === Number(i) && part.kind === "attention");
    if (name === "surprise") return { at: (j) => pass.surprise(j + 1), shape: [T - 1] };
    if (name === "without") return { at: (j) => pass.surprise((j % Math.max(T - 1, 1)) + 1), shape: [] };
    if (!made) return get(name);
    const { heads: H, d, e, groups: G, key_heads: K } = run.layers[i];
    const lengths = (x, n, width) => flat(Float32Array.from({ length: n * T }, (_, j) => size(x.subarray(j * width, (j + 1) * width))), [n, T]);
    const scores = made.scores ? { "steps.scores": made.scores, "steps.with bias": made.biased } : {};
    if (what in scores) return flat(scores[what], [H, T, T]);
    if (what === "weights") return flat(made.weights, [H, T, T]);
    if (what === "query") return made.query?.length ? flat(made.query, made.query.shape || [H, T, d]) : null;
    if (what === "key") return made.key?.length ? flat(made.key, made.key.shape || [K, T, d]) : null;
    if (what === "lengths") return lengths(made.value, G, e);
    if (what === "mixed") return lengths(made.mixed, H, e);
    if (what === "seen" && made.isSeen) return { at: (j) => (j % T <= Math.floor(j / T) % T && made.isSeen(Math.floor(j / T / T), Math.floor(j / T) % T, j % T) ? 1 : 0), shape: [H, T, T] };
    return run.live ? null : get(name);
  };
}

/** How far the last logits of a pass in a live page are from the model's own with these weights. */
function difference({ array, ...pass }) {
  const check = array("check");
  const [rows, V] = check.shape;
  let most = 0;
  for (let r = 0; r < rows; r++) {
    const logits = pass.logits(pass.x.length - 1, pass.T - rows + r);
    for (let v = 0; v < V; v++) most = Math.max(most, Math.abs(logits[v] - check[r * V + v]));
  }
  return most;
}
