"""A whole small GPT: token and position embeddings, pre-norm blocks, a final norm, a head; and the loss, if it has one.

ids (B, T) -> logits (B, T, V), and the mean cross entropy of the next tokens. Models take the loss from
targets that hold the next tokens (nanoGPT), or from the ids alone; `sizes["loss"]` says which.

B batch, T positions, C longest context, V vocabulary, D model width, L layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

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
    alike,
    only,
)
from minigpt.grading.targets import block
from minigpt.grading.targets.loss import LOSS_BUGS, OWN_LOSS_BUGS, loss
from minigpt.grading.targets.norm import norm
from minigpt.grading.targets.rotation import ROTARY_CONVENTIONS

NO_LOSS, TARGETS, OWN, ONLY = 0, 1, 2, 3  # sizes["loss"]: none; from targets; from the ids; from targets, no logits


def sinusoids(T: int, D: int, kind: str) -> Tensor:
    """The first Transformer's positions (T, D): sines and cosines alternate, or fill half each (arXiv 1706.03762)."""
    angles = torch.arange(T)[:, None].double() / 10000 ** (torch.arange(0, D, 2) / D)  # (T, D / 2)
    if kind == "sines by turns":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :D]
    return torch.cat((angles.sin(), angles.cos()), dim=-1)[:, :D]


def positions(ids: Tensor, parameters: Parameters, sizes: Sizes, kind: str, row: str) -> Tensor | float:
    """The positions that are added to the embeddings of ids (B, T): (T, D), (B, T, D) or 0.0."""
    if kind == "none":
        return 0.0
    B, T = ids.shape
    if kind.startswith("sines"):
        table = sinusoids(max(B, T, sizes["V"]) + 1, sizes["D"], kind)  # (C, D)
    else:
        table = parameters["position"]  # (C, D)
    rows: dict[str, Callable[[], Tensor]] = {
        "right": lambda: torch.arange(T),
        "from one": lambda: torch.arange(1, T + 1),
        "first": lambda: torch.zeros(T, dtype=torch.long),
        "last": lambda: torch.full((T,), T - 1),
        "length": lambda: torch.full((T,), T),
        "reversed": lambda: torch.arange(T - 1, -1, -1),
        "end": lambda: torch.arange(len(table) - T, len(table)),
        "sequence": lambda: torch.arange(B)[:, None].expand(B, T),
        "ids": lambda: ids,
    }
    return table[rows[row]()]


def embed(ids: Tensor, parameters: Parameters, sizes: Sizes, knobs: Knobs, options: Options) -> Steps:
    """ids (B, T) -> the token embeddings, and their sum with the positions, which the first block reads: (B, T, D)."""
    table, root = parameters["token"], math.sqrt(sizes["D"])
    factor = {"as it is": 1.0, "sqrt(D)": root, "divided": 1 / root}[knobs.get("tokens", "as it is")]
    tokens = table[ids] * factor  # (B, T, D)
    kind = knobs.get("positions", "none" if options.rotary or options.alibi else "learned")
    added = positions(ids, parameters, sizes, kind, knobs.get("rows", "right"))  # (T, D)
    how = knobs.get("added", "once")
    ways: dict[str, Callable[[], Tensor]] = {
        "times": lambda: tokens * added,
        "twice": lambda: tokens + added + added,
        "alone": lambda: tokens * 0 + added,
        "late": lambda: tokens,
        "every": lambda: tokens,
    }
    x = ways[how]() if how in ways else tokens + added  # (B, T, D)
    x = x * {"as it is": 1.0, "sqrt(D)": root, "divided": 1 / root}[knobs.get("sum", "as it is")]
    steps = {"the token embeddings": tokens, "the embeddings": x}
    return steps | ({"added later": tokens * 0 + added} if how in ("late", "every", "every again") else {})


