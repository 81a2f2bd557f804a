// What is opened: each part of the model down to one number, with the sum that makes it. A view returns its elements.

const tokenAt = (side, t) => `${quoted(side.tokens[t])} (${t + 1})`;
const named = (side, v) => quoted(side.run.vocabulary[v]);
const switchable = (side, key) => (side.run.live ? /^[ahmt]/.test(key) : side.run.switches.some((one) => one.key === key));

/** The token whose logit is explained: the one that came, or the likeliest at the end of the text. */
function explained(side, state) {
  if (state.v !== null && state.v < side.run.vocabulary.length) return state.v;
  return side.ids[state.t + 1] ?? side.pass.says(side.run.parts.length, state.t, 1).top[0][0];
}

/** The button that switches a part off and on again. */
function switchButton(side, state, on, key) {
  if (!switchable(side, key)) return null;
  const off = state.off.has(key);
  return element("button", { type: "button", "data-key": "switch", "aria-pressed": String(off), onclick: () => on.flip(key) }, off ? "Switch it on again" : "What if it were off?");
}

// ---- the whole: how the answer forms, and what each part is worth ----

function wholeView(side, state, on) {
  const { run, pass, other } = side;
  const { t } = state;
  const stations = Array.from({ length: run.parts.length + 1 }, (_, s) => s);
  const v = explained(side, state);
  const says = (reading, s) => { const said = reading.says(s, t, 12); return said.p ? said.p(v) : v === side.ids[t + 1] ? said.came : said.top.find(([one]) => one === v)?.[1] || 0; };
  const line = (name, reading, kind) => { const points = stations.map((s) => says(reading, s)); return { name: `${name} ${percent(points[points.length - 1])}`, points, kind }; };
  const lines = [line(visible(run.vocabulary[v]), pass, "first")];
  const rival = pass.says(run.parts.length, t, 2).top.find(([one]) => one !== v)?.[0];
  if (other) lines.push(line("off", other, "off"));
  else if (rival !== undefined && run.norm) lines.push({ ...((kept) => ({ name: `${visible(run.vocabulary[rival])} ${percent(kept[kept.length - 1])}`, points: kept, kind: "second" }))(stations.map((s) => pass.says(s, t).p?.(rival) || 0)) });
  return [
    element("h2", {}, "How the answer forms"),
    element("p", { class: "soft" }, `At each + of the flow: the probability of ${named(side, v)} if the model ended there (the logit lens). Click any part of the flow to go down to its numbers.`),
    race(stations.map((s) => stationName(run, s)), lines),
    element("div", { class: "row" }, openLink("All heads, each with its lines", () => on.open({ name: "heads" }), { "data-key": "heads" }),
      openLink("Which tokens the answer depends on", () => on.open({ name: "token", s: t }), { "data-key": "tokens" })),
    ...whatIf(side, state, on, v),
  ];
}

/** A vote and a switch beside each other, for every part. */
function whatIf(side, state, on, v) {
  const { t } = state;
  const came = side.ids[t + 1];
  const votes = new Map((side.pass.votes(t, v) || []).map(({ key, vote }) => [key, vote]));
  const effects = came === undefined ? [] : side.effects(t);
  if (!effects.length) return [element("h2", {}, "What if a part were off?"), element("p", { class: "soft" }, came === undefined ? "The text ends here, so nothing came that a part could have changed." : "The page is still reading the text without each part.")];
  const now = effects.now;
  const whole = (key) => { // the votes of an attention are those of its heads
    if (votes.has(key)) return votes.get(key);
    const mine = [...votes].filter(([one]) => one.startsWith(`h${key.slice(1)}.`) || one === `c${key.slice(1)}`);
    return key[0] === "a" && mine.length ? mine.reduce((total, [, vote]) => total + vote, 0) : null;
  };
  const most = Math.max(...effects.map(({ key }) => Math.abs(whole(key) ?? 0)), 1e-9);
  const order = [...effects].sort((a, b) => Math.abs(b.p - now) - Math.abs(a.p - now));
  const shown = state.all ? order : order.slice(0, 10);
  return [
    element("h2", {}, `What if a part were off? The probability of ${quoted(side.tokens[t + 1])}, which came`),
    table(`Now ${percent(now)}. Vote: what the part itself writes for this token, in logits. Bar: the probability with that one part off; the mark: as it is. Loss: how much it rises on the whole text, in nats a ${side.run.unit}.`,
      ["part", "vote", "without it", "", "loss"],
      shown.map(({ key, p, rise }) => ({ marked: state.off.has(key), cells: [openLink(keyName(key), () => on.openKey(key), { "data-key": `row-${key}` }),
        whole(key) === null ? "" : [bar(whole(key), most), " ", element("span", { class: "figure" }, signed(whole(key), 2))],
        bar(p, 1, now), percent(p), rise === null ? "\u2026" : signed(rise)] }))),
    element("div", { class: "row" }, order.length > 10 ? element("button", { type: "button", "data-key": "all", onclick: () => on.set({ all: !state.all }) }, state.all ? "Only the ten strongest" : `All ${order.length} parts`) : null),
    element("p", { class: "soft" }, "Vote and switch differ, and both are right. A vote is direct: what a part writes, read by the last norm and the head, with everything else as it is. "
      + "A switch is total: later parts read another stream, so a head that only helps a later head has no vote and still decides; and where two parts do the same, one can take the other\u2019s place, so a large vote can be missed without harm."),
  ];
}

