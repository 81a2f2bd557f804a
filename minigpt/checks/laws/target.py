"""What a program can be held against, and what it is nearest to: "multi_head,rotary", "attend", "gpt".

B batch, T positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from minigpt.attention import Attention
from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.position import Position
from minigpt.checks.laws.block import BLOCK_LAWS
from minigpt.checks.laws.law import USUAL, Judged, Wanted, step_of
from minigpt.checks.laws.loss import judge_loss
from minigpt.checks.laws.means import judge_mean
from minigpt.checks.laws.model import judge_gpt
from minigpt.checks.laws.parts import KNOWN, MLP_LAWS, NORM_LAWS, first_attention, judge_parts
from minigpt.checks.laws.softmax import LAWS, OF_SCORES, OF_WEIGHTS, ROWS
from minigpt.checks.laws.turning import turns
from minigpt.checks.reading.meanings import Atom, Exp, Meanings, Mixture, Other, Score, Weight
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.structure import Ends, Found, Strange
from minigpt.checks.reading.values import inner
from minigpt.model.config import ModelConfig
from minigpt.system.errors import UserError
from minigpt.system.places import command

BASE = 10_000.0  # of rotary frequencies
Takes = tuple[str, ...]
X, QKV, QK, IDS = ("x",), ("query", "key", "value"), ("query", "key"), ("ids",)


@dataclass(frozen=True)
class Options:
    """The options that follow the name of a target, as in `multi_head,rotary,window=4`."""

    rotary: bool = False
    alibi: bool = False
    window: int = 0
    cache: bool = False
    full: bool = False
    """No causal mask: every position sees every other."""

    def __str__(self) -> str:
        names = [name for name in ("rotary", "alibi", "cache", "full") if getattr(self, name)]
        return "".join(f",{word}" for word in [*names, *([f"window={self.window}"] if self.window else [])])


@dataclass(frozen=True)
class Sort:
    """What a target of a name is: its inputs, the likeliest first, and the options that it may have."""

    takes: tuple[Takes, ...]
    options: tuple[str, ...] = ()
    makes: str = "output"
    """What it makes of a query and a key alone: weights, scores, or rows that are rotated."""


ALL = ("rotary", "alibi", "window", "cache", "full")
SORTS = {
    "running_mean": Sort((X,)),
    "dot_product": Sort((X, QK), ("full", "window"), "scores"),
    "attention_weights": Sort((QK, X), ("full", "window"), "weights"),
    "attend": Sort((QKV,), ("rotary", "alibi", "window", "full")),
    "single_head": Sort((X, QKV), ALL),
    "multi_head": Sort((X, QKV), ALL),
    "grouped_query": Sort((X, QKV), ALL),
    "rotary": Sort((QK,), (), "rows"),
    "linear_attention": Sort((QKV, X)),
    "mlp": Sort((X,)),
    "norm": Sort((X,)),
    "loss": Sort((("logits", "targets"), ("model", "ids"))),
    "block": Sort((X,), ("rotary", "alibi", "window", "full")),
    "gpt": Sort((IDS,), ("rotary", "alibi", "window", "full")),
}
LAWS_OF = {"output": LAWS, "weights": OF_WEIGHTS, "scores": OF_SCORES, "rows": ROWS}


@dataclass(frozen=True)
class Target:
    """What a program should be."""

    name: str
    options: Options = field(default_factory=Options)

    def __str__(self) -> str:
        return f"{self.name}{self.options}"

    @property
    def takes(self) -> tuple[Takes, ...]:
        """Its inputs, the likeliest first."""
        takes = SORTS[self.name].takes if self.name in SORTS else (X, QKV)
        return (*takes, QK) if self.options.rotary and QK not in takes else takes

    def makes(self, takes: Takes) -> str:
        """What it makes of these inputs: of queries and keys alone a rotation, if it has one."""
        if takes == QK or self.name == "attention_weights":
            return "rows" if self.options.rotary else SORTS[self.name].makes
        return "output"

    def wanted(self, T: int, takes: Takes = X) -> Wanted:
        """The kind of ours that its attention is held against, for texts of T tokens."""
        options, of_x = self.options, takes == X
        position = "rotary" if options.rotary else "alibi" if options.alibi else "none"
        unscaled = self.name == "dot_product"
        kind = Attention.kinds["sliding_window" if options.window else "dot_product" if unscaled else "multi_head"]
        values: dict[str, Any] = {"n_head": 1, "causal": not options.full, "window": options.window}
        config = kind.Config(**{name: values[name] for name in values if name in kind.Config.__dataclass_fields__})
        model = ModelConfig(n_embd=8, block_size=512, position=Position.kinds[position].Config(), attention=config)
        instance = kind(config, model)
        assert isinstance(instance, SoftmaxAttention)
        allows = {"single_head": USUAL | {"no projection"},
                  "dot_product": USUAL - {"normed", "no maximum"} | {"scaled"}}.get(self.name, USUAL)  # fmt: skip
        return Wanted(instance, T, 0 if self.name == "grouped_query" else 1,
                      int(of_x and self.name in ("single_head", "dot_product")),
                      BASE if options.rotary or self.name == "rotary" else 0.0,
                      of_x and self.name not in ("single_head", "dot_product"), not (unscaled and of_x),
                      allows if of_x else allows - {"no maximum"})  # fmt: skip


def find_target(text: str) -> Target:
    """The target of "multi_head" or "multi_head,rotary,window=4", or of a kind of ours. Raises UserError."""
    name, *words = text.split(",")
    if name not in SORTS and name not in Attention.kinds:
        raise UserError(f"{name!r} is no target; there are: {', '.join(SORTS)}, and every attention: "
                        f"{command('kinds')}")  # fmt: skip
    options, known = read_options(words), SORTS[name].options if name in SORTS else ()
    names = [word for word in ALL if getattr(options, word)]
    if unknown := [word for word in names if word not in known]:
        raise UserError(f"{name} has no option {unknown[0]}; it has {', '.join(known) or 'none'}")
    return Target(name, options)


def read_options(words: Sequence[str]) -> Options:
    """["rotary", "window=4"] -> Options. Raises UserError."""
    options = Options()
    for word in words:
        name, _, value = word.strip().partition("=")
        if name == "window" and value.isdigit() and int(value) > 0:
            options = replace(options, window=int(value))
        elif name in ("rotary", "alibi", "cache", "full") and not value:
            options = replace(options, **{name: True})
        else:
            raise UserError(f"{word!r}: expected rotary, alibi, cache, full or window=N")
    if options.full and (options.cache or options.window):
        raise UserError("full attention has no window and no cache: leave one of them out")
    return options


def nearest(attention: Found, cache: bool = False) -> Target:
    """The target that an attention is nearest to, by what was read: its heads, positions, and who sees whom."""
    added = dict[int, set[float]]()  # to the scores of a softmax: a constant for all of them is the same as nothing
    for weight in attention.weights:
        score = attention.score(weight)
        if attention.lowered(weight) > -50:  # lower ones hide
            group = score.left if attention.makes == "scores" else attention.of[weight].group
            added.setdefault(group, set()).add(round(score.added, 6))
    full, window = seen_by(attention)
    rotary = bool(turns(attention, attention.query_rows, attention.query_heads))
    shared = len(set(attention.key_heads.values())) < len(attention.heads)
    alone = "dot_product" if set(attention.query_rows) & set(attention.key_rows) else "single_head"
    name = "grouped_query" if shared else "multi_head" if len(attention.heads) > 1 else alone
    options = Options(rotary, any(len(values) > 2 for values in added.values()), window, cache and not full, full)
    return Target(name if attention.width else "attend", options)


def seen_by(attention: Found) -> tuple[bool, int]:
    """(Whether every token sees every other, the window of each token; 0: all the past)."""
    of, seen = attention.of, dict[tuple[int, int], set[int]]()
    for weight in attention.weights:
        query, key = of.tokens(of.query(weight))[0], of.tokens(of.key(weight))[0]
        seen.setdefault(query, set()).add(key[1])
    last = max(seen)
    T = last[1] + 1
    if all(keys == set(range(T)) for keys in seen.values()):
        return T > 1, 0
    width = len(seen[last])
    windows = all(keys == set(range(max(0, t + 1 - width), t + 1)) for (_, t), keys in seen.items())
    return False, width if windows and width < T else 0


# ---- what is no attention alone ----


Judge = Callable[[Reading, Ids, Wanted], Judged]


def judge(whole: Judge, attends: bool, reading: Reading, output: Ids, wanted: Wanted) -> Judged:
    """What a judge says; where the reading ends after an attention that breaks a law, what breaks there.

    A step that is not known breaks a law. Raises Ends where the reading ends otherwise.
    """
    try:
        return whole(reading, output, wanted)
    except Ends as end:
        if attends and (early := first_attention(reading, output.shape[:2], wanted)):
            return early
        if isinstance(end, Strange):
            return Judged([step_of(end)], [], 2)
        raise


JUDGES: Mapping[str, Judge] = {
    "running_mean": partial(judge, judge_mean, False),
    "norm": partial(judge, partial(judge_parts, laws=NORM_LAWS, allows=KNOWN - {"no gain"}), True),
    "mlp": partial(judge, partial(judge_parts, laws=MLP_LAWS), True),
    "block": partial(judge, partial(judge_parts, laws=BLOCK_LAWS), True),
    "gpt": partial(judge, judge_gpt, True),
    "loss": partial(judge, judge_loss, False),
}
"""For each target what the laws say of the meanings of what a program returned: x (B, T, D) -> (B, T, D), ids (B, T) ->
logits (B, T, V), a loss. `wanted` is, for a block and a GPT, what the attention inside should be; for a loss a
WantedLoss. They raise Ends where the reading ends."""


def recognise(reading: Reading, output: Ids) -> str:
    """What a program of x is nearest to: running_mean, norm, mlp, block, or softmax for an attention."""
    of, numbers = reading.of, set(output.ravel().tolist())
    if any(isinstance(one, Weight | Exp) and of.is_kind(one.score, Score) and len(of.tokens(one.score)) > 1
           for one in of.all):  # fmt: skip
        behind = any(of.is_kind(number, Other) for number in numbers) and any(
            map(of.layers_of_heads, range(len(of.all)))
        )
        return "block" if behind or is_block(of, output[0, -1].tolist()) else "softmax"
    if any(of.is_kind(number, Mixture) for number in numbers):
        return "running_mean"
    return "mlp" if any(isinstance(one, Atom) and is_layer(of, one) for one in of.all) else "norm"


def is_block(of: Meanings, numbers: list[int]) -> bool:
    """Whether there is more than an attention in a row: x itself, or a layer that reads what an attention made."""
    for _, atom in inner(of, numbers, lambda one: is_layer(of, of[one])):
        below = inner(of, of.numbers_in(atom.row), lambda one: False) if is_layer(of, atom) else iter(())
        if atom.op == "input" or any(Mixture in of.kinds(one.row) for _, one in below):
            return True
    return False


def is_layer(of: Meanings, atom: Atom) -> bool:
    """Whether an atom is a linear map of several numbers."""
    return atom.op == "linear" and len(of.numbers_in(atom.row)) > 1
