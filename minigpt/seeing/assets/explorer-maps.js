// Heat maps: a pixel for each weight, small ones of all heads and a large one of the chosen head.

/**
 * The colours of a map, by what they mean; asked again when the theme changes.
 * @typedef {Record<"card" | "above" | "below" | "future", number[]>} Colours
 * @returns {Colours}
 */
function palette() {
  return { card: colour("card"), above: colour("above"), below: colour("below"), future: colour("future") };
}

/** The colour of a weight: from the ground of the card to blue or orange, by the square root, so small ones are seen. */
function tint(weight, most, colours) {
  const share = Math.sqrt(Math.min(Math.abs(weight) / most, 1));
  const end = weight < 0 ? colours.below : colours.above;
  return colours.card.map((from, i) => from + share * (end[i] - from));
}

/** The strongest weight of each cell of a map of at most `limit` cells a side, and whether anything is seen there. */
function cellsOf(numbers, h, limit) {
  const { T } = numbers;
  const pool = Math.ceil(T / limit);
  const n = Math.ceil(T / pool);
  const [cells, open] = [new Float32Array(n * n), new Uint8Array(n * n)];
  for (let t = 0; t < T; t++) {
    const [row, seen, start] = [numbers.weights(h, t), numbers.seen(h, t), Math.floor(t / pool) * n];
    for (let s = 0; s < T; s++) {
      const cell = start + Math.floor(s / pool);
      if (seen[s] || row[s]) open[cell] = 1;
      if (Math.abs(row[s]) > Math.abs(cells[cell])) cells[cell] = row[s];
    }
  }
  return { n, cells, open };
}

/**
 * Draws head h into a canvas, `zoom` pixels a cell. What the mask hides has a colour of its own; a weight below zero is
 * orange with a hole, where there is room for one.
 */
function drawMap(canvas, numbers, h, limit, zoom, colours) {
  const { n, cells, open } = cellsOf(numbers, h, limit);
  const most = numbers.largest(h);
  const small = element("canvas", { width: n, height: n });
  const image = new ImageData(n, n);
  for (let i = 0; i < n * n; i++) {
    const [red, green, blue] = open[i] ? tint(cells[i], most, colours) : colours.future;
    image.data[4 * i] = red;
    image.data[4 * i + 1] = green;
    image.data[4 * i + 2] = blue;
    image.data[4 * i + 3] = 255;
  }
  small.getContext("2d").putImageData(image, 0, 0);
  canvas.width = canvas.height = n * zoom;
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, n * zoom, n * zoom);
  if (zoom < 5 || !numbers.layerOf(h).signed) return;
  pen.fillStyle = `rgb(${colours.card})`;
  const hole = Math.ceil(zoom / 3);
  cells.forEach((weight, i) => {
    if (weight < -0.01 * most) pen.fillRect((i % n) * zoom + hole, Math.floor(i / n) * zoom + hole, zoom - 2 * hole, zoom - 2 * hole);
  });
}

/** What the colours mean: from the most negative weight, or zero, to the largest. */
function drawScale(box, numbers, h, colours) {
  const most = numbers.largest(h);
  const low = numbers.layerOf(h).signed ? -most : 0;
  const canvas = element("canvas", { width: 120, height: 1, "aria-hidden": "true" });
  const image = new ImageData(120, 1);
  for (let x = 0; x < 120; x++) image.data.set([...tint(low + (x / 119) * (most - low), most, colours), 255], 4 * x);
  canvas.getContext("2d").putImageData(image, 0, 0);
  const text = (x) => (x === 0 ? "0" : x === 1 ? "1" : number(x, 2));
  const holes = low ? element("span", {}, "orange, with a hole: below zero") : null;
  box.replaceChildren(...[element("span", {}, `weight: ${text(low)}`), canvas, element("span", {}, text(most)), holes].filter(Boolean));
}