/** All heads, one picture each, sorted by what they are worth on this text. */
function headsView(side, state, on) {
  const { run, tokens } = side;
  const rises = new Map((side.effects(state.t).length ? side.effects(state.t) : []).map(({ key, rise }) => [key, rise]));
  const heads = side.heads().sort((a, b) => (rises.get(b.key) ?? 0) - (rises.get(a.key) ?? 0));
  return [
    element("h2", {}, "All heads"),
    element("p", { class: "soft" }, `One picture a head, sorted by how much the loss rises without it. The text runs from left to right; a pale line goes from a token to the one it looks at most, the strong lines start at ${tokenAt(side, state.t)}. `
      + `A name stands where a test of this text gives at least ${percent(NAMED)} of the weight: previous token, own token, first token, same token (an earlier one like it), induction (what came behind an earlier one like it); elsewhere the nearest test stands in brackets.`),
    element("div", { class: "head-grid" }, ...heads.map(({ p, h, key, faint, test, looks }) => {
      const row = looks(state.t);
      const strong = strongestOf(row, 0.1, 4);
      return element("button", { type: "button", class: "head-card", "data-key": key, onclick: () => on.open({ name: "head", p, h }) },
        element("span", { class: "row apart" }, element("b", {}, titled(keyName(key))), element("span", { class: "soft" }, rises.get(key) === undefined || rises.get(key) === null ? "" : signed(rises.get(key)))),
        svg("svg", { viewBox: `0 0 ${10 * tokens.length} 60`, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { d: faint, class: "faint" }),
          svg("path", { d: arcPath(strong.map((s) => [state.t, s]), 58), class: "arc" })),
        element("span", {}, strong.length ? `${run.layers[run.parts[p].layer].sums ? percent(Math.abs(row[strong[0]])) : number(row[strong[0]], 2)} on ${quoted(tokens[strong[0]])}` : "no token stands out"),
        element("span", { class: "soft" }, test.name ? `${test.name} ${percent(test.score)}` : `(${test.best} ${percent(test.score)})`));
    })),
  ];
}

// ---- the stream ----

function embeddingView(side, state, on, colours) {
  const { run, pass } = side;
  const [t, D] = [state.t, run.D];
  const { token, position, x } = pass.embedding;
  const i = state.feature % D;
  const rows = [[`token ${quoted(side.tokens[t])}`, rowOf(token, t, D)], ...(position ? [[`position ${t + 1}`, rowOf(position, t, D)]] : []), [run.embedding.norm ? "normed" : "the sum", rowOf(x, t, D)]];
  const start = rowOf(token, t, D)[i] + (position ? rowOf(position, t, D)[i] : 0);
  const added = position ? `${number(rowOf(token, t, D)[i])} + ${number(rowOf(position, t, D)[i])} = ${number(start)}` : number(start);
  return [element("h2", {}, "The embedding"),
    element("p", {}, `${quoted(side.tokens[t])} is one of ${run.all ? run.vocabulary.length : "the"} tokens of the vocabulary, and each has a row of ${D} numbers in a table. ${position ? "A vector for its position is added." : "Its position is not added here: attention is told how far apart two tokens are."}${run.embedding.norm ? " Then it is normed." : ""}`),
    vectorRows(rows, colours, i, (feature) => on.set({ feature })), numberPicker(i, D, (feature) => on.set({ feature })),
    sum(`number ${i + 1}: ${added}${run.embedding.norm ? `, normed ${number(rowOf(x, t, D)[i])}` : ""}`)];
}

