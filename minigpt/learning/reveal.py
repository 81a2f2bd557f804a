"""Predict, then see: a guess is compared with what was measured, and answered.

    guess = None                                     # the reader writes a guess here
    reveal(guess, float(weights[2, 0]), "Every token of the past counts the same.")

A guess is a number (`within` says how near is near enough), one of several answers (`among`), a token, an order, or a
number for each of some names: bars to draw. `mistakes` says what the usual wrong answers are, and what one thinks when
giving them. In a terminal the reader is asked for the guess. Without a guess the answer is folded where it can be. The
page asks and judges by the same data (`lesson.js`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from minigpt.learning.languages import language, text
from minigpt.learning.output import Output, can_ask, collecting, show
from minigpt.learning.prose import as_html, as_text, inline, plain
from minigpt.seeing.document import folded
from minigpt.system.waiting import in_notebook
from minigpt.training import report

NEAR = 0.1  # how far a guess of a number may be off, as a part of the number, where a lesson does not say
CLOSE = 3  # times as far is close

Measured = float | str | Sequence[Any] | Mapping[str, float]
"""A number, one of several answers or a token, an order, bars."""
Guess = float | str | tuple[str, ...] | tuple[float, ...]
Case = str | tuple[float | None, float | None] | Sequence[float]
"""What a wrong answer is: a choice, a range of numbers (None: without end), or how the bars are drawn."""
Mistakes = Mapping[str, tuple[Case, str]]  # name -> (case, what one thinks when giving this answer)


@dataclass(frozen=True)
class Judged:
    """What is said of a guess: a verdict; and of a usual mistake its name, and what one thinks when making it."""

    right: bool
    verdict: str
    mistake: str = ""
    says: str = ""


@dataclass(frozen=True)
class Question:
    """What was asked, what a right answer is, and what the usual wrong ones are."""

    measured: Measured
    among: Sequence[str] = ()
    within: float = 0.0
    mistakes: Mistakes = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What a guess is: "choice", "bars", "order" or "number"."""
        if isinstance(self.measured, str):
            return "choice"
        if isinstance(self.measured, Mapping):
            return "bars"
        return "order" if isinstance(self.measured, Sequence) else "number"

    @property
    def expected(self) -> str:
        """What kind of guess is expected, in words."""
        if isinstance(self.measured, str):
            return text("one of: {names}", names=", ".join(self.among)) if self.among else text("a token")
        if isinstance(self.measured, Mapping):
            return text("numbers, with commas, for: {names}", names=", ".join(self.measured))
        if isinstance(self.measured, Sequence):
            return text("an order, with commas, of: {names}", names=", ".join(sorted(map(str, self.measured))))
        return text("a whole number" if isinstance(self.measured, int) and self.within < 1 else "a number")

    def read(self, guess: object) -> Guess | None:
        """A guess in the form of what was measured; None if it cannot be read, or if there is no guess."""
        if guess is None or (isinstance(guess, str) and not guess.strip()):
            return None
        if isinstance(self.measured, str):
            return self._choice(str(guess))
        if isinstance(self.measured, (Sequence, Mapping)):
            values = list(guess.values()) if isinstance(guess, Mapping) else guess
            items = values.split(",") if isinstance(values, str) else values
            if not isinstance(items, Sequence) or len(items) != len(self.measured):
                return None
            if isinstance(self.measured, Mapping):
                heights = [height for item in items if (height := _number(item)) is not None]
                return tuple(heights) if len(heights) == len(items) else None
            order = tuple(str(item).strip() for item in items)
            return order if sorted(order) == sorted(map(str, self.measured)) else None
        return _number(guess)

    def _choice(self, guess: str) -> str | None:
        """The answer that was meant: its letters may be large or small, and its beginning is enough if it is clear."""
        text = guess.strip().casefold()
        matches = [each for each in self.among if each.casefold() == text]
        matches = matches or [each for each in self.among if each.casefold().startswith(text)]
        return (matches[0] if len(matches) == 1 else None) if self.among else guess.strip()

    def judge(self, guess: Guess) -> Judged:
        """Whether a guess is right, in a sentence; and which of the mistakes it is."""
        if isinstance(self.measured, Mapping):
            return self._judge_bars([float(height) for height in guess])  # type: ignore[union-attr]
        words, answer = in_words(guess), in_words(self.measured)
        if words == answer:  # of a number: in the digits that are shown
            sentence = (
                "Right: you said {said}; the answer is {answer}." if self.kind == "number" else "Right: {answer}."
            )
            return Judged(True, text(sentence, said=words, answer=answer))
        close = False
        if isinstance(self.measured, (int, float)):
            assert isinstance(guess, (int, float))
            off = abs(guess - self.measured)
            if off <= self.within + 1e-9:
                sentence = "Near enough: you said {said}; the answer is {answer}."
                return Judged(True, text(sentence, said=words, answer=answer))
            close = off <= CLOSE * self.within
        sentence = "Not this time: you said {said}; the answer is {answer}."
        verdict = text(sentence.replace("Not this time", "Close") if close else sentence, said=words, answer=answer)
        return Judged(False, verdict, *self._mistake(guess, words))

    def _mistake(self, guess: Guess, words: str) -> tuple[str, str]:
        """The first mistake that a choice, an order or a number is; two empty texts if it is none."""
        for name, (case, says) in self.mistakes.items():
            if isinstance(case, str):
                hit = words == case
            else:
                low, high = case
                assert isinstance(guess, (int, float))
                hit = (low is None or guess >= low) and (high is None or guess <= high)
            if hit:
                return name, says
        return "", ""

    def _judge_bars(self, heights: Sequence[float]) -> Judged:
        """Bars are right near what was measured; else they are what they are nearest to."""
        assert isinstance(self.measured, Mapping)
        off = _apart(heights, list(self.measured.values()))
        shapes = {name: _apart(heights, case) for name, (case, _) in self.mistakes.items()}  # type: ignore[arg-type]
        nearest = min(shapes, key=lambda name: shapes[name], default="")
        if nearest and shapes[nearest] < off:
            verdict = text("Not this time: {off} lies elsewhere.", off=f"{off:.0%}")
            return Judged(False, verdict, nearest, self.mistakes[nearest][1])
        sentence = "Right: {off} lies elsewhere." if off <= self.within else "Not this time: {off} lies elsewhere."
        return Judged(off <= self.within, text(sentence, off=f"{off:.0%}"))


