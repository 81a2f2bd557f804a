// The line on which every token is as long as it is likely, the die that falls on it, and the list of likeliest tokens.
// All numbers come from the server.
"use strict";

const WIDE = 0.035; // of the line: a shorter part has no room for its name

/** Makes the view in `box`; `force(id, token)` is called for a token that is put in. Returns show(answer, title). */
function lineView(box, force) {
  const title = element("h3"), sentence = element("p", { class: "soft" });
  const line = element("div", { class: "line", role: "img" }), list = element("ul", { class: "likeliest" });
  const hint = element("p", { class: "soft" }, "Bars: with the settings; upright lines: without. Click a token to put it in.");
  box.replaceChildren(title, line, sentence, list, hint);
  return function show(answer, heading) {
    title.textContent = heading;
    const taken = answer.chosen ?? answer.stands, name = nameOf(answer, taken);
    const parts = answer.segments.map(([id, text, from, to]) => element("span", {
      class: id === taken ? "part taken" : "part", title: `${visible(text)} ${percent(to - from)}`,
      css: { "--from": `${100 * from}%`, "--long": `${100 * (to - from)}%` },
    }, to - from > WIDE ? visible(text) : ""));
    if (answer.die !== null) parts.push(element("i", { class: "die", css: { "--from": `${100 * answer.die}%` } }));
    line.replaceChildren(...parts);
    sentence.textContent = told(answer, name);
    line.setAttribute("aria-label", sentence.textContent);
    const seen = focusedIn(document.body)?.dataset.id;
    list.replaceChildren(...answer.likeliest.map(([id, text, p, own]) => element("li", {}, element("button", {
      type: "button", class: id === taken ? "taken" : "", "data-id": id, onclick: () => force(id, text),
      "aria-label": `Put in ${visible(text)}, ${percent(p)}${p === own ? "" : `, without settings ${percent(own)}`}`,
    }, element("span", { class: "name" }, visible(text)), bar(p, 1, own), element("span", { class: "p" }, percent(p))))));
    if (seen !== undefined) list.querySelector(`[data-id="${seen}"]`)?.focus();
  };
}

/** What the die did, in words. */
function told(answer, name) {
  const left = answer.left === 1 ? "1 token is" : `${answer.left.toLocaleString("en-US")} tokens are`;
  const line = `Every token is as long as it is likely; ${left} possible.`;
  if (answer.chosen === null) return answer.stands === null ? line : `${line} This one was given: \u2018${name}\u2019.`;
  if (answer.die === null) return `Temperature 0: the likeliest is taken, \u2018${name}\u2019. No die is needed.`;
  const fell = `${line} The die falls on ${number(answer.die)}: \u2018${name}\u2019.`;
  if (answer.stands === null || answer.stands === answer.chosen) return fell;
  return `${fell} In the text stands \u2018${nameOf(answer, answer.stands)}\u2019.`;
}

/** The token with an id, as it is drawn. */
function nameOf(answer, id) {
  const found = [...answer.likeliest, ...answer.segments].find((one) => one[0] === id);
  return found ? visible(found[1]) : "";
}