/** Small maps of all heads, in a listbox with one stop of the Tab key. on: {preview(h), leave(), choose(h)}. */
function smallMaps(box, data, numbers, words, on) {
  const items = numbers.heads.map((_, h) => element("div", {
    class: "head", role: "option", tabindex: "-1", "aria-selected": "false", "data-h": h,
    "aria-label": `${words.headName(h)}${words.headNote(h) ? `, ${words.headNote(h)}` : ""}, loss without it ${signed(data.worth[h])}`,
  },
  element("div", { class: "picture secret" }, element("canvas"), element("i", { class: "row-line" })),
  element("span", {}, ...words.headName(h).split(", ").flatMap((part, i) => [i ? " " : "", element("b", {}, i ? part : `${part},`)])),
  words.headNote(h) ? element("span", {}, words.headNote(h)) : null, element("span", { class: "worth" }, signed(data.worth[h]))));
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", "All heads");
  let [order, round] = [numbers.heads.map((_, h) => h), 0];
  const arrange = (ranked) => {
    order = numbers.heads.map((_, h) => h);
    if (ranked) order.sort((a, b) => data.worth[b] - data.worth[a] || a - b);
    const widest = Math.max(...data.layers.map((layer) => layer.heads));
    const even = data.layers.every((layer) => layer.heads === widest);
    const columns = !ranked && even && widest <= 6 ? widest : 4;
    box.style.setProperty("--columns", Math.min(columns, order.length));
    box.replaceChildren(...order.map((h) => items[h]));
  };
  const at = (event) => event.target.closest(".head");
  box.onpointerover = (event) => { if (event.pointerType !== "touch" && at(event)) on.preview(Number(at(event).dataset.h)); };
  box.onpointerleave = () => on.leave();
  box.onclick = (event) => { if (at(event)) on.choose(Number(at(event).dataset.h)); };
  box.onkeydown = (event) => {
    const here = order.findIndex((h) => items[h].tabIndex === 0);
    const to = movedTo(order.map((h) => items[h]), here, event.key);
    if (to === null) return;
    event.preventDefault();
    on.choose(order[to]);
    items[order[to]].focus();
  };
  return {
    arrange,
    /** `many` in each frame, the first ones at once: a model of 144 heads is drawn while it can already be used. */
    draw: (colours, many = 16) => {
      const mine = (round += 1);
      const some = (from) => {
        if (mine !== round) return;
        order.slice(from, from + many).forEach((h) => drawMap(items[h].querySelector("canvas"), numbers, h, 128, 1, colours));
        if (from + many < order.length) requestAnimationFrame(() => some(from + many));
      };
      some(0);
    },
    select: (h) => items.forEach((item, i) => {
      item.setAttribute("aria-selected", String(i === h));
      item.tabIndex = i === h ? 0 : -1;
    }),
    row: (t) => {
      box.style.setProperty("--top", `${(100 * t) / numbers.T}%`);
      box.style.setProperty("--cell", `${100 / numbers.T}%`);
    },
  };
}

/** The large map, with its axes. on: {preview(t, s), leave(), choose(t, s)}. */
function largeMap(box, numbers, words, on) {
  const { T } = numbers;
  const canvas = element("canvas", { role: "img" });
  const [row, column] = [element("i", { class: "row-line" }), element("i", { class: "column-line" })];
  const picture = element("div", { class: "picture secret" }, canvas, row, column);
  const scale = element("div", { class: "scale secret" });
  box.replaceChildren(element("div", { class: "large" }, element("span"),
    element("span", { class: "across" }, "the token that is looked at (key) \u2192"),
    element("span", { class: "down" }, "the token that looks (query) \u2192"), picture), scale);
  const at = (event) => {
    const frame = canvas.getBoundingClientRect();
    const cell = (x, size) => Math.max(0, Math.min(T - 1, Math.floor((x / size) * T)));
    return [cell(event.clientY - frame.top, frame.height), cell(event.clientX - frame.left, frame.width)];
  };
  canvas.onpointermove = (event) => { if (event.pointerType !== "touch") on.preview(...at(event)); };
  canvas.onpointerleave = () => on.leave();
  canvas.onclick = (event) => on.choose(...at(event));
  return {
    draw: (h, colours) => {
      drawMap(canvas, numbers, h, 640, Math.max(1, Math.floor(960 / Math.min(T, 640))), colours);
      drawScale(scale, numbers, h, colours);
      canvas.setAttribute("aria-label", `${words.headName(h)}: the weights of all ${T} tokens as a map. The table of steps has the numbers of a row.`);
    },
    mark: (t, s) => {
      picture.style.setProperty("--top", `${(100 * t) / T}%`);
      picture.style.setProperty("--left", `${(100 * s) / T}%`);
      picture.style.setProperty("--cell", `${100 / T}%`);
    },
  };
}
