// The page: panes beside each other, each with a run, its text, its edits; the same beginning, settings and dice for all.
// A question to the server holds everything that its answer depends on.
"use strict";

const panes = [];
let runs = [], underWay = 0; // writings

// ---- settings ----

const controls = { temperature: byId("temperature"), topK: byId("top-k"), topP: byId("top-p"), seed: byId("seed") };

function settings() {
  const topK = Number(controls.topK.value), seed = Math.floor(Number(controls.seed.value));
  return {
    temperature: Number(controls.temperature.value),
    top_k: topK >= Number(controls.topK.max) ? null : topK,
    top_p: Number(controls.topP.value),
    seed: Number.isFinite(seed) ? Math.min(Math.max(seed, 0), 999999999) : 0,
  };
}

function showSettings() {
  const { temperature, top_k, top_p } = settings();
  const told = { "temperature-out": temperature.toFixed(2), "top-k-out": top_k ?? "off", "top-p-out": top_p < 1 ? top_p.toFixed(2) : "off" };
  for (const [id, text] of Object.entries(told)) byId(id).textContent = text;
  controls.topK.setAttribute("aria-valuetext", top_k === null ? "off" : `${top_k} tokens`);
}

// ---- a pane ----

/** The pane of a run: its elements, and what it holds. ids[0..begun) were given, ids[begun..kept) are not rewritten. */
function makePane(number, label) {
  const run = { ...runs[number], number };
  const pane = { run, name: label || run.name, ids: [], tokens: [], turns: [], surprise: [], begun: 0, kept: 0,
    at: 0, forced: new Set(), edits: noEdits(), prompt: null, wrote: "", control: null,
    changes: 0, author: 0, stage: "" }; // changes so far, those of the model that wrote; "begins", "writes" or ""
  const parts = Object.fromEntries(["changes", "text", "outside", "status", "line", "edits", "losses"].map((name) => [name, element("div")]));
  parts.changes = element("small");
  parts.status.className = "soft";
  parts.outside.className = "note hidden";
  const facts = [[run.kinds.join(", "), "attention"], [run.parameters.toLocaleString("en-US"), "parameters"],
    [run.step.toLocaleString("en-US"), "steps"], [`${run.tokenizer}, ${run.vocabulary.toLocaleString("en-US")}`, "tokens"], [run.context.toLocaleString("en-US"), "context"]];
  const own = element("input", { type: "text", class: "mono", size: 12, "aria-label": `Text to put into ${pane.name}` });
  const form = element("form", { class: "row screen", onsubmit: (event) => { event.preventDefault(); if (own.value) putInText(pane, own.value); } },
    "or put in", own, element("button", { type: "submit" }, "Put in"));
  const said = element("input", { type: "text", size: 30, "aria-label": `What you say next to ${pane.name}` });
  const next = element("form", { class: "row screen", onsubmit: (event) => { event.preventDefault(); if (said.value) reply(pane, said); } },
    "say", said, element("button", { type: "submit" }, "Say"));
  const explorer = element("button", { type: "button", onclick: () => openPage(pane, "explore", { run: run.number, ids: pane.ids }) }, "Open this text in the explorer");
  const whole = element("button", { type: "button", onclick: () => { ofPane = pane; showTab("whole"); } }, "See the whole model");
  pane.unedited = element("span", { class: "soft hidden" }, "the explorer shows it as trained: the changes are not in it, as they are in the whole model");
  pane.title = element("span", {}, pane.name);
  const key = element("p", { class: "soft key" }, "Tokens:", element("i", { class: "unlikely" }), "surprising to the model",
    element("i", { class: "given" }), "given",
    ...(panes.length ? [element("b", { class: "differs" }, "ab"), " other than beside it"] : []));
  pane.box = element("section", { class: "card pane", "aria-label": pane.name }, element("h2", {}, pane.title, parts.changes),
    element("ul", { class: "facts" }, ...facts.map(([value, what]) => element("li", {}, element("b", {}, value), ` ${what}`))),
    ...run.notes.map((note) => element("p", { class: "note" }, note)),
    parts.text, ...(run.talks ? [next] : []), key, parts.outside, parts.status, parts.line, form,
    element("details", { open: true, class: "screen" }, element("summary", {}, "Change the model"), parts.edits),
    element("details", { open: true }, element("summary", {}, "What it remembers"), parts.losses),
    element("div", { class: "row screen" }, whole, explorer, pane.unedited));
  pane.parts = parts;
  pane.look = newestOnly(() => shownProblems(() => look(pane)));
  pane.read = newestOnly(() => shownProblems(() => read(pane)));
  pane.showLine = lineView(parts.line, (id, text) => putIn(pane, [id], text));
  pane.redrawEdits = editControls(parts.edits, pane, () => edited(pane));
  pane.losses = lossView(parts.losses, pane);
  return pane;
}

