// What a head holds besides queries, keys and weights: a state and its writes, latents, gates, and numbers of its own.

/**
 * A sum of products, written out: the three largest, all others together, and the total.
 * @param {[number, number][]} pairs @param {number} total
 */
function productsOf(pairs, total) {
  const order = [...pairs.keys()].sort((a, b) => Math.abs(pairs[b][0] * pairs[b][1]) - Math.abs(pairs[a][0] * pairs[a][1])).slice(0, 3);
  const rest = order.reduce((left, i) => left - pairs[i][0] * pairs[i][1], total);
  const terms = order.map((i) => `${number(pairs[i][0])} \u00d7 ${number(pairs[i][1])}`).join(" + ");
  return `${terms}${Math.abs(rest) > 5e-4 ? ` + ${number(rest)} (all others)` : ""} = ${number(total)}`;
}

/**
 * The state of a head after token t, (d, e), made of what each token keeps of it and writes into it; null where the page
 * does not hold that. kept, rows (n, d) and columns (n, e) are those of token t.
 * @param {Arrays} array @param {number} i the layer @param {number} h the head of the state @param {number} t
 */
function stateAt(array, i, h, t) {
  const [keeps, allRows, allColumns] = ["kept", "rows", "columns"].map((name) => array(`${i}.state.${name}`));
  if (!keeps || !allRows || !allColumns) return null;
  const [, T, n, d] = allRows.shape;
  const e = allColumns.shape[3];
  let [before, after] = [new Float32Array(d * e), new Float32Array(d * e)];
  let [kept, rows, columns] = [keeps, allRows, allColumns].map((all) => all.subarray(0, 0));
  for (let s = 0; s <= t; s++) {
    kept = keeps.subarray((h * T + s) * d, (h * T + s + 1) * d);
    rows = allRows.subarray((h * T + s) * n * d, (h * T + s + 1) * n * d);
    columns = allColumns.subarray((h * T + s) * n * e, (h * T + s + 1) * n * e);
    [before, after] = [after, before];
    for (let a = 0; a < d; a++) {
      for (let b = 0; b < e; b++) {
        let sum = kept[a] * before[a * e + b];
        for (let j = 0; j < n; j++) sum += rows[j * d + a] * columns[j * e + b];
        after[a * e + b] = sum;
      }
    }
  }
  return { d, e, n, before, after, kept, rows, columns };
}

/**
 * A matrix as a picture, of which a number can be chosen by pointer.
 * @param {string} name @param {Float32Array} numbers @param {Colours} colours @param {number} most
 */
function matrix(name, numbers, d, e, colours, most, [row, column], on) {
  const canvas = element("canvas", { class: "matrix", role: "img", "aria-label": `${name}: ${d} rows, ${e} columns` });
  paint(canvas, numbers, colours, most, d);
  const mark = element("i", { css: { "--left": `${(100 * column) / e}%`, "--top": `${(100 * row) / d}%`, "--wide": `${100 / e}%`, "--high": `${100 / d}%` } });
  const box = element("div", { class: "matrix-box", onclick: (event) => {
    const frame = canvas.getBoundingClientRect();
    const at = (x, size, n) => Math.max(0, Math.min(n - 1, Math.floor((x / size) * n)));
    on(at(event.clientY - frame.top, frame.height, d), at(event.clientX - frame.left, frame.width, e));
  } }, canvas, mark);
  return element("figure", {}, element("figcaption", {}, name), box);
}

