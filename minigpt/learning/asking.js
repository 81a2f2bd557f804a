// One question of a lesson: the guess (typed, slid, chosen, drawn), and what is said of it. It judges as reveal.py does.

/** @typedef {string | number[]} Guess a number as it was typed, a choice, or the heights of bars */
/** @typedef {[name: string, usual: any, says: string]} Mistake `usual` is a choice, the ends of a range, or heights */
/** @typedef {{kind: "number" | "choice" | "bars", prompt: string, answer: string, measured: any, among: string[],
 *   within: number, span: [number, number] | null, expected: string, mistakes: Mistake[]}} Question */
/** @typedef {{right: boolean, verdict: string, mistake: string, says?: string}} Judged */
/** @typedef {{parts: HTMLElement[], value: () => Guess | null, set: (guess: any) => void, reveal?: () => void}} Form */

/** @type {Record<string, string>} */
const texts = dataOf("texts");

/**
 * A text of the page in its language, with its values: said("The answer: {answer}.", {answer: 3}).
 * @param {string} english @param {Record<string, string | number>} values
 */
function said(english, values = {}) {
  return (texts[english] ?? english).replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

/** A guess as a number: "0.25", "1/4", "25 %", "1,000", in German "0,25" and "1 000"; null if it is none. @param {string} typed */
function readNumber(typed) {
  const text = document.documentElement.lang === "en"
    ? typed.trim().replace(/(?<=\d),(?=\d{3}\b)/g, "")
    : typed.trim().replace(/(?<=\d) (?=\d{3}\b)/g, "").replace(/,/g, ".");
  const bare = text.replace(/%$/, "").trim();
  const [whole, top, under] = bare.match(/^([+-]?\d+)\/(\d+)$/) ?? [];
  if (!whole && !/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(bare)) return null;
  const x = (whole ? Number(top) / Number(under) : Number(bare)) / (text.endsWith("%") ? 100 : 1);
  return Number.isFinite(x) ? x : null;
}

/** A number as `in_words` of reveal.py writes it: four digits. @param {number} x */
function inWords4(x) {
  if (Number.isInteger(x)) return String(x);
  const size = Math.floor(Math.log10(Math.abs(Number(x.toPrecision(4)))));
  return size < -4 || size >= 4 ? x.toExponential(3).replace(/\.?0+e/, "e").replace(/e([+-])(\d)$/, "e$10$2") : String(Number(x.toPrecision(4)));
}

/** Half the sum of the differences of two rows of bars. @param {number[]} one @param {number[]} other */
const apart = (one, other) => one.reduce((sum, x, i) => sum + Math.abs(x - other[i]), 0) / 2;

/**
 * What is said of a guess; null if it cannot be read.
 * @param {Question} question @param {any} guess @returns {Judged | null}
 */
function judge(question, guess) {
  const { kind, measured, answer, within, mistakes } = question;
  /** @type {(right: boolean, sentence: string, values: Record<string, string | number>, mistake?: Mistake) => Judged} */
  const result = (right, sentence, values, [mistake, , says] = ["", null, ""]) =>
    ({ right, verdict: said(sentence, values), mistake, says });
  if (kind === "bars") {
    const off = apart(guess, measured);
    const values = { off: `${Math.round(100 * off)}%` };
    const nearest = mistakes.reduce((/** @type {Mistake | null} */ best, each) => (apart(guess, each[1]) < (best ? apart(guess, best[1]) : off) ? each : best), null);
    if (!nearest && off <= within) return result(true, "Right: {off} lies elsewhere.", values);
    return result(false, "Not this time: {off} lies elsewhere.", values, nearest ?? undefined);
  }
  const x = kind === "number" ? readNumber(guess) : guess;
  if (x === null) return null;
  const values = { said: kind === "number" ? inWords4(x) : x, answer };
  if (values.said === answer) return result(true, kind === "number" ? "Right: you said {said}; the answer is {answer}." : "Right: {answer}.", values);
  const off = kind === "number" ? Math.abs(x - measured) : Infinity;
  if (off <= within + 1e-9) return result(true, "Near enough: you said {said}; the answer is {answer}.", values);
  const sentence = off <= 3 * within ? "Close: you said {said}; the answer is {answer}." : "Not this time: you said {said}; the answer is {answer}.";
  return result(false, sentence, values, mistakes.find(([, usual]) => (kind === "number"
    ? (usual[0] === null || x >= usual[0]) && (usual[1] === null || x <= usual[1]) : x === usual)));
}

// ---- forms: each returns {parts, value(), set(guess), reveal()}; value() is null as long as nothing was guessed

/**
 * A number: typed, or slid where its range is known. The slider has no number until it is touched.
 * @param {Question} question @param {string} label @returns {Form}
 */
function numberForm({ span, expected }, label) {
  const typed = element("input", { type: "text", inputmode: "text", "aria-labelledby": label, placeholder: expected, autocomplete: "off" });
  const parts = [typed];
  if (span) {
    const [low, high] = span;
    const logs = low > 0 && high / low >= 50;
    const at = (/** @type {number} */ share) => (logs ? low * (high / low) ** share : low + (high - low) * share);
    const range = element("input", { type: "range", min: 0, max: 1, step: 0.005, value: 0.5, "aria-labelledby": label, "aria-valuetext": "?",
      oninput: () => {
        typed.value = String(Number(at(Number(range.value)).toPrecision(2)));
        range.setAttribute("aria-valuetext", typed.value);
      } });
    const ends = element("span", { class: "ends soft", "aria-hidden": "true" }, element("span", {}, String(low)), element("span", {}, String(high)));
    parts.unshift(element("div", { class: "slide" }, range, ends));
  }
  return { parts, value: () => typed.value.trim() || null, set: (guess) => { typed.value = guess; } };
}

/**
 * One of several, as words or as pictures to point at.
 * @param {Question} question @param {string} label @param {Element[]} pictures @returns {Form}
 */
function choiceForm({ among }, label, pictures) {
  const group = `choice-${label}`;
  const radios = among.map((each) => element("input", { type: "radio", name: group, value: each }));
  const labels = radios.map((radio, i) => element("label", { class: pictures[i] ? "pictured" : "" }, radio, among[i], pictures[i] ?? ""));
  return {
    parts: [element("fieldset", { class: "choices", "aria-labelledby": label }, ...labels)],
    value: () => radios.find((radio) => radio.checked)?.value ?? null,
    set: (guess) => radios.forEach((radio) => { radio.checked = radio.value === guess; }),
  };
}

/**
 * Bars to draw: each is an upright slider. When the answer is there, they are dashed over those that were measured.
 * @param {Question} question @param {string} label @returns {Form}
 */
function barsForm({ among, measured }, label) {
  const sliders = among.map((name, i) => element("input", { type: "range", min: 0, max: 1, step: 0.01, value: 0, "aria-label": name,
    oninput: () => drawn(i) }));
  const columns = sliders.map((slider, i) => element("div", { class: "column" }, element("span", { class: "height" }, "?"),
    element("div", { class: "track" }, element("i", { class: "mine" }), element("i", { class: "real hidden" }), slider), element("b", {}, visible(among[i]))));
  const sum = element("p", { class: "soft" }, said("Drag each bar; arrow keys move one too. Together they are 1."));
  let touched = false;
  const drawn = (/** @type {number} */ i) => {
    touched = true;
    columns[i].style.setProperty("--mine", sliders[i].value);
    columns[i].firstChild.textContent = Number(sliders[i].value).toFixed(2);
    const all = sliders.reduce((total, slider) => total + Number(slider.value), 0);
    sum.textContent = said("The sum is {sum}. Together the bars are 1.", { sum: all.toFixed(2) });
  };
  return {
    parts: [element("div", { class: "columns", role: "group", "aria-labelledby": label }, ...columns), sum],
    value: () => (touched ? sliders.map((slider) => Number(slider.value)) : null),
    set: (/** @type {number[]} */ guess) => guess.forEach((height, i) => { sliders[i].value = height; drawn(i); }),
    reveal: () => {
      columns.forEach((column, i) => {
        column.style.setProperty("--real", measured[i]);
        column.querySelector(".real").classList.remove("hidden");
        column.firstChild.textContent = measured[i].toFixed(2);
      });
      sum.textContent = said("Filled: what was computed. Dashed: yours.");
    },
  };
}