function stationView(side, state, on, colours) {
  const { run, pass } = side;
  const [t, D, s] = [state.t, run.D, state.view.s];
  const i = state.feature % D;
  const [before, after, add] = [rowOf(pass.x[s - 1], t, D), rowOf(pass.x[s], t, D), rowOf(pass.parts[s - 1].add, t, D)];
  return [element("h2", {}, `The stream after ${keyName(run.parts[s - 1].key)}`),
    element("p", {}, `What ${keyName(run.parts[s - 1].key)} wrote is added, number by number; nothing is replaced. The vector was ${number(size(before), 1)} long, what is added is ${number(size(add), 1)} long, the sum ${number(size(after), 1)}.`),
    vectorRows([["before", before], ["added", add], ["after", after]], colours, i, (feature) => on.set({ feature })), numberPicker(i, D, (feature) => on.set({ feature })),
    sum(`number ${i + 1}: ${number(before[i])} ${add[i] < 0 ? "\u2212" : "+"} ${number(Math.abs(add[i]))} = ${number(after[i])}`),
    element("h3", {}, "What the model would say if it stopped here"),
    bars(side, (side.other || pass).says(s, t, 6).top, side.ids[t + 1])];
}

const bars = (side, top, came) => element("div", { class: "bars" }, ...top.flatMap(([v, p]) => [
  element("span", { class: v === came ? "name came" : "name" }, v === came ? `\u25b8 ${visible(side.run.vocabulary[v])}` : visible(side.run.vocabulary[v])), bar(p, 1), element("span", {}, percent(p))]));

function normView(side, state, on, colours) {
  const { run, pass, array } = side;
  const [t, D, p] = [state.t, run.D, state.view.p];
  const i = state.feature % D;
  const made = pass.parts[p];
  const name = p < 0 ? "norm" : `${made.part.layer}.${made.part[state.view.which]}`;
  const before = rowOf(p < 0 ? pass.x[pass.x.length - 1] : state.view.which === "post" ? made.raw : made.reads, t, D);
  const known = p >= 0 && state.view.which === "post" && !run.live ? rowOf(made.add, t, D) : null;
  if (known) return [element("h2", {}, "A norm behind a part"), element("p", {}, "What the part adds has passed this norm; the page holds it as it was added."), vectorRows([["added", known]], colours, i, (feature) => on.set({ feature }))];
  const [weight, bias] = [array(`${name}.weight`), array(`${name}.bias`)];
  const after = normed(run.norm, before, D, weight, bias);
  const { mean, deviation } = spread(run.norm, before);
  const centred = run.norm.kind === "layernorm";
  return [element("h2", {}, p < 0 ? "The final norm" : `The norm ${state.view.which === "post" ? "behind" : "before"} ${keyName(made.part.key)}`),
    element("p", {}, `${run.norm.kind}: the vector is ${centred ? "centred and " : ""}divided by its ${centred ? "standard deviation" : "root mean square"}, ${number(deviation, 2)}, so that what reads it always finds the same scale${weight ? ", then multiplied by a learned scale for each number" : ""}. Length ${number(size(before), 1)} becomes ${number(size(after), 1)}.`),
    vectorRow("before", before, colours, undefined, i).length ? element("div", { class: "vectors" }, ...vectorRow("before", before, colours, undefined, i), ...vectorRow("after", after, colours, undefined, i)) : null,
    numberPicker(i, D, (feature) => on.set({ feature })),
    sum(`number ${i + 1}: ${centred ? `(${number(before[i])} \u2212 ${number(mean)})` : number(before[i])} \u00f7 ${number(deviation)}${weight ? ` \u00d7 ${number(weight[i])}` : ""}${bias ? ` + ${number(bias[i])}` : ""} = ${number(after[i])}`)];
}

// ---- attention ----

