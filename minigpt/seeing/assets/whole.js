// The whole model: what is chosen, the address, the keys, and the two sides. One state; everything is drawn from it.

/** A run of the page, with what is read: its pass, the pass with parts off, and what each part is worth. */
function sideOf(run, get, alone) {
  const side = { run, array: arraysOf(get), alone, tokens: run.tokens, ids: run.ids };
  side.read = (tokens, ids) => {
    Object.assign(side, { tokens, ids, pass: forward(run, side.array, ids), other: null });
    const { pass } = side;
    side.data = { tokens, layers: run.layers, unit: run.unit, reader: null };
    side.numbers = numbersOf(side.data, asExplorers(pass, get));
    side.words = wordsOf(side.data, side.numbers);
    let heads = null;
    side.heads = () => (heads ||= pass.parts.flatMap((made, p) => (made.part.kind !== "attention" ? [] : Array.from({ length: run.layers[made.part.layer].heads }, (_, h) => {
      const looks = (t) => made.weights.subarray((h * pass.T + t) * pass.T, (h * pass.T + t + 1) * pass.T);
      const best = tokens.map((_, t) => strongest(looks(t)));
      const most = Math.max(...best.slice(1).map((s, t) => Math.abs(looks(t + 1)[s])));
      const pairs = best.flatMap((s, t) => (Math.abs(looks(t)[s]) > 0.4 * most ? [[t, s]] : []));
      return { p, h, key: `h${made.part.layer + 1}.${h + 1}`, looks, faint: arcPath(pairs, 58), test: headTest(tokens, looks) };
    })))).slice();
    side.without = new Map(run.live ? [] : run.switches.map(({ key, from }) => [key, packedSwitch(pass, side.array, key, from)]));
    const loss = pass.loss();
    const losses = new Map();
    side.effects = (t) => {
      /** @type {{key: string, p: number, rise: number}[] & {now?: number}} */
      const found = t + 1 >= pass.T ? [] : [...side.without].map(([key, one]) => {
        if (!losses.has(key)) losses.set(key, one.loss() - baseLoss);
        return { key, p: Math.exp(-one.surprise(t + 1)), rise: losses.get(key) };
      });
      found.now = run.live ? Math.exp(-pass.surprise(t + 1)) : Math.exp(-side.array("base.came_surprise")[run.parts.length * pass.T + t]);
      return found;
    };
    const paid = run.live ? null : side.array("base.came_surprise");
    const baseLoss = paid ? paid.subarray(run.parts.length * pass.T, (run.parts.length + 1) * pass.T - 1).reduce((a, b) => a + b, 0) / Math.max(pass.T - 1, 1) : loss;
    side.loss = baseLoss;
  };
  side.switchOff = (off) => {
    side.other = !off.size ? null : run.live ? forward(run, side.array, side.ids, off) : side.without.get([...off][0]) || null;
  };
  return side;
}

/** Reads the text without each part, a pass at a time, between which the page stays usable. */
function readWithout(side, done) {
  const { run, pass } = side;
  const keys = run.parts.flatMap((part) => (part.kind === "attention" ? [part.key, ...Array.from({ length: run.layers[part.layer].heads }, (_, h) => `h${part.layer + 1}.${h + 1}`)] : [part.key]));
  const found = new Map();
  const next = () => {
    if (side.pass !== pass) return;
    const key = keys.shift();
    if (key === undefined) { side.without = found; done(); return; }
    found.set(key, forward(run, side.array, side.ids, new Set([key])));
    setTimeout(next, 0);
  };
  setTimeout(next, 60);
}

