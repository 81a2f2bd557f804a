"""The loss of a GPT: the mean cross entropy of the next tokens, with a knob for everything that goes wrong in it.

It is a part of the target `gpt`, and a target of its own: a function (or a module) of logits and targets.

B batch, T positions, V vocabulary, N pairs of a position and its next token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.grading.probes import numbers, tokens
from minigpt.grading.target import Bug, Convention, Knobs, Options, Parameters, Probe, Sizes, Steps, Target, only


def align(logits: Tensor, ids: Tensor, targets: Tensor | None, how: str) -> tuple[Tensor, Tensor]:
    """logits (B, T, V) and the tokens that they are compared with (B, T), or fewer positions of both.

    Given targets hold the next tokens already; without them, they are the ids, shifted by one.
    """
    y = ids if targets is None else targets  # (B, T)
    pairs: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
        "same": lambda: (logits, y),
        "shifted": lambda: (logits[:, :-1], y[:, 1:]),
        "back": lambda: (logits[:, 1:], y[:, :-1]),
        "two": lambda: (logits[:, :-2], y[:, 2:]),
        "rolled": lambda: (logits, y.roll(-1, dims=1)),
        "rolled back": lambda: (logits, y.roll(1, dims=1)),
        "same but the last": lambda: (logits[:, :-1], y[:, :-1]),
        "ids": lambda: (logits, ids),
        "ids shifted": lambda: (logits[:, :-1], ids[:, 1:]),
        "last": lambda: (logits[:, -1:], y[:, -1:]),
    }
    return pairs[how]()


def loss(logits: Tensor, ids: Tensor, targets: Tensor | None, knobs: Knobs) -> Tensor:
    """logits (B, T, V) -> the loss, a scalar; or (N,) if it is not averaged."""
    shifted = "same" if targets is not None else "shifted"
    rows, y = align(logits, ids, targets, knobs.get("align", shifted))  # (B, T, V), (B, T)
    B, T, V = rows.shape
    if knobs.get("order") == "reshaped":
        rows = rows.reshape(B, V, T).mT  # (B, T, V)
    if knobs.get("order") == "transposed":
        rows = rows.transpose(0, 1)  # (T, B, V)
    scores, wanted = rows.reshape(-1, V), y.reshape(-1)  # (N, V), (N)
    chosen = scores.gather(1, wanted[:, None])[:, 0]  # (N)
    kinds: dict[str, Callable[[], Tensor]] = {
        "softmax": lambda: F.cross_entropy(scores.softmax(dim=-1), wanted, reduction="none"),
        "sigmoid": lambda: F.cross_entropy(scores.sigmoid(), wanted, reduction="none"),
        "no log": lambda: -scores.softmax(dim=-1).gather(1, wanted[:, None])[:, 0],
        "scores": lambda: -chosen,
        "rows": lambda: -scores.log_softmax(dim=0).gather(1, wanted[:, None])[:, 0],
        "bits": lambda: F.cross_entropy(scores, wanted, reduction="none") / math.log(2),
        "minus": lambda: -F.cross_entropy(scores, wanted, reduction="none"),
        "smooth": lambda: F.cross_entropy(
            scores, wanted, reduction="none", label_smoothing=knobs.get("smoothing", 0.1)
        ),
        "binary": lambda: F.binary_cross_entropy_with_logits(scores, F.one_hot(wanted, V).to(scores.dtype),
                                                             reduction="none").mean(dim=1),
        "squares": lambda: (scores - F.one_hot(wanted, V)).square().mean(dim=1),
    }  # fmt: skip
    kind = knobs.get("kind", "cross entropy")
    each = kinds[kind]() if kind in kinds else F.cross_entropy(scores, wanted, reduction="none")  # (N)
    return reduce(each, wanted, B, T, knobs.get("reduce", "mean"))


def reduce(each: Tensor, wanted: Tensor, B: int, T: int, how: str) -> Tensor:
    """The losses of all pairs (N,) -> a scalar; for "none" (N,)."""
    ways: dict[str, Callable[[], Tensor]] = {
        "sum": lambda: each.sum(),
        "over T": lambda: each.sum() / T,
        "over B": lambda: each.sum() / B,
        "none": lambda: each,
        "no zeros": lambda: each[wanted != 0].mean(),
        "zeros count": lambda: (each * (wanted != 0)).mean(),
        "zeros count all": lambda: (each * (wanted != 0)).sum() / (B * (T + 1)),
        "only zeros": lambda: each[wanted == 0].mean(),
        "perplexity": lambda: each.mean().exp(),
        "median": lambda: torch.median(each),
    }
    return ways[how]() if how in ways else each.mean()


NEXT = "F.cross_entropy(logits.view(-1, V), targets.view(-1)), where targets[:, t] is the token after ids[:, t]"
SHIFT = "F.cross_entropy(logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1))"


def common_bugs(fix: str) -> list[Bug]:
    """What goes wrong in the loss, wherever its targets come from."""
    return [
        Bug({"kind": "softmax"}, "a softmax is applied before cross entropy, which takes one itself: the loss can "
            "hardly fall", fix),
        Bug({"kind": "sigmoid"}, "a sigmoid is applied before cross entropy, which takes a softmax itself", fix),
        Bug({"kind": "no log"}, "the loss is minus the probability of the next token: the logarithm is missing", fix),
        Bug({"kind": "scores"}, "nll_loss is given the logits: log_softmax is missing", fix),
        Bug({"kind": "rows"}, "the softmax of the loss goes over the positions, not over the vocabulary", fix),
        Bug({"kind": "bits"}, "the loss is divided by ln 2, in bits; cross entropy is in nats", fix),
        Bug({"kind": "minus"}, "the loss has the wrong sign", fix),
        Bug({"kind": "smooth"}, "the loss has label_smoothing=0.1: it is not the cross entropy of the text", fix),
        Bug({"kind": "binary"}, "binary cross entropy, {V} separate yes-or-no questions, instead of one choice among "
            "{V} tokens", fix),
        Bug({"kind": "squares"}, "squared errors from one-hot vectors instead of cross entropy", fix),
        Bug({"order": "reshaped"}, "the logits are reshaped to (B, V, T) instead of transposed: view mixes positions "
            "and vocabulary", "logits.transpose(1, 2), or logits.view(-1, V)"),
        Bug({"order": "transposed"}, "the logits are flattened position by position, the targets sequence by sequence: "
            "they belong to different tokens", "flatten both in the same order"),
        Bug({"reduce": "sum"}, "the loss is the sum over all tokens, not their mean: it grows with B and T", fix),
        Bug({"reduce": "over T"}, "the loss is summed over the batch and divided by T only", fix),
        Bug({"reduce": "over B"}, "the loss is summed over the positions and divided by B only: it grows with T", fix),
        Bug({"reduce": "none"}, "the losses of all tokens are returned; their mean is missing", fix),
        Bug({"reduce": "no zeros"}, "the token 0 is left out of the loss, as if it were padding", "leave ignore_index "
            "out", ({"reduce": "zeros count"},)),
        Bug({"reduce": "perplexity"}, "the perplexity, exp(loss), is returned instead of the loss", fix),
        Bug({"align": "last"}, "the loss is that of the last position only", fix),
        Bug({"align": "back"}, "the loss is shifted the wrong way: each position is compared with the token before",
            fix, ({"align": "rolled back"},)),
    ]  # fmt: skip


LOSS_BUGS = [
    Bug({"align": "shifted"}, "the targets are shifted once more inside the loss: they hold the next tokens already, "
        "so each position learns the token after the next", NEXT),
    Bug({"align": "rolled"}, "the targets are rolled by one inside the loss, and they hold the next tokens already",
        NEXT),
    Bug({"align": "ids"}, "the loss compares with the ids, not with the targets: each position learns itself", NEXT),
    Bug({"align": "ids shifted"}, "the loss takes the ids, shifted by one, and leaves the targets unused", NEXT),
    Bug({"align": "two"}, "the targets are shifted by two inside the loss", NEXT),
    *common_bugs(NEXT),
]  # fmt: skip

OWN_LOSS_BUGS = [
    Bug({"align": "same"}, "the loss is not shifted: each position is compared with its own token, which it sees",
        SHIFT, ({"align": "same but the last"},)),
    Bug({"align": "two"}, "the loss is shifted twice: each position learns the token after the next", SHIFT),
    Bug({"align": "rolled"}, "the ids are rolled by one: the last position is compared with the first token", SHIFT),
    *(bug for bug in common_bugs(SHIFT) if bug.knobs != {"align": "last"}),
]  # fmt: skip

IDS = ("ids", "tokens", "token_ids", "input_ids", "idx", "x", "text")  # argument names of ids that are not shifted yet
NEXT_TOKENS = ("targets", "target", "y", "tgt", "trg", "next_ids", "next_tokens", "targ")
SHIFTED = Convention(
    {"align": "shifted"}, "it is given the ids themselves and shifts them by one, as Hugging Face's models do"
)


def reference(probe: Probe, parameters: Parameters, sizes: Sizes, knobs: Knobs) -> Steps:
    """logits (B, T, V) and targets (B, T) -> the loss, a scalar. sizes["own"]: the targets are the ids."""
    logits, targets = probe.inputs["logits"], probe.inputs["targets"]  # (B, T, V), (B, T)
    return {"loss": loss(logits, targets, None if sizes["own"] else targets, knobs)}


def probes(sizes: Sizes) -> list[Probe]:
    """Logits and tokens of three lengths, and larger logits."""
    V, made = sizes["V"], list[Probe]()
    for T, scale in ((11, 1.0), (5, 1.0), (3, 1.0), (11, 30.0), (11, 1000.0)):
        generator = torch.Generator().manual_seed(T)
        ids = torch.randint(V, (sizes["B"], T), generator=generator)  # (B, T)
        logits = numbers(sizes["B"], T, V, seed=T) * scale  # (B, T, V)
        name = tokens(T) if scale == 1 else f"logits times {scale:g}"
        made.append(Probe(name, {"logits": logits, "targets": ids}, scale))
    return made


PADS = re.compile(r"(?i)pad|ignore")  # in the name of an argument: the token that is left out of the loss
SMOOTHS = re.compile(r"(?i)smooth")  # in the name of an argument: the share that all tokens get
PADDED = Convention(
    {"reduce": "no zeros"}, "a token that stands for padding is left out of the mean, as its argument says"
)
PAD_BUGS = [
    Bug({"reduce": "zeros count"}, "the losses of the padding are set to 0, but the mean still counts its tokens: it "
        "is too small", "losses.sum() / mask.sum(), where mask is True for real tokens",
        ({"reduce": "zeros count all"},)),
    Bug({"reduce": "only zeros"}, "the mask of the padding is inverted: only its tokens are in the loss",
        "keep where targets != pad"),
]  # fmt: skip


def padded(bugs: list[Bug]) -> list[Bug]:
    """The bugs of a loss that takes the padding token as an argument."""
    return [*PAD_BUGS, *(bug for bug in bugs if bug.knobs != {"reduce": "no zeros"})]


def smoothed(share: float) -> list[Convention]:
    """Label smoothing, where it is an argument with this value ("Rethinking the Inception", arXiv 1512.00567)."""
    note = f"the labels are smoothed by {share:g}, as the argument says: the loss is larger than the cross entropy"
    return [Convention({"kind": "smooth", "smoothing": share}, note)] if share else []


def loss_target(options: Options, names: Sequence[str] = NEXT_TOKENS, pad: bool = False,
                smoothing: float = 0.0) -> Target:  # fmt: skip
    """loss(logits, targets). The arguments' names may say whether the targets are the ids, or hold the next tokens.

    `pad`: it also takes the padding token as an argument. `smoothing`: the default of its argument for label smoothing.
    """
    only("loss", options)
    own, strict = (any(name in names for name in known) for known in (IDS, NEXT_TOKENS))
    elsewhere = ("ids", "ids shifted") if strict else ("ids", "ids shifted", "shifted")  # labels may be either
    bugs = OWN_LOSS_BUGS if own else [bug for bug in LOSS_BUGS if bug.knobs.get("align") not in elsewhere]
    return Target(
        "loss",
        "the mean cross entropy of the next tokens",
        ("logits", "targets"),
        reference,
        probes,
        {"B": 3, "T": 11, "V": 7, "own": int(own)},
        padded(bugs) if pad else bugs,
        [*([] if own or strict else [SHIFTED]), *([PADDED] if pad else []), *smoothed(smoothing)],
        options=options,
    )