function attentionView(side, state, on, colours) {
  const { run, pass } = side;
  const made = pass.parts[state.view.p];
  const layer = run.layers[made.part.layer];
  const [t, D] = [state.t, run.D];
  const i = state.feature % D;
  const writes = Array.from({ length: layer.heads }, (_, h) => pass.writes(state.view.p, h, t));
  const add = rowOf(made.add, t, D);
  const split = writes.every(Boolean);
  const rest = split ? add.map((x, j) => x - writes.reduce((total, one) => total + one[j], 0)) : null;
  const constant = split && Math.max(...rest.map(Math.abs)) > 1e-4 ? [["constant", rest]] : [];
  return [element("h2", {}, titled(keyName(made.part.key))), element("div", { class: "row" }, switchButton(side, state, on, made.part.key)),
    element("p", {}, `${layer.kind}: ${layer.summary}`),
    split ? element("p", { class: "soft" }, "What each head writes into the stream, and their sum, which is what this attention adds:")
      : element("p", { class: "note" }, "What this attention adds does not split into one part a head here, so it is shown as a whole."),
    vectorRows([...(split ? writes.map((one, h) => [`head ${h + 1}`, one]) : []), ...constant, ["adds", add]], colours, i, (feature) => on.set({ feature })),
    numberPicker(i, D, (feature) => on.set({ feature })),
    split ? sum(`number ${i + 1}: ${[...writes, ...constant.map(([, x]) => x)].map((one, h) => `${h ? (one[i] < 0 ? " \u2212 " : " + ") : one[i] < 0 ? "\u2212" : ""}${number(Math.abs(one[i]))}`).join("")} = ${number(add[i])}`) : null,
    element("div", { class: "row" }, ...Array.from({ length: layer.heads }, (_, h) => element("button", { type: "button", "data-key": `head${h}`, onclick: () => on.open({ name: "head", p: state.view.p, h }) }, `head ${h + 1}`)))];
}

function headView(side, state, on, colours) {
  const { run, pass, numbers, words, data } = side;
  const { p, h } = state.view;
  const made = pass.parts[p];
  const [layer, i, t, D] = [run.layers[made.part.layer], made.part.layer, state.t, run.D];
  const key = `h${i + 1}.${h + 1}`;
  const number_ = numbers.heads.findIndex((one) => one.layer === i && one.head === h);
  const row = numbers.weights(number_, t);
  const s = state.key !== null && state.key <= t ? state.key : strongest(row);
  const { test } = side.heads().find((one) => one.key === key);
  const steps = element("div", { id: "steps" });
  showSteps(steps, { ...data, missing: "" }, numbers, words, { h: number_, t, s, factor: state.factor, all: state.all }, {
    open: (j) => on.set({ key: j }), point: (j) => on.point(j), leave: () => on.point(null), factor: (factor) => on.set({ factor }), all: () => on.set({ all: !state.all }),
  });
  const gates = layer.gates.map((name) => [gateWords(name)[0], numbers.gate(number_, name)]);
  const mixed = layer.split === "" && !run.live ? null : made.mixed.subarray((h * pass.T + t) * layer.e, (h * pass.T + t + 1) * layer.e);
  const written = pass.writes(p, h, t);
  const v = explained(side, state);
  const note = words.headNote(number_);
  return [
    element("h2", {}, `${titled(keyName(key))}${note ? ` (${note})` : ""}`),
    element("p", {}, words.looks(number_, t, row), " ", test.name ? element("b", {}, `A ${test.name} head: ${percent(test.score)} of its weight on this text.`) : `No test names it on this text; the nearest is ${test.best}, with ${percent(test.score)} of its weight.`),
    element("div", { class: "row" }, switchButton(side, state, on, key), openLink("all heads", () => on.open({ name: "heads" }), { "data-key": "heads" })),
    arcs(side.tokens, t, row),
    element("h3", {}, "1. Query and key make a score, the scores make weights"),
    steps,
    ownNumbers(layer, h) ? sum(`This head has learned: ${ownNumbers(layer, h)}.`) : null,
    ...(gates.length ? [element("h3", {}, "Gates: what each token says by itself"), element("div", { class: "vectors" }, ...gates.flatMap(([name, line]) => vectorRow(name, line.slice(0, t + 1), colours))),
      sum(gates.map(([name, line]) => `${name} ${number(line[t])}`).join("; "))] : []),
    ...latentOf(side, state, on, colours, h, s),
    ...stateOf(side, state, on, colours, h),
    element("h3", {}, "2. The weights mix the values, 3. the mixture is written into the stream"),
    ...mixtureOf(side, state, on, colours, made, row, mixed, h, t, s, layer),
    ...(written ? [...writesOf(side, state, on, colours, made, written, h, t, layer), ...pushes(side, state, written, v)]
      : [element("p", { class: "note" }, "What this kind writes does not split by heads: see the attention as a whole.")]),
  ];
}

