// The table from scores to weights to values: the numbers of one row of one head, and the sum written out.

/** The tokens around token s, which is marked: "lime.␣S⁠o Jac". */
function around(data, s) {
  const reach = data.tokens.some((token) => token.length > 1) ? 2 : 5;
  const plain = (from, to) => data.tokens.slice(Math.max(from, 0), to).map((token) => (token === " " ? " " : visible(token))).join("");
  return [plain(s - reach, s), element("b", {}, visible(data.tokens[s])), plain(s + 1, s + 1 + reach)];
}

/** What each column shows: [title, explanation, cell(s)], for row t of head h, at `factor` times the scores. */
function columnsOf(data, numbers, h, t, factor) {
  const layer = numbers.layerOf(h);
  const [seen, lengths] = [numbers.seen(h, t), numbers.lengths(h)];
  const steps = layer.steps.map((name) => [name, numbers.step(h, name, t)]).filter(([, row]) => row);
  const columns = [];
  for (const name of layer.gates) {
    const gate = numbers.gate(h, name);
    columns.push([gateWords(name)[0], "", (s) => number(gate[s])]);
  }
  const hasQuery = layer.query && steps.length;
  if (hasQuery && Math.abs(layer.scale - 1) > 1e-6)
    columns.push(["query \u00b7 key", "", (s) => number(steps[0][1][s] / layer.scale, 2)]);
  const factors = Object.assign({}, ...Object.keys(layer.made_of).map((step) => numbers.partsOf(h, step)));
  steps.forEach(([name, row], i) => {
    const scaled = i === 0 && hasQuery && Math.abs(layer.scale - 1) > 1e-6;
    const says = scaled ? `\u00d7 ${number(layer.scale)}` : name in factors ? `\u00d7 ${number(factors[name], Number.isInteger(factors[name]) ? 0 : 3)}` : name in layer.made_of ? "the sum" : "";
    columns.push([stepName(name), says, (s) => number(row[s], 2)]);
  });
  let [weights, found] = [numbers.weights(h, t), null];
  if ((layer.law === "softmax" || layer.law === "sink") && steps.length) {
    found = softmax(steps[steps.length - 1][1], seen, factor, layer.sink?.[numbers.heads[h].head]);
    if (factor !== 1) weights = Float32Array.from(found.weights);
    if (factor !== 1) columns.push([`\u00d7 ${number(factor, 2)}`, "", (s) => number(factor * steps[steps.length - 1][1][s], 2)]);
    columns.push([found.shift ? "e^(score \u2212 largest)" : "e^score", "", (s) => number(found.powers[s])]);
  }
  const most = numbers.largest(h);
  const says = { softmax: "\u00f7 sum", sink: "\u00f7 sum", share: "\u00f7 sum", sum: "the sum", product: "the product" }[layer.law] || "";
  columns.push(["weight", says, (s) => [bar(weights[s], most), element("span", { class: "figure" }, weighed(weights[s]))]]);
  columns.push(["|value|", "", (s) => number(lengths[s], 2)]);
  columns.push(["adds", "w \u00d7 |value|", (s) => weighed(weights[s] * lengths[s])]);
  return { columns, weights, seen, found, steps };
}

/** The class of a column: that of the weights stays in sight where a table is wider than the screen. */
const pinned = (title) => (title === "weight" ? "pinned" : null);

