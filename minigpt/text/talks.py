"""Talks: a line of JSON in one of the known forms -> turns, each with a role and a text.

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    {"instruction": "Add", "input": "1 and 2", "output": "3"}
    {"prompt": "Hi", "completion": "Hello"}

Each line may have another form. `system` beside them is what the system says first; a turn with `weight: 0` is read and
not taught. A talk is kept as a document, a JSON list of its turns, until a tokenizer makes ids of it (`chat.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minigpt.config.options import Options
from minigpt.system.errors import Mistake, UserError
from minigpt.system.terminal import one_line

ROLES = {name: name for name in ("system", "user", "assistant")} | {"human": "user", "gpt": "assistant"}
LISTS, PAIRS = ("messages", "conversations"), (("instruction", "output"), ("prompt", "completion"))


class Turn(NamedTuple):
    """What one side says."""

    role: str
    """system, user or assistant."""
    text: str
    taught: bool = False
    """Whether a model learns it: an answer, unless its line says otherwise."""


@dataclass(frozen=True, kw_only=True)
class FieldNames(Options):
    """Names of the fields of a chat, where they are not the usual ones. Lines are then read in this form only."""

    turns: str | None = None
    """The field with the list of turns; usually messages or conversations."""
    role: str | None = None
    """The field of a turn that says who speaks; usually role or from."""
    content: str | None = None
    """The field of a turn that says what; usually content or value."""
    question: str | None = None
    """Instead of `turns`, the field with a question; usually instruction, with input behind it, or prompt."""
    answer: str | None = None
    """The field with its answer; usually output or completion."""

    def mistakes(self) -> Iterator[Mistake]:
        if (self.question is None) != (self.answer is None):
            yield "question" if self.answer is None else "answer", "question and answer: give both names, or none"
        if self.turns is not None and self.question is not None:
            yield "turns", "turns, or question and answer: give one of the two forms"


def read_talk(line: Any, names: FieldNames) -> list[Turn]:
    """The turns of a line, which end with its last answer. Raises UserError, which counts turns from 1."""
    if not isinstance(line, dict):
        raise UserError(f"expected an object with turns, found {_few(line)}")
    lists = () if names.question else (names.turns,) if names.turns else LISTS
    pairs = ((names.question, names.answer),) if names.question else () if names.turns else PAIRS
    forms = [(each,) for each in lists if each in line] + [pair for pair in pairs if all(each in line for each in pair)]
    if len(forms) != 1:
        fields = [" and ".join(map(str, form)) for form in forms or [*((each,) for each in lists), *pairs]]
        problem = "more than one form" if forms else f"no talk in {_few(list(line))}: expected"
        raise UserError(f"{problem}: {', or '.join(fields)}; data.fields gives other names")
    [form] = forms
    turns = _listed(line[form[0]], names) if len(form) == 1 else _asked(line, str(form[0]), str(form[1]))
    if isinstance(system := line.get("system"), str) and system.strip():
        turns = [Turn("system", system), *turns]
    _check(turns)
    answers = [number for number, turn in enumerate(turns, 1) if turn.taught]
    if not answers:
        raise UserError("a talk without an answer that could be taught")
    return turns[: answers[-1]]


def _asked(line: Mapping[str, Any], question: str, answer: str) -> list[Turn]:
    """A question, with the `input` of an instruction behind it, and its answer."""
    asked, detail = _text(line[question], f"field {question}"), line.get("input")
    if question == "instruction" and isinstance(detail, str) and detail.strip():
        asked = f"{asked}\n\n{detail}"
    return [Turn("user", asked), Turn("assistant", _text(line[answer], f"field {answer}"), True)]


def _listed(values: Any, names: FieldNames) -> list[Turn]:
    if not isinstance(values, list):
        raise UserError(f"expected a list of turns, found {_few(values)}")
    turns = []
    for number, value in enumerate(values, 1):
        fields = {}
        for field, usual in ("role", ("role", "from")), ("content", ("content", "value")):
            name = getattr(names, field)
            keys = [key for key in ([name] if name else usual) if isinstance(value, dict) and key in value]
            if not keys:
                raise UserError(f"turn {number}: no {name or ' or '.join(usual)} in {_few(value)}")
            fields[field] = _text(value[keys[0]], f"turn {number}: {keys[0]}")
        if fields["role"] not in ROLES:
            raise UserError(f"turn {number}: unknown role {_few(fields['role'])}: expected {', '.join(ROLES)}")
        role = ROLES[fields["role"]]
        turns.append(Turn(role, fields["content"], role == "assistant" and value.get("weight", 1) != 0))
    return turns


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: expected text, found {_few(value)}")
    return value


def _few(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False))[:60]


def _check(turns: Sequence[Turn]) -> None:
    """Raises UserError for turns that are empty, or in an order that no talk has."""
    for number, (turn, before) in enumerate(zip(turns, [None, *turns]), 1):
        if not turn.text.strip():
            raise UserError(f"turn {number}: the {turn.role} says nothing")
        if before is not None and turn.role == before.role:
            raise UserError(f"turn {number}: the {turn.role} speaks twice in a row")
        if turn.role == "system" and number > 1:
            raise UserError(f"turn {number}: the system speaks after turn 1")


def as_document(turns: Sequence[Turn]) -> str:
    """The document of a talk."""
    return json.dumps(turns, ensure_ascii=False, separators=(",", ":"))


def turns_of(document: str) -> list[Turn]:
    """The turns of a document."""
    return [Turn(*values) for values in json.loads(document)]
