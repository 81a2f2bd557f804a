"""What a class has answered and handed in: one page and a table for the teacher, and a report for each learner.

The page of a lesson gives its answers as a file, `lesson_05.json`; a learner puts it beside the exercises. These files
are untrusted: strict JSON of a few kilobytes, of which short texts are shown, as texts. What was asked stands in the
lesson, not in the file.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from minigpt.learning.classroom import MARKS, Grade, Task, learners, look_at
from minigpt.learning.course import Lesson, lessons
from minigpt.learning.exercises import EXERCISES
from minigpt.learning.languages import language, message, text
from minigpt.learning.prose import inline
from minigpt.seeing.document import Cell, card, document, header, soft, table
from minigpt.system.errors import UserError
from minigpt.system.folder import read_file
from minigpt.system.strict_json import parse_json
from minigpt.system.terminal import one_line

NAME = re.compile(r"lesson_(\d{1,3})\.json")
LARGEST, LONGEST, MOST = 100_000, 300, 100  # bytes of a file, characters of a text, answers
STYLE = """td, .results th { white-space: normal !important; text-align: left; vertical-align: top; }
td { min-width: 6rem; } .wrong { color: var(--below); }
@media print { @page { margin: 11mm 12mm; } body { font-size: 8.5pt; } h1 { font-size: 14pt; } h2 { margin: 0; }
.card { margin-bottom: 2mm; } .wide table { font-size: 7.6pt; } td { min-width: 0; } }"""


@dataclass(frozen=True)
class Given:
    """An answer to one question of a lesson; `guess` is empty where the learner did not know, or was not asked yet."""

    guess: str
    right: bool
    mistake: str
    answer: str
    answered: bool


Answers = Mapping[int, Sequence[Given] | str]  # of one learner: by the number of the lesson; or why a file is refused


def answers_of(tasks: Sequence[Task]) -> dict[str, Answers]:
    """What the learners of some tasks have answered, by their names. Raises no error, whatever the files hold."""
    homes = {task.learner: task for task in tasks if task.home is not None}
    return {learner: {} if task.refused else dict(_of_one(task)) for learner, task in homes.items()}


def _of_one(task: Task) -> Iterator[tuple[int, Sequence[Given] | str]]:
    assert task.home is not None
    for path in sorted(task.home.iterdir()):
        name = NAME.fullmatch(path.name)
        if name is None:
            continue
        _, refused = look_at(task._replace(path=path, exercise=next(iter(EXERCISES))))  # links, folders, sizes
        try:
            if refused:
                raise ValueError(refused)
            yield int(name[1]), read_answers(path, int(name[1]))
        except (UserError, ValueError, OSError, RecursionError) as error:
            yield int(name[1]), one_line(str(error))[:LONGEST]


def read_answers(path: Path, lesson: int) -> list[Given]:
    """The answers in a file of a lesson's page. Raises ValueError, UserError or OSError for anything else."""
    data = parse_json(read_file(path, LARGEST, "answers"))
    if (
        not isinstance(data, dict)
        or set(data) != {"minigpt", "format", "lesson", "answers"}
        or data["minigpt"] != "answers"
    ):
        raise ValueError("not the answers of a lesson's page")
    if data["format"] != 1 or data["lesson"] != lesson or not isinstance(data["answers"], list):
        raise ValueError(f"not the answers to lesson {lesson}, in format 1")
    if len(data["answers"]) > MOST:
        raise ValueError(f"{len(data['answers'])} answers; expected at most {MOST}")
    return [_given(entry) for entry in data["answers"]]


def _given(entry: Any) -> Given:
    texts, flags = ("guess", "mistake", "answer"), ("right", "answered")
    if not isinstance(entry, dict) or set(entry) != {*texts, *flags}:
        raise ValueError(f"an answer has the keys {', '.join((*texts, *flags))}")
    values = {name: "" if entry[name] is None else entry[name] for name in texts}
    if not all(isinstance(value, str) and len(value) <= LONGEST for value in values.values()):
        raise ValueError(f"a text of an answer is no text of at most {LONGEST} characters")
    if not all(isinstance(entry[name], bool) for name in flags):
        raise ValueError("right and answered are true or false")
    guess, mistake, answer = (one_line(values[name]) for name in texts)
    return Given(guess, entry["right"], mistake, answer, entry["answered"])


def in_short(replies: Sequence[Given] | str | None) -> str:
    """Answers to a lesson in a cell: how many, how many are right, and the mistakes by their numbers."""
    if replies is None:
        return ""
    if isinstance(replies, str):
        return text("refused: {why}", why=message(replies))
    mistakes = "; ".join(f"{number} {each.mistake}" for number, each in enumerate(replies, 1) if each.mistake)
    counts = text(
        "{count} of {all} answered, {right} right.",
        count=sum(each.answered for each in replies),
        all=len(replies),
        right=sum(each.right for each in replies),
    )
    return counts + (f":: {mistakes}" if mistakes else "")


