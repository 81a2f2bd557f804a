"""A pre-norm block: h = x + attention(norm1(x)), then h + mlp(norm2(h)); its attention and its MLP are checked too.

Pre-norm is GPT-2's order; see "On Layer Normalization in the Transformer Architecture" (arXiv 2002.04745).

B batch, T positions, D model width, H heads, d width of a head, W width of the MLP's hidden layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from torch import Tensor

from minigpt.grading.probes import numbers, sequence_probes
from minigpt.grading.target import (
    Bug,
    Convention,
    Knobs,
    Options,
    Parameters,
    Probe,
    Role,
    Sizes,
    Steps,
    Target,
    only,
)
from minigpt.grading.targets import head_bugs, heads
from minigpt.grading.targets import mlp as feed_forward
from minigpt.grading.targets.norm import norm, norm_bugs, norm_conventions
from minigpt.grading.targets.rotation import ALIBI_CONVENTIONS, ROTARY_CONVENTIONS

Part = Callable[[Tensor], Tensor]
Formula = Callable[[Tensor, Part, Part, Part, Part], tuple[Tensor, Tensor]]


def then(h: Tensor, rest: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """h, and what the second half of a block computes from it: (B, T, D) each."""
    return h, rest(h)


FORMULAS: dict[str, Formula] = {  # x, attention, MLP, norm 1, norm 2, each (B, T, D) -> h and the output
    "pre": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + m(k(h))),
    "no first residual": lambda x, a, m, n, k: then(a(n(x)), lambda h: h + m(k(h))),
    "no second residual": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: m(k(h))),
    "no residuals": lambda x, a, m, n, k: then(a(n(x)), lambda h: m(k(h))),
    "post": lambda x, a, m, n, k: then(n(x + a(x)), lambda h: k(h + m(h))),
    "first post": lambda x, a, m, n, k: then(n(x + a(x)), lambda h: h + m(k(h))),
    "second post": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: k(h + m(h))),
    "behind": lambda x, a, m, n, k: then(x + n(a(x)), lambda h: h + k(m(h))),
    "first behind": lambda x, a, m, n, k: then(x + n(a(x)), lambda h: h + m(k(h))),
    "second behind": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + k(m(h))),
    "parallel": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + m(k(x))),
    "normed stream 1": lambda x, a, m, n, k: then(n(x) + a(n(x)), lambda h: h + m(k(h))),
    "normed stream 2": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: k(h) + m(k(h))),
    "normed streams": lambda x, a, m, n, k: then(n(x) + a(n(x)), lambda h: k(h) + m(k(h))),
    "x again": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: x + m(k(h))),
    "x twice": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: x + h + m(k(h))),
    "mlp first": lambda x, a, m, n, k: then(x + m(k(x)), lambda h: h + a(n(h))),
    "no attention": lambda x, a, m, n, k: then(x, lambda h: h + m(k(h))),
    "no mlp": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h),
    "attention twice": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + a(k(h))),
    "mlp inside": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + k(h) + m(k(h))),
    "h twice": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + h + m(k(h))),
    "doubled": lambda x, a, m, n, k: then(x + x + a(n(x)), lambda h: h + m(k(h))),
    "mlp of attention": lambda x, a, m, n, k: then(a(n(x)), lambda y: x + y + m(k(y))),
    "minus": lambda x, a, m, n, k: then(x - a(n(x)), lambda h: h - m(k(h))),
    "times": lambda x, a, m, n, k: then(x * a(n(x)), lambda h: h * m(k(h))),
    "change": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + m(k(h)) - x),
    "chained norms": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + m(k(n(h)))),
    "norm of mlp": lambda x, a, m, n, k: then(x + a(n(x)), lambda h: h + k(m(n(h)))),
}


@cache
def names_in(number: str) -> list[tuple[str, str]]:
    """Pairs of a parameter's name in an attention and in block `number` of a model: ("query", "query.2")."""
    roles = [role.name for role in heads.ROLES]
    return [*((role, role + number) for role in roles), *((f"{role}_bias", f"{role}{number}_bias") for role in roles)]