/** The text as a strip, and after it a place for the next token. */
function drawText(pane) {
  const focused = pane.parts.text.contains(document.activeElement);
  const view = strip(pane.parts.text, [...pane.tokens, "\u2026"], {
    turns: pane.turns, choose: (i) => { pane.at = i; view.select(i); pane.look(); },
  }, `The text of ${pane.name}, token by token; the last place is the next token`);
  pane.tokens.forEach((_, i) => {
    if (pane.surprise[i] !== null && pane.surprise[i] !== undefined) view.shade(i, 1 - Math.exp(-pane.surprise[i]));
    view.items[i].classList.toggle("given", i < pane.begun);
    view.items[i].classList.toggle("forced", pane.forced.has(i));
  });
  markDifferences(pane, view.items);
  pane.items = view.items;
  if (pane === panes[0] && panes[1]?.items) markDifferences(panes[1], panes[1].items);
  view.items[pane.tokens.length].classList.add("next");
  view.items[pane.tokens.length].setAttribute("aria-label", "The next token");
  view.select(Math.min(pane.at, pane.tokens.length));
  if (focused) view.items[Math.min(pane.at, pane.tokens.length)].focus();
}

/** Marks the tokens of the second pane that are not those of the first, turn by turn of the die. */
function markDifferences(pane, items) {
  const [first] = panes;
  if (!first || pane === first) return;
  for (let i = pane.begun; i < pane.tokens.length; i++) {
    const other = first.tokens[first.begun + i - pane.begun];
    items[i]?.classList.toggle("differs", other !== undefined && other !== pane.tokens[i]);
  }
}

/** Asks for the line at the chosen place. */
async function look(pane) {
  if (!pane.ids.length) return;
  const at = Math.max(pane.at, 1), { ids, changes } = pane;
  if (at > ids.length) return;
  const answer = await ask("look", { run: pane.run.number, ids, edits: pane.edits, at, begun: pane.begun, settings: settings() });
  if (ids !== pane.ids || changes !== pane.changes || at !== Math.max(pane.at, 1)) return;
  pane.showLine(answer, heading(pane, at));
  pane.looksAt(at);
}

function heading(pane, at) {
  return at === pane.tokens.length ? "What may come next" : `What could have stood at ${at + 1}, where ${quoted(pane.tokens[at])} stands`;
}

/** Asks how surprising the text is, as the model is now. An answer about the model before a change is not shown. */
async function read(pane) {
  if (!pane.ids.length) return;
  const { ids, changes } = pane;
  const answer = await ask("read", { run: pane.run.number, ids, edits: pane.edits, kept: pane.kept });
  if (ids !== pane.ids) return;
  if (changes !== pane.changes) { await read(pane); return; }
  showOutside(pane, answer);
  [pane.tokens, pane.turns, pane.surprise] = [answer.tokens, answer.turns, answer.surprise];
  drawText(pane);
  pane.parts.status.textContent = pane.wrote + surprise(pane, answer);
}

/** A sentence where the part of the text that a person gave is far outside what the run was trained on. */
function showOutside(pane, answer) {
  pane.parts.outside.textContent = answer.outside;
  pane.parts.outside.classList.toggle("hidden", !answer.outside);
}

