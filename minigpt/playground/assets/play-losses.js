// The validation loss and what the model remembers, before and after an edit. The server measures batch by batch: what
// is known so far is shown, and it can be stopped.
"use strict";

const EXPLAINED = {
  free: "a free choice: the share given to all possible ones", local: "the characters just before it",
  recall: "a name, or what someone is", copy: "a taste, a fruit", latest: "the last of the places", order: "a list in its order",
  quote: "a sentence that was said", count: "one fewer", agreement: "she or he, one or many", plan: "how it began",
};

/** Makes the view in `box` for a pane. Returns {edited(), stop()}: after an edit, and to stop measuring. */
function lossView(box, pane) {
  const now = element("p"), gauge = element("div", { class: "gauge" }), table = element("div");
  const progress = element("p", { class: "soft" });
  const start = element("button", { type: "button", onclick: () => measure(false) });
  const all = element("button", { type: "button", onclick: () => measure(true) }, "Measure all of it");
  const halt = element("button", { type: "button", disabled: true, onclick: () => control?.abort() }, "Stop measuring");
  box.replaceChildren(now, gauge, element("div", { class: "row" }, start, all, halt), progress, table);
  start.textContent = "Measure";
  if (!pane.run.tells) progress.textContent = `The validation part of ${pane.run.source} is opened to measure the loss.`;
  let control = null, before = {}, after = null, timer = 0;

  async function one(changed, whole, what) {
    let last = null;
    for await (const answer of lines("measure", { run: pane.run.number, edits: changed, whole }, control.signal)) {
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
      if (!before[whole]) before[whole] = (await one(noEdits(), whole, "As trained")).score;
      after = edits.any(changed) ? (await one(changed, whole, "With the changes")).score : before[whole];
      draw(after, before[whole]);
      progress.textContent = (whole ? "All of the validation text" : "The beginning of the validation text")
        + `: ${after.characters.toLocaleString("en-US")} ${pane.run.tokenizer === "char" ? "characters" : "tokens"}.`
        + (pane.edits.cut.length ? " Cut edges are those of this text; the validation text has none." : "");
      say(`${pane.name}: ${now.textContent}`);
    });
    if (mine === control) { halt.disabled = true; if (mine.signal.aborted) progress.textContent = "Stopped."; }
  }

  function draw(score, was) {
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
    table.replaceChildren(element("table", {}, element("caption", {}, "What it takes to predict a character"),
      element("thead", {}, element("tr", {}, ...["it takes", "accuracy", "as trained", "remembered"].map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...names.map(([name, row]) => element("tr", {}, element("th", { scope: "row",
        title: EXPLAINED[name] || "" }, name), ...cells(name, row))))));
  }

  return {
    edited() {
      clearTimeout(timer);
      if (pane.run.small && pane.run.tells) timer = setTimeout(() => measure(false), 300);
    },
    stop: () => control?.abort(),
  };
}
