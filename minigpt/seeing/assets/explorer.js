// The explorer: what is chosen, what is pointed at, the address, and the parts of the page that follow them.

/** The head, the row and the key of the address; what is missing or impossible comes from the page's own opening. */
function fromAddress(data, numbers, shades) {
  const found = new URLSearchParams(location.hash.slice(1));
  const whole = (name, from, to) => {
    const text = found.get(name);
    return text !== null && /^\d{1,7}$/.test(text) && Number(text) >= from && Number(text) <= to ? Number(text) : null;
  };
  const layer = whole("layer", 1, data.layers.length);
  const head = layer && whole("head", 1, data.layers[layer - 1].heads);
  const chosen = head ? numbers.heads.findIndex((one) => one.layer === layer - 1 && one.head === head - 1) : data.start.head;
  const t = (whole("token", 1, numbers.T) || data.start.token + 1) - 1;
  const key = whole("key", 1, numbers.T);
  const shade = found.get("shade");
  return { h: chosen, t, key: key === null ? null : key - 1, shade: Object.hasOwn(shades, shade) ? shade : "attention" };
}

function toAddress(numbers, kept) {
  const { layer, head } = numbers.heads[kept.h];
  const parts = [`layer=${layer + 1}`, `head=${head + 1}`, `token=${kept.t + 1}`];
  if (kept.key !== null) parts.push(`key=${kept.key + 1}`);
  if (kept.shade !== "attention") parts.push(`shade=${kept.shade}`);
  try { history.replaceState(null, "", `#${parts.join("&")}`); } catch { /* a frame without an address */ }
}

