// The tables of live cells: numbers and tokens that the reader can change, and all that follows from them.

/** @typedef {{box: HTMLElement, nodes: number[], input: boolean, rows: string[], columns?: string[], title?: string,
 *   decimals: number, shade?: boolean}} Picture a table, or bars, which have a title and no columns */
/** @typedef {{nodes: number[], tokens: string[], follow: (values: Numbers[], tokens: string[]) => void}} Follower */

/** The elements below one that a selector matches. @param {ParentNode} root @param {string} selector */
const elements = (root, selector) => [...root.querySelectorAll(selector)].filter((each) => each instanceof HTMLElement);

const LARGEST_INPUT = 1e6; // beyond it, powers and products could leave the range of numbers

/** A number of a table, as `pictures.py` writes it. @param {number} x @param {number} decimals */
function inTable(x, decimals) {
  if (x === 0) return "0";
  const text = Number.isFinite(x) ? x.toFixed(decimals) : String(x).replace("Infinity", "inf");
  return Number(text) === 0 ? text.replace("-", "") : text;
}

/** The classes of a cell, from its share of the largest number. @param {number} x @param {number} most */
function shadeOf(x, most) {
  const strength = Number.isFinite(x) ? Math.min(10, Math.ceil(10 * Math.abs(x) / most - 1e-9)) : 0;
  return `${strength ? `w${strength}` : ""}${x < 0 && Number.isFinite(x) ? " below" : ""}`.trim();
}

/**
 * Makes the tables and bars inside of an element live. Returns a function that puts everything back.
 * @param {HTMLElement} root @param {Tape} tape @param {Follower[]} followers pictures of another kind that follow too
 */
function makeLive(root, tape, followers) {
  const before = withInfinities(tape.inputs);
  /** @type {Record<string, Numbers>} */
  let inputs = structuredClone(before);
  /** @type {Map<string, string[]>} */
  const renamed = new Map(); // names of rows and columns, when the reader has chosen other tokens
  const named = (/** @type {string[]} */ names) => renamed.get(JSON.stringify(names)) ?? names;
  /** @type {Picture[]} */
  const pictures = elements(root, "[data-live]")
    .map((box) => ({ box, ...JSON.parse(box.dataset.live ?? "{}") }));
  const notes = pictures.filter(({ input }) => input).map((picture) => liveInput(picture));

  const update = (changed = true) => {
    const values = replay(tape, inputs);
    pictures.forEach((picture) => drawLive(picture, picture.nodes.map((node) => values[node]), named));
    followers.forEach(({ nodes, tokens, follow }) => follow(nodes.map((node) => values[node]), named(tokens)));
    notes.forEach((note) => note(changed));
  };

  /**
   * Lets the reader change a table. Returns a function that says below it whether something was.
   * @param {Picture} picture
   */
  function liveInput({ box, nodes: [node], rows, columns = [], decimals }) {
    const tokens = areTokens(node, rows, columns);
    numberCells(box).forEach((cell, i) => {
      if (!Number.isFinite(before[node].data[i])) return;
      const name = `${rows[Math.floor(i / columns.length)]}, ${columns[i % columns.length]}`;
      const field = element("input", { type: "number", step: "any", "aria-label": name, value: inTable(before[node].data[i], decimals),
        css: { "--digits": String(decimals + 4) } });
      field.addEventListener("input", () => {
        const x = field.valueAsNumber;
        if (!(Math.abs(x) <= LARGEST_INPUT)) return;
        inputs[node].data[i] = x;
        update();
      });
      field.addEventListener("change", () => { field.value = inTable(inputs[node].data[i], decimals); });
      cell.replaceChildren(field);
    });
    if (tokens) [...box.querySelectorAll("th[scope=row]")].forEach((head, i) => {
      const options = [...new Set(rows)].map((name) => element("option", { value: name, selected: name === rows[i] }, name));
      const choice = element("select", { "aria-label": said("Token {number}", { number: i + 1 }) }, ...options);
      choice.addEventListener("change", () => {
        const [from, width] = [rows.indexOf(choice.value), columns.length];
        inputs[node].data.splice(i * width, width, ...before[node].data.slice(from * width, (from + 1) * width));
        renamed.set(JSON.stringify(rows), named(rows).with(i, choice.value));
        update();
      });
      head.replaceChildren(choice);
    });
    const text = element("span");
    const back = element("button", { type: "button", class: "hidden", onclick: putBack }, said("As it was"));
    box.after(element("p", { class: "live-note soft", role: "status" }, text, " ", back));
    const advice = tokens ? said("Change a number or a token: what is computed from it follows.") : said("Change a number: what is computed from it follows.");
    const after = said("What is computed from it has followed. Sentences and answers speak of the numbers as they were.");
    return (/** @type {boolean} */ changed) => {
      back.classList.toggle("hidden", !changed);
      text.textContent = changed ? after : advice;
    };
  }

  /**
   * Whether the rows of an input are vectors of tokens: what follows has them as names, and the columns are others.
   * @param {number} node @param {string[]} rows @param {string[]} columns
   */
  function areTokens(node, rows, columns) {
    const [own, across, ...others] = [rows, columns, ...followers.map((each) => each.tokens), ...pictures.filter(({ nodes }) => nodes[0] !== node)
      .flatMap((each) => [each.rows, each.columns ?? []])].map((names) => JSON.stringify(names));
    return rows.length > 1 && own !== across && others.includes(own);
  }

  function putBack() {
    inputs = structuredClone(before);
    renamed.clear();
    update(false);
  }

  notes.forEach((note) => note(false));
  return putBack;
}

/** The cells of a table that hold its numbers, row by row. @param {HTMLElement} box */
const numberCells = (box) => elements(box, "th[scope=row] ~ td");

/**
 * Draws what has followed. A field in which somebody types is left alone.
 * @param {Picture} picture @param {Numbers[]} values @param {(names: string[]) => string[]} named
 */
function drawLive({ box, rows, columns, title, decimals, shade }, values, named) {
  if (!columns) {
    const heights = values.map(({ data: [height] }) => height);
    box.replaceChildren(barsOf(heights, named(rows), title ?? "", decimals, Math.max(...heights.map(Math.abs)) || 1));
    return;
  }
  const numbers = values[0].data;
  const most = Math.max(...numbers.filter(Number.isFinite).map(Math.abs)) || 1;
  numberCells(box).forEach((cell, i) => {
    const field = cell.querySelector("input");
    if (!field) cell.textContent = inTable(numbers[i], decimals);
    else if (field !== document.activeElement) field.value = inTable(numbers[i], decimals);
    cell.className = shade ? shadeOf(numbers[i], most) : "";
  });
  box.querySelectorAll("th").forEach((head) => {
    const across = head.scope === "col";
    const i = [...box.querySelectorAll(`th[scope=${across ? "col" : "row"}]`)].indexOf(head);
    const [name, choice] = [named(across ? columns : rows)[i], head.querySelector("select")];
    if (choice) choice.value = name;
    else head.textContent = name;
  });
}
