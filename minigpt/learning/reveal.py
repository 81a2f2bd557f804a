"""Predict, then see: a guess is compared with what was measured, and answered.

    guess = None                                     # the reader writes a guess here
    reveal(guess, float(weights[2, 0]), "Every token of the past counts the same.")

A guess is a number (`within` says how near is near enough), one of several answers (`among`), a token, or an order. In
a terminal the reader is asked for it. Without a guess the answer is folded where it can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from minigpt.learning.output import Output, can_ask, show
from minigpt.learning.prose import as_html, as_text, inline, plain
from minigpt.seeing.document import folded
from minigpt.system.waiting import in_notebook
from minigpt.training import report

NEAR = 0.1  # how far a guess of a number may be off, as a part of the number, where a lesson does not say
CLOSE = 3  # times as far is close

Measured = float | str | Sequence[Any]  # a number, one of several answers or a token, an order


@dataclass(frozen=True)
class Question:
    """What was asked, and what a right answer is."""

    measured: Measured
    among: Sequence[str] = ()
    within: float = 0.0

    @property
    def expected(self) -> str:
        """What kind of guess is expected, in words."""
        if isinstance(self.measured, str):
            return "one of: " + ", ".join(self.among) if self.among else "a token"
        if isinstance(self.measured, Sequence):
            return "an order, with commas, of: " + ", ".join(sorted(map(str, self.measured)))
        return "a whole number" if isinstance(self.measured, int) and self.within < 1 else "a number"

    def read(self, guess: object) -> float | str | tuple[str, ...] | None:
        """A guess in the form of what was measured; None if it cannot be read, or if there is no guess."""
        if guess is None or (isinstance(guess, str) and not guess.strip()):
            return None
        if isinstance(self.measured, str):
            return self._choice(str(guess))
        if isinstance(self.measured, Sequence):
            items = guess.split(",") if isinstance(guess, str) else guess
            order = tuple(str(item).strip() for item in items) if isinstance(items, Sequence) else ()
            return order if sorted(order) == sorted(map(str, self.measured)) else None
        return _number(guess)

    def _choice(self, guess: str) -> str | None:
        """The answer that was meant: its letters may be large or small, and its beginning is enough if it is clear."""
        text = guess.strip().casefold()
        matches = [each for each in self.among if each.casefold() == text]
        matches = matches or [each for each in self.among if each.casefold().startswith(text)]
        return (matches[0] if len(matches) == 1 else None) if self.among else guess.strip()

    def verdict(self, guess: float | str | tuple[str, ...]) -> tuple[bool, str]:
        """Whether a guess is right, and a sentence that says so."""
        answer = f"the answer is {in_words(self.measured)}"
        if isinstance(guess, tuple):
            assert isinstance(self.measured, Sequence)
            right = [str(guessed) == str(measured) for guessed, measured in zip(guess, self.measured)]
            if all(right):
                return True, f"Right: {in_words(self.measured)}."
            return False, f"Not quite: {sum(right)} of {len(right)} stand where you said; {answer}."
        if isinstance(guess, str):
            if guess == self.measured:
                return True, f"Right: {in_words(self.measured)}."
            return False, f"Not this time: you said {in_words(guess)}; {answer}."
        assert isinstance(self.measured, (int, float))
        off = abs(guess - self.measured)
        if in_words(guess) == in_words(self.measured):  # in the digits that are shown, it is the answer
            return True, f"Right: you said {in_words(guess)}; {answer}."
        if off <= self.within + 1e-9:
            return True, f"Near enough: you said {in_words(guess)}; {answer}."
        close = "Close" if off <= CLOSE * self.within else "Not this time"
        return False, f"{close}: you said {in_words(guess)}; {answer}."


@dataclass(frozen=True)
class Answer(Output):
    """An answer as it is shown."""

    question: Question
    right: bool | None  # None: there was no guess


def in_words(value: object) -> str:
    """A number, an answer or an order as text."""
    if isinstance(value, str):
        return value
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
) -> None:
    """Answer a guess: whether it is right, what was measured, and what that means.

    measured: a number, a text, or a list of texts in their order. says: the explanation, in the Markdown of `prose.py`.
    picture: shown only after the guess. among: the answers to choose from. within: how far a number may
    be off; by default a tenth of it, and nothing of a whole number.
    """
    if within is None:
        within = NEAR * abs(measured) if isinstance(measured, float) else 0.0
    question = Question(measured, among, within)
    if guess is None and can_ask():
        guess = ask(question)
    show(answer(question, guess, says, picture))


def ask(question: Question) -> str | None:
    """Ask at the terminal until the guess can be read; None if the reader wants to see the answer."""
    while True:
        try:
            reply = input(f"Your guess ({question.expected}; Enter shows the answer): ")
        except EOFError:  # Ctrl-D, which leaves the cursor behind the question
            report.say("")
            return None
        if not reply.strip():
            return None
        if question.read(reply) is not None:
            return reply


def answer(question: Question, guess: object, says: str, picture: Output | None = None) -> Answer:
    """The answer to a guess."""
    parsed = question.read(guess)
    right, verdict = (
        (None, f"The answer: {in_words(question.measured)}.") if parsed is None else question.verdict(parsed)
    )
    picture_text, picture_html = ("\n\n" + picture.text, picture.html) if picture else ("", "")
    inside = f"<p><strong>{inline(verdict)}</strong></p>\n{as_html(says, top=4)}{picture_html}"
    hint = "" if guess is None or parsed is not None else f"Your guess cannot be read: {question.expected} is expected."
    if parsed is not None:
        html = f'<div class="answer {"right" if right else "wrong"}">{inside}</div>'
    else:
        advice = hint or ("Put your guess in place of None and run both cells again, or look:" if in_notebook() else "")
        html = f"<p>{inline(advice)}</p>" if advice else ""
        html += folded("Show the answer", inside, style="answer")
    lead = hint + " " if hint else ""
    return Answer(f"  {lead}{plain(verdict)}\n\n{as_text(says, '  ')}{picture_text}", html, question, right)


def _number(guess: object) -> float | None:
    """A guess as a number: 0.25, "0.25", "1/4", "25 %", "1,000"; None if it is none."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", str(guess).strip())
    try:
        return float(Fraction(text.removesuffix("%").strip())) / (100 if text.endswith("%") else 1)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
