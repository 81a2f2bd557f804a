// Changing the model: heads off, a layer as running mean, the scale of the scores, cut edges. Layers, heads and tokens
// count from 1 for people and from 0 on the way to the server.
"use strict";

const noEdits = () => ({ heads_off: [], running_mean: [], scale: [], cut: [], attentions_off: [], mlps_off: [] });

const edits = {
  /** Whether anything is changed. */
  any: (one) => Object.values(one).some((list) => list.length),
  /** In words: "layer 3, head 4 off; layer 1 a running mean". */
  words(one) {
    const said = one.heads_off.map(([layer, head]) => `layer ${layer + 1}, head ${head + 1} off`);
    said.push(...one.attentions_off.map((layer) => `attention of layer ${layer + 1} off`), ...one.mlps_off.map((layer) => `MLP of layer ${layer + 1} off`));
    said.push(...one.running_mean.map((layer) => `layer ${layer + 1} a running mean`));
    said.push(...one.scale.map(([layer, by]) => `scores \u00d7 ${by.toFixed(2)} in ${layer === null ? "all layers" : `layer ${layer + 1}`}`));
    const cuts = new Set(one.cut.map(([, query, key]) => `token ${query + 1} does not see token ${key + 1}`));
    return [...said, ...cuts].join("; ");
  },
};

/** The slider of the scale: 0 to 50 are x 0 to x 1, 50 to 100 are x 1 to x 10. */
const factorOf = (value) => (value <= 50 ? value / 50 : 10 ** ((value - 50) / 50));

/** Makes the controls in `box` for a pane; `changed()` is called after every change of `pane.edits`. */
function editControls(box, pane, changed) {
  const redraws = [];
  const act = (change) => { change(); redraws.forEach((redraw) => redraw()); changed(); };
  const back = element("button", { type: "button", onclick: () => act(() => { pane.edits = noEdits(); }) }, "As trained");
  redraws.push(() => { back.disabled = !edits.any(pane.edits); });
  box.replaceChildren(
    element("p", { class: "soft" }, "A filled button is a change. The same dice are thrown again."),
    heads(pane, act, redraws), scale(pane, act, redraws), cutting(pane, act, redraws), back);
  redraws.forEach((redraw) => redraw());
  return () => redraws.forEach((redraw) => redraw());
}

/** A button that is filled while a change acts. */
function toggle(name, label, isOn, flip, redraws) {
  const made = element("button", { type: "button", "aria-label": label, onclick: flip }, name);
  redraws.push(() => made.setAttribute("aria-pressed", String(isOn())));
  return made;
}

function heads(pane, act, redraws) {
  const grid = element("div", { class: "layers" });
  const has = (list, wanted) => list.some((one) => String(one) === String(wanted));
  const flip = (kind, wanted) => act(() => {
    const list = pane.edits[kind];
    const without = list.filter((one) => String(one) !== String(wanted));
    pane.edits[kind] = without.length === list.length ? [...list, wanted] : without;
  });
  pane.run.layers.forEach((layer, l) => {
    const row = element("div", { class: "row" });
    for (let h = 0; h < layer.heads; h++) {
      row.append(toggle(layer.heads > 8 ? `${h + 1}` : `head ${h + 1}`, `Layer ${l + 1}, head ${h + 1} off`,
        () => has(pane.edits.heads_off, [l, h]), () => flip("heads_off", [l, h]), redraws));
    }
    if (layer.running_mean) {
      row.append(toggle("running mean", `Layer ${l + 1} as running mean`, () => has(pane.edits.running_mean, l),
        () => flip("running_mean", l), redraws));
    } else row.append(element("span", { class: "soft" }, "is a running mean"));
    const parts = [["attention", "attentions_off"], ...(layer.mlp ? [["MLP", "mlps_off"]] : [])];
    for (const [name, kind] of parts) row.append(toggle(name, `Layer ${l + 1}, ${name} off`, () => has(pane.edits[kind], l), () => flip(kind, l), redraws));
    grid.append(element("span", { class: "soft" }, `Layer ${l + 1}`), row);
  });
  return element("fieldset", {}, element("legend", {}, "Switch parts off, or make a layer a running mean"), grid,
    element("p", { class: "soft" }, "Which one? The explorer ranks the heads on this text; lesson 6 on new stories."));
}

