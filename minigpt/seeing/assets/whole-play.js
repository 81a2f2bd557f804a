// Playing the computation: step by step through the flow, from the token to the answer, each step in a sentence.

/** @typedef {{rows: number, view: View, title: string, text: string, light?: any, fly?: boolean}} Step */

/** The steps of one pass at a token: {rows: how many rows of the flow are there, view, title, text, light}. */
function stepsOf(side, t) {
  const { run, pass } = side;
  /** @type {Step[]} */
  const steps = [{ rows: 1, view: { name: "embedding", s: 0 }, title: "A token becomes a vector", text: `${quoted(side.tokens[t])} picks its row of the embedding table: ${run.D} numbers. From here on, everything reads this stream and adds to it.` }];
  const would = (s) => { const [v, p] = pass.says(s, t, 1).top[0]; return `If the model ended here, it would say ${quoted(run.vocabulary[v])} with ${percent(p)}.`; };
  run.parts.forEach((part, p) => {
    const [rows, name, made, layer] = [2 * p + 2, titled(keyName(part.key)), pass.parts[p], run.layers[part.layer]];
    const sizes = `${number(size(rowOf(made.add, t, run.D)), 1)} long`;
    if (part.norm && run.norm) steps.push({ rows, view: { name: "norm", p, which: "norm" }, title: "Normed", text: `${name} reads the stream through a norm, which brings it to one scale. The stream itself is not changed.` });
    if (part.kind === "attention") {
      const heads = side.heads().filter((one) => one.p === p);
      const best = heads.reduce((a, b) => (Math.max(...b.looks(t)) > Math.max(...a.looks(t)) ? b : a));
      const s = strongest(best.looks(t));
      steps.push({ rows, view: { name: "head", p, h: best.h }, light: best, title: "Attention reads", text: `Each of ${layer.heads} heads compares the query of ${quoted(side.tokens[t])} with the keys of the tokens so far. Head ${best.h + 1} looks most decidedly: ${percent(Math.abs(best.looks(t)[s]))} of its weight on ${tokenAt(side, s)}.` });
      steps.push({ rows, view: { name: "attention", p }, light: best, title: "Attention mixes", text: "Each head takes the values of the tokens that it looks at, as much of each as its weight says, and adds them up." });
      steps.push({ rows: rows + 1, view: { name: "station", s: p + 1 }, title: "Attention writes", fly: true, text: `What the heads found is added to the stream, ${sizes}. ${would(p + 1)}` });
    } else {
      if (part.kind === "mlp") steps.push({ rows, view: { name: "mlp", p }, title: "The MLP computes", text: `${name} looks at this token alone: hidden units fire, and each writes its vector as much as it fires.` });
      steps.push({ rows: rows + 1, view: { name: "station", s: p + 1 }, title: "Added, not replaced", fly: true, text: `The old vector and what ${name} wrote, ${sizes}, are summed number by number. ${would(p + 1)}` });
    }
  });
  const last = run.parts.length;
  const [[v, p]] = pass.says(last, t, 1).top;
  steps.push({ rows: 2 * last + 2, view: { name: "logits" }, title: "The answer", text: `The last norm and the head turn the vector into one logit for each token, and a softmax into probabilities: ${quoted(run.vocabulary[v])} with ${percent(p)}.` });
  return steps;
}

/** Copies of what was added and of the stream fly into the new sum; nothing flies where less motion is wanted. */
function fly(flow, rows) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const [part, station] = [flow.rows.map(({ row }) => row)[rows - 2], flow.list.children[rows - 1]];
  const [from, to] = [part?.querySelector(".adds canvas"), station?.querySelector("canvas")];
  if (!from || !to) return;
  const [a, b] = [from.getBoundingClientRect(), to.getBoundingClientRect()];
  const copy = element("canvas", { class: "flying", "aria-hidden": "true", width: from.width, height: 1,
    css: { "--x": `${a.left + scrollX}px`, "--y": `${a.top + scrollY}px`, "--wide": `${a.width}px`, "--high": `${a.height}px` } });
  copy.getContext("2d").drawImage(from, 0, 0);
  document.body.append(copy);
  copy.animate([{ transform: "none" }, { transform: `translate(${b.left - a.left}px, ${b.top - a.top}px) scaleX(${b.width / a.width})` }], { duration: 700, easing: "ease-in-out" }).onfinish = () => copy.remove();
}
