// The flow: the residual stream as a rail from the top to the bottom, and beside it the parts that read it and add to it.

/** "attention 3", "head 3.1", "MLP 3", "token 5 hidden", by key. */
function keyName(key) {
  const rest = key.slice(1);
  return { a: `attention ${rest}`, m: `MLP ${rest}`, b: `block ${rest}`, h: `head ${rest}`, t: `token ${rest} hidden`,
    e: "embedding", c: rest ? `constant of attention ${rest}` : "constant" }[key[0]];
}
const titled = (text) => text[0].toUpperCase() + text.slice(1);

/** Where the stream is at station s: "start", "att 1", "MLP 1". */
const stationName = (run, s) => (s ? keyName(run.parts[s - 1].key).replace("attention", "att") : "start");

/** The tests by which heads are named: the share of a row's weight that lies where the test says. */
const HEAD_TESTS = {
  "previous token": (tokens, t, s) => s === t - 1,
  "induction": (tokens, t, s) => s > 0 && s < t && tokens[s - 1] === tokens[t],
  "same token": (tokens, t, s) => s < t && tokens[s] === tokens[t],
  "first token": (tokens, t, s) => s === 0 && t > 1,
  "own token": (tokens, t, s) => s === t,
};
const NAMED = 0.4; // the least score with which a test names a head

/** The best test of a head: {name, best, score}, the score averaged over the rows in which it can be passed. */
function headTest(tokens, rowAt) {
  const all = {};
  const T = tokens.length;
  for (const [name, passes] of Object.entries(HEAD_TESTS)) {
    let [total, rows] = [0, 0];
    for (let t = 1; t < T; t++) {
      const row = rowAt(t);
      let [share, whole, able] = [0, 0, false];
      for (let s = 0; s <= t; s++) {
        whole += Math.abs(row[s]);
        if (passes(tokens, t, s)) { able = true; share += Math.abs(row[s]); }
      }
      if (able && whole) { total += share / whole; rows += 1; }
    }
    all[name] = rows ? total / rows : 0;
  }
  const [name, score] = Object.entries(all).sort((a, b) => b[1] - a[1])[0];
  return { name: score >= NAMED ? name : "", best: name, score };
}