function scale(pane, act, redraws) {
  const able = pane.run.layers.map((layer, l) => [layer, l]).filter(([layer]) => layer.scale);
  if (!able.length) return element("p", { class: "soft" }, "There are no scores to scale: this attention has none, or all are equal.");
  const where = element("select", { "aria-label": "Scores of which layer" }, element("option", { value: "all" }, "all layers"),
    ...able.map(([, l]) => element("option", { value: l }, `layer ${l + 1}`)));
  const slider = element("input", { type: "range", min: 0, max: 100, step: 1, "aria-label": "Scores times" });
  const shown = element("output");
  const layer = () => (where.value === "all" ? null : Number(where.value));
  const draw = () => {
    const found = pane.edits.scale.find(([one]) => one === layer());
    const by = found ? found[1] : 1;
    slider.value = by <= 1 ? 50 * by : 50 + 50 * Math.log10(by);
    shown.textContent = `\u00d7 ${by.toFixed(2)}`;
    slider.setAttribute("aria-valuetext", `times ${by.toFixed(2)}`);
  };
  slider.addEventListener("input", () => {
    const by = factorOf(Number(slider.value));
    act(() => {
      const others = pane.edits.scale.filter(([one]) => one !== layer());
      pane.edits.scale = by === 1 ? others : [...others, [layer(), by]];
    });
  });
  where.addEventListener("change", draw);
  redraws.push(draw);
  return element("fieldset", {}, element("legend", {}, "Multiply the scores: 0 weighs all alike, 10 takes nearly one alone"),
    element("div", { class: "scale" }, element("span", { class: "row" }, "Scores of", where), shown, slider));
}

function cutting(pane, act, redraws) {
  const place = (label) => element("input", { type: "number", class: "place", min: 1, step: 1, "aria-label": label });
  const query = place("The token that looks"), key = place("The token it may not see");
  const where = element("select", { "aria-label": "In which layer" }, element("option", { value: "all" }, "all layers"),
    ...pane.run.layers.map((_, l) => element("option", { value: l }, `layer ${l + 1}`)));
  const names = [query, key].map((input) => {
    const name = element("b", { class: "mono" });
    const draw = () => { name.textContent = pane.tokens[input.value - 1] ? quoted(pane.tokens[input.value - 1]) : ""; };
    input.addEventListener("input", draw);
    redraws.push(draw);
    return name;
  });
  redraws.push(() => { for (const input of [query, key]) input.max = pane.tokens.length; });
  const cut = element("button", { type: "button", onclick: () => act(() => {
    const layers = where.value === "all" ? pane.run.layers.map((_, l) => l) : [Number(where.value)];
    const [q, k] = [Number(query.value) - 1, Number(key.value) - 1];
    if (!(Number.isInteger(q) && Number.isInteger(k) && 0 <= k && k <= q)) {
      say("A token sees itself and those before it: choose the second place before the first.");
      return;
    }
    const rest = pane.edits.cut.filter(([l, a, b]) => !(a === q && b === k && layers.includes(l)));
    pane.edits.cut = [...rest, ...layers.map((l) => [l, q, k])];
  }) }, "Cut");
  const list = element("div", { class: "row cuts" });
  redraws.push(() => {
    const pairs = new Map(pane.edits.cut.map(([l, q, k]) => [`${q},${k}`, [q, k]]));
    list.replaceChildren(...[...pairs.values()].map(([q, k]) => element("button", { type: "button", "aria-pressed": "true",
      onclick: () => act(() => { pane.edits.cut = pane.edits.cut.filter(([, a, b]) => !(a === q && b === k)); }),
    }, `${q + 1} does not see ${k + 1} \u00d7`)));
  });
  pane.looksAt = (position) => {
    if (position > 0) query.value = position;
    if (!key.value) key.value = Math.min(2, position || 1);
    redraws.forEach((redraw) => redraw());
  };
  return element("fieldset", {}, element("legend", {}, "Cut an edge: one token may not look at another, in this text"),
    element("div", { class: "row" }, "Token", query, names[0], "may not see token", key, names[1], "in", where, cut), list);
}