/** The state of a head: what is kept of it, what this token writes into it, and what its query reads there. */
function stateOf(side, state, on, colours, h) {
  const { run, pass, array } = side;
  const made = pass.parts[state.view.p];
  const [i, t] = [made.part.layer, state.t];
  const layer = run.layers[i];
  const [mine, sizes] = [layer.state?.heads?.[h] ?? null, array(`${i}.state`)];
  if (mine === null || !sizes) return [];
  const along = (name) => array(name).subarray(mine * pass.T, (mine + 1) * pass.T);
  const [whole, changes] = [along(`${i}.state`), along(`${i}.change`)];
  const found = stateAt(array, i, mine, t);
  const parts = [element("h3", {}, "The state: what this head keeps of all tokens so far"),
    element("div", { class: "vectors" }, ...vectorRow("its size", whole.slice(0, t + 1), colours), ...vectorRow("changed by", changes.slice(0, t + 1), colours)),
    element("p", {}, `The state is ${number(whole[t])} large, of which ${quoted(side.tokens[t])} changed ${number(changes[t])}. ${layer.state.note}`)];
  if (!found) return parts;
  const { d, e, n, before, after, kept, rows, columns } = found;
  const [row, column] = [state.row % d, state.feature % e];
  const faded = before.map((x, at) => kept[Math.floor(at / e)] * x);
  const written = after.map((x, at) => x - faded[at]);
  const most = loud(after);
  const choose = (a, b) => on.set({ row: a, feature: b });
  const draw = (name, numbers, scale) => matrix(name, numbers, d, e, colours, scale, [row, column], choose);
  const at = row * e + column;
  const writes = Array.from({ length: n }, (_, j) => `${number(rows[j * d + row])} \u00d7 ${number(columns[j * e + column])}`).join(" + ");
  const query = pass.parts[state.view.p].query;
  const divisor = array(`${i}.state.divisor`);
  /** @type {[number, number][]} */
  const pairs = query?.length && divisor ? Array.from({ length: d }, (_, a) => [query[(h * pass.T + t) * d + a], after[a * e + column]]) : [];
  const read = pairs.reduce((sum, [q, x]) => sum + q * x, 0);
  const by = divisor?.[mine * pass.T + t] ?? 1;
  return [...parts,
    element("p", { class: "soft" }, `It is a matrix of ${d} \u00d7 ${e} numbers, however long the text is. A token keeps a share of each row, and writes ${n > 1 ? `${n} products` : "a product"}: a row for each number of its key, a column for each number that it writes. Choose a number of it.`),
    element("div", { class: "matrices" }, draw("kept", faded, most), draw(`written by ${quoted(side.tokens[t])}`, written, loud(written)), draw("the state now", after, most)),
    element("div", { class: "row" }, numberPicker(row, d, (to) => choose(to, column), "row"), numberPicker(column, e, (to) => choose(row, to), "column")),
    sum(`row ${row + 1}, column ${column + 1}: ${number(kept[row])} (kept) \u00d7 ${number(before[at])} + ${writes} (key \u00d7 what is written) = ${number(after[at])}`),
    pairs.length && column < layer.e ? sum(`read by the query: number ${column + 1}: ${productsOf(pairs, read)}${Math.abs(by - 1) > 1e-4 ? `; \u00f7 ${number(by)} = ${number(read / by)}` : ""}`) : null];
}

/** Where the key and the value of token s come from: a latent that all heads share, or vectors that they mix. */
function latentOf(side, state, on, colours, h, s) {
  const { run, pass, array } = side;
  const made = pass.parts[state.view.p];
  const i = made.part.layer;
  const [layer, latent] = [run.layers[i], array(`${i}.latent`)];
  const found = ["key", "value"].flatMap((what) => {
    const [by, takes, vectors] = [array(`${i}.latent.${what}`), array(`${i}.takes.${what}`), array(`${i}.vectors.${what}`)];
    if (!(by && latent) && !(takes && vectors)) return [];
    const [d, terms] = by ? by.shape.slice(1) : [vectors.shape[2], vectors.shape[1]];
    const at = state.feature % d;
    const pairs = Array.from({ length: terms }, (_, j) => (by ? [by[(h * d + at) * terms + j], latent[s * terms + j]]
      : [takes[(h * pass.T + s) * terms + j], vectors[(s * terms + j) * d + at]]));
    return [[what, at, d, pairs, Array.from({ length: by ? 0 : terms }, (_, j) => [`vector ${j + 1}`, vectors.slice((s * terms + j) * d, (s * terms + j + 1) * d)])]];
  });
  if (!found.length) return [];
  const rows = latent ? [["latent", rowOf(latent, s, latent.shape[1])]] : [];
  return [element("h3", {}, `Where the key and the value of ${tokenAt(side, s)} come from`),
    element("p", { class: "soft" }, latent ? `All heads read their keys and values from one vector of ${latent.shape[1]} numbers a token, the latent, by matrices of their own. Only the latent is kept of a token.${layer.d > found[0][2] ? ` The last ${layer.d - found[0][2]} numbers of a key are rotated by the position, and the same in all heads.` : ""}`
      : "Only a few vectors are kept of a token; each head takes so much of each as the token says."),
    ...found.flatMap(([what, at, d, pairs, vectors]) => [
      vectorRows([...(what === "key" ? rows : []), ...vectors.map(([name, vector]) => [`${name} of the ${what}`, vector])].filter(Boolean), colours, null, () => {}),
      sum(`number ${at + 1} of ${d} of the ${what}: ${productsOf(pairs, pairs.reduce((total, [a, b]) => total + a * b, 0))}`)])];
}

/** What a layer has learned as a number for each head: "lambda 0.2", "sink \u22120.31". */
const ownNumbers = (layer, h) => Object.entries(layer.own).map(([name, all]) => `${name.replace(/_/g, " ")} ${number(all[h])}`).join(", ");