def stack(x: Tensor, later: Tensor | None, parameters: Parameters, sizes: Sizes, knobs: Knobs,
          options: Options) -> Steps:  # fmt: skip
    """x (B, T, D) -> all steps of the blocks, in order; `later` (B, T, D) is added to the input of every block."""
    steps, L, how = Steps(), sizes["L"], knobs.get("stack", "in order")
    orders: dict[str, list[int]] = {
        "reversed": list(range(L))[::-1],
        "none": [],
        "first only": [0],
        "last only": [L - 1],
        "all but the first": list(range(1, L)),
        "all but the last": list(range(L - 1)),
        "first repeated": [0] * L,
        "last repeated": [L - 1] * L,
        "twice": [*range(L), *range(L)],
    }
    B, T, D = x.shape
    axes = knobs.get("axes", "right")
    x = x.reshape(T, B, D) if axes == "viewed" else x.transpose(0, 1) if axes == "exchanged" else x  # (B, T, D)
    start = x
    for i in orders.get(how, list(range(L))):
        read = start if how in ("each reads x", "sum") else x if later is None else x + later
        inner = block.layer(read, parameters, sizes, knobs, options, f".{i}")
        for name, step in inner.items():
            steps[f"block {i + 1}: {name}"] = step
        y = inner["output"]
        x = x + y if how in ("residual", "sum") else y
        if knobs.get("ending") == "every":
            x = norm(x, parameters, "final", {}, "")
    x = x.reshape(B, T, D) if axes == "viewed" else x.transpose(0, 1) if axes == "exchanged" else x  # (B, T, D)
    return steps | {"the last block's output": x}


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs, options: Options) -> Steps:
    """ids (B, T) -> every step to the logits (B, T, V); for a probe of the loss, to the loss."""
    ids = probe.inputs["ids"]  # (B, T)
    options = replace(options, rotary=True) if "rotary" in knobs else options
    steps = embed(ids, parameters, sizes, knobs, options)
    x, later = steps["the embeddings"], steps.pop("added later", None)
    ending = knobs.get("ending", "right")
    x = norm(x, parameters, "final", knobs) if ending == "early" else x
    steps |= stack(x, later if knobs.get("added", "").startswith("every") else None, parameters, sizes, knobs, options)
    x = steps["the last block's output"]  # (B, T, D)
    x = x + later if later is not None and knobs.get("added") == "late" else x
    if ending not in ("early", "every"):
        x = norm(x, parameters, "final", knobs)
    if ending == "twice":
        x = norm(x, parameters, "final", knobs)
    steps["the final norm"] = x
    logits = F.linear(x, parameters.get("head", parameters["token"]), parameters.get("head_bias"))  # (B, T, V)
    if "head" not in parameters:
        logits = F.linear(x, parameters["token"])  # (B, T, V)
    steps["logits"] = logits
    shown = show(logits, sizes, knobs)
    if not probe.name.startswith("the loss"):
        return steps | {"output": shown}
    changed = knobs.get("logits") in ("softmax", "log softmax", "divided", "relu", "over positions")
    used = shown if changed and "lost" not in knobs else logits
    return steps | {"loss": loss(used, ids, probe.inputs.get("targets"), knobs)}


def show(logits: Tensor, sizes: Sizes, knobs: Knobs) -> Tensor:
    """logits (B, T, V) -> what the model returns: the logits, or what a knob makes of them."""
    ways: dict[str, Callable[[], Tensor]] = {
        "last": lambda: logits[:, -1:],
        "first": lambda: logits[:, :1],
        "shorter": lambda: logits[:, :-1],
        "mean": lambda: logits.mean(dim=1, keepdim=True),
        "softmax": lambda: logits.softmax(dim=-1),
        "over positions": lambda: logits.softmax(dim=1),
        "log softmax": lambda: logits.log_softmax(dim=-1),
        "features first": lambda: logits.mT,
        "divided": lambda: logits / math.sqrt(sizes["D"]),
        "relu": lambda: logits.relu(),
        "argmax": lambda: logits.argmax(dim=-1, keepdim=True).to(logits.dtype),
    }
    return ways[knobs["logits"]]() if "logits" in knobs else logits


ROWS = "positions 0, 1, ..., T - 1: self.position(torch.arange(T))"
WRONG_ROWS = {
    "from one": "the positions start at 1 instead of 0: every token has the next one's",
    "first": "every token gets the position 0: the order of the tokens is lost",
    "last": "every token gets the same position, T - 1",
    "length": "every token gets the same position, T",
    "reversed": "the positions are counted backwards: the first token has T - 1",
    "end": "the positions are the last T rows of the table, not the first",
    "sequence": "the position is the number of the sequence in the batch, not that of the token",
    "ids": "the position table is read with the ids of the tokens, not with their positions",
}
SUM = "x = tokens(ids) + position(torch.arange(T))"
CHAIN = "for block in self.blocks: x = block(x)"
END = "return self.head(self.norm(x)): the final norm, then the head"
RAW = "return the head's output as it is; F.cross_entropy and sampling take the softmax themselves"


def embedding_bugs() -> list[Bug]:
    """What goes wrong before the first block."""
    scale = "add token and position embeddings as they are"
    batch = Bug({"rows": "sequence"}, WRONG_ROWS["sequence"], ROWS,
                ({"rows": "sequence", "positions": "sines by turns"},))  # fmt: skip
    rows = {kind: sentence for kind, sentence in WRONG_ROWS.items() if kind != "sequence"}
    return [
        *alike("rows", rows, ROWS),
        batch,
        Bug({"added": "times"}, "token and position embeddings are multiplied instead of added", SUM),
        Bug({"added": "twice"}, "the position embeddings are added twice", SUM),
        Bug({"added": "alone"}, "the token embeddings are overwritten: the blocks read the positions alone", SUM),
        Bug({"added": "late"}, "the position embeddings are added behind the blocks, which never see them", SUM),
        Bug({"added": "every"}, "the position embeddings are added again before every block", SUM,
            ({"added": "every again"},)),
        Bug({"tokens": "divided"}, "the token embeddings are divided by sqrt(D) = sqrt({D})", scale),
        Bug({"sum": "sqrt(D)"}, "the sum of token and position embeddings is multiplied by sqrt(D) = sqrt({D})", scale),
        Bug({"sum": "divided"}, "the sum of token and position embeddings is divided by sqrt(D) = sqrt({D})", scale),
    ]  # fmt: skip


