// What the views of the whole model draw: vectors as strips of colour, lines between tokens, curves, rows of bars.

/** An element of SVG: svg("path", {d: "M0 0"}). */
function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "css") for (const [property, x] of Object.entries(value)) made.style.setProperty(property, x);
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** The size with the strongest colour: one outlier must not make all others pale. */
function loud(vector) {
  const sizes = Float32Array.from(vector, Math.abs).sort();
  return sizes[Math.floor(0.97 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
}

/** Draws a vector, or a matrix of `rows`, into a canvas, a pixel for a number: blue above zero, orange below, the root of the size. */
function paint(canvas, vector, colours, most = loud(vector), rows = 1) {
  const n = vector.length / rows || 1;
  if (canvas.width !== n) canvas.width = n;
  if (canvas.height !== rows) canvas.height = rows;
  const image = new ImageData(n, rows);
  for (let i = 0; i < vector.length; i++) image.data.set([...tint(vector[i], most, colours), 255], 4 * i);
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const strip1 = (name = "") => element("canvas", { class: `vector ${name}`.trim(), "aria-hidden": "true" });

/** A named vector on a line of its own: a strip that can be pointed at, whose numbers are said as text. */
function vectorRow(name, vector, colours, most, chosen = null) {
  const canvas = strip1("tall");
  paint(canvas, vector, colours, most);
  const mark = chosen === null ? null : element("i", { css: { "--left": `${(100 * chosen) / vector.length}%`, "--cell": `${100 / vector.length}%` } });
  return [element("span", {}, name), element("span", { class: "strip-box" }, canvas, mark)];
}

/** Rows of [name, vector] with one scale; `on(i)` chooses a number of them by pointer. */
function vectorRows(rows, colours, chosen, on) {
  const most = Math.max(...rows.map(([, vector]) => loud(vector)));
  const box = element("div", { class: "vectors" }, ...rows.flatMap(([name, vector]) => vectorRow(name, vector, colours, most, chosen)));
  box.onclick = (event) => {
    const canvas = event.target.closest(".strip-box");
    if (!canvas) return;
    const frame = canvas.getBoundingClientRect();
    on(Math.max(0, Math.min(rows[0][1].length - 1, Math.floor(((event.clientX - frame.left) / frame.width) * rows[0][1].length))));
  };
  return box;
}

/** The two buttons that go from number to number of a vector; of a matrix, from row to row. */
const numberPicker = (chosen, n, on, what = "number") => element("span", { class: "row" },
  element("button", { type: "button", "data-key": `less-${what}`, "aria-label": `the ${what} before`, onclick: () => on((chosen + n - 1) % n) }, "\u2039"),
  element("span", {}, `${what} ${chosen + 1} of ${n}`),
  element("button", { type: "button", "data-key": `more-${what}`, "aria-label": `the ${what} after`, onclick: () => on((chosen + 1) % n) }, "\u203a"));

/** Lines from tokens to the tokens they look at, over a line of n places 10 wide; pairs are [t, s, weight]. */
function arcPath(pairs, height) {
  return pairs.map(([t, s]) => {
    const [from, to] = [10 * t + 5, 10 * s + 5];
    if (t === s) return `M${from - 3} ${height}a3 4 0 0 1 6 0`;
    return `M${from} ${height}C${from} ${height * (1 - Math.min(1, 0.25 + Math.abs(t - s) / 40)) - 2} ${to} ${height * (1 - Math.min(1, 0.25 + Math.abs(t - s) / 40)) - 2} ${to} ${height}`;
  }).join("");
}

/** The strongest keys of a row, the largest first. */
const strongestOf = (row, least = 0.05, many = 8) => [...row.keys()].filter((s) => Math.abs(row[s]) > least)
  .sort((a, b) => Math.abs(row[b]) - Math.abs(row[a])).slice(0, many);

/** Lines over the text up to token t, letter by letter; the box scrolls. */
function arcs(tokens, t, row) {
  const most = Math.max(row.reduce((a, w) => Math.max(a, Math.abs(w)), 0), 1e-9);
  const share = (s) => Math.abs(row[s]) / most;
  const places = tokens.slice(0, t + 1).map((token) => Math.max([...visible(token)].length, 1));
  const starts = places.reduce((found, width, i) => [...found, found[i] + width], [0]);
  const centre = (i) => 10 * (starts[i] + places[i] / 2) + 4;
  const [width, height] = [10 * starts[t + 1] + 8, 92];
  const lines = strongestOf(row, 0.02 * most).map((s) => {
    const [from, to, rise] = [centre(t), centre(s), height - Math.min(86, 18 + Math.abs(centre(t) - centre(s)) / 5)];
    const d = s === t ? `M${from - 4} ${height}c-2 -16 10 -16 8 0` : `M${from} ${height}C${from} ${rise} ${to} ${rise} ${to} ${height}`;
    return svg("path", { d, class: row[s] < 0 ? "arc negative" : "arc", css: { "--width": `${(1 + 2.5 * share(s)).toFixed(2)}px`, "--strength": `${Math.round(25 + 75 * share(s))}%` } });
  });
  const letters = tokens.slice(0, t + 1).map((token, i) => svg("text", { x: centre(i), y: height + 16, class: i === t ? "here" : share(i) > 0.3 ? "looked" : "" }, token === " " ? "\u00b7" : visible(token)));
  return element("div", { class: "wide arcs", tabindex: "0", role: "region", "aria-label": "Lines from the token to those that it looks at" },
    svg("svg", { width, height: height + 24, viewBox: `0 0 ${width} ${height + 24}`, "aria-hidden": "true" }, ...lines, ...letters));
}

/** Curves of probabilities over the stations: lines are {name, points, kind}, kind "first", "second" or "off". */
function race(stations, lines) {
  const phone = matchMedia("(max-width: 40rem)").matches;
  const [width, height, left, right, top] = [phone ? 350 : 600, 190, 50, phone ? 76 : 92, 10];
  const x = (i) => left + (i / Math.max(stations.length - 1, 1)) * (width - left - right);
  const y = (p) => top + (1 - p) * (height - top - 40);
  const grid = [0, 0.5, 1].flatMap((p) => [svg("line", { x1: left, x2: width - right, y1: y(p), y2: y(p), class: "grid" }),
    svg("text", { x: left - 6, y: y(p) + 4, class: "end" }, `${100 * p}\u00a0%`)]);
  const every = Math.ceil(stations.length / (phone ? 5 : 9));
  const names = stations.map((name, i) => (i % every ? null : svg("text", { x: x(i), y: height - 18, class: "middle" }, name))).filter(Boolean);
  const ends = lines.map(({ points }) => y(points[points.length - 1])).map((end, i, all) => all.slice(0, i).reduce((place, other) => (Math.abs(place - other) < 16 ? other + 16 : place), end));
  const curves = lines.flatMap(({ name, points, kind }, i) => [
    svg("polyline", { points: points.map((p, j) => `${x(j).toFixed(1)},${y(p).toFixed(1)}`).join(" "), class: `curve ${kind}` }),
    svg("text", { x: width - right + 6, y: ends[i] + 4, class: `name ${kind}` }, name)]);
  const told = lines.map(({ name }) => name).join(", ");
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "race", role: "img", "aria-label": `The probability of the next token, station by station: it ends with ${told}` }, ...grid, ...names, ...curves);
}

/** A table of bars around zero: rows are [name, x, more cells]. */
function table(caption, titles, rows) {
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption }, element("table", {}, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)))),
    element("tbody", {}, ...rows.map(({ cells, marked }) => element("tr", { class: marked ? "open" : "" }, ...cells.map((cell) => element("td", {}, ...[cell].flat())))))));
}

const openLink = (name, act, attributes = {}) => element("button", { type: "button", class: "link", onclick: act, ...attributes }, name);
const sum = (text) => element("p", { class: "formula" }, text);