async function explore() {
  const data = dataOf("data");
  const numbers = numbersOf(data, await unpack(dataOf("arrays")));
  const words = wordsOf(data, numbers);
  const shades = shadesOf(data, numbers, words);
  let kept = { ...fromAddress(data, numbers, shades), factor: 1, all: false, ranked: true };
  let pointed = {};
  let [colours, drawn, asked] = [palette(), null, null];

  const now = () => {
    const state = { ...kept, ...pointed };
    const seenKey = state.key ?? strongest(numbers.weights(state.h, state.t));
    return { ...state, s: seenKey };
  };
  let waiting = false;
  const redraw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; show(); });
  };
  let scrolled = false; // the page moved under a pointer that did not: what comes to lie below it is not pointed at
  const point = (change) => { if (!asked && !scrolled) { pointed = change; redraw(); } };
  const leave = () => { if (Object.keys(pointed).length) { pointed = {}; redraw(); } };
  const keep = (change) => {
    pointed = {};
    kept = { ...kept, ...change };
    if (change.h !== undefined || change.t !== undefined) kept.factor = 1;
    if ((change.h !== undefined || change.t !== undefined) && change.key === undefined) kept.key = null;
    show();
    toAddress(numbers, kept);
    const { h, t } = now();
    byId("said").textContent = `${words.headName(h)}. ${asked ? "" : words.looks(h, t)} ${words.cause(h, t)}`;
  };

  // the parts
  const text = strip(byId("text"), data.tokens, {
    preview: (t) => point({ t, key: null }), leave, choose: (t) => (asked ? answer(t) : keep({ t })),
    move: (t) => { if (!asked) keep({ t }); },
  });
  const small = smallMaps(byId("heads"), data, numbers, words, { preview: (h) => point({ h, key: null }), leave, choose: (h) => { stopAsking(); keep({ h }); } });
  const large = largeMap(byId("map"), numbers, words, {
    preview: (t, s) => point({ t, key: s }), leave, choose: (t, s) => { stopAsking(); keep({ t, key: s }); },
  });
  const markHabit = showHabits(byId("habits"), data, numbers, words, (h) => {
    stopAsking();
    scrolled = true;
    keep({ h });
    text.items[kept.t].focus({ preventScroll: true });
    byId("reading").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  });

  function show() {
    const state = now();
    const { h, t, s } = state;
    document.body.classList.toggle("guessing", Boolean(asked));
    text.select(t);
    text.later(asked ? t : numbers.T);
    showShades(state);
    text.items.forEach((item, i) => item.classList.toggle("pointed", i === s && !asked && state.shade === "attention"));
    byId("looks").textContent = asked ? "" : words.looks(h, t);
    byId("cause").textContent = words.cause(h, t);
    const atStart = kept.h === data.start.head && kept.t === data.start.token && numbers.T > 1;
    byId("opened").textContent = atStart && !asked ? words.opened : "";
    small.select(h);
    markHabit(h);
    small.row(t);
    large.mark(t, s);
    if (drawn !== h) large.draw(h, colours);
    drawn = h;
    byId("map-says").textContent = asked ? "" : `Row: ${words.token(t)} looks. Column: ${words.token(s)} is looked at, with a weight of ${number(numbers.weights(h, t)[s])}.`;
    showHead(data, numbers, words, h);
    showSteps(byId("steps"), data, numbers, words, state, {
      open: (i) => keep({ key: i }), point: (i) => text.items[i].classList.add("pointed"), leave: () => text.items.forEach((item, i) => item.classList.toggle("pointed", i === now().s)),
      factor: (factor) => { kept.factor = factor; show(); }, all: () => { kept.all = !kept.all; show(); },
    });
    showNext(data, words, t);
    showLens(data, t, (i) => keep({ t: i }));
    const best = guessable(numbers, h);
    byId("guess").disabled = !best.length && !asked;
    byId("guess").textContent = asked ? "Show it" : "Guess first";
    byId("most").disabled = mattersMost(numbers, kept.h) === null;
    if (!asked && !byId("guessing").dataset.told) byId("guessing").textContent = best.length ? "" : "In no row does this head give more than half its weight to one token, so there is nothing fair to guess.";
  }

  function showShades(state) {
    const [, legend, amount] = shades[state.shade](state.h);
    const most = numbers.largest(state.h);
    let row = numbers.weights(state.h, state.t);
    if (kept.factor !== 1) row = columnsOf(data, numbers, state.h, state.t, kept.factor).weights;
    text.items.forEach((_, i) => text.shade(i, asked ? 0 : amount ? amount(i) : row[i] / most));
    byId("legend").textContent = asked ? "" : `Colour: ${legend}.`;
  }

  // guess first, then reveal: rows in which one token gets more than half of the weight
  let [right, tries] = [0, 0];
  const ask = () => {
    const rows = guessable(numbers, kept.h);
    asked = { t: rows[Math.floor(Math.random() * rows.length)] };
    pointed = {};
    kept = { ...kept, t: asked.t, key: null, factor: 1 };
    const told = `Where does this head look from ${words.token(asked.t)}, the marked token? Click a token of the text, or choose it with the arrow keys and press Enter.`;
    byId("guessing").dataset.told = "1";
    byId("guessing").textContent = told;
    byId("said").textContent = told;
    show();
    text.items[asked.t].focus();
  };
  const stopAsking = () => { asked = null; byId("guessing").dataset.told = ""; byId("guessing").textContent = ""; };
  const answer = (guess) => {
    const t = asked.t;
    const row = numbers.weights(kept.h, t);
    const s = strongest(row);
    tries += 1;
    right += Number(guess === s);
    asked = null;
    keep({ t });
    const verdict = guess === s ? "Yes." : `You said ${words.token(guess)}: it gets ${number(row[guess])}.`;
    byId("guessing").textContent = `${verdict} ${words.looks(kept.h, t)} ${right} of ${tries} right.`;
    byId("said").textContent = byId("guessing").textContent;
  };
  byId("guess").onclick = () => {
    if (!asked) return ask();
    stopAsking();
    keep({});
  };
  byId("most").onclick = () => {
    stopAsking();
    keep({ t: mattersMost(numbers, kept.h) });
    text.items[kept.t].scrollIntoView({ block: "nearest" });
  };

  // the controls
  choices(byId("shades"), "shade", Object.entries(shades).map(([name, make]) => [name, make(kept.h)[0]]), kept.shade, (shade) => keep({ shade, key: kept.key }));
  choices(byId("orders"), "order", [["ranked", "by loss without it"], ["layers", "by layer"]], "ranked", (order) => small.arrange(order === "ranked"));
  byId("facts").append(...data.facts.map(([name, value]) => element("li", {}, `${name} `, element("b", {}, ...(name === "position" || name === "loss here" ? glossed(value) : [value])))));
  document.querySelectorAll("[data-words]").forEach((one) => one.replaceChildren(...glossed(one.textContent)));
  byId("command").textContent = data.command ? `${data.command}.` : "minigpt.";
  byId("missing").textContent = data.missing;
  byId("outside").textContent = data.outside;
  byId("outside").classList.toggle("hidden", !data.outside);
  small.arrange(true);
  const recolour = (many) => {
    colours = palette();
    drawn = null;
    small.draw(colours, many);
    show();
  };
  themeButton(byId("theme"), () => recolour());
  printed(() => { byId("words").open = true; recolour(numbers.heads.length); });
  window.addEventListener("pointermove", (event) => { if (event.movementX || event.movementY) scrolled = false; }, true);
  window.addEventListener("hashchange", () => {
    stopAsking();
    keep({ ...fromAddress(data, numbers, shades) });
    /** @type {HTMLInputElement} */ (document.querySelector(`#shades [value="${kept.shade}"]`)).checked = true;
  });
  document.body.dataset.ready = performance.now().toFixed(0);
}

explore();