def no_position_bug() -> Bug:
    """No positions, in a model that must embed them."""
    return Bug({"positions": "none"}, "no position is added to the token embeddings: the model cannot tell the order "
               "of the tokens but by its mask", SUM)  # fmt: skip


def stack_bugs() -> list[Bug]:
    """What goes wrong between the blocks and the logits."""
    return [
        Bug({"stack": "none"}, "no block counts: what the blocks return is thrown away", CHAIN),
        Bug({"stack": "first only"}, "only the first of the {L} blocks is used", CHAIN),
        Bug({"stack": "last only"}, "only the last of the {L} blocks counts: each block reads the embeddings, not what "
            "the block before it returned", CHAIN, ({"stack": "each reads x"},)),
        Bug({"stack": "all but the first"}, "the first block is left out", CHAIN),
        Bug({"stack": "all but the last"}, "the last block is left out", CHAIN),
        Bug({"stack": "first repeated"}, "the first block is used {L} times, and the others never", CHAIN),
        Bug({"stack": "last repeated"}, "the last block is used {L} times, and the others never", CHAIN),
        Bug({"stack": "reversed"}, "the blocks are used in reverse order", CHAIN),
        Bug({"stack": "twice"}, "every block is used twice: the loop over the blocks runs two times", CHAIN),
        Bug({"stack": "residual"}, "x is added to what every block returns, and the block has added it already", CHAIN,
            equal="x twice"),
        Bug({"stack": "sum"}, "every block reads the embeddings, and their outputs are summed up", CHAIN),
        Bug({"axes": "viewed"}, "x.view(T, B, D) is no transpose: tokens of different sequences of the batch are mixed",
            "keep x as (B, T, D)"),
        Bug({"axes": "exchanged"}, "the blocks take the batch for the sequence: a position attends to other sequences "
            "of the batch", "batch_first=True, or x.transpose(0, 1) before and after the blocks"),
        Bug({"final": "none"}, "the final norm is missing before the head", END),
        Bug({"ending": "early"}, "the final norm is applied to the embeddings, not behind the last block", END),
        Bug({"ending": "every"}, "the final norm is applied behind every block", END),
        Bug({"ending": "twice"}, "the final norm is applied twice", END),
        Bug({"logits": "last"}, "only the last position's logits are returned, where every position's are needed",
            END),
        Bug({"logits": "first"}, "only the first position's logits are returned, where every position's are needed",
            END),
        Bug({"logits": "mean"}, "the logits are averaged over the positions", END),
        Bug({"logits": "shorter"}, "the last position's logits are missing: a text could not be continued", END),
        Bug({"logits": "softmax"}, "a softmax is applied to the logits, and you return probabilities (cross entropy "
            "would take a second one)", RAW, ({"logits": "softmax", "lost": "the logits"},)),
        Bug({"logits": "over positions"}, "a softmax over the positions is applied to the logits", RAW),
        Bug({"logits": "log softmax"}, "log_softmax is applied to the logits that you return: they are logarithms of "
            "probabilities, of which cross entropy is the same", RAW, harmless=True),
        Bug({"logits": "features first"}, "the logits are transposed, (B, V, T) instead of (B, T, V)", RAW),
        Bug({"logits": "divided"}, "the logits are divided by sqrt(D) = sqrt({D})", RAW),
        Bug({"logits": "relu"}, "relu is applied to the logits: none can be negative", RAW),
        Bug({"logits": "argmax"}, "you return the best token's id instead of the logits", RAW),
    ]  # fmt: skip


NOT_A_NUMBER: tuple[Knobs, ...] = (
    {"mask": "strict"},
    {"mask": "hides_past"},
    {"softmax": "sum"},
    {"hide": "after_inf"},
    {"fill": math.inf},
)