def layer(x: Tensor, parameters: Parameters, sizes: Sizes, knobs: Knobs, options: Options, number: str = "") -> Steps:
    """x (B, T, D) -> every step of one block to its output (B, T, D). `number` (".2") ends its parameters' names."""
    steps = Steps()
    own = {name: parameters[key] for name, key in names_in(number) if key in parameters}

    def keep(name: str, value: Tensor) -> Tensor:
        steps.setdefault(name, value)
        return value

    def attention(z: Tensor) -> Tensor:
        raw = {"reads": dict.fromkeys(knobs["raw"], x)} if "raw" in knobs else {}
        inner, _ = heads.layer(z, 0, None, (own, sizes, {**knobs, **raw}, options))
        for name, step in inner.items():
            keep("the attention's output" if name == "output" else name, step)
        return inner["output"]

    def mlp(z: Tensor) -> Tensor:
        inner = feed_forward.feed(z, parameters, knobs, number)
        for name, step in inner.items():
            keep("the MLP's output" if name == "output" else name, step)
        return inner["output"]

    formula = FORMULAS[knobs.get("formula", "pre")]
    h, y = formula(
        x,
        attention,
        mlp,
        lambda z: keep("the first norm", norm(z, parameters, "norm1", knobs, number)),
        lambda z: keep("the second norm", norm(z, parameters, "norm2", knobs, number)),
    )
    return steps | {"the sum after attention": h, "output": y}


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs, options: Options) -> Steps:
    """x (B, T, D) -> (B, T, D)."""
    return layer(probe.inputs["x"], parameters, sizes, knobs, options)


FIRST, SECOND = "h = x + attention(norm1(x))", "return h + mlp(norm2(h))"
BOTH = f"{FIRST}; {SECOND}"


def formula_bugs() -> list[Bug]:
    """What goes wrong in the order of attention, MLP, norms and residuals."""

    def bug(formula: str, sentence: str, fix: str = BOTH, *forms: Knobs) -> Bug:
        return Bug({"formula": formula}, sentence, fix, forms)

    return [
        bug("no first residual", "the first residual is missing: you compute attention(norm1(x)) without adding x",
            FIRST),
        bug("no second residual", "the second residual is missing: you return mlp(norm2(h)) without adding h", SECOND),
        bug("no residuals", "both residuals are missing: nothing is added to what attention and MLP compute"),
        bug("first post", "the first norm stands behind the sum, norm1(x + attention(x)); it must norm what attention "
            "reads", FIRST),
        bug("second post", "the second norm stands behind the sum, norm2(h + mlp(h)); it must norm what the MLP reads",
            SECOND),
        bug("behind", "the norms are applied to what attention and MLP return, x + norm(part(x)), not to what they "
            "read"),
        bug("first behind", "the first norm is applied to what attention returns, x + norm1(attention(x)), not to what "
            "it reads", FIRST),
        bug("second behind", "the second norm is applied to what the MLP returns, h + norm2(mlp(h)), not to what it "
            "reads", SECOND),
        bug("parallel", "the MLP reads the block's input x, not h, the sum after attention: h + mlp(norm2(x))", SECOND),
        bug("normed stream 1", "x is replaced by norm1(x) before the first residual: the sum is norm1(x) + attention",
            FIRST),
        bug("normed stream 2", "h is replaced by norm2(h) before the second residual: the sum is norm2(h) + mlp",
            SECOND),
        bug("normed streams", "x is replaced by its norm before each residual: the sums add norm(x) instead of x"),
        bug("x again", "the second residual adds the block's input x, not h: what attention found is lost", SECOND),
        bug("x twice", "x is added once more at the end: x + h + mlp(norm2(h)), and h holds x already", SECOND),
        bug("h twice", "h is added twice at the end: h + h + mlp(norm2(h))", SECOND),
        bug("doubled", "x is added twice to what attention returns: inside the attention and in the block", FIRST),
        bug("mlp inside", "the MLP adds what it reads to its output, besides the block's own residual: "
            "h + norm2(h) + mlp(norm2(h))", "leave the residual to the block"),
        bug("mlp first", "the MLP comes before the attention"),
        bug("no attention", "the attention is not used: the block is its MLP alone", FIRST),
        bug("no mlp", "the MLP is not used: the block ends after the attention", SECOND),
        bug("attention twice", "the second part is the attention again, not the MLP", SECOND),
        bug("mlp of attention", "the MLP reads what attention returns, without x: its input must be norm2(h), "
            "h = x + attention(norm1(x))", SECOND),
        bug("minus", "what the parts return is subtracted from the stream instead of added"),
        bug("times", "what the parts return is multiplied with the stream instead of added"),
        bug("change", "the block returns the change only: x is missing in the result", SECOND),
        bug("chained norms", "the MLP reads norm2(norm1(h)): both norms, one after the other", SECOND),
        bug("norm of mlp", "the MLP reads norm1(h), and norm2 is applied to what it returns", SECOND),
    ]  # fmt: skip