/** The mixture as a sum over the tokens: one number of it, written out. */
function mixtureOf(side, state, on, colours, made, row, mixed, h, t, s, layer) {
  if (!mixed) return [];
  const group = Math.floor((h * layer.groups) / layer.heads);
  const value = (j) => made.value.subarray((group * side.pass.T + j) * layer.e, (group * side.pass.T + j + 1) * layer.e);
  const i = state.feature % layer.e;
  /** @type {[number, number][]} */
  const pairs = [...row].map((w, j) => [w, value(j)[i]]);
  const [handed, gate] = [made.handed, made.gate].map((all) => (all && all !== made.mixed ? all.subarray((h * side.pass.T + t) * layer.e, (h * side.pass.T + t + 1) * layer.e) : null));
  return [vectorRows([[`value of ${quoted(side.tokens[s])}`, value(s)], ["mixture", mixed], ...(gate ? [["gate", gate]] : []), ...(handed ? [["handed on", handed]] : [])], colours, i, (feature) => on.set({ feature })),
    numberPicker(i, layer.e, (feature) => on.set({ feature })),
    sum(`number ${i + 1} of the mixture: ${productsOf(pairs, mixed[i])}`),
    handed ? sum(handedOn(i, mixed, gate, handed)) : null].filter(Boolean);
}

/** How a number of the mixture is handed on: behind a gate, a norm, or both. */
function handedOn(i, mixed, gate, handed) {
  const opened = mixed.map((x, j) => x * (gate ? gate[j] : 1));
  const by = dot(handed, opened) / dot(opened, opened);
  const scaled = opened.every((x, j) => Math.abs(x * by - handed[j]) < 2e-3 * (Math.abs(handed[j]) + size(handed) / handed.length));
  const start = `number ${i + 1} is handed on${gate ? " behind a gate" : ""}: ${number(mixed[i])}${gate ? ` \u00d7 ${number(gate[i])}` : ""}`;
  if (!scaled) return `${start}, and through the kind\u2019s own norm: ${number(handed[i])}`;
  return `${start}${Math.abs(by - 1) > 1e-3 ? `, \u00f7 ${number(1 / by)}, the size of the whole` : ""} = ${number(handed[i])}`;
}

/** What a head writes into the stream: one number of it, as a sum over the numbers that are handed on. */
function writesOf(side, state, on, colours, made, written, h, t, layer) {
  const { heads: H, e } = layer;
  const i = state.feature % side.run.D;
  const rows = vectorRows([[`writes, ${number(size(written), 1)} long`, written]], colours, i, (feature) => on.set({ feature }));
  if (!made.matrix || made.part.post) return [rows];
  const handed = made.handed.subarray((h * side.pass.T + t) * e, (h * side.pass.T + t + 1) * e);
  /** @type {[number, number][]} */
  const pairs = [...handed].map((x, j) => [made.matrix[i * H * e + h * e + j], x]);
  return [rows, sum(`number ${i + 1} of what it writes, by the output matrix: ${productsOf(pairs, written[i])}`)];
}

/** Which tokens a vector in the stream votes for, read by the last norm and the head. */
function pushes(side, state, vector, v) {
  const { run, pass } = side;
  if (!run.norm || run.vocabulary.length > 2000) return [];
  const all = run.vocabulary.map((_, one) => dot(pass.reader(state.t, one), vector));
  const order = [...all.keys()].sort((a, b) => all[b] - all[a]);
  const say = (list) => list.map((one) => `${visible(run.vocabulary[one])} ${signed(all[one], 1)}`).join(", ");
  return [element("p", {}, "Direct votes: up ", element("b", { class: "mono" }, say(order.slice(0, 3))), "; down ", element("span", { class: "mono" }, say(order.slice(-2).reverse())), `; ${named(side, v)} `, element("b", {}, signed(all[v], 2)), ".")];
}

// ---- the MLP and the answer ----