def _apart(heights: Sequence[float], others: Sequence[float]) -> float:
    """Half the sum of the differences: of shares, the part that lies elsewhere."""
    return sum(abs(one - other) for one, other in zip(heights, others)) / 2


@dataclass(frozen=True)
class Answer(Output):
    """An answer as it is shown."""

    question: Question
    right: bool | None  # None: there was no guess
    explanation: str = ""  # what is said and shown behind the verdict, as HTML
    span: tuple[float, float] | None = None  # of a slider
    pictures: Mapping[str, Output] = field(default_factory=dict)  # of the choices


def in_words(value: object) -> str:
    """A number, an answer, an order or bars as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {in_words(number)}" for name, number in value.items())
    if isinstance(value, Sequence):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) and not value.is_integer() else f"{value:.0f}"


def reveal(
    guess: object,
    measured: Measured,
    says: str,
    picture: Output | None = None,
    among: Sequence[str] = (),
    within: float | None = None,
    mistakes: Mistakes | None = None,
    span: tuple[float, float] | None = None,
    pictures: Mapping[str, Output] | None = None,
) -> None:
    """Answer a guess: whether it is right, what was measured, and what that means.

    measured: a number, a text, a list of texts in their order, or {name: number}, bars that sum to one. says: the
    explanation, in the Markdown of `prose.py`. picture: shown only after the guess. among: the answers to choose from.
    within: how far a number may be off, or which share of the bars may lie elsewhere; by default a tenth, and nothing
    of a whole number. mistakes: {name: (case, what one thinks when giving this answer)}; the first that fits counts.
    span: the ends of the page's slider. pictures: of the choices, to point at.
    """
    if within is None:
        within = NEAR * abs(measured) if isinstance(measured, float) else NEAR if isinstance(measured, Mapping) else 0.0
    question = Question(measured, among, within, mistakes or {})
    if pictures:
        show(*(picture for picture in pictures.values() if not collecting()))
    if guess is None and can_ask():
        guess = ask(question)
    show(answer(question, guess, says, picture, span, pictures))


def ask(question: Question) -> str | None:
    """Ask at the terminal until the guess can be read; None if the reader wants to see the answer."""
    while True:
        try:
            reply = input(text("Your guess ({expected}; Enter shows the answer): ", expected=question.expected))
        except EOFError:  # Ctrl-D, which leaves the cursor behind the question
            report.say("")
            return None
        if not reply.strip():
            return None
        if question.read(reply) is not None:
            return reply


def answer(
    question: Question,
    guess: object,
    says: str,
    picture: Output | None = None,
    span: tuple[float, float] | None = None,
    pictures: Mapping[str, Output] | None = None,
) -> Answer:
    """The answer to a guess."""
    parsed = question.read(guess)
    answer_alone = text("The answer: {answer}.", answer=in_words(question.measured))
    judged = None if parsed is None else question.judge(parsed)
    verdict = judged.verdict if judged else answer_alone
    picture_text, picture_html = ("\n\n" + picture.text, picture.html) if picture else ("", "")
    explanation = f"{as_html(says, top=4)}{picture_html}"
    says_of_guess = as_html(judged.says, top=4) if judged else ""
    inside = f"<p><strong>{inline(verdict)}</strong></p>\n{says_of_guess}{explanation}"
    hint = ""
    if guess is not None and parsed is None:
        hint = text("Your guess cannot be read: {expected} is expected.", expected=question.expected)
    if judged:
        html = f'<div class="answer {"right" if judged.right else "wrong"}">{inside}</div>'
    else:
        notebook = text("Put your guess in place of None and run both cells again, or look:")
        advice = hint or (notebook if in_notebook() else "")
        html = f"<p>{inline(advice)}</p>" if advice else ""
        html += folded(text("Show the answer"), inside, style="answer")
    lead = f"{hint} " if hint else ""
    more = f"\n\n{as_text(judged.says, '  ')}" if judged and judged.says else ""
    lines = f"  {lead}{plain(verdict)}{more}\n\n{as_text(says, '  ')}{picture_text}"
    return Answer(lines, html, question, judged.right if judged else None, explanation, span, pictures or {})


def _number(guess: object) -> float | None:
    """A guess as a number: 0.25, "0.25", "1/4", "25 %", "1,000", in German "0,25" and "1 000"; None if it is none."""
    english = language() == "en"
    typed = re.sub(rf"(?<=\d)[{',' if english else ' '}](?=\d{{3}}\b)", "", str(guess).strip())
    typed = typed if english else typed.replace(",", ".")
    try:
        return float(Fraction(typed.removesuffix("%").strip())) / (100 if typed.endswith("%") else 1)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