/** The whole part of the page. state: {h, t, s, factor, all}; on: {open(s), point(s), leave(), factor(x), all()}. */
function showSteps(box, data, numbers, words, state, on) {
  const { h, t, s, factor, all } = state;
  const { columns, weights, seen, found, steps } = columnsOf(data, numbers, h, t, factor);
  const layer = numbers.layerOf(h);
  const may = [...seen.keys()].filter((i) => seen[i]);
  const order = all ? may : [...may].sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a])).slice(0, 8);
  if (!order.includes(s) && seen[s]) order.push(s);
  const focused = focusedIn(byId("steps"))?.dataset.key || null;
  const rows = order.map((i) => {
    const cells = columns.map(([title, , cell]) => element("td", { class: pinned(title) }, ...[cell(i)].flat()));
    const look = element("button", { type: "button", class: "look", "data-key": `row${i}`, "aria-pressed": String(i === s),
      title: `open ${words.token(i)}`, onclick: () => on.open(i) }, ...around(data, i));
    return element("tr", { class: i === s ? "open" : "", onpointerenter: () => on.point(i), onpointerleave: () => on.leave() },
      element("td", {}, look), element("td", {}, String(i + 1)), ...cells);
  });
  const head = element("tr", {}, element("th", { scope: "col" }, "looked at"), element("th", { scope: "col" }, "at"),
    ...columns.map(([title, says]) => element("th", { scope: "col", class: pinned(title) }, ...glossed(title), ...(says ? [element("br"), element("small", {}, says)] : []))));
  const table = element("table", {}, element("caption", {}, `Row ${t + 1}: what ${quoted(data.tokens[t])} takes from each token`),
    element("thead", {}, head), element("tbody", {}, ...rows), element("tfoot", {}, ...lastRows(columns, order, may, weights, found, t, numbers, h, factor)));
  const wide = element("div", { class: "wide secret", tabindex: "0", role: "region", "aria-label": "From scores to weights to values" }, table);
  box.replaceChildren(...[
    data.missing ? element("p", { class: "soft" }, data.missing) : null,
    slider(data, numbers, state, steps, weights, on),
    wide,
    may.length > 8 ? element("p", { class: "secret screen" }, element("button", { type: "button", "data-key": "all", "aria-pressed": String(all), onclick: on.all },
      all ? "Only the strongest" : `All ${may.length}, in order`)) : null,
    element("p", { class: "formula secret" }, formula(data, numbers, state, weights, found, steps)),
    layer.gated ? element("p", { class: "formula secret" }, `The output of this head is multiplied by ${number(numbers.headGates(h)[t])}, its gate at ${words.token(t)}, before the heads are added up.`) : null,
    element("p", { class: "soft" }, howItGoes(layer)),
    ...features(data, numbers, state, words),
  ].filter(Boolean));
  if (focused) box.querySelector(`[data-key="${focused}"]`)?.focus();
}

/** The steps in words, as they are in this kind. */
function howItGoes(layer) {
  const product = layer.query ? `The token\u2019s query times the key of each token it may see${Math.abs(layer.scale - 1) > 1e-6 ? ", times the scale," : ""} is the ${stepName(layer.steps[0])}. ` : "";
  const law = !layer.steps.length ? "" : layer.law === "softmax" ? "e^score makes every score positive; divided by their sum it is the weight. "
    : layer.law === "sink" ? "e^score makes every score positive; divided by their sum and that of one score more, the sink, it is the weight. What the sink takes goes nowhere. "
    : layer.law === "share" ? "Divided by the sum of the row it is the weight. "
    : layer.law === "sum" ? "The weight is a sum: each map times its factor, which stands above it. "
    : layer.law === "product" ? `The weight is a product: ${layer.product.map(partName).join(" \u00d7 ")}. ` : "";
  const gates = layer.gates.length ? `Gates are numbers that each token computes for itself: ${layer.gates.map((name) => gateWords(name)[1]).join("; ")}. ` : "";
  const left = layer.steps.includes("left") ? "What is left of a product after all that was forgotten since is its weight (on average, where each feature fades at a rate of its own). " : "";
  return `${product}${law}${gates}${left}What the token takes from another is that one\u2019s value times the weight; the head hands on the sum.`;
}