def missing_norm_bugs() -> list[Bug]:
    """Norms that are left out, or used twice."""
    one = "give each part a norm of its own: self.norm1 and self.norm2"
    return [
        Bug({"norm1": "none"}, "the first norm is missing: attention reads x as it is", FIRST),
        Bug({"norm2": "none"}, "the second norm is missing: the MLP reads h as it is", SECOND),
        Bug({"norm1": "none", "norm2": "none"}, "both norms are missing: attention and MLP read the stream as it is",
            BOTH),
        *(Bug({"raw": roles}, f"{what} are made of x as it is, without the first norm", "the attention reads norm1(x) "
              "alone: query, key and value")
          for roles, what in ((("value",), "the values"), (("key",), "the keys"), (("query",), "the queries"),
                              (("key", "value"), "keys and values"), (("query", "key"), "queries and keys"))),
        Bug({"norm2": "norm1"}, "one norm is used for both parts: attention and MLP share its weight and bias", one,
            ({"norm1": "norm2"},)),
    ]  # fmt: skip


def said_of(bugs: list[Bug], where: str) -> list[Bug]:
    """The same bugs, with the place `where` before their sentences."""
    return [replace(bug, sentence=f"{where}: {bug.sentence}") for bug in bugs]


UNSEEN: dict[str, tuple[object, ...]] = {  # the input is normed, so no score is large; each block gets a batch
    "fill": (-100.0, -1e3, -1e4, -1e9, 1e-9, -1e-9),
    "softmax": ("naive",),
    "hide": ("after_renormalised",),
    "batch": ("joined",),
}


def attention_bugs(options: Options) -> list[Bug]:
    """The bugs of multi-head attention that can be seen in a block."""
    listed = head_bugs.all_bugs(options, many=True, grouped=False)
    return [bug for bug in listed if not any(bug.knobs.get(knob) in values for knob, values in UNSEEN.items())]


def inner_bugs(options: Options, where: str) -> list[Bug]:
    """All bugs of one block; `where`, such as "in every block", is put before their sentences."""
    place = f"{where}, " if where else ""
    parts = [*formula_bugs(), *missing_norm_bugs(), *norm_bugs()]
    return [
        *(said_of(parts, where) if where else parts),
        *said_of(feed_forward.activation_bugs(), f"{place}in the MLP"),
        *said_of(attention_bugs(options), f"{place}in the attention"),
    ]


def conventions(options: Options) -> list[Convention]:
    """The conventions of a block."""
    positions = [*(ROTARY_CONVENTIONS if options.rotary else []), *(ALIBI_CONVENTIONS if options.alibi else [])]
    return [POST, PARALLEL, *feed_forward.activation_conventions(), *norm_conventions(), *positions]


POST = Convention({"formula": "post"}, "post-norm, norm(x + part(x)), as in the first Transformer; GPT-2 is pre-norm: "
                  "it norms what a part reads")  # fmt: skip
PARALLEL = Convention({"formula": "parallel", "norm2": "norm1"}, "attention and MLP read the same norm, side by side: "
                      "x + attention(norm(x)) + mlp(norm(x)), as in GPT-J and PaLM")  # fmt: skip
NORMS = (
    Role("norm1", ("D",), (), ("norm1", "ln1", "ln_1", "attn_norm", "attention_norm", "input_layernorm", "norm_1"),
         needed=False),
    Role("norm2", ("D",), (), ("norm2", "ln2", "ln_2", "mlp_norm", "ffn_norm", "post_attention_layernorm", "norm_2"),
         needed=False),
)  # fmt: skip
ROLES = (*NORMS, *heads.ROLES, *feed_forward.ROLES)
SIZES = {"B": 2, "T": 11, "D": 70, "H": 5, "G": 5, "d": 14, "e": 14, "W": 280, "window": 0}


def without() -> dict[str, Bug]:
    """The bug that each missing role means."""
    return {
        role: replace(bug, sentence=f"in the attention: {bug.sentence}")
        for role, bug in head_bugs.without(many=True).items()
        if isinstance(bug, Bug)
    }


def probes(sizes: Sizes) -> list[Probe]:
    """Inputs x (B, T, D): three lengths, two scales, and tokens whose features are all equal."""
    level = numbers(2, 5, 1, seed=3).expand(2, 5, sizes["D"])  # (B, T, D)
    flat = Probe("tokens whose features are all equal", {"x": level}, 30.0)  # x - mean is rounding error / sqrt(eps)
    return [*sequence_probes(sizes, (0.01, 8.0)), flat]


def block(options: Options) -> Target:
    """x (B, T, D) -> (B, T, D)."""
    only("block", options, "rotary", "alibi", "full")
    return Target(
        "block",
        f"{FIRST}, then h + mlp(norm2(h))",
        ("x",),
        partial(reference, options=options),
        probes,
        SIZES,
        inner_bugs(options, ""),
        conventions(options),
        ROLES,
        options,
        without(),
    )
