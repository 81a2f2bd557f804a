// The page of a lesson: parts open one after the other, the first answer counts and is kept in this browser under a name
// that holds what was measured: a page made from another run does not judge old guesses. And the page of all lessons.

/** @typedef {{guess: Guess | null, right: boolean, mistake: string}} Kept an answer; without a guess: "I do not know" */
/** @typedef {Record<number, Kept>} Answers by the number of the question */
/** @typedef {{lesson: number, title: string, questions: Question[], key: string}} Lesson */

const button = byId("theme");
themeButton(button, () => { button.textContent = said(button.textContent); });

/**
 * The answers kept under a name: {number: {guess, right, mistake}}; what is no such thing counts as nothing.
 * @param {string} key @returns {Answers}
 */
function keptAnswers(key) {
  try {
    const kept = JSON.parse(remembered(key) ?? "{}");
    return kept && typeof kept === "object" ? kept : {};
  } catch { return {}; }
}

/** Shows the questions, those that were answered with what was said of them. @param {Lesson} lesson */
function openLesson(lesson) {
  const answers = keptAnswers(lesson.key);
  const parts = elements(document, ".part");
  const turned = elements(document, ".turn").map(makeTurn).filter((each) => each !== null);
  const putBack = makeLive(elements(document, "main")[0], dataOf("tape"), turned);
  const forms = lesson.questions.map((question, i) => makeAsk(question, i + 1, (answer) => {
    answers[i + 1] = answer;
    putBack(); // what is revealed now was computed from the numbers as they were
    remember(lesson.key, JSON.stringify(answers));
    show();
  }));
  const show = () => {
    let open = true; // a part is shown when all questions before it are answered
    parts.forEach((part, i) => {
      part.classList.toggle("hidden", !open);
      const answer = answers[i + 1];
      if (answer && forms[i]) forms[i](answer);
      open &&= answer !== undefined;
      const dot = byId(`dot-${i + 1}`);
      if (!dot) return;
      dot.className = answer ? (answer.right ? "right" : answer.guess === null ? "open" : "wrong") : "";
      dot.textContent = answer ? (answer.right ? "\u2713" : answer.guess === null ? "\u2013" : "\u2717") : String(i + 1);
      const state = answer ? (answer.right ? "right" : answer.guess === null ? "not guessed" : "not right") : "not answered";
      dot.setAttribute("aria-label", `${said("Question {number}", { number: i + 1 })}: ${said(state)}`);
    });
    showReport(lesson, answers);
  };
  elements(document, ".frames").forEach(makeFrames);
  show();
}

/**
 * The form of a question. Returns a function that shows an answer.
 * @param {Question} question @param {number} number @param {(answer: Kept) => void} answered
 */
function makeAsk(question, number, answered) {
  const ask = byId(`q-${number}`);
  const [box, verdict, reveal] = [".form", ".verdict", ".reveal"].map((name) => elements(ask, name)[0]);
  const make = { number: numberForm, choice: question.among.length ? choiceForm : numberForm, bars: barsForm }[question.kind];
  const form = make(question, `prompt-${number}`, [...box.children]);
  const give = (/** @type {Guess | null} */ guess) => {
    const judged = guess === null ? { right: false, mistake: "" } : judge(question, guess);
    if (!judged) verdict.textContent = said("This cannot be read: {expected} is expected.", { expected: question.expected });
    else answered({ guess, right: judged.right, mistake: judged.mistake });
  };
  const buttons = element("div", { class: "row" },
    element("button", { type: "submit", class: "main" }, said("Answer")),
    element("button", { type: "button", onclick: () => give(null) }, said("I do not know")));
  const whole = element("form", { onsubmit: (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    if (form.value() === null) verdict.textContent = said("Guess first: {expected}.", { expected: question.expected });
    else give(form.value());
  } }, ...form.parts, buttons);
  box.replaceChildren(whole);
  let shown = false;
  return (/** @type {Kept} */ { guess }) => {
    if (shown) return;
    shown = true;
    if (guess !== null) form.set(guess);
    form.reveal?.();
    buttons.remove();
    whole.querySelectorAll("input").forEach((/** @type {HTMLInputElement} */ input) => { input.disabled = true; });
    ask.classList.add("answered");
    const judged = guess === null ? null : judge(question, guess);
    verdict.className = `verdict ${!judged ? "open" : judged.right ? "right" : "wrong"}`;
    verdict.replaceChildren(element("p", {}, element("strong", {}, judged?.verdict ?? said("The answer: {answer}.", { answer: question.answer }))));
    if (judged?.says) verdict.append(document.createRange().createContextualFragment(judged.says)); // HTML of the page's own data
    reveal.classList.add("opened");
  };
}

/**
 * How far the reader is, the answers as a file, and what can be printed.
 * @param {Lesson} lesson @param {Answers} answers
 */
function showReport(lesson, answers) {
  const count = Object.keys(answers).length;
  const right = Object.values(answers).filter((answer) => answer.right).length;
  const report = byId("report");
  const file = () => ({ minigpt: "answers", format: 1, lesson: lesson.lesson, answers: lesson.questions.map((question, i) => {
    const { guess = null, right: good = false, mistake = "" } = answers[i + 1] ?? {};
    return { guess: Array.isArray(guess) ? guess.map((x) => x.toFixed(2)).join(", ") : guess, right: good, mistake, answer: question.answer,
      answered: answers[i + 1] !== undefined };
  }) });
  const address = () => URL.createObjectURL(new Blob([`${JSON.stringify(file(), null, 1)}\n`], { type: "application/json" }));
  const link = element("a", { download: `lesson_${String(lesson.lesson).padStart(2, "0")}.json`, href: address() }, said("My answers as a file"));
  const print = (/** @type {string} */ what) => () => {
    document.documentElement.dataset.paper = what;
    window.print();
  };
  report.replaceChildren(
    element("h2", {}, said(count === lesson.questions.length ? "Done" : "So far")),
    element("p", {}, said("{count} of {all} answered, {right} right.", { count, all: lesson.questions.length, right })),
    element("p", { class: "row" }, link, element("span", { class: "soft" }, said("to hand in; nothing is sent."))),
    element("div", { class: "row" },
      element("button", { type: "button", onclick: print("handout") }, said("Print the handout")),
      element("button", { type: "button", onclick: print("teacher") }, said("Print the answers")),
      element("button", { type: "button", onclick: () => { remember(lesson.key, "{}"); location.hash = ""; location.reload(); } }, said("Begin again"))));
}

/** The page of all lessons: how far the reader is in each. @param {Record<string, [string, number]>} lessons */
function openIndex(lessons) {
  for (const [number, [key, all]] of Object.entries(lessons)) {
    const kept = Object.values(keptAnswers(key));
    const right = kept.filter((answer) => answer.right).length;
    byId(`done-${number}`).textContent = kept.length ? said("{count} of {all} answered, {right} right.", { count: kept.length, all, right }) : "";
  }
}

window.addEventListener("afterprint", () => { delete document.documentElement.dataset.paper; });
printed(() => {});
if (byId("lesson")) openLesson(dataOf("lesson"));
else openIndex(dataOf("index"));
