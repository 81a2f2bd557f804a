"""The usual slips of the exercises: each is the solution with one piece changed, and words of a good sentence about it.

python tests/slips.py      a table: what the checker says of each, and of the solutions
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from solutions import solved

from minigpt.checks.learners.confined import Confined
from minigpt.checks.learners.verdict import Report
from minigpt.learning.classroom import Task, grade_exercise
from minigpt.learning.exercises import EXERCISES


class Slip(NamedTuple):
    """A piece of a solution, what is written instead, and the words of which a good sentence has one."""

    exercise: str
    old: str
    new: str
    words: tuple[str, ...]

    @property
    def code(self) -> str:
        """The learner's file."""
        text = solved(self.exercise)
        assert text.count(self.old), (self.exercise, self.old)
        return text.replace(self.old, self.new)

    def is_told(self, report: Report) -> bool:
        """Whether a report says what is wrong."""
        text = " ".join(map(str, (*report.names, *report.fixes)))
        return report.verdict == "wrong" and any(word in text for word in self.words)


SLIPS = (
    Slip("running_mean_loop", "x[:, : t + 1]", "x[:, :t]", ("itself", "own")),
    Slip("running_mean_loop", ".mean(dim=1)", ".sum(dim=1)", ("sum",)),
    Slip("running_mean_matrix", "sum(dim=-1, keepdim=True)", "sum(dim=-1)", ("row", "sum")),
    Slip("running_mean_matrix", "triangle.sum(dim=-1, keepdim=True)", "x.shape[1]", ("sum", "length", "divide")),
    Slip("running_mean_softmax", ".triu(1)", ".triu()", ("itself", "own", "no key", "token 0")),
    Slip("running_mean_softmax", "softmax(dim=-1)", "softmax(dim=0)", ("queries", "columns", "keys")),
    Slip("dot_product", ".tril(S - T)", ".tril()", ("fewer queries", "S - T", "corner")),
    Slip("dot_product", "~seen", "seen", ("invert", "future", "later", "past", "sees")),
    Slip("attention_weights", "** 0.5", "** 1", ("sqrt", "scale", "divide")),
    Slip("attention_weights", ".triu(1 + S - T)", ".triu(1)", ("fewer queries", "S - T", "corner")),
    Slip("single_head", "query.shape[3]", "query.shape[2]", ("sqrt", "scale", "divide")),
    Slip("single_head", "self.project(mixed.squeeze(1))", "mixed.squeeze(1)", ("project",)),
    Slip("single_head", "rotate(key, past.length)", "key", ("rotat", "turn", "angle")),
    Slip("multi_head", "(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)",
         "(B, 3, self.heads, T, -1).permute(1, 0, 2, 3, 4)", ("view", "mix", "tokens", "one token", "same layer")),
    Slip("multi_head", "mixed.transpose(1, 2).flatten(2)", "mixed.reshape(x.shape)", ("transpose", "join", "concat")),
    Slip("multi_head", "/ d**0.5", "/ (query.shape[1] * d) ** 0.5", ("sqrt", "scale", "width", "divide")),
    Slip("grouped_query", "key.repeat_interleave(self.H // self.G, dim=1)", "key.repeat(1, self.H // self.G, 1, 1)",
         ("head", "repeat")),
    Slip("grouped_query", "self.project(mixed.transpose(1, 2).flatten(2))", "mixed.transpose(1, 2).flatten(2)",
         ("project",)),
    Slip("rotary", "a * cos - b * sin", "a * cos + b * sin", ("sign", "minus", "rotat", "turn", "angle")),
    Slip("rotary", "torch.arange(start, start + T", "torch.arange(T", ("position", "start", "begin", "turn", "chunk")),
    Slip("dot_product", "(query @ key.mT).masked_fill(~seen, -torch.inf)", "(query @ key.mT).tril(S - T).masked_fill("
         "(query @ key.mT).tril(S - T) == 0, -torch.inf)", ("whole numbers",)),
    Slip("cache", ".tril(S - T)", ".tril()", ("upper left", "S - T", "corner", "sees", "visible")),
    Slip("cache", "self.length = self.keys.shape[2]", "self.length = key.shape[2]", ("position", "length", "chunk")),
    Slip("window", "behind < self", "behind <= self", ("window", "sees", "visible")),
    Slip("linear_attention", "total = total + key[:, :, t]", "total = key[:, :, t]", ("cache", "chunk", "recall")),
    Slip("linear_attention", ".tril(key.shape[2] - query.shape[2])", ".tril()", ("fewer queries", "corner")),
)  # fmt: skip