/** What the rows above leave out, what the mask hides, and the sums. */
function lastRows(columns, order, may, weights, found, t, numbers, h, factor) {
  const place = (name) => columns.findIndex(([title]) => title.startsWith(name));
  const line = (title, cells) => element("tr", {}, element("td", { colspan: "2" }, title),
    ...columns.map(([title], i) => element("td", { class: pinned(title) }, cells[i] ?? "")));
  const rest = may.filter((i) => !order.includes(i));
  const [weight, power, adds] = [place("weight"), place("e^"), place("adds")];
  const lines = [];
  if (rest.length) lines.push(line(`${rest.length} others, together`, {
    [weight]: weighed(rest.reduce((sum, i) => sum + weights[i], 0)),
    ...(found ? { [power]: number(rest.reduce((sum, i) => sum + found.powers[i], 0)) } : {}),
  }));
  if (found?.taken) lines.push(line(`the sink: score ${number(numbers.layerOf(h).sink[numbers.heads[h].head], 2)}`, { [weight]: `${weighed(found.taken / found.total)}, taken away`, [power]: number(found.taken) }));
  const hidden = numbers.T - may.length;
  if (hidden) lines.push(line(`${hidden} that the mask hides${found ? ": score \u2212\u221e" : ""}`, { [weight]: "0", ...(found ? { [power]: "0" } : {}) }));
  lines.push(line("sum of the row", {
    [weight]: number(weights.reduce((a, b) => a + b, 0)), ...(found ? { [power]: number(found.total) } : {}),
    ...(factor === 1 ? { [adds]: `\u2192 ${number(numbers.mixed(h)[t])} long` } : {}),
  }));
  return lines;
}

/** "What if the scores were larger?": only where the weights are the softmax of scores that differ. */
function slider(data, numbers, { h, t, factor }, steps, weights, on) {
  const layer = numbers.layerOf(h);
  if (layer.law !== "softmax" || !steps.length) return null;
  const row = steps[steps.length - 1][1];
  const scores = [...row].filter((_, s) => numbers.seen(h, t)[s]);
  if (Math.max(...scores) - Math.min(...scores) < 1e-6 && scores.length > 1)
    return element("p", { class: "soft" }, "All scores are equal, so every token counts alike: larger scores would change nothing.");
  const entropy = weights.reduce((sum, w) => sum - (w > 0 ? w * Math.log(w) : 0), 0);
  const says = factor === 0 ? "all count alike: the running mean" : entropy < 0.05 ? "one takes all" : `it sees about ${number(Math.exp(entropy), 1)} tokens at once`;
  const input = element("input", { type: "range", id: "factor", "data-key": "factor", min: "0", max: "40", step: "1", value: String(toSlider(factor)),
    "aria-valuetext": `times ${number(factor, 2)}: ${says}`, oninput: (event) => on.factor(fromSlider(Number(event.target.value))) });
  return element("div", { class: "row larger" }, element("label", { for: "factor" }, "What if the scores were larger?"), input,
    element("span", {}, `\u00d7 ${number(factor, 2)}${factor === 1 ? ", as trained" : ""}: ${says}`),
    element("button", { type: "button", "data-key": "trained", disabled: factor === 1, onclick: () => on.factor(1) }, "as trained"));
}

/** The slider: 0, then from 1/4 to 16, with 1 at the middle. */
const fromSlider = (x) => (x === 0 ? 0 : x <= 20 ? 4 ** ((x - 20) / 19) : 16 ** ((x - 20) / 20));
const toSlider = (f) => (f === 0 ? 0 : Math.round(f <= 1 ? 20 + (19 * Math.log(f)) / Math.log(4) : 20 + (20 * Math.log(f)) / Math.log(16)));

