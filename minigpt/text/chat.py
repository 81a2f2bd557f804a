"""A chat: the turns of a talk -> ids, and which of them are taught. Training and talking both use `Talking.ids`.

    <|user|>Who has the hat?<|assistant|>[Hal<|end_of_turn|>]       what is taught stands in brackets

Each turn is encoded by itself and the ids are joined, so no token crosses a seam, and the talk so far is the beginning
of what training sees. A role is an id that no text contains: whatever a user types stays text. What is taught is noted
where the ids are made: an answer, and the id behind it, with which it ends.

A published model has a template of its own, a program in Jinja. It is untrusted, and not run: a few well-known forms
are recognised by their tokens, and their ids are made here. They equal those of transformers, unless a text begins
with white space that would have been one token with the line end in front of it.

N ids
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from minigpt.system.errors import UserError
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.talks import Turn, turns_of
from minigpt.text.tokenizer import Ids, Tokenizer

MARKS = ("system", "user", "assistant", "end_of_turn")  # what a tokenizer that is made for a chat has besides its text
ROLES = {role: role for role in MARKS[:3]}
PUBLISHED = {  # the name of a template -> what stands in front of a turn and behind it, and the roles' words
    "Phi 4": (("<|im_start|>", "ROLE", "<|im_sep|>"), ("<|im_end|>",), ROLES),
    "ChatML": (("<|im_start|>", "ROLE\n"), ("<|im_end|>", "\n"), ROLES),
    "Llama 3": (("<|start_header_id|>", "ROLE", "<|end_header_id|>", "\n\n"), ("<|eot_id|>",), ROLES),
    "Gemma": (("<start_of_turn>", "ROLE\n"), ("<end_of_turn>", "\n"), {"user": "user", "assistant": "model"}),
}
DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system(?:\\n|\n)([^<>{}'\"]+)<\|im_end\|>")
STRIPS = re.compile(r"content['\"]?\]?\s*\|\s*trim")
BEYOND = {"<think>": "thoughts", "date_string": "a date"}  # what a template adds, and ours does not

SCANNED = 1 << 22  # ids at a time

Part = int | str  # an id, or a text of the template


@dataclass(frozen=True)
class Template:
    """What stands around the turns of a talk."""

    name: str
    before: Mapping[str, Sequence[Part]]
    """In front of what a role says. Without an entry for `system`, its text is put in front of the user's."""
    after: Mapping[str, Sequence[Part]]
    """Behind it. The first one behind an answer is an id, and is taught."""
    begin: Sequence[Part] = ()
    """In front of a talk."""
    system: str = ""
    """What the system says where a talk does not have it."""
    strips: bool = False
    """Whether white space around a text is left out."""
    note: str = ""
    """A sentence on what is different from the template of the model."""


def template_of(tokenizer: Tokenizer) -> Template:
    """The template of a tokenizer: its own, if that is well known, else ours. Raises UserError if no id can be a mark.

    Ours takes the marks of a tokenizer that was made for a chat. The vocabulary of a published model has none: there a
    turn stands between two of its end-of-text tokens, and begins with its role.
    """
    names, jinja = tokenizer.special_tokens, getattr(tokenizer, "chat_template", None) or ""
    if all(mark in tokenizer.marks for mark in MARKS):
        before = {role: [tokenizer.marks[role]] for role in ROLES}
        return Template("minigpt", before, {"assistant": [tokenizer.marks["end_of_turn"]]})
    for name, (in_front, behind, _) in PUBLISHED.items():
        tokens = [part for part in (*in_front, *behind) if part.startswith("<")]
        if all(token in names and (not jinja or token in jinja) for token in tokens):
            return _published(name, names, jinja, tokenizer.begin_of_text)
    if (end := tokenizer.end_of_text) is None:
        problem = f"the tokenizer {tokenizer.kind} of this run has no id that can mark a turn"
        raise UserError(f"data.format: {problem}: train with data.format=chat from the start")
    begin = [] if tokenizer.begin_of_text is None else [tokenizer.begin_of_text]
    note = "the chat template of this model is not one of those known here: minigpt's is used" if jinja else ""
    roles: dict[str, Sequence[Part]] = {role: [end, f"{role}\n"] for role in ROLES}
    return Template("minigpt", roles, {"assistant": [end]}, begin, note=note)