def block_bugs(options: Options) -> list[Bug]:
    """What goes wrong in every block.

    Bugs that make one row NaN in the first block make all rows NaN in the next: they are joined into one bug.
    """
    found = [
        Bug(NOT_A_NUMBER[0], "in every block, in the attention: nothing but NaN comes out: the mask hides whole rows "
            "(it is inverted, or hides the diagonal), or infinities get into the weights",
            "scores.masked_fill(~mask, -torch.inf), before the softmax, with mask = torch.ones(T, T).tril().bool()",
            NOT_A_NUMBER[1:])
    ]  # fmt: skip
    for bug in block.inner_bugs(options, "in every block"):
        kept = [setting for setting in bug.settings() if setting not in NOT_A_NUMBER]
        if kept:
            equal = "x twice" if bug.knobs == {"formula": "x twice"} else bug.equal
            found.append(replace(bug, knobs=kept[0], forms=tuple(kept[1:]), equal=equal))
    return found


OUTER = (
    Role("token", ("V",), ("D",), ("token", "tok", "wte", "tokens", "embedding", "embed", "emb", "te")),
    Role("position", ("C",), ("D",), ("position", "pos", "wpe", "positional", "positions", "pe"), needed=False),
    Role("final", ("D",), (), ("ln_f", "final", "norm", "ln", "f", "last"), needed=False),
    Role("head", ("V",), ("D",), ("head", "lm_head", "unembed", "out", "output", "proj", "fc", "decoder"),
         needed=False),
)  # fmt: skip
SIZES = {**block.SIZES, "C": 16, "V": 13, "L": 3, "loss": TARGETS}


def layer_roles(L: int) -> tuple[Role, ...]:
    """The roles of every block: "query.0", "query.1", ..."""
    return tuple(replace(role, name=f"{role.name}.{i}") for i in range(L) for role in block.ROLES)


def draw(V: int, B: int, T: int, seed: int) -> Tensor:
    """Random ids (B, T); the first one is 0 and the last one V - 1."""
    ids = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))  # (B, T)
    ids.view(-1)[0], ids.view(-1)[-1] = 0, V - 1
    return ids


def probes(sizes: Sizes) -> list[Probe]:
    """Ids of three lengths; and two inputs for the loss, if the model has one."""
    V, lengths = sizes["V"], list(dict.fromkeys(min(T, sizes["C"]) for T in (11, 5, 1)))
    found = [] if sizes["loss"] == ONLY else [Probe(f"T = {T}", {"ids": draw(V, 2, T, T)}) for T in lengths]
    for T in [T for T in lengths if T > 1] if sizes["loss"] else []:
        inputs = {"ids": draw(V, 2, T, T + 1)} | ({} if sizes["loss"] == OWN else {"targets": draw(V, 2, T, T + 2)})
        found.append(Probe(f"the loss, T = {T}", inputs))
    return found


def conventions(options: Options) -> list[Convention]:
    """The conventions of a GPT."""
    sines = [
        Convention({"positions": "sines by turns"}, "the positions are sines and cosines, as in the first Transformer"),
        Convention({"positions": "sines in halves"}, "the positions are sines, then cosines"),
    ]
    scaled = Convention({"tokens": "sqrt(D)"}, "the token embeddings are multiplied by sqrt(D), as in the first "
                        "Transformer; GPT-2 leaves them")  # fmt: skip
    turned = [Convention({**found.knobs, "rotary": True, "positions": "none"}, f"{ROTARY}; {found.note}")
              for found in ROTARY_CONVENTIONS]  # fmt: skip
    rotary = Convention({"rotary": True, "positions": "none"}, ROTARY)
    bare = Convention(
        {**block.POST.knobs, "final": "none"}, f"{block.POST.note}; and no norm before the head, as in GPT-1"
    )
    embedded = [] if options.rotary or options.alibi else [*sines, scaled, rotary, *turned]
    return [*embedded, *block.conventions(options), bare]


ROTARY = "the positions are rotary, inside the attention; GPT-2 adds a table of them"
INSIDE = Convention({}, "labels are the ids themselves, and the loss shifts them by one, as in Hugging Face's models")


def gpt(options: Options, mode: int = TARGETS) -> Target:
    """ids (B, T) -> logits (B, T, V), or logits and loss; `mode` is NO_LOSS, TARGETS, OWN or ONLY."""
    only("gpt", options, "rotary", "alibi")
    turned = options.rotary or options.alibi
    early = [bug for bug in embedding_bugs() if not turned or "tokens" in bug.knobs]
    losses = {NO_LOSS: [], TARGETS: LOSS_BUGS, OWN: OWN_LOSS_BUGS, ONLY: LOSS_BUGS}[mode]
    return Target(
        "gpt",
        "embeddings of tokens and positions, pre-norm blocks, a final norm, a head; the mean loss of the next tokens",
        ("ids",),
        partial(reference, options=options),
        probes,
        {**SIZES, "loss": mode},
        [*early, *([] if turned else [no_position_bug()]), *stack_bugs(), *losses,
         *block_bugs(options)],
        conventions(options),
        (*OUTER, *layer_roles(SIZES["L"])),
        options,
        block.without(),
    )  # fmt: skip