/** How the weight of the opened key comes about, with its numbers. */
function formula(data, numbers, { h, t, s, factor }, weights, found, steps) {
  const layer = numbers.layerOf(h);
  const start = `weight of ${quoted(data.tokens[s])} (${s + 1}) = `;
  if (!numbers.seen(h, t)[s]) return `${start}0: the mask hides it, so its score is \u2212\u221e.`;
  if (found) {
    const score = number(steps[steps.length - 1][1][s], 2);
    const power = factor === 1 ? score : `${number(factor, 2)} \u00d7 ${score}`;
    const shift = found.shift ? ` \u2212 ${number(found.shift, 2)}` : "";
    return `${start}e^(${power}${shift}) \u00f7 sum = ${number(found.powers[s])} \u00f7 ${number(found.total)} = ${number(weights[s])}`;
  }
  if (layer.law === "share") {
    const row = steps[steps.length - 1][1];
    return `${start}${number(row[s])} \u00f7 ${number(row.reduce((a, b) => a + b, 0))} = ${number(weights[s])}: its share of the row\u2019s sum`;
  }
  if (layer.law === "sum") {
    const terms = Object.entries(numbers.partsOf(h, "weights")).map(([name, factor], i) => {
      const sign = factor < 0 ? " \u2212 " : i ? " + " : "";
      return `${sign}${Math.abs(factor) === 1 ? "" : `${number(Math.abs(factor))} \u00d7 `}${number(numbers.step(h, name, t)[s])}`;
    });
    return `${start}${terms.join("").trim()} = ${number(weights[s])}`;
  }
  if (layer.law === "product") {
    const value = (name) => (layer.steps.includes(name) ? numbers.step(h, name, t)[s] : numbers.gate(h, name)[s]);
    return `${start}${layer.product.map((name) => number(value(name))).join(" \u00d7 ")} = ${number(weights[s])}`;
  }
  const count = numbers.seen(h, t).reduce((a, b) => a + b, 0);
  if (!layer.query && !layer.steps.length && Math.abs(weights[s] - 1 / count) < 1e-3 && layer.sums)
    return `${start}1 \u00f7 ${count} = ${number(weights[s])}: there are no queries and no keys, all tokens so far count alike`;
  return `${start}${number(weights[s])}. How ${layer.kind} makes it: ${layer.summary}`;
}

/** Why that score: query, key and their product, feature by feature. */
function features(data, numbers, { h, t, s }, words) {
  const layer = numbers.layerOf(h);
  if (!layer.query) return [];
  const [query, key] = [numbers.query(h, t), numbers.key(h, s)];
  if (!query || !key) return [element("p", { class: "soft secret" }, "Queries and keys were left out of this page to keep it small.")];
  const product = query.map((q, i) => q * key[i]);
  const most = (row) => row.reduce((a, x) => Math.max(a, Math.abs(x)), 1e-9);
  const line = (name, row, top) => [element("span", {}, name), element("div", { "aria-hidden": "true" },
    ...[...row].map((x) => element("i", { class: x < 0 ? "negative" : "", css: { "--shade": `${(100 * Math.sqrt(Math.abs(x) / top)).toFixed(0)}%` } })))];
  const best = [...product.keys()].sort((a, b) => Math.abs(product[b]) - Math.abs(product[a]));
  const part = (i) => `feature ${i + 1}: ${number(query[i], 2)} \u00d7 ${number(key[i], 2)} = ${signed(product[i], 2)}`;
  const total = product.reduce((a, b) => a + b, 0);
  const scaled = Math.abs(layer.scale - 1) > 1e-6 ? `; \u00d7 scale ${number(layer.scale)} = ${number(layer.scale * total, 2)}` : "";
  const rows = [...product.keys()].map((i) => element("tr", {}, ...[String(i + 1), number(query[i], 2), number(key[i], 2), signed(product[i], 2)].map((x) => element("td", {}, x))));
  const top = Math.max(most(query), most(key));
  return [element("div", { class: "secret" },
    element("h3", {}, `Why that ${stepName(layer.steps[0])}: what ${words.token(t)} asks and ${words.token(s)} offers`),
    element("div", { class: "features" }, ...line("query", query, top), ...line("key", key, top), ...line("product", product, most(product))),
    element("p", { class: "soft" }, `Blue: above zero; orange, striped: below. The largest parts: ${best.slice(0, 3).map(part).join("; ")}. The sum of all ${product.length} is ${number(total, 2)}${scaled}.`),
    element("details", {}, element("summary", { "data-key": "features" }, `All ${product.length} features as numbers`),
      element("table", {}, element("thead", {}, element("tr", {}, ...["feature", "query", "key", "product"].map((x) => element("th", { scope: "col" }, x)))), element("tbody", {}, ...rows))))];
}
