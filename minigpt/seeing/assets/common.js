// What minigpt's pages share: elements, the theme, numbers as text, bars, the strip of tokens. What a person
// or a model wrote is set as text, never as markup. Colours and sizes are set by properties, because the
// policy of a page forbids style attributes.
"use strict";

/** An element: element("p", {class: "soft", onclick: f, css: {"--size": "3%"}}, "text", otherElement). */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "css") for (const [property, x] of Object.entries(value)) made.style.setProperty(property, x);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** The element with an id. @returns {any} of whatever kind it is in the page */
const byId = (id) => document.getElementById(id);

/** What has the focus within a box, or null. @returns {HTMLElement | null} */
const focusedIn = (box) => (box?.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement) : null);

/** The data that Python put into the page under an id. */
const dataOf = (id) => JSON.parse(byId(id).textContent);

// ---- the theme ----

const darkOutside = matchMedia("(prefers-color-scheme: dark)");

/** "light" or "dark": what the button chose, else what the system prefers. */
function theme() {
  return document.documentElement.dataset.theme || (darkOutside.matches ? "dark" : "light");
}

/** Makes a button switch the theme, and remember it. `redraw` is called after every change, for canvases. */
function themeButton(button, redraw = () => {}) {
  const changed = () => {
    button.textContent = theme() === "dark" ? "Light colours" : "Dark colours";
    redraw();
  };
  const kept = remembered("minigpt-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
    remember("minigpt-theme", theme());
    changed();
  });
  darkOutside.addEventListener("change", changed);
  changed();
}

/** What was kept under a name, or null: in a sandboxed frame there is nowhere to keep anything. */
function remembered(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}

function remember(name, value) {
  try { localStorage.setItem(name, value); } catch { /* as above */ }
}

/** Calls `before` when the page is about to be printed, on paper that is light, and `after` when it is back on the screen. */
function printed(before, after = () => {}) {
  let kept;
  window.addEventListener("beforeprint", () => {
    kept = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    before();
  });
  window.addEventListener("afterprint", () => {
    if (kept) document.documentElement.dataset.theme = kept;
    else delete document.documentElement.dataset.theme;
    darkOutside.dispatchEvent(new Event("change")); // the colours may have changed meanwhile
    after();
  });
}

/** A colour of common.css as [red, green, blue], 0 to 255, for canvases: colour("above"). */
function colour(name) {
  const probe = element("i", { css: { color: `var(--${name})` } });
  document.body.append(probe);
  const found = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return found;
}

// ---- numbers as text ----

const minus = (text) => text.replace("-", "\u2212");

/** A probability or a share: "<0.1 %", "0.31 %", "9.5 %", "26 %", "99.7 %", ">99.9 %". */
function percent(p) {
  if (p > 0 && p < 0.001) return "<0.1\u00a0%";
  if (p > 0.999 && p < 1) return ">99.9\u00a0%";
  const x = 100 * p;
  return x.toFixed(x < 1 && x > 0 ? 2 : x < 10 && x > 0 || x >= 99.5 && x < 100 ? 1 : 0) + "\u00a0%";
}

/** Any number, with `digits` after the point; very large and very small ones in powers of ten. */
function number(x, digits = 3) {
  if (x === -Infinity) return "\u2212\u221e";
  if (!Number.isFinite(x)) return x === Infinity ? "\u221e" : "not a number";
  const size = Math.abs(x);
  digits = size >= 1000 ? 0 : size >= 100 ? Math.min(digits, 1) : digits;
  if (size >= 1e7 || (size > 0 && size < 0.5 * 10 ** -digits)) return minus(x.toExponential(1).replace("e+", "e"));
  return minus(x.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

/** A weight with three digits; "\u22480" is near zero, "0" is zero. */
const weighed = (w) => (w !== 0 && Math.abs(w) < 0.0005 ? "\u22480" : w === 0 ? "0" : number(w));

/** A difference: always with its sign, and rounded: "+0.264", "0.000". */
function signed(x, digits = 3) {
  const rounded = x.toFixed(digits);
  return Number(rounded) === 0 ? rounded.replace("-", "") : (x > 0 ? "+" : "") + minus(rounded);
}

// ---- bars and tokens ----

/** A bar of length |x| / most; below zero it is striped. `mark` is a second number, an upright line. */
function bar(x, most = 1, mark = null) {
  const size = (value) => `${(100 * Math.min(Math.abs(value) / (most || 1), 1)).toFixed(2)}%`;
  const made = element("span", { class: "bar", "aria-hidden": "true" });
  made.append(element("i", { class: x < 0 ? "negative" : "", css: { "--size": size(x) } }));
  if (mark !== null) made.append(element("b", { css: { "--mark-at": size(mark) } }));
  return made;
}

/** A token as it is drawn: spaces, tabs and line ends are visible; bytes come as "⟨e280⟩" from Python. */
function visible(token) {
  const named = { " ": "\u2423", "\n": "\u21b5", "\r": "\u240d", "\t": "\u21e5" };
  const hidden = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp} ]/gu; // controls, marks of writing direction, separators
  return token.replace(hidden, (c) => named[c] || `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`) || "\u2205";
}

