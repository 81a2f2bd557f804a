// The page of the lessons on paper: the lessons that are open, or all of them, with nothing folded; behind them, on pages
// of their own, the answers and the hints, for the teacher.

themeButton(byId("theme"));

let onPaper = []; // how to undo each change, the last one first

/** Opens a fold. */
function unfold(fold) {
  if (fold.open) return;
  fold.open = true;
  onPaper.unshift(() => { fold.open = false; });
}

/** Moves an answer or a hint of a lesson into `box`, with a title. */
function moved(one, title, box) {
  const place = element("span");
  one.replaceWith(place);
  box.append(element("h4", {}, title), one);
  onPaper.unshift(() => place.replaceWith(one));
}

printed(() => {
  const all = [...document.querySelectorAll(".lesson")];
  const lessons = all.some((lesson) => lesson.open) ? all.filter((lesson) => lesson.open) : all;
  const answers = element("section", { id: "answers" }, element("h2", {}, "Answers"));
  for (const lesson of all) lesson.classList.toggle("left-out", !lessons.includes(lesson));
  lessons.slice(1).forEach((lesson) => lesson.classList.add("later"));
  onPaper.push(() => all.forEach((lesson) => lesson.classList.remove("left-out", "later")));
  for (const lesson of lessons) {
    answers.append(element("h3", {}, lesson.querySelector("h2").textContent));
    lesson.querySelectorAll(".answer").forEach((one, i) => moved(one, `Guess ${i + 1}`, answers));
    lesson.querySelectorAll(".hint").forEach((one) => moved(one, "The exercise", answers));
    [lesson, ...lesson.querySelectorAll("details")].forEach(unfold);
  }
  document.querySelector("main").append(answers);
  answers.querySelectorAll("details").forEach(unfold);
  onPaper.push(() => answers.remove());
}, () => {
  onPaper.forEach((undo) => undo());
  onPaper = [];
});