def _published(name: str, ids: Mapping[str, int], jinja: str, begin_of_text: int | None) -> Template:
    """One of the PUBLISHED ones. `ids`: those of special tokens, by name."""
    in_front, behind, roles = PUBLISHED[name]
    before = {role: [ids.get(part, part.replace("ROLE", word)) for part in in_front] for role, word in roles.items()}
    after = {role: [ids.get(part, part) for part in behind] for role in roles}
    default = DEFAULT_SYSTEM.search(jinja) if name == "ChatML" else None
    begin = [begin_of_text] if begin_of_text is not None and (not jinja or "bos_token" in jinja) else []
    left_out = [feature for word, feature in BEYOND.items() if word in jinja]
    note = f"the chat template of this model is {name}'s; what it adds ({', '.join(left_out)}) is left out"
    system, strips = default[1] if default else "", bool(STRIPS.search(jinja))
    return Template(name, before, after, begin, system, strips, note if left_out else "")


class Talking(Tokenizer):
    """A tokenizer whose texts are the documents of talks. An id is twice that of `tokenizer`, plus 1 if it is taught:
    both are one number on the disk."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.template = tokenizer, template_of(tokenizer)
        self.vocab_size = 2 * tokenizer.vocab_size
        self._before = {role: self._parts(parts) for role, parts in self.template.before.items()}
        self._after = {role: self._parts(self.template.after.get(role, ())) for role in ROLES}
        self.ends = [*tokenizer.ends, *(int(ids[0]) for ids in [*self._before.values(), self._after["assistant"]])]

    def to_json(self) -> dict[str, Any]:
        """What decides the ids, for the key of the cache."""
        return {"tokenizer": self.tokenizer.to_json(), "template": repr(self.template)}

    def encode(self, text: str) -> Ids:
        """Of a document, twice the ids (N,), plus 1 where they are taught. Raises UserError."""
        ids, taught = self.ids(turns_of(text))
        return 2 * ids + taught

    def ids(self, turns: Sequence[Turn], answering: bool = False) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """The ids (N,) of turns, and which are taught (N,). Raises UserError, which names the turn.

        `answering`: an answer comes next, so what stands in front of it is added.
        """
        spoken = self._spoken(turns)
        parts = [(self._parts(self.template.begin), False)]
        for number, turn in enumerate(spoken, 1 + len(turns) - len(spoken)):
            try:
                parts += self._turn(turn)
            except UserError as error:
                raise UserError(f"turn {number}: {error}") from None
        if answering:
            parts.append((self._before["assistant"], False))
        ids = np.concatenate([ids for ids, _ in parts])  # (N,)
        return ids, np.repeat([taught for _, taught in parts], [len(ids) for ids, _ in parts])  # (N,)

    def reply(self, last: int, text: str) -> Ids:
        """The ids (N,) that follow an answer, whose last id is given, where the user says a text and is answered.

        Raises UserError.
        """
        end, turn = self._after["assistant"], [ids for ids, _ in self._turn(Turn("user", text))]
        return np.concatenate([end[int(last == end[0]) :], *turn, self._before["assistant"]])

    def openings(self, ids: Sequence[int]) -> list[int]:
        """Where turns begin among the ids of a talk."""
        fronts = [front.tolist() for front in self._before.values()]
        return [n for n in range(len(ids)) if any([*ids[n : n + len(front)]] == front for front in fronts)]

    def _turn(self, turn: Turn) -> list[tuple[Ids, bool]]:
        """The ids of a turn, in parts, and whether each part is taught. Raises UserError."""
        after = self._after[turn.role]
        content = self._encode(turn.text.strip() if self.template.strips else turn.text, begins=False)
        front = (self._before[turn.role], False)
        return [front, (content, turn.taught), (after[:1], turn.taught), (after[1:], False)]

    def _spoken(self, turns: Sequence[Turn]) -> list[Turn]:
        """The turns as the template has them: with its system, or with the system's text in front of the user's."""
        first, *rest = turns
        if first.role != "system":
            return [Turn("system", self.template.system), *turns] if self.template.system else [*turns]
        if "system" in self._before:
            return [*turns]
        return [rest[0]._replace(text=f"{first.text}\n\n{rest[0].text}"), *rest[1:]]

    def _parts(self, parts: Sequence[Part]) -> Ids:
        ids = [np.array([part]) if isinstance(part, int) else self._encode(part, begins=True) for part in parts]
        return np.concatenate([np.empty(0, np.int64), *ids])

    def _encode(self, text: str, begins: bool) -> Ids:
        """The ids (N,) of a text behind an id, where it `begins`, or behind another text."""
        if isinstance(self.tokenizer, HuggingFace):
            return self.tokenizer.encode_after(text) if begins else self.tokenizer.encode_rest(text)
        return self.tokenizer.encode(text)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of a stored id, taught or not."""
        return self.tokenizer.token_bytes(id // 2)

    def as_text(self, ids: Ids, taught: npt.NDArray[np.bool_]) -> str:
        """Ids (N,) as text, with the names of tokens that stand for none, and what is taught (N,) in [[ ]]."""
        names = {id: name for name, id in self.tokenizer.special_tokens.items()}
        runs = []
        for learned, pairs in groupby(zip(ids.tolist(), taught.tolist()), key=lambda pair: pair[1]):
            alike = groupby((id for id, _ in pairs), key=names.get)
            text = "".join((name * len([*some])) if name else self.tokenizer.decode(some) for name, some in alike)
            runs.append(f"[[{text}]]" if learned else text)
        return "".join(runs)


class Whole(NamedTuple):
    """What fits of each talk into a context."""

    ends: npt.NDArray[np.int64]
    """(documents,): where its last answer that fits ends, among all ids; its start if none does."""
    taught: npt.NDArray[np.int64]
    """(documents,): how many of these ids are taught."""
    shortened: npt.NDArray[np.bool_]
    """(documents,): whether later answers do not fit."""


def whole_turns(stored: Any, starts: npt.NDArray[np.int64], T: int) -> Whole:
    """The whole turns of each talk that fit into a window of T inputs, T + 1 ids.

    `stored` (N,) are ids as `Talking.encode` makes them, and `starts` (documents,) where talks start. What is taught
    without a gap is one answer: the next one has its role in front.
    """
    edges, totals, total = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], 0
    for first in range(0, len(stored), SCANNED):
        taught = (np.asarray(stored[first : first + SCANNED + 1]) & 1).astype(np.int8)
        here, behind = taught[:SCANNED], np.append(taught[1:], 0)[: len(taught[:SCANNED])]
        last = np.flatnonzero(here > behind)
        counts = np.cumsum(here, dtype=np.int64)
        edges, totals, total = [*edges, first + last + 1], [*totals, total + counts[last]], total + int(counts[-1])
    edge, upto = np.concatenate(edges), np.concatenate(totals)  # (1 + answers,): their ends, and the ids taught so far
    ends = np.append(starts[1:], len(stored))  # (documents,)
    before, fitting, all_answers = (
        np.searchsorted(edge, places, side="right") - 1 for places in (starts, np.minimum(ends, starts + T + 1), ends)
    )  # (documents,) each: how many answers of all talks end there
    answer_ends = np.where(fitting > before, edge[fitting], starts)
    return Whole(answer_ends, upto[fitting] - upto[before], (fitting > before) & (fitting < all_answers))