/** A token in a sentence: ‘J’. */
const quoted = (token) => `\u2018${visible(token)}\u2019`;

/**
 * The strip of tokens in `box`: a listbox with one stop of the Tab key, in which arrows, Home and End move.
 * Pointing previews, leaving restores; clicking, Enter and the space bar choose, and so does moving, unless there is an
 * on.move(i) for that: on.preview(i), on.leave(), on.choose(i).
 * Returns {items, select(i), shade(i, amount), later(i)}: amount is -1 to 1; tokens after i are drawn as not yet seen.
 */
function strip(box, tokens, on, label = "The text, token by token") {
  const items = tokens.map((token, i) => {
    const kind = token === " " ? "token space" : token.startsWith("\u27e8") && token.length > 2 ? "token bytes" : "token";
    return element("span", { class: kind, role: "option", "aria-selected": "false", tabindex: "-1", "data-i": i,
      "aria-label": `${visible(token)}, ${i + 1} of ${tokens.length}` }, token === " " ? "\u00b7" : visible(token));
  });
  box.replaceChildren(...inWords(tokens, items, on.turns ?? []));
  box.classList.add("strip");
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", label);
  box.setAttribute("aria-orientation", "horizontal");
  let chosen = 0;
  const select = (i) => {
    items[chosen].setAttribute("aria-selected", "false");
    items[chosen].tabIndex = -1;
    chosen = i;
    items[i].setAttribute("aria-selected", "true");
    items[i].tabIndex = 0;
  };
  const at = (event) => {
    const item = event.target.closest(".token");
    return item && box.contains(item) ? Number(item.dataset.i) : null;
  };
  if (items.length) select(0);
  box.onpointerover = (event) => { if (event.pointerType !== "touch" && at(event) !== null) on.preview?.(at(event)); };
  box.onpointerleave = () => on.leave?.();
  box.onclick = (event) => { if (at(event) !== null) on.choose?.(at(event)); };
  box.onkeydown = (event) => {
    const here = items.indexOf(document.activeElement);
    const to = movedTo(items, here < 0 ? chosen : here, event.key);
    if (to === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    (to === here || !on.move ? on.choose : on.move)?.(to);
    items[to].focus();
  };
  return {
    items, select,
    shade: (i, amount) => {
      const size = Math.min(Math.abs(amount), 1);
      items[i].style.setProperty("--shade", `${(42 * Math.sqrt(size)).toFixed(1)}%`);
      items[i].style.setProperty("--column", `${(5 * size).toFixed(1)}px`);
      items[i].classList.toggle("negative", amount < -0.005);
    },
    later: (i) => items.forEach((item, j) => item.classList.toggle("later", j > i)),
  };
}

/** The items of a strip in words, which a line does not break where they are not too long; a line end ends a line, and
 * so does a token at which a turn of a talk begins. */
function inWords(tokens, items, turns) {
  const words = [];
  tokens.forEach((token, i) => {
    const last = words[words.length - 1];
    const turn = i > 0 && turns.includes(i);
    if ((i > 1 && tokens[i - 1].includes("\n")) || turn) words.push(element("span", { class: "break", role: "presentation" }));
    if (!last || turn || /^\s./.test(token) || /\s$/.test(tokens[i - 1]) || last.childElementCount > 20)
      words.push(element("span", { class: "word", role: "presentation" }));
    words[words.length - 1].append(items[i]);
  });
  return words;
}

/** Where a key leads from item i of a strip: an index, or null for other keys. Up and down go by drawn lines. */
function movedTo(items, i, key) {
  const last = items.length - 1;
  if (key === "ArrowLeft") return Math.max(i - 1, 0);
  if (key === "ArrowRight") return Math.min(i + 1, last);
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (key === "Enter" || key === " ") return i;
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const way = key === "ArrowUp" ? -1 : 1;
  const [top, left] = [items[i].offsetTop, items[i].offsetLeft];
  let j = i + way;
  while (items[j] && items[j].offsetTop === top) j += way;
  if (!items[j]) return i;
  const line = items.map((_, k) => k).filter((k) => items[k].offsetTop === items[j].offsetTop);
  return line.reduce((best, k) => (Math.abs(items[k].offsetLeft - left) < Math.abs(items[best].offsetLeft - left) ? k : best));
}
