// What a reader can turn: attention of a few tokens, computed in the page as `turn.py` does, in double precision; and
// the pictures that follow. T tokens, H heads, d features.

/** @typedef {{factor?: number, temperature?: number, raised?: number | null, width?: number | null, heads?: number, mask?: string,
 *   position?: string}} Settings of `attend` in turn.py */
/** @typedef {{query: number[][], key: number[][], masks: Record<string, number[]>, raises: number}} Pairs whose weights are computed */
/** @typedef {{name: keyof Settings, label: string, low?: number, high?: number, step?: number, choices?: [any, string][]}} Knob */
/** @typedef {Pairs & {title: string, tokens: string[], value: number[][] | null, row: number | null, settings: Settings,
 *   knobs: Knob[], live: {nodes: number[]} | null}} Turn what turn.py puts into the page */

/** The softmax of some scores, of which minus infinity gets nothing. @param {number[]} scores */
function softmax(scores) {
  const most = Math.max(...scores);
  const powers = scores.map((score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

/** A row of features (d), its pairs rotated by the angles of a place. @param {number[]} row @param {number} place */
function rotated(row, place) {
  return row.map((x, i) => {
    const other = row[i % 2 ? i - 1 : i + 1];
    const angle = place * 10000 ** (-2 * Math.floor(i / 2) / row.length);
    return x * Math.cos(angle) + (i % 2 ? other : -other) * Math.sin(angle);
  });
}

/**
 * The weights of queries (T, d) on keys (T, d): (H, T, T). `data.masks`: how far ahead and back a token sees.
 * @param {Pairs} data @param {Settings} settings
 */
function attend(data, settings) {
  const { factor = 1, temperature = 1, raised = null, width = null, heads = 1, mask = "everything",
    position = "none" } = settings;
  const d = (width ?? data.query[0].length) / heads;
  const [ahead, back] = data.masks[mask];
  return [...Array(heads).keys()].map((head) => {
    const part = (/** @type {number[][]} */ rows) => rows.map((row, place) => {
      const own = row.slice(head * d, (head + 1) * d);
      return position === "rotary" ? rotated(own, place) : own;
    });
    const [queries, keys] = [part(data.query), part(data.key)];
    return queries.map((query, t) => {
      const sees = keys.map((_, s) => t - s >= -ahead && t - s <= back);
      if (!sees.includes(true)) sees[t] = true;
      return softmax(keys.map((key, s) => {
        let score = key.reduce((sum, x, i) => sum + x * query[i], 0) * factor;
        if (position === "alibi") score -= 0.5 * Math.abs(t - s);
        if (raised !== null && s === data.raises) score += raised;
        return sees[s] ? score / temperature : -Infinity;
      }));
    });
  });
}

/**
 * Numbers (T, S) as a table, shaded as `pictures.matrix` does.
 * @param {number[][]} numbers @param {string[]} rows @param {string[]} columns @param {string} title
 */
function matrixOf(numbers, rows, columns, title) {
  const most = Math.max(...numbers.flat().map(Math.abs)) || 1;
  const cell = (/** @type {number} */ x) => element("td", { class: shadeOf(x, most) }, inTable(x, 2));
  return element("div", { class: "lesson-scroll", tabindex: "0", role: "region", "aria-label": title },
    element("table", { class: "lesson-table" }, element("caption", {}, title),
      element("tr", {}, element("td"), ...columns.map((name) => element("th", { scope: "col" }, name))),
      ...numbers.map((row, t) => element("tr", {}, element("th", { scope: "row" }, rows[t]), ...row.map(cell)))));
}

/** A bar for each weight of a row. @param {number[]} weights @param {string[]} names @param {string} title */
function barsOf(weights, names, title, decimals = 3, most = 1) {
  const rows = weights.flatMap((weight, i) =>
    [element("span", { class: "name" }, names[i].trim() ? names[i] : visible(names[i])), bar(weight, most), element("span", {}, weight.toFixed(decimals))]);
  return element("div", { role: "group", "aria-label": title }, element("b", { class: "title" }, title),
    element("div", { class: "weights" }, ...rows));
}

/**
 * Puts knobs over a picture of `turn`, which follows them. Returns how it follows tables that were changed, if it does.
 * @param {HTMLElement} box @returns {Follower | null}
 */
function makeTurn(box) {
  /** @type {Turn} */
  const data = JSON.parse(box.dataset.turn ?? "");
  const settings = { ...data.settings };
  const picture = element("div", { class: "follows" });
  const draw = () => {
    const weights = attend(data, settings);
    const pictures = data.row !== null ? [barsOf(weights[0][data.row], data.tokens, data.title)]
      : weights.map((head, i) => matrixOf(head, data.tokens, data.tokens,
        weights.length > 1 ? `${data.title}, ${said("head {number}", { number: i + 1 })}` : data.title));
    const { value } = data;
    if (value) {
      const mixed = weights[0].map((row) => value[0].map((_, e) => row.reduce((sum, w, s) => sum + w * value[s][e], 0)));
      pictures.push(matrixOf(mixed, data.tokens, value[0].map((_, e) => String(e + 1)), said("the mixtures of the values")));
    }
    picture.replaceChildren(...pictures);
  };
  const knobs = data.knobs.map((knob) => knobOf(knob, settings[knob.name], (value) => {
    Object.assign(settings, { [knob.name]: value });
    draw();
  }));
  box.replaceChildren(element("b", { class: "title" }, said("Turn it")), ...knobs, picture);
  draw();
  return data.live && { nodes: data.live.nodes, tokens: data.tokens, follow: (values, tokens) => {
    const [query, key, value = null] = values.map(asRows);
    Object.assign(data, { query, key, value });
    data.tokens = tokens;
    draw();
  } };
}

/** An array with two axes as a list of rows. @param {Numbers} numbers */
const asRows = ({ shape: [, width], data }) => Array.from({ length: data.length / width }, (_, t) => data.slice(t * width, (t + 1) * width));

/**
 * A slider with its number, or one of several choices.
 * @param {Knob} knob @param {any} value @param {(value: any) => void} turned
 */
function knobOf({ name, label, low, high, step, choices }, value, turned) {
  if (!choices) {
    const shown = element("output", {}, number(value, 2));
    const range = element("input", { type: "range", min: low, max: high, step, value, oninput: () => {
      shown.textContent = number(Number(range.value), 2);
      turned(Number(range.value));
    } });
    return element("label", { class: "knob" }, element("span", {}, label, " ", shown), range);
  }
  const group = `${name}-${document.querySelectorAll("fieldset").length}-${Math.random()}`;
  return element("fieldset", { class: "choices knob" }, element("legend", {}, label), ...choices.map(([each, words]) =>
    element("label", {}, element("input", { type: "radio", name: group, checked: each === value, onchange: () => turned(each) }), words)));
}

/** Puts one slider over pictures that were computed in advance. @param {HTMLElement} box */
function makeFrames(box) {
  const frames = elements(box, ".frame");
  const shown = element("output");
  const show = (/** @type {number} */ at) => {
    frames.forEach((frame, i) => frame.classList.toggle("hidden", i !== at));
    shown.textContent = frames[at].dataset.at ?? "";
    range.setAttribute("aria-valuetext", shown.textContent);
  };
  const range = element("input", { type: "range", min: 0, max: frames.length - 1, step: 1, oninput: () => show(Number(range.value)) });
  range.value = frames.findIndex((frame) => frame.dataset.at === box.dataset.start);
  box.prepend(element("b", { class: "title" }, said("Turn it")),
    element("label", { class: "knob" }, element("span", {}, box.dataset.label ?? "", " ", shown), range));
  show(Number(range.value));
}