function mlpView(side, state, on, colours) {
  const { run, pass } = side;
  const made = pass.parts[state.view.p];
  const [t, v] = [state.t, explained(side, state)];
  if (!made.hidden) return [element("h2", {}, titled(keyName(made.part.key))), element("p", { class: "note" }, "The hidden units of this MLP are not in this page.")];
  const width = made.hidden.shape[1];
  const hidden = rowOf(made.hidden, t, width);
  const votes = pass.unitVotes(state.view.p, t, v);
  const order = [...hidden.keys()].sort((a, b) => Math.abs((votes || hidden)[b]) - Math.abs((votes || hidden)[a])).slice(0, 8);
  const unit = state.unit !== null && state.unit < width ? state.unit : order[0];
  if (!order.includes(unit)) order.push(unit);
  const over = Float32Array.from({ length: pass.T }, (_, j) => made.hidden[j * width + unit]);
  const fires = [...over.keys()].sort((a, b) => Math.abs(over[b]) - Math.abs(over[a])).slice(0, 5);
  const rows = order.map((u) => ({ marked: u === unit, cells: [openLink(`unit ${u + 1}`, () => on.set({ unit: u }), { "data-key": `unit${u}` }), number(hidden[u], 2), ...(votes ? [[bar(votes[u], Math.abs(votes[order[0]]) || 1), " ", element("span", { class: "figure" }, signed(votes[u], 2))]] : [])] }));
  const total = votes ? votes.reduce((a, b) => a + b, 0) : 0;
  const shown = votes ? order.reduce((a, u) => a + votes[u], 0) : 0;
  const gate = made.gate ? sum(`unit ${unit + 1}: act(${number(made.gate[t * width + unit], 2)}) \u00d7 ${number(made.up[t * width + unit], 2)} = ${number(hidden[unit])}`) : null;
  return [element("h2", {}, titled(keyName(made.part.key))), element("div", { class: "row" }, switchButton(side, state, on, made.part.key)),
    element("p", {}, `It reads the vector of ${quoted(side.tokens[t])} and no other token. ${width} hidden units fire more or less, and each writes its own vector into the stream, as much as it fires.`),
    element("div", { class: "vectors" }, ...vectorRow("hidden units", hidden, colours, undefined, unit), ...vectorRow("adds", rowOf(made.add, t, run.D), colours)),
    table(votes ? `The units with the largest votes for ${named(side, v)}` : "The units that fire most", ["unit", "fires", ...(votes ? [`vote for ${named(side, v)}`] : [])], rows),
    votes ? sum(`${order.slice(0, 3).map((u) => signed(votes[u], 2)).join(" ")} \u2026 = ${signed(shown, 2)} from ${order.length} units, ${signed(total - shown, 2)} from the other ${width - order.length}: ${signed(total, 2)} in all`) : null,
    gate,
    element("h3", {}, `Unit ${unit + 1} along the text`),
    element("p", {}, "It fires most at ", ...fires.flatMap((j, n) => [n ? ", " : "", openLink(tokenAt(side, j), () => on.set({ t: j }), { "data-key": `fire${n}` }), ` ${number(over[j], 1)}`]), "."),
    element("div", { class: "vectors" }, ...vectorRow("token by token", over, colours, undefined, t))];
}

function logitsView(side, state, on) {
  const { run, pass } = side;
  const [t, v, last] = [state.t, explained(side, state), run.parts.length];
  const said = pass.says(last, t, 8);
  const pick = element("select", { "aria-label": "The token whose logit is explained", "data-key": "pick", onchange: (event) => on.set({ v: Number(event.target.value) }) },
    ...[...new Set([v, ...said.top.map(([one]) => one), ...(side.ids[t + 1] === undefined ? [] : [side.ids[t + 1]])])].map((one) => element("option", { value: one, selected: one === v }, `${visible(run.vocabulary[one])}`)));
  const votes = pass.votes(t, v);
  if (!votes) return [element("h2", {}, "Logits and probabilities"), bars(side, said.top, side.ids[t + 1]), element("p", { class: "note" }, "The last norm of this run is one of its own, so the page cannot read the votes of single parts.")];
  const total = votes.reduce((a, { vote }) => a + vote, 0);
  const order = [...votes].sort((a, b) => Math.abs(b.vote) - Math.abs(a.vote));
  const most = Math.abs(order[0].vote) || 1;
  const logit = said.logits[v];
  return [element("h2", {}, "Logits and probabilities"), bars(side, said.top, side.ids[t + 1]),
    element("p", {}, "Who voted for ", pick, "? The stream is a sum, so its logit is a sum too: of what the embedding, each head and each MLP wrote into it."),
    table(`The votes for ${named(side, v)} after ${tokenAt(side, t)}, in logits`, ["part", "vote", ""], order.map(({ key, vote }) => ({ cells: [
      /^[hamb]/.test(key) ? openLink(keyName(key), () => on.openKey(key), { "data-key": `row-${key}` }) : keyName(key), bar(vote, most), signed(vote, 3)] }))),
    sum(`${order.slice(0, 3).map(({ vote }) => signed(vote, 3)).join(" ")} \u2026 (${votes.length} votes) = ${number(total)}${run.cap ? `; capped: ${number(logit)}` : `, the logit of ${named(side, v)}`}`),
    sum(`p(${named(side, v)}) = e^${number(logit)} \u00f7 \u03a3 e^logit = e^(${number(logit)} \u2212 ${number(said.total)}) = ${number(said.p(v), 4)}`)];
}