/** How surprising the text is, in words: low numbers are no praise where a model reads what it wrote itself. */
function surprise(pane, answer) {
  if (answer.loss === null) return "";
  const now = `${number(answer.loss, 4)} nats a token`;
  if (!edits.any(pane.edits)) return `This text: ${now}.`;
  const own = pane.run.small && pane.author === pane.changes && pane.ids.length > pane.kept;
  return `${own ? "Its own text" : "This text"} surprises the changed model by ${now}, the model as trained by ${number(answer.before, 4)}.`;
}

// ---- writing ----

/** The beginning as tokens, where the prompt has changed since. */
async function begin(pane, afresh) {
  const prompt = byId("prompt").value;
  if (!afresh && prompt === pane.prompt) return;
  const { ids } = await ask("encode", { run: pane.run.number, text: prompt, begins: true }, pane.control.signal);
  Object.assign(pane, { ids, prompt, begun: ids.length, kept: ids.length, at: ids.length, forced: new Set(), wrote: "" });
  const { changes } = pane;
  const answer = await ask("read", { run: pane.run.number, ids, edits: pane.edits, kept: ids.length }, pane.control.signal);
  showOutside(pane, answer);
  [pane.tokens, pane.turns] = [answer.tokens, answer.turns];
  pane.surprise = changes === pane.changes ? answer.surprise : ids.map(() => null);
  drawText(pane);
}

/** Writes up to n tokens in a pane, each as it comes. */
async function write(pane, n) {
  const started = performance.now(), first = pane.ids.length, mine = pane.control;
  [pane.at, pane.stage, pane.author] = [first, "writes", pane.changes];
  let last = null, due = 0, ended = "";
  const draw = () => {
    due = 0;
    drawText(pane);
    if (last) pane.showLine(last, `What could have stood at ${pane.tokens.length}, where ${quoted(pane.tokens.at(-1))} stands`);
  };
  const question = { run: pane.run.number, ids: pane.ids, edits: pane.edits, begun: pane.begun, settings: settings(), tokens: n };
  try {
    for await (const answer of lines("write", question, mine.signal)) {
      if (mine.signal.aborted) break;
      if ("ended" in answer) { ended = answer.ended; break; }
      pane.ids = [...pane.ids, answer.id];
      pane.tokens = [...pane.tokens, answer.token];
      pane.surprise = [...pane.surprise, answer.surprise];
      pane.at = pane.ids.length - 1;
      last = answer.line;
      due = due || requestAnimationFrame(draw);
    }
  } finally {
    cancelAnimationFrame(due);
    if (mine === pane.control) {
      const count = pane.ids.length - first, seconds = (performance.now() - started) / 1000;
      pane.wrote = count > 1 ? `${count} tokens in ${seconds.toFixed(1)} s. ` : "";
      if (ended) pane.wrote += `${ended[0].toUpperCase()}${ended.slice(1)}. `;
      if (n > 1) pane.at = ended && pane.ids.length > first ? mostOpen(pane, first) : pane.ids.length;
      draw();
    }
  }
}

/** Of the tokens from a place on, the one that was the most surprising: where the die decided most. */
function mostOpen(pane, first) {
  const written = pane.surprise.slice(first);
  return first + written.indexOf(Math.max(...written));
}

/** Runs a writing of some panes at once; one that is under way there is stopped first. */
async function writing(some, act) {
  noProblem();
  underWay += 1;
  byId("stop").disabled = false;
  await Promise.all(some.map((pane) => shownProblems(async () => {
    pane.control?.abort();
    const mine = (pane.control = new AbortController());
    pane.stage = "begins";
    try {
      await act(pane);
    } finally {
      if (mine === pane.control) {
        pane.stage = "";
        pane.looksAt(pane.at);
        await pane.read();
        await pane.look();
      }
    }
    say(`${pane.name}: ${pane.tokens.slice(pane.begun).join("")}`);
  })));
  underWay -= 1;
  byId("stop").disabled = underWay === 0;
  document.body.dataset.ready = String(Number(document.body.dataset.ready || 0) + 1);
}

