// The validation loss and what the model remembers, before and after an edit. The server measures batch by batch: what
// is known so far is shown, and it can be stopped.
"use strict";

const EXPLAINED = {
  free: "nothing, it is a free choice; accuracy: the share given to all possible ones",
  local: "spelling: the characters just before it",
  recall: "a name, or what the hero is", copy: "the taste and the fruit that were found", latest: "the last of the places",
  order: "a list, in its order", quote: "a sentence that was said", count: "one fewer than before",
  agreement: "she or he, one or many", plan: "what began: who hid makes the other find",
};

/** Makes the view in `box` for a pane. Returns {edited(), stop()}: after an edit, and to stop measuring. */
function lossView(box, pane) {
  const now = element("p"), gauge = element("div", { class: "gauge" }), table = element("div");
  const progress = element("p", { class: "soft" });
  const shown = [now, gauge, table];
  const start = element("button", { type: "button", onclick: () => measure(false) });
  const all = element("button", { type: "button", onclick: () => measure(true) }, "Measure all of it");
  const halt = element("button", { type: "button", disabled: true, onclick: () => control?.abort() }, "Stop measuring");
  box.replaceChildren(now, gauge, element("div", { class: "row screen" }, start, all, halt), progress, table);
  start.textContent = "Measure";
  const known = pane.run.tells ? "" : `The validation part of ${pane.run.source} is opened to measure the loss.`;
  progress.textContent = known;
  let control = null, before = {}, after = null, timer = 0;

  async function one(changed, whole, what, signal) {
    let last = null;
    for await (const answer of lines("measure", { run: pane.run.number, edits: changed, whole }, signal)) {
      signal.throwIfAborted();
      progress.textContent = `${what}: ${answer.done} of ${answer.of} batches`;
      last = answer;
      if (edits.any(changed)) draw(answer.score, before[whole]);
    }
    return last;
  }

  async function measure(whole) {
    control?.abort();
    const mine = (control = new AbortController());
    const changed = { ...structuredClone(pane.edits), cut: [] };
    halt.disabled = false;
    progress.textContent = "Opening the validation text";
    await shownProblems(async () => {
      if (!before[whole]) before[whole] = (await one(noEdits(), whole, "As trained", mine.signal)).score;
      after = edits.any(changed) ? (await one(changed, whole, "With the changes", mine.signal)).score : before[whole];
      draw(after, before[whole]);
      progress.textContent = (whole ? "All of the validation text" : "The beginning of the validation text")
        + `: ${after.characters.toLocaleString("en-US")} ${pane.run.tokenizer === "char" ? "characters" : "tokens"}.`
        + (pane.edits.cut.length ? " Cut edges are those of this text; the validation text has none." : "");
      say(`${pane.name}: ${now.textContent}`);
    });
    if (mine === control) { halt.disabled = true; if (mine.signal.aborted) progress.textContent = "Stopped."; }
  }

  function draw(score, was) {
    shown.forEach((view) => view.classList.remove("stale"));
    const moved = was && Math.abs(score.loss - was.loss) > 5e-5;
    now.replaceChildren("Validation loss ", element("b", {}, number(score.loss, 4)));
    if (moved) now.append(`, as trained ${number(was.loss, 4)}: ${signed(score.loss - was.loss, 4)}`);
    if (score.above !== null) {
      now.append(`. ${number(score.above, 4)} above the floor; a reader without memory stands ${number(score.forgetful, 4)} above it.`);
      gauge.title = "the bar: above the floor; the upright line: a reader without memory";
      gauge.replaceChildren(bar(score.above, Math.max(2 * score.forgetful, score.above), score.forgetful));
    }
    const names = Object.entries(score.names);
    if (!names.length) return;
    const cells = (name, row) => {
      const old = was?.names[name], way = old ? row.accuracy - old.accuracy : 0;
      const sign = way < -0.005 ? element("span", { class: "worse" }, " \u25bc") : way > 0.005 ? element("span", { class: "better" }, " \u25b2") : "";
      return [element("td", {}, number(row.accuracy), sign), element("td", {}, old ? number(old.accuracy) : ""),
        element("td", {}, row.remembered === null ? "" : number(row.remembered, 2))];
    };
    const explained = (name) => EXPLAINED[name] || "an answer in a text of this size";
    table.replaceChildren(element("table", {}, element("caption", {}, "What it takes to predict a character"),
      element("thead", {}, element("tr", {}, ...["it takes", "accuracy", "as trained", "remembered"].map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...names.map(([name, row]) => element("tr", {}, element("th", { scope: "row" },
        element("b", {}, name), ` ${explained(name)}`), ...cells(name, row))))),
      element("p", { class: "soft" }, "Remembered: 1 as by a reader who forgets nothing, 0 as by one without memory, below 0 worse than that one."));
  }

  return {
    edited() {
      clearTimeout(timer);
      control?.abort();
      [control, halt.disabled] = [null, true];
      const again = pane.run.small && pane.run.tells;
      for (const view of shown) { // its numbers are of the model before this edit
        if (again) view.classList.add("stale");
        else view.replaceChildren();
      }
      progress.textContent = again ? "Measuring the model as it is now" : known;
      if (again) timer = setTimeout(() => measure(false), 300);
    },
    stop: () => control?.abort(),
  };
}
