"""What is measured of a program: a right one passes every measure, and each guard finds what it is for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from slips import CHEATS, Slip
from solutions import solved
from torch import Tensor, nn

from minigpt.attention import Attention, Shape
from minigpt.checks.learners.also import ALSO, asked_of_all, asked_too
from minigpt.checks.learners.measures import Measured, measure
from minigpt.checks.learners.program import Program

RIGHT = """
import math, random
import torch
from torch import nn
import torch.nn.functional as F

class Attention(nn.Module):
    def __init__(self, D, H, p=0.1):
        super().__init__()
        self.H, self.calls, self.kept = H, 0, None
        self.qkv = nn.Linear(D, 3 * D)
        self.project = nn.Linear(D, D)
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        B, T, D = x.shape
        query, key, value = self.qkv(x).view(B, T, 3, self.H, D // self.H).permute(2, 0, 3, 1, 4)
        scores = query @ key.mT / math.sqrt(D // self.H)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
        weights = self.dropout(scores.softmax(dim=-1))
        mixed = weights @ value
        return self.project(mixed.transpose(1, 2).reshape(B, T, D))

thing = Attention(12, 3)
"""
FUNCTION = """
import torch

def attend(query, key, value):
    T = query.shape[2]
    scores = query @ key.mT / query.shape[-1] ** 0.5
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1) @ value

thing = attend
"""
WRONG = [  # the law, old, new, words of what is found, the line that is told: "" for none
    ("the inputs stay as they are", "B, T, D = x.shape", "B, T, D = x.shape; x *= 2; x /= 3", "its input", "x *= 2"),
    ("the inputs stay as they are", "B, T, D = x.shape", "B, T, D = x.shape; self.project.weight.data.mul_(0.5)",
     "a parameter", "mul_"),
    ("evaluation draws nothing", "self.dropout(scores", "F.dropout(scores", "random", "F.dropout"),
    ("evaluation draws nothing", "mixed = weights @ value", "mixed = weights @ value * random.random()", "random",
     "random()"),
    ("nothing is left behind", "mixed = weights", "self.calls += 1; mixed = self.calls * weights", "second time",
     "calls"),
    ("nothing is left behind", "mixed = weights @ value",
     "self.kept = value.mean() if self.kept is None or T != 7 else self.kept; mixed = weights @ value + self.kept",
     "after another text", "self.kept"),
    ("a text of a batch is what it is alone", "mixed = weights @ value", "mixed = weights @ (value - value.mean(0))",
     "in a batch", "value.mean(0)"),
    ("a text of a batch is what it is alone", "mixed.transpose", "mixed.squeeze(0).transpose(2, 3).transpose",
     "batch of one", "squeeze"),
    ("a text of a batch is what it is alone", "mixed.transpose", "mixed.squeeze(0).transpose", "alone", "reshape"),
    ("a text begins as its first tokens", ".triu(1)", ".triu(2)", "token 0 changes with token 1,", ""),
    ("a text begins as its first tokens", ".triu(1)",
     ".triu(1) & (torch.arange(T)[:, None] // 16 != torch.arange(T) // 16)", "comes later", ""),
    ("a text begins as its first tokens", "mixed = weights", "mixed = weights[:, :, :, -T:].squeeze(2)", "1 token",
     "reshape"),
    ("a text begins as its first tokens", "future = ", "scores = scores / T; future = ", "another than of 2", "/ T"),
    ("nothing ends somewhere", "torch.ones(T, T, dtype=torch.bool).triu(1)",
     "torch.ones(64, 64, dtype=torch.bool).triu(1)[:T, :T]", "from T = 65 on it raises", "masked_fill"),
    ("nothing ends somewhere", ".triu(1)", ".triu(1) | torch.ones(T, T, dtype=torch.bool).tril(-90)",
     "from token 90 on do not see token 0", ""),
    ("nothing ends somewhere", ".triu(1)", ".triu(1) | (torch.arange(T)[:, None] // 64 != torch.arange(T) // 64)",
     "from token 64 on do not see token 0", ""),
    ("a text begins as its first tokens", "mixed = weights @ value",
     "mixed = weights @ (value * (2 if T > 200 else 1))",
     "of 300 tokens is another", "T > 200"),
    ("training computes what evaluation does", "mixed = weights", "mixed = (2 if self.training else 1) * weights",
     "nothing dropped", "self.training"),
    ("nothing is left behind", "return self.project(", "y = self.project(mixed.transpose(1, 2).reshape(B, T, D)); "
     "self.kept = y if self.kept is None or self.kept.shape != y.shape else self.kept.copy_(y); return self.kept; (",
     "writes over", ""),
    ("dropout is for weights", "self.dropout(scores.softmax(dim=-1))", "self.dropout(scores).softmax(dim=-1)",
     "scores are dropped", "self.dropout(scores)"),
    ("each parameter learns", "weights @ value", "weights.detach() @ value", "qkv.weight gets only a part", "detach"),
    ("each parameter learns", "scores = query", "with torch.no_grad(): scores = query", "only a part", "no_grad"),
    ("each parameter learns", "mixed = weights @ value", "mixed = (weights @ value).data", "qkv.weight gets no",
     ".data"),
    ("each parameter learns", "self.qkv(x)", "self.qkv(x.detach())", "x gets no gradient", "detach"),
    ("each parameter learns", "scores = query @", "query = torch.cat((query[:, :1].detach(), query[:, 1:]), 1); "
     "scores = query @", "only a part", "detach"),
    ("float32 is enough", "scores = query @ key.mT", "scores = (query * 1e-25) @ (key * 1e-25).mT * 1e50", "finite",
     ""),
    ("float32 is enough", "scores = query @ key.mT", "scores = (query @ key.mT + 1e6) - 1e6", "off by", ""),
    ("bfloat16 is near", "scores = query @ key.mT", "scores = (query @ key.mT + 300) - 300", "off by", ""),
    ("the output has the type of the input", "self.project(mixed.transpose(1, 2).reshape(B, T, D))",
     "self.project(mixed.transpose(1, 2).reshape(B, T, D)).float()", "float32 comes out", "float()"),
    ("numbers that are exactly 0 are numbers", "masked_fill(future,", "tril().masked_fill(scores.tril() == 0,",
     "may be 0", "tril()"),
]  # fmt: skip
STYLES = {  # changes that leave it right
    "as it is": (),
    "a fill of finfo": (("-torch.inf", "torch.finfo(scores.dtype).min"),),
    "a fill of -1e9": (("-torch.inf", "-1e9"),),
    "a buffer in float32": (
        ("self.project =", "self.register_buffer('scale', torch.tensor(0.5, dtype=torch.float32)); self.project ="),
        ("/ math.sqrt(D // self.H)", "* self.scale"),
    ),
    "block_size": (
        ("p=0.1", "block_size=64, p=0.1"),
        ("self.project =", "self.mask = torch.ones(block_size, block_size, dtype=torch.bool).triu(1); self.project ="),
        ("torch.ones(T, T, dtype=torch.bool).triu(1)", "self.mask[:T, :T]"),
    ),
    "a block_size of the file": (
        ("class Att", "block_size = 48\n\nclass Att"),
        ("torch.ones(T, T, dtype=torch.bool)", "torch.ones(block_size, block_size, dtype=torch.bool)[:T, :T]"),
    ),
    "a cast, and back": (("return self.project(", "mixed = mixed.float().to(x.dtype); return self.project("),),
    "a detached maximum": (
        ("scores.softmax(dim=-1)", "(scores - scores.amax(-1, keepdim=True).detach()).softmax(-1)"),
    ),
    "paths that are dropped": (
        ("return self", "if self.training: mixed = mixed * (torch.rand(()) < 0.5)\n        return self"),
    ),
    "a frozen table": (
        ("self.project =", "self.gain = nn.Parameter(torch.ones(D), requires_grad=False); self.project ="),
        ("self.qkv(x)", "self.qkv(x * self.gain)"),
    ),
    "matrices of its own": (
        ("self.project =", "self.turn = [torch.eye(D, dtype=torch.float64)]; self.project ="),
        ("self.qkv(x)", "self.qkv(x @ self.turn[0])"),
    ),
    "a mask that grows": (
        ("future = torch.ones(T, T, dtype=torch.bool).triu(1)",
         "self.kept = self.kept if self.kept is not None and len(self.kept) >= T else "
         "torch.ones(T, T, dtype=torch.bool).triu(1); future = self.kept[:T, :T]"),
    ),
}  # fmt: skip


def run(thing: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Calls a program as the checker does."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(next(iter(inputs.values())).dtype)
    try:
        y: Tensor = thing(*inputs.values())
        return y
    finally:
        torch.set_default_dtype(default)


def program_of(code: str, folder: Path, **more: Any) -> Program:
    """The program that a file holds, in float64 and in evaluation mode."""
    path, names = folder / "program.py", dict[str, Any]()
    path.write_text(code, encoding="utf-8")
    torch.manual_seed(0)
    exec(compile(code, str(path), "exec"), names)
    thing = names["thing"]
    draw = torch.Generator().manual_seed(3)
    if isinstance(thing, nn.Module):
        thing.double().eval()
        inputs = {"x": torch.randn(2, 7, 12, dtype=torch.float64, generator=draw)}
    else:
        shape = (2, 3, 7, 4)
        inputs = {name: torch.randn(shape, dtype=torch.float64, generator=draw) for name in ("query", "key", "value")}
    return Program(thing, run, inputs, str(path), **more)


def changed(code: str, *changes: tuple[str, str]) -> str:
    """A file with changes, each of which must be there."""
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new, 1)
    return code


def measured(code: str, folder: Path, **more: Any) -> Measured:
    return measure(program_of(code, folder, **more))


@pytest.mark.parametrize("style", STYLES)
def test_a_right_program_passes_every_measure(style: str, tmp_path: Path) -> None:
    found = measured(changed(RIGHT, *STYLES[style]), tmp_path)
    assert not found.broken
    limits = {"block_size": ["texts have at most 64 tokens"],
              "a block_size of the file": ["texts have at most 48 tokens"]}  # fmt: skip
    assert [remark.actual.partition(";")[0] for remark in found.remarks] == limits.get(style, [])


def test_a_right_function_passes_every_measure(tmp_path: Path) -> None:
    found = measured(FUNCTION, tmp_path)
    assert (found.broken, found.remarks) == ([], [])


@pytest.mark.parametrize(("law", "old", "new", "words", "line"), WRONG)
def test_what_is_measured_is_found(law: str, old: str, new: str, words: str, line: str, tmp_path: Path) -> None:
    code = changed(RIGHT, (old, new))
    found = measured(code, tmp_path)
    assert [broken.law for broken in found.broken] == [law], found
    assert words in found.broken[0].actual
    if line:
        assert line in code.splitlines()[found.broken[0].line - 1], found
    else:
        assert found.broken[0].line == 0


def test_a_window_is_as_wide_as_it_was_asked_for(tmp_path: Path) -> None:
    code = changed(RIGHT, (".triu(1)", ".triu(1) | torch.ones(T, T, dtype=torch.bool).tril(-5)"))
    for reach, laws in ((5, []), (4, ["nothing ends somewhere"]), (6, ["nothing ends somewhere"]), (0, [])):
        assert [broken.law for broken in measured(code, tmp_path, reach=reach).broken] == laws


def test_what_is_good_to_know_is_a_remark(tmp_path: Path) -> None:
    waves = "mixed = weights @ value + torch.arange(T).to(x.dtype).mul(3.3).sin()[:, None]"
    found = measured(changed(RIGHT, ("mixed = weights @ value", waves)), tmp_path)
    assert not found.broken and ["bfloat16" in remark.actual for remark in found.remarks] == [True], found


def test_what_cannot_be_measured_is_told(tmp_path: Path) -> None:
    code = changed(RIGHT, ("scores = query", "assert query.dtype == torch.float64; scores = query"))
    assert measured(code, tmp_path).remarks[0].actual.startswith("not measured is this: float32 is enough. It raises")


def test_random_numbers_go_on_as_they_were(tmp_path: Path) -> None:
    program = program_of(changed(RIGHT, ("self.dropout(scores", "F.dropout(scores")), tmp_path)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    measure(program)
    assert torch.equal(torch.rand(3), expected)


# what an exercise also asks for


def kind_of(exercise: str, code: str, folder: Path) -> tuple[Any, str]:
    """The kind of an exercise's file, and the file; for `rotary` the module at its end."""
    path, names = folder / f"{exercise}.py", {"__name__": f"learner_{exercise}"}
    path.write_text(code, encoding="utf-8")
    exec(compile(code, str(path), "exec", dont_inherit=True), names)
    if exercise == "rotary":
        return names["attention"], str(path)
    kinds: list[Any] = [thing for thing in names.values() if getattr(thing, "__module__", "") == names["__name__"]]
    (kind,) = (one for one in kinds if isinstance(one, type) and issubclass(one, Attention))
    return kind(kind.Config(), Shape(n_embd=24)), str(path)


@pytest.mark.parametrize("exercise", ALSO)
def test_a_solution_does_what_its_exercise_also_asks_for(exercise: str, tmp_path: Path) -> None:
    assert asked_too(*kind_of(exercise, solved(exercise), tmp_path), exercise) == []


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: f"{cheat.exercise}: {cheat.new[:40]}")
def test_half_of_an_exercise_is_not_enough(cheat: Slip, tmp_path: Path) -> None:
    (broken,) = asked_too(*kind_of(cheat.exercise, cheat.code, tmp_path), cheat.exercise)
    assert any(word in f"{broken} {broken.mend}" for word in cheat.words), broken


@pytest.mark.parametrize(("exercise", "old", "new", "words"), [
    ("dot_product", "tril(S - T)", "tril()", "fewer queries"),
    ("cache", "self.length = self.keys.shape[2]", "self.length = key.shape[2]", "the cache's length is 1"),
])  # fmt: skip
def test_a_kind_is_asked_for_fewer_queries_and_chunks_without_its_exercise(
    exercise: str, old: str, new: str, words: str, tmp_path: Path
) -> None:
    code = solved(exercise)
    assert asked_of_all(kind_of(exercise, code, tmp_path)[0]) == []
    kind, _ = kind_of(exercise, changed(code, (old, new)).replace('kind="my_', 'kind="my_other_'), tmp_path)
    (broken,) = asked_of_all(kind)
    assert words in broken.actual