const writeAfresh = () => writing(panes, async (pane) => { await begin(pane, true); await write(pane, pane.run.most); });
const writeOn = (n) => writing(panes, async (pane) => { await begin(pane, false); await write(pane, n || pane.run.most); });

/** Puts tokens in at the chosen place, and goes on from there with the same dice. */
function putIn(pane, ids, text) {
  const at = Math.max(pane.at, 1);
  if (at < pane.begun) {
    say("This token was given: change the text to begin with.");
    pane.parts.status.textContent = "This token was given: change the text above to begin with.";
    return undefined;
  }
  return writing([pane], async () => {
    const mine = pane.control;
    pane.ids = [...pane.ids.slice(0, at), ...ids];
    pane.forced = new Set([...pane.forced].filter((place) => place < at));
    ids.forEach((_, i) => pane.forced.add(at + i));
    pane.kept = pane.ids.length;
    say(`${pane.name}: ${visible(text)} put in at ${at + 1}`);
    await read(pane);
    if (!mine.signal.aborted) await write(pane, pane.run.most);
  });
}

/** The next turn of a talk: what a person says is put in behind the text, and answered. */
async function reply(pane, said) {
  pane.control?.abort();
  const { ids } = pane, found = await shownProblems(() => ask("reply", { run: pane.run.number, ids, text: said.value }));
  if (!found || ids !== pane.ids) return;
  pane.at = pane.ids.length;
  await putIn(pane, found.ids, said.value);
  said.value = "";
}

async function putInText(pane, text) {
  const found = await shownProblems(() => ask("encode", { run: pane.run.number, text, begins: false }));
  if (found) await putIn(pane, found.ids, text);
}

/** After an edit: what is under way is ended; the text is read again, and written again by a small model. */
function edited(pane) {
  pane.changes += 1;
  pane.unedited.classList.toggle("hidden", !edits.any(pane.edits));
  if (pane.twin) {
    pane.name = `${pane.run.name}, ${edits.any(pane.edits) ? "second" : "as trained"}`;
    pane.title.textContent = pane.name;
    pane.box.setAttribute("aria-label", pane.name);
  }
  pane.parts.changes.textContent = edits.words(pane.edits);
  say(`${pane.name}: ${edits.words(pane.edits) || "as trained"}`);
  pane.losses.edited();
  if (!pane.ids.length) return;
  const writes = pane.stage === "writes"; // by the model before this edit, perhaps without a token so far
  if (writes) pane.control.abort();
  if (pane.run.small && (writes || pane.ids.length > pane.kept)) rewrite(pane);
  else if (!writes) { pane.read(); pane.look(); }
}

/** Writes again what a pane wrote, once for several edits in a row. */
function rewrite(pane) {
  clearTimeout(pane.timer);
  const again = async () => {
    pane.ids = pane.ids.slice(0, pane.kept);
    [pane.tokens, pane.surprise] = [pane.tokens.slice(0, pane.kept), pane.surprise.slice(0, pane.kept)];
    pane.at = pane.kept;
    pane.parts.status.textContent = "Writing again.";
    drawText(pane);
    await write(pane, pane.run.most);
  };
  pane.timer = setTimeout(() => {
    if (pane.stage !== "begins") writing([pane], again); // a text that only begins will have this edit
  }, 80);
}

/** Opens a page that the server makes of this text in a tab of its own. */
async function openPage(pane, question, asked) {
  if (!pane.ids.length) return;
  const tab = window.open("", "_blank");
  pane.parts.status.textContent = "The page is being made: one pass for each part.";
  const found = await shownProblems(() => ask(question, asked));
  if (found && tab) tab.location.replace(`/explorer/${found.page}`);
  else tab?.close();
  pane.read();
}

// ---- the tabs ----

let ofPane = null; // the pane whose text the whole model reads
let shownWhole = ""; // the question whose page is there

/** @returns {HTMLElement[]} */
const tabs = () => [...document.querySelectorAll("[role=tab]")].map((tab) => /** @type {HTMLElement} */ (tab));