/** The flow of one side. on.open(view) opens a part. Returns {box, update(state), rows, redraw(colours)}. */
function flowOf(side, on) {
  const { run } = side;
  const last = run.parts.length;
  const button = (text, view, attributes = {}) => element("button", { type: "button", class: "stop", "data-view": JSON.stringify(view), onclick: () => on.open(view), ...attributes }, text);
  const rows = [];
  const station = (s) => {
    const [canvas, length] = [strip1("stream"), element("span", { class: "soft" })];
    const [lensBar, lensText] = [element("span", { class: "lens-bar" }), element("b", { class: "mono" })];
    const made = button(element("span", { class: "unseen" }, s ? "The stream here: " : "The embedding: "), { name: s ? "station" : "embedding", s });
    made.append(canvas, element("span", { class: "lens" }, lensBar, lensText));
    const row = element("li", { class: s ? "station sum" : "station" }, made, length);
    rows.push({ row, kind: "station", s, update: (pass, other, colours, t) => {
      const now = other || pass;
      const stream = rowOf((now.x || pass.x)[s], t, run.D);
      paint(canvas, stream, colours);
      const { top: [[v, p]] } = now.says(s, t, 1);
      const before = pass.says(s, t, 1).top[0][0];
      lensBar.replaceChildren(bar(p));
      lensText.replaceChildren(...(before !== v ? [element("s", {}, visible(run.vocabulary[before])), " "] : []), `${visible(run.vocabulary[v])} ${percent(p)}`);
      length.textContent = s ? `the sum so far, length ${number(size(stream), 1)}` : `${quoted(side.tokens[t])}: a vector of ${run.D} numbers, length ${number(size(stream), 1)}`;
    } });
    return row;
  };
  const part = (p) => {
    const { key, layer, kind, norm, post } = run.parts[p];
    const shape = run.layers[layer];
    const [adds, addsText] = [strip1("stream"), element("span", {})];
    const pill = (which) => (which && run.norm ? button("norm", { name: "norm", p, which: which === post ? "post" : "norm" }, { class: "stop pill", "aria-label": `the norm of ${keyName(key)}` }) : null);
    const says = { attention: "fetches from earlier tokens", mlp: "works on this token alone", block: "a block of your own" }[kind];
    const title = button(element("b", {}, titled(keyName(key))), { name: kind === "block" ? "station" : kind, p, s: p + 1 });
    const body = [];
    const heads = kind !== "attention" ? [] : Array.from({ length: shape.heads }, (_, h) => {
      const [look, looks] = [strip1("row"), element("span", { class: "soft" })];
      const made = button(element("span", { class: "head-name" }, `head ${h + 1}`), { name: "head", p, h }, { class: "stop small" });
      made.append(look, looks);
      return { made, look, looks, h, key: `h${layer + 1}.${h + 1}` };
    });
    if (heads.length) body.push(element("div", { class: "head-row" }, ...heads.map(({ made }) => made)));
    const [units, unitText] = [strip1("row"), element("span", { class: "soft" })];
    if (kind === "mlp") {
      const made = button("", { name: "mlp", p }, { class: "stop small" });
      made.append(units, unitText);
      body.push(element("div", {}, made));
    }
    const row = element("li", { class: "part" }, element("div", { class: "box" }, element("div", { class: "row" }, pill(norm), title, element("span", { class: "soft" }, says)),
      ...body, element("div", { class: "adds" }, pill(post), addsText, adds)));
    rows.push({ row, kind, p, update: (pass, other, colours, t) => {
      const off = other?.off || new Set();
      const now = other?.x ? other : pass;
      const made = now.parts[p];
      const add = rowOf(made.add, t, run.D);
      row.classList.toggle("off", off.has(key));
      paint(adds, add, colours);
      addsText.textContent = off.has(key) ? "is off: adds nothing" : `adds ${number(size(add), 1)}`;
      for (const head of heads) {
        const weights = made.weights.subarray((head.h * pass.T + t) * pass.T, (head.h * pass.T + t) * pass.T + t + 1);
        paint(head.look, weights, colours, shape.sums && !shape.signed ? 1 : loud(weights));
        const s = strongest(weights);
        head.looks.textContent = shape.sums && !shape.signed ? `${percent(weights[s])} on ${quoted(side.tokens[s])}` : `${number(weights[s], 2)} of ${quoted(side.tokens[s])}`;
        head.made.classList.toggle("off", off.has(head.key) || off.has(key));
      }
      if (kind !== "mlp") return;
      if (!made.hidden) { unitText.textContent = "its hidden units are not in this page"; return; }
      const width = made.hidden.shape[1];
      const hidden = rowOf(made.hidden, t, width);
      paint(units, hidden, colours);
      unitText.textContent = `${width} hidden units; the strongest here is unit ${strongest(hidden) + 1}`;
    } });
    return row;
  };
  const end = () => {
    const [bars, title] = [element("div", { class: "bars" }), button(element("b", {}, "Logits and probabilities"), { name: "logits" })];
    const pill = run.norm ? button("norm", { name: "norm", p: -1, which: "norm" }, { class: "stop pill", "aria-label": "the final norm" }) : null;
    const row = element("li", { class: "part end" }, element("div", { class: "box" }, element("div", { class: "row" }, pill, title, element("span", { class: "soft" }, "what comes next")), bars));
    rows.push({ row, kind: "end", update: (pass, other, colours, t) => {
      bars.replaceChildren(...(other || pass).says(last, t, 5).top.flatMap(([v, p]) => [
        element("span", { class: side.ids[t + 1] === v ? "name came" : "name" }, side.ids[t + 1] === v ? `\u25b8 ${visible(run.vocabulary[v])}` : visible(run.vocabulary[v])),
        bar(p, 1), element("span", {}, percent(p))]));
    } });
    return row;
  };
  const list = element("ol", { class: "flow" }, station(0));
  for (let p = 0; p < last; p++) list.append(part(p), station(p + 1));
  list.append(end());
  const box = element("section", { class: "flow-box", "aria-label": `The flow of ${run.name}` }, side.alone ? null : element("h2", {}, run.name), list);
  box.onkeydown = (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const stops = [...list.querySelectorAll(".stop")];
    const to = stops[stops.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)];
    if (!to) return;
    event.preventDefault();
    to.focus();
    on.open(JSON.parse(to.dataset.view));
  };
  return { box, list, rows, update: (state, colours) => {
    for (const row of rows) row.update(side.pass, side.other, colours, state.t);
    const lengths = (side.other?.x || side.pass.x).map((x) => size(rowOf(x, state.t, run.D)));
    const most = Math.max(...lengths);
    for (const { row, kind, s, p } of rows) { // the rail is as wide as the vector is long
      const length = lengths[kind === "station" ? s : kind === "end" ? last : p];
      row.style.setProperty("--rail", `${(2 + 12 * (length / most)).toFixed(1)}px`);
    }
    const chosen = JSON.stringify(state.view);
    for (const stop of list.querySelectorAll(".stop")) stop.setAttribute("aria-pressed", String(stop.dataset.view === chosen));
  } };
}