def class_page(grades: Sequence[Grade], answers: Mapping[str, Answers]) -> str:
    """The page of a class: who has answered and handed in what; and what went wrong at which question."""
    known = {lesson.number: lesson for lesson in lessons()}
    numbers = sorted({number for own in answers.values() for number in own})
    begun = [name for name in EXERCISES if any(g.exercise == name and g.verdict != "missing" for g in grades)]
    titles = [text("learner"), *(text("lesson {number}", number=number) for number in numbers), *begun]
    rows: list[list[str | Cell]] = [[*titles]]
    for learner, own in learners(grades).items():
        marks = [f"{MARKS[grade.verdict]} {text(grade.verdict)}" for grade in own if grade.exercise in begun]
        cells = [in_short(answers.get(learner, {}).get(number)).partition(":: ")[0] for number in numbers]
        rows.append([one_line(learner), *cells, *marks])
    parts = [card(text("Who has done what"), [table(rows, text("Who has done what"))])]
    read = [n for n in numbers if any(not isinstance(own.get(n, ""), str) for own in answers.values())]
    parts += [_questions(number, known.get(number), answers) for number in read]
    return _page(text("The class"), parts)


def _questions(number: int, lesson: Lesson | None, answers: Mapping[str, Answers]) -> str:
    """What the class has said to the questions of a lesson: how many are right, the mistakes with who made them."""
    by_question = defaultdict[int, list[tuple[str, Given]]](list)
    for learner, own in answers.items():
        replies = own.get(number, [])
        for question, each in enumerate(replies if not isinstance(replies, str) else [], start=1):
            by_question[question] += [(one_line(learner), each)] if each.answered else []
    rows: list[list[str | Cell]] = [[text("question"), text("right"), text("usual mistakes")]]
    for question, all_given in sorted(by_question.items()):
        who = defaultdict[str, list[str]](list)
        for learner, one in all_given:
            if not one.right:
                who[one.mistake or text("other answers") if one.guess else text("did not know")].append(learner)
        by_size = sorted(who.items(), key=lambda item: -len(item[1]))
        lines = [f"{len(names)}: <b>{escape(name)}</b> ({escape(', '.join(names))})" for name, names in by_size]
        right = f"{sum(one.right for _, one in all_given)} / {len(all_given)}"
        rows.append([f"{question}. {_prompt(lesson, question)}", right, Cell("<br>".join(lines))])
    title = f"{number}. {lesson.title}" if lesson else text("lesson {number}", number=number)
    return card(title, [table(rows, title)])


def _prompt(lesson: Lesson | None, question: int) -> str:
    """What was asked, from the lesson itself."""
    prompts = lesson.prompts if lesson else []
    return re.sub(r"[*`]", "", prompts[question - 1]) if question <= len(prompts) else ""


def learner_page(learner: str, grades: Sequence[Grade], answers: Answers) -> str:
    """One learner's report, to be given back: each guess beside the answer, and what the checker said."""
    known, parts = {lesson.number: lesson for lesson in lessons()}, list[str]()
    for number, replies in sorted(answers.items()):
        lesson = known.get(number)
        title = f"{number}. {lesson.title}" if lesson else text("lesson {number}", number=number)
        if isinstance(replies, str):
            parts.append(card(title, [soft(escape(text("refused: {why}", why=message(replies))))]))
            continue
        rows: list[list[str | Cell]] = [[text("question"), text("your guess"), text("the answer"), ""]]
        for question, each in enumerate(replies, start=1):
            mark = "✓" if each.right else escape(each.mistake) or ("✗" if each.guess else "")
            mark = mark if each.answered else text("not answered")
            style = "" if each.right or not each.answered else "wrong"
            asked = Cell(inline(lesson.prompts[question - 1])) if lesson and question <= len(lesson.prompts) else ""
            answer = each.answer if each.answered else ""
            rows.append([str(question), asked, each.guess, answer, Cell(mark, style)])
        rows[0].insert(1, "")
        parts.append(card(title, [table(rows, title)]))
    handed = [grade for grade in grades if grade.verdict != "missing"]
    if handed:
        rows = [[text("exercise"), text("verdict"), text("what the checker says")]]
        rows += [[grade.exercise, f"{MARKS[grade.verdict]} {text(grade.verdict)}", _where(grade)] for grade in handed]
        parts.append(card(text("Exercises"), [table(rows, text("Exercises"))]))
    return _page(one_line(learner), parts or [soft(text("Nothing was handed in."))])


def _where(grade: Grade) -> Cell:
    """What the checker says and where, which is English, whatever the language of the page."""
    return Cell(f'<span lang="en">{escape(grade.where)}</span>' if grade.where else "")


def _page(title: str, parts: Sequence[str]) -> str:
    body = "\n".join([header(title), "<main>", *parts, "</main>"])
    colours = json.dumps({each: text(each) for each in ("Dark colours", "Light colours")})
    script = f'const at = byId("theme"); themeButton(at, () => {{ at.textContent = {colours}[at.textContent]; }});'
    return document(title, body, STYLE, [script], language=language())


def report_names(learners: Sequence[str]) -> dict[str, str]:
    """The file of each learner's report: the name, without what a file's name may not hold, and no two alike."""
    names = dict[str, str]()
    for learner in learners:
        stem = re.sub(r"[^\w. -]+", "-", learner).strip(". ")[:100]
        alike = sum(name.rpartition(" (")[0] == stem or name == f"{stem}.html" for name in names.values())
        names[learner] = f"{stem} ({alike + 1}).html" if alike else f"{stem}.html"
    return names