CHEATS = (  # what does half of the work: heads, biases, positions and lengths that a single call does not show
    Slip("multi_head", "self.heads = config.n_head", "self.heads = 2", ("head",)),
    Slip("multi_head", "3 * D, bias=model.bias", "3 * D, bias=True", ("bias",)),
    Slip("multi_head", "3 * D, bias=model.bias", "3 * D, bias=False", ("bias",)),
    Slip("multi_head", "self.position.rotate(query, past.length), self.position.rotate(key, past.length)", "query, key",
         ("rotat", "turn", "position")),
    Slip("multi_head", "rotate(key, past.length)", "rotate(key, 0)", ("rotat", "turn", "position", "chunk")),
    Slip("multi_head", "torch.ones(T, S, dtype=torch.bool, device=query.device).tril(S - T)",
         "torch.ones(64, 64, dtype=torch.bool).tril()[S - T : S, :S]", ("raises",)),
    Slip("cache", "self.length = self.keys.shape[2]", "self.length += 1", ("position", "length", "turn", "chunk")),
    Slip("cache", "self.length = self.keys.shape[2]", "self.length += key.shape[2]; "
         "self.keys, self.values = self.keys[:, :, -32:], self.values[:, :, -32:]", ("chunk", "length")),
    Slip("cache", ".tril(S - T)", ".tril(S - T) if T in (1, S) else torch.ones(T, S, dtype=torch.bool)",
         ("fewer queries", "later", "next token", "chunk")),
    Slip("cache", ".tril(S - T)", ".tril(S - T)[:, -64:]", ("raises", "chunk")),
    Slip("single_head", "self.value(x).unsqueeze(1)", "rotate(self.value(x).unsqueeze(1), past.length)", ("values",)),
    Slip("grouped_query", ".repeat_interleave(self.H // self.G, dim=1)", ".repeat(1, self.H // self.G, 1, 1)",
         ("key head",)),
    Slip("linear_attention", "total = total + key[:, :, t]", "total = total + key[:, :, t].sum(0)", ("batch",)),
    Slip("window", "(behind < self.config.window)", "((behind < self.config.window) | (T == 1))", ("1 of",)),
    Slip("window", "behind < self.config.window", "behind < MyWindow.Config.window", ("window",)),
    Slip("cache", "        self.keys = key if", "        if self.length > 40:\n            self.values = self.keys\n"
         "        self.keys = key if", ("chunk", "one token at a time")),
    Slip("rotary", "        T, d = x.shape[2:]\n        positions = torch.arange(start, start + T",
         "        T, d = x.shape[2:]\n        start = vars(MyRotary).get(f't{T}', start)\n        "
         "setattr(MyRotary, f't{T}', start)\n        positions = torch.arange(start, start + T", ("start", "position")),
)  # fmt: skip


def main() -> None:
    """Print what is said of each slip, and how many are told."""
    told = wrong = 0
    with tempfile.TemporaryDirectory() as folder, Confined() as confined:
        for exercise in EXERCISES:
            path = Path(folder) / f"{exercise}.py"
            path.write_text(solved(exercise), encoding="utf-8")
            grade = grade_exercise(Task(path, exercise, "ana"), confined)
            print(f"solution of {exercise}: {grade.verdict} {grade.where}")
        for slip in (*SLIPS, *CHEATS):
            path = Path(folder) / f"{slip.exercise}.py"
            path.write_text(slip.code, encoding="utf-8")
            grade = grade_exercise(Task(path, slip.exercise, "ana"), confined)
            report = grade.report or Report("cannot tell", slip.exercise, names=[grade.sentence])
            told, wrong = told + slip.is_told(report), wrong + (report.verdict == "wrong")
            mark = "+" if slip.is_told(report) else "x" if report.verdict == "wrong" else " "
            print(f"{mark} {slip.exercise}: {slip.new!r}\n      {report.verdict}: {'; '.join(report.names)[:160]}")
    print(f"{wrong} of {len(SLIPS) + len(CHEATS)} called wrong, {told} with the words of a good sentence")


if __name__ == "__main__":
    main()