async function showWhole() {
  const data = dataOf("data");
  const sides = [];
  for (const [i, run] of data.runs.entries()) sides.push(sideOf(run, await unpack(dataOf(`arrays${i}`)), data.runs.length === 1));
  for (const side of sides) {
    side.read(side.run.tokens, side.run.ids);
    if (!side.run.live) continue;
    side.difference = difference(side.pass);
    if (!(side.difference < 0.02)) {
      byId("problem").textContent = `This page computes other numbers than the model (${number(side.difference)} in a logit), so it shows none. Please report it.`;
      byId("problem").classList.remove("hidden");
      document.querySelector("main").classList.add("hidden");
      document.body.dataset.ready = "refused";
      return;
    }
  }
  let colours = palette();
  const [start] = sides;
  let state = { t: start.run.start.token, view: { name: "whole" }, off: new Set(), show: 0, side: 0, v: null, key: null, feature: 0, row: 0, unit: null, factor: 1, all: false, ...fromHash() };
  let [playing, timer] = [null, 0];
  let flows = [];

  /** What the address says, where it is possible. */
  function fromHash() {
    const found = new URLSearchParams(location.hash.slice(1));
    const t = Number(found.get("token")) - 1;
    const key = found.get("part") || "";
    const view = viewOf(key, found.get("view"));
    if (view.name === "token") view.s = Number.isInteger(t) && t >= 0 && t < start.pass.T ? t : start.run.start.token;
    const off = new Set((found.get("off") || "").split(",").filter((one) => one && switchable(start, one) && (one[0] === "t" || viewOf(one).name !== "whole")));
    return { ...(Number.isInteger(t) && t >= 0 && t < start.pass.T ? { t } : {}), view, off: start.run.live ? off : new Set([...off].slice(0, 1)) };
  }
  /** @returns {View} */
  function viewOf(key, name = "") {
    const head = start.heads().find((one) => one.key === key);
    if (head) return { name: "head", p: head.p, h: head.h };
    const p = start.run.parts.findIndex((part) => part.key === key);
    if (p >= 0) return start.run.parts[p].kind === "block" ? { name: "station", s: p + 1 } : { name: start.run.parts[p].kind, p };
    return { name: ["heads", "logits", "embedding", "token"].includes(name) ? name : "whole", ...(name === "embedding" ? { s: 0 } : {}) };
  }
  /** @param {View} view */
  const keyOf = ({ name, p, h }) => (name === "head" ? `h${start.run.parts[p].layer + 1}.${h + 1}` : p >= 0 && (name === "attention" || name === "mlp") ? start.run.parts[p].key : "");
  let due = 0;
  const toHash = () => { // browsers limit how often an address may change: it is written when scrubbing ends
    clearTimeout(due);
    due = setTimeout(() => {
      const key = keyOf(state.view);
      const parts = [`token=${state.t + 1}`, ...(key ? [`part=${key}`] : state.view.name === "whole" ? [] : [`view=${state.view.name}`]), ...(state.off.size ? [`off=${[...state.off].join(",")}`] : [])];
      try { history.replaceState(null, "", `#${parts.join("&")}`); } catch { /* a frame without an address */ }
    }, 250);
  };

  const on = {
    set: (change) => { state = { ...state, ...change }; draw(); },
    open: (view) => { stop(); state = { ...state, view, key: null, factor: 1, all: false }; draw(); said(byId("panel").querySelector("h2")?.textContent || ""); },
    openKey: (key) => on.open(viewOf(key)),
    flip: (key) => {
      const off = new Set(state.off);
      if (!off.delete(key)) { if (!start.run.live) off.clear(); off.add(key); }
      state = { ...state, off };
      for (const side of sides) side.switchOff(off);
      draw();
      said(byId("off").textContent);
    },
    point: (s) => strip_.items.forEach((item, i) => item.classList.toggle("pointed", i === s)),
  };
  const said = (text) => { byId("said").textContent = text; };
  const go = (t) => { stop(); state = { ...state, t: Math.max(0, Math.min(start.pass.T - 1, t)), key: null, v: null, factor: 1 }; draw(); };

  // the text
  let strip_;
  const makeStrip = () => {
    strip_ = strip(byId("text"), start.tokens, { choose: (t) => (t === state.t ? on.open({ name: "token", s: t }) : go(t)), move: go });
    byId("along").max = String(start.tokens.length);
  };
  const makeFlows = () => {
    const shown = state.show < sides.length ? [sides[state.show]] : sides;
    flows = shown.map((side) => flowOf(side, { open: (view) => { state = { ...state, side: sides.indexOf(side) }; on.open(view); } }));
    byId("flows").replaceChildren(...flows.map(({ box }) => box));
    byId("both").classList.toggle("beside", shown.length > 1);
  };
  const seen = () => sides[state.side];

  function draw() {
    const { t } = state;
    const side = seen();
    for (const flow of flows) flow.update(state, colours);
    strip_.select(t);
    strip_.later(t);
    const box = byId("text");
    const item = strip_.items[t];
    if (item.offsetLeft < box.scrollLeft + 60 || item.offsetLeft > box.scrollLeft + box.clientWidth - 60) box.scrollLeft = item.offsetLeft - 0.6 * box.clientWidth;
    byId("along").value = String(t + 1);
    byId("along").setAttribute("aria-valuetext", tokenAt(side, t));
    const head = state.view.name === "head" ? side.heads().find((one) => one.p === state.view.p && one.h === state.view.h) : playing?.steps[playing.at]?.light;
    const row = head ? head.looks(t) : null;
    strip_.items.forEach((_, i) => strip_.shade(i, row ? row[i] : 0));
    const { top: [[v, p], second], came } = side.pass.says(side.run.parts.length, t, 2);
    const tail = side.tokens.slice(Math.max(0, t - 8), t + 1).map(visible).join("");
    const hides = playing && playing.at < playing.steps.length - 1;
    byId("next").replaceChildren("It has read ", element("b", { class: "mono" }, `\u2026${tail}`), ". Next: ", ...(hides ? ["?"] : [element("b", {}, named(side, v)), ` ${percent(p)}`, ...(second ? [`, ${named(side, second[0])} ${percent(second[1])}`] : []), `. ${came === null ? "The text ends here." : `What came: ${quoted(side.tokens[t + 1])}.`}`]));
    byId("off").classList.toggle("hidden", !side.other);
    if (side.other) {
      const [[w, q]] = side.other.says(side.run.parts.length, t, 1).top;
      byId("off").replaceChildren(element("b", {}, `Off: ${[...state.off].map(keyName).join(", ")}. `), `Next: ${named(side, w)} ${percent(q)}. Loss on this text ${number(side.loss)} \u2192 ${number(side.other.loss())}. `,
        side.other.x ? "" : "Predictions, at every station, are those without it; vectors and weights those with everything on. ",
        element("button", { type: "button", onclick: () => { for (const key of [...state.off]) on.flip(key); } }, "Switch it on"));
    }
    if (playing) drawStep(side);
    else showPanel(byId("panel"), side, state, on, colours);
    place();
    toHash();
  }

  /** On a phone, and with two flows, the panel stands below what was opened; elsewhere beside the flow. */
  const narrow = matchMedia("(max-width: 60rem)");
  function place() {
    const panel = byId("panel");
    const flow = flows.length > 1 ? flows[state.side] : flows[0];
    const opened = playing ? flow.list.children[playing.steps[playing.at].rows - 1] : flow.list.querySelector('.stop[aria-pressed="true"]')?.closest("li");
    const home = (narrow.matches || flows.length > 1) && opened ? opened : byId("both");
    const lines = panel.querySelector(".arcs");
    if (panel.parentElement === home) return;
    const focused = focusedIn(panel);
    home.append(panel);
    if (lines) lines.scrollLeft = lines.scrollWidth;
    focused?.focus();
  }
  narrow.addEventListener("change", place);

  // playing
  function drawStep(side) {
    const { steps, at } = playing;
    const { rows, view, title, text } = steps[at];
    for (const flow of flows) [...flow.list.children].forEach((row, i) => { row.classList.toggle("later", i >= rows); row.classList.toggle("now", i === rows - 1); });
    showPanel(byId("panel"), side, { ...state, view }, on, colours);
    byId("panel").prepend(element("div", { class: "told" }, element("p", { class: "soft" }, `step ${at + 1} of ${steps.length}`), element("h2", {}, title), element("p", { class: "headline" }, text)));
    place();
    said(`${title}. ${text}`);
  }
  function stop() {
    clearInterval(timer);
    byId("play").textContent = "Play";
    if (!playing) return;
    playing = null;
    for (const flow of flows) for (const row of flow.list.children) row.classList.remove("later", "now");
  }
  const step = () => {
    if (!playing) playing = { steps: stepsOf(seen(), state.t), at: 0 };
    else if (playing.at + 1 < playing.steps.length) playing.at += 1;
    else { stop(); draw(); return; }
    draw();
    const { rows, fly: flies } = playing.steps[playing.at];
    const row = flows[0].list.children[rows - 1];
    row.scrollIntoView({ block: row.contains(byId("panel")) ? "start" : "nearest" });
    if (flies) fly(flows[0], rows);
  };
  byId("step").onclick = () => { clearInterval(timer); byId("play").textContent = "Play"; step(); };
  byId("play").onclick = () => {
    if (byId("play").textContent === "Stop") { stop(); draw(); return; }
    step();
    byId("play").textContent = "Stop";
    timer = setInterval(step, 2600);
  };

  // the controls
  byId("back").onclick = () => go(state.t - 1);
  byId("on").onclick = () => go(state.t + 1);
  byId("along").oninput = (event) => go(Number(event.target.value) - 1);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /** @type {Element} */ (event.target).closest("input, select, textarea, #text, .wide")) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") { event.preventDefault(); go(state.t + (event.key === "ArrowLeft" ? -1 : 1)); }
    if (event.key === "Escape") on.open({ name: "whole" });
  });
  window.addEventListener("hashchange", () => { state = { ...state, ...fromHash() }; for (const side of sides) side.switchOff(state.off); stop(); draw(); });
  if (sides.length > 1) {
    byId("sides").classList.remove("hidden");
    choices(byId("sides"), "side", [...sides.map(({ run }, i) => [String(i), run.name]), [String(sides.length), "beside each other"]], "0", (value) => { state = { ...state, show: Number(value), side: Number(value) % sides.length, view: { name: "whole" } }; stop(); makeFlows(); draw(); });
  }
  const readAll = () => {
    for (const side of sides) if (side.run.live) readWithout(side, draw);
  };
  const why = sides.every(({ run }) => run.live) && sides.map(({ run }) => run.cutter.why).find(Boolean);
  byId("unread").textContent = why || "";
  byId("unread").classList.toggle("hidden", !why);
  if (why === undefined) {
    byId("own").classList.remove("hidden");
    byId("own-text").value = start.run.text;
    byId("own-text").onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // with the shift key: a line end
      event.preventDefault();
      byId("own").requestSubmit();
    };
    byId("own").onsubmit = (event) => {
      event.preventDefault();
      const { tokens, ids, problem } = tokensOf(start.run, byId("own-text").value);
      byId("own-says").textContent = problem;
      if (!tokens) return;
      stop();
      for (const side of sides) side.read(tokens, side === start ? ids : tokensOf(side.run, byId("own-text").value).ids);
      state = { ...state, t: tokens.length - 1, off: new Set(), v: null, key: null, unit: null };
      makeStrip();
      makeFlows();
      draw();
      readAll();
    };
  }
  byId("facts").append(...start.run.facts.map(([name, value]) => element("li", {}, `${name} `, element("b", {}, value))));
  byId("command").textContent = data.command ? `${data.command}.` : "minigpt.";
  byId("missing").textContent = [start.run.missing, start.run.live ? `The weights are in this page, in eight bits each; its logits are within ${start.difference < 1e-4 ? "0.0001" : number(start.difference, 4)} of the model\u2019s with the same weights.` : start.run.why ? `It shows the text that it was made with: ${start.run.why}.` : "It shows the text that it was made with; with --live it would read any text."].join(" ");
  byId("outside").textContent = start.run.outside;
  byId("outside").classList.toggle("hidden", !start.run.outside);
  makeStrip();
  makeFlows();
  for (const side of sides) side.switchOff(state.off);
  const recolour = () => { colours = palette(); draw(); };
  themeButton(byId("theme"), recolour);
  printed(recolour, recolour);
  readAll();
  document.body.dataset.ready = performance.now().toFixed(0);
}

showWhole();