/** What a token does here: the answer with it hidden, or with another in its place. */
function tokenView(side, state, on) {
  const { run, array } = side;
  const [s, t] = [state.view.s, state.t];
  const [hidden, replaced] = [array("hidden-token"), array("replaced-token")];
  const T = side.pass.T;
  const parts = [element("h2", {}, "Which tokens the answer depends on"), s === t ? null : element("p", {}, `Marked: ${tokenAt(side, s)}.`)];
  if (run.live) parts.push(element("div", { class: "row" }, switchButton(side, state, on, `t${s + 1}`)), element("p", { class: "soft" }, "Off: no later token sees it, in any layer. To replace it, type another text."));
  if (t + 1 >= T || s > t || !hidden) return [...parts, run.live ? null : element("p", {}, "It stands behind the chosen token, or nothing came after that: choose an earlier one.")];
  const now = Math.exp(-side.pass.surprise(t + 1));
  const order = Array.from({ length: t + 1 }, (_, j) => j).sort((a, b) => hidden[b * T + t] - hidden[a * T + t]).slice(0, 12);
  if (!order.includes(s)) order.push(s);
  return [...parts,
    element("p", {}, `The probability of ${quoted(side.tokens[t + 1])}, which came after ${tokenAt(side, t)}, is ${percent(now)}. Below: with one token hidden from all later ones, and with the likeliest other token in its place.`),
    table("The tokens that the answer depends on most", ["token", "hidden", "", "replaced by", ""], order.map((j) => ({ marked: j === s, cells: [openLink(tokenAt(side, j), () => on.open({ name: "token", s: j }), { "data-key": `token${j}` }),
      bar(Math.exp(-hidden[j * T + t]), 1, now), percent(Math.exp(-hidden[j * T + t])), j ? `${quoted(run.instead[j])}: ${percent(Math.exp(-replaced[j * T + t]))}` : "", j ? bar(Math.exp(-replaced[j * T + t]), 1, now) : ""] })))];
}

const VIEWS = { whole: wholeView, heads: headsView, embedding: embeddingView, station: stationView, norm: normView, attention: attentionView, head: headView, mlp: mlpView, logits: logitsView, token: tokenView };

/** Draws what is opened, with the path to it. */
function showPanel(box, side, state, on, colours) {
  const { view } = state;
  const part = side.run.parts[view.p ?? (view.s ?? 0) - 1];
  const path = [openLink("the whole model", () => on.open({ name: "whole" }), { "data-key": "root" })];
  if (part && view.name !== "token") path.push(" \u203a ", openLink(`block ${part.layer + 1}`, () => on.open({ name: part.kind === "mlp" ? "mlp" : part.kind === "block" ? "station" : "attention", p: view.p ?? view.s - 1, s: (view.p ?? view.s - 1) + 1 }), { "data-key": "block" }));
  if (view.name !== "whole") path.push(` \u203a ${{ head: `head ${(view.h ?? 0) + 1}`, station: "the sum", mlp: "MLP", heads: "all heads", token: "tokens" }[view.name] || view.name}`);
  const focused = focusedIn(box)?.dataset.key || null;
  const kept = [...box.querySelectorAll("details")].map((one) => one.open);
  box.replaceChildren(view.name === "whole" ? "" : element("nav", { class: "path", "aria-label": "Where this is" }, ...path), ...VIEWS[view.name](side, state, on, colours).filter(Boolean));
  box.querySelectorAll("details").forEach((one, i) => { one.open = kept[i] ?? one.open; });
  const line = box.querySelector(".arcs");
  if (line) line.scrollLeft = line.scrollWidth;
  if (focused) box.querySelector(`[data-key="${focused}"]`)?.focus();
}
