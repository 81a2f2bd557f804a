// Smaller parts of the explorer: the head's title, what comes next, the lens, the table of heads, radio buttons.

/** Radio buttons in a fieldset: options are [value, label]. */
function choices(box, name, options, chosen, on) {
  box.append(...options.map(([value, label]) => element("label", {},
    element("input", { type: "radio", name, value, checked: value === chosen, onchange: () => on(value) }), label)));
}

/** What a term means, as the list of words at the end of the page says. */
const meaning = (word) => document.querySelector(`#words [data-word="${word}"]`).textContent.replace(/\s+/g, " ");

/** A text in which terms say what they mean where they are pointed at, on a page with the list of words. */
const TERMS = /(\bloss\b|\bnats\b|\bideal reader\b|\brotary\b|\btokens seen at once\b|\blogit lens\b|\|value\|)/;
const glossed = (text) => (byId("words") ? text.split(TERMS) : [text]).map((part, i) => (i % 2 ? element("span", { class: "term", title: meaning(part) }, part) : part));

/** The row of a head from which the loss rises most without it, or null where it rises nowhere. */
function mattersMost(numbers, h) {
  let [best, most] = [null, 0];
  for (let t = 0; t + 1 < numbers.T; t++) {
    const rise = numbers.without(h, t + 1) - numbers.surprise(t + 1);
    if (rise > most) [best, most] = [t, rise];
  }
  return best;
}

/**
 * The rows of a head in which one token gets more than half of all that is given, the first two tokens left out; of
 * them those in which the head matters, if there are any.
 */
function guessable(numbers, h) {
  const rows = [];
  for (let t = 2; t < numbers.T; t++) {
    const row = numbers.weights(h, t);
    const given = row.reduce((sum, w) => sum + Math.abs(w), 0);
    if (row[strongest(row)] > 0.5 * given) rows.push(t);
  }
  const matter = rows.filter((t) => t + 1 < numbers.T && Math.abs(numbers.gain(h, t + 1)) >= HARDLY);
  return matter.length ? matter : rows;
}

function showHead(data, numbers, words, h) {
  const layer = numbers.layerOf(h);
  const rank = 1 + data.worth.filter((worth) => worth > data.worth[h]).length;
  const note = words.headNote(h);
  byId("head-title").textContent = `${words.headName(h)}${note ? ` (${note})` : ""}: from scores to weights to values`;
  const sums = layer.signed ? "Its weights can be below zero: it takes, and it subtracts." : layer.sums
    ? "The weights of a row are shares: they sum to 1." : "The weights of a row need not sum to 1.";
  const way = data.worth[h] < 0 ? "lower" : "higher";
  byId("head-says").replaceChildren(...glossed(`${layer.kind}: ${layer.summary} ${sums} Without this head, the loss on this text is `
    + `${Math.abs(data.worth[h]).toFixed(3)} nats a ${data.unit} ${way} (number ${rank} of ${numbers.heads.length}).`));
}

/** The likeliest next tokens of row t; the mark is the ideal reader's probability. */
function showNext(data, words, t) {
  const came = data.tokens[t + 1];
  const rows = data.next[t].flatMap(([token, p, ideal]) => [
    element("span", { class: token === came ? "name came" : "name" }, token === came ? `\u25b8 ${visible(token)}` : visible(token)),
    bar(p, 1, ideal), element("span", { class: token === came ? "came" : "" }, percent(p))]);
  byId("next-says").replaceChildren(...glossed(words.next(t)));
  const marks = data.reader ? "\u25b8 came next. The upright line is the ideal reader\u2019s probability." : "\u25b8 came next.";
  byId("next").replaceChildren(element("div", { class: "bars" }, ...rows), element("p", { class: "soft" }, marks));
}

/** What each layer would say: rows are layers, columns the tokens around row t. */
function showLens(data, t, choose) {
  const [box, T] = [byId("lens"), data.tokens.length];
  const from = Math.max(0, Math.min(t - 40, T - 81));
  const columns = Array.from({ length: Math.min(T, 81) }, (_, i) => from + i);
  const cell = (text, i, attributes = {}) => element("td", { ...attributes, "data-t": i, class: `${attributes.class || ""}${i === t ? " here" : ""}` }, text);
  const shown = (token) => (token === " " ? "\u00b7" : visible(token));
  const lines = data.lens.map((line, layer) => element("tr", {}, element("th", { scope: "row" }, layer ? `layer ${layer}` : "embedding"),
    ...columns.map((i) => cell(shown(line[i][0]), i, { class: i + 1 < T && line[i][0] !== data.tokens[i + 1] ? "miss" : "",
      title: `${quoted(line[i][0])} ${percent(line[i][1])}`, css: { "--shade": `${(45 * line[i][1]).toFixed(0)}%` } }))));
  const reads = element("tr", {}, element("th", { scope: "row" }, "after reading"), ...columns.map((i) => cell(shown(data.tokens[i]), i)));
  const came = element("tr", {}, element("th", { scope: "row" }, "came next"), ...columns.map((i) => cell(i + 1 < T ? shown(data.tokens[i + 1]) : "", i)));
  const table = element("table", {}, element("tbody", {}, reads, ...lines, came));
  table.onclick = (event) => { const at = event.target.closest("td"); if (at) choose(Number(at.dataset.t)); };
  const scroll = box.scrollLeft;
  box.replaceChildren(table);
  const here = table.querySelector(".here");
  const inside = here && here.offsetLeft > scroll + 90 && here.offsetLeft < scroll + box.clientWidth - 20;
  box.scrollLeft = inside ? scroll : here ? here.offsetLeft - box.clientWidth / 2 : 0;
}

/** A line for each head, ranked by the loss without it: the small maps as numbers. Returns select(h), which marks a line. */
function showHabits(box, data, numbers, words, choose) {
  const order = numbers.heads.map((_, h) => h).sort((a, b) => data.worth[b] - data.worth[a] || a - b);
  const most = Math.max(...data.worth.map(Math.abs), 1e-9);
  const titles = ["head", "loss without it", "on itself", "on the one before", "on the first", "tokens seen at once", "mean distance back"];
  const rows = order.map((h) => {
    const habit = data.habits[h];
    const name = element("button", { type: "button", "aria-pressed": "false", onclick: () => choose(h) }, words.headName(h), words.headNote(h) ? ` (${words.headNote(h)})` : "");
    return element("tr", {}, element("td", {}, name),
      element("td", {}, bar(data.worth[h], most), " ", element("span", { class: "figure" }, signed(data.worth[h]))),
      ...habit.slice(0, 3).map((x) => element("td", {}, percent(x))), element("td", {}, number(habit[3], 1)), element("td", {}, number(habit[4], 1)));
  });
  box.replaceChildren(element("table", {}, element("caption", {}, "Shares of all its weight, whatever its sign, on average over the text"),
    element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, ...glossed(title))))), element("tbody", {}, ...rows)));
  return (h) => rows.forEach((row, i) => {
    row.classList.toggle("open", order[i] === h);
    row.querySelector("button").setAttribute("aria-pressed", String(order[i] === h));
  });
}