/** Shows one of the two views; that of the whole model is made anew where its run, its text or its changes are others. */
function showTab(name) {
  for (const tab of tabs()) {
    const chosen = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).classList.toggle("hidden", !chosen);
    if (chosen) tab.focus();
  }
  if (name === "whole") showWhole();
}

const showWhole = newestOnly(async () => {
  const pane = panes.includes(ofPane) ? ofPane : panes[0];
  const question = { run: pane.run.number, ids: pane.ids, edits: pane.edits };
  byId("of").classList.toggle("hidden", panes.length < 2);
  byId("of").replaceChildren(byId("of").firstElementChild, ...panes.map((one) => element("label", {},
    element("input", { type: "radio", name: "of", checked: one === pane, onchange: () => { ofPane = one; showWhole(); } }), one.name)));
  if (shownWhole === JSON.stringify(question)) return;
  byId("view-whole").querySelector("iframe")?.remove();
  byId("alone").classList.add("hidden");
  shownWhole = "";
  if (!pane.ids.length) { byId("whole-says").textContent = "There is no text yet: write one first."; return; }
  byId("whole-says").textContent = "The page is being made: one pass for each part.";
  const found = await shownProblems(() => ask("whole", question));
  byId("whole-says").textContent = found ? `${pane.name}, ${edits.words(pane.edits) || "as trained"}` : "";
  if (!found) return;
  shownWhole = JSON.stringify(question);
  byId("alone").href = `/explorer/${found.page}`;
  byId("alone").classList.remove("hidden");
  byId("view-whole").append(element("iframe", { src: `/explorer/${found.page}`, title: `The whole model of ${pane.name}`, sandbox: "allow-scripts" }));
});

/** A list of tabs has one stop of the Tab key; the arrows, Home and End go between them. */
function connectTabs() {
  const name = (tab) => tab.id.replace("tab-", "");
  tabs().forEach((tab, i) => {
    tab.addEventListener("click", () => showTab(name(tab)));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: -1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      showTab(name(tabs().at(to % tabs().length)));
    });
  });
}

// ---- the page ----

function addPane(number, label) {
  const pane = makePane(number, label);
  panes.push(pane);
  byId("panes").append(pane.box);
  byId("panes").classList.toggle("two", panes.length > 1);
  drawText(pane);
  return pane;
}

async function start() {
  themeButton(byId("theme"));
  const found = await shownProblems(() => ask("hello", {}));
  if (!found) return;
  runs = found.runs;
  const first = runs[0], usual = first.settings;
  controls.temperature.value = usual.temperature;
  controls.topK.max = Math.min(Math.max(...runs.map((run) => run.vocabulary)), 60);
  controls.topK.value = usual.top_k ?? controls.topK.max;
  controls.topP.value = usual.top_p;
  controls.seed.value = usual.seed;
  byId("prompt").value = first.beginning;
  showSettings();
  const twice = runs.length === 2 && found.same;
  runs.forEach((run, i) => addPane(i, twice ? `${run.name}, ${i ? "right" : "left"}` : ""));
  byId("twice").classList.toggle("hidden", runs.length > 1);
  connect();
  if (runs.every((run) => run.small)) await writeAfresh();
  else document.body.dataset.ready = "0";
  panes.forEach((pane) => pane.losses.edited());
}

function connect() {
  connectTabs();
  byId("write").addEventListener("click", writeAfresh);
  byId("one").addEventListener("click", () => writeOn(1));
  byId("on").addEventListener("click", () => writeOn(0));
  byId("stop").addEventListener("click", () => panes.forEach((pane) => pane.control?.abort()));
  byId("roll").addEventListener("click", () => { controls.seed.value = settings().seed + 1; writeAfresh(); });
  byId("twice").addEventListener("click", () => {
    byId("twice").classList.add("hidden");
    const [left] = panes;
    const right = addPane(0, `${left.name}, as trained`);
    right.twin = true;
    writing([right], async (pane) => { await begin(pane, true); await write(pane, pane.run.most); });
  });
  for (const input of Object.values(controls)) {
    input.addEventListener("input", () => { showSettings(); panes.forEach((pane) => pane.look()); });
  }
}

start();
