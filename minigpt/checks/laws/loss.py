"""The laws of a loss: the mean, over all positions, of minus the log of the softmax at the next token.

A loss is read as a sum, over tokens, of functions of the logits of one token each. What a function is shows in its
values; which token it picks, and how much it counts, is read off.

B batch, T positions, V vocabulary, N samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from minigpt.checks.laws.law import USUAL, Judged, Saw, Wanted, judged, law
from minigpt.checks.reading.meanings import Const, Feature, Mixture, Other, Token
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.structure import Broken, Ends, Strange
from minigpt.checks.reading.values import NotGiven, Values

Saws = Iterator[Saw]
N = 6
NEXT = "F.cross_entropy(logits.view(-1, V), targets.view(-1)), where targets[:, t] is the token after ids[:, t]"
FORMS: dict[str, Callable[[Tensor], Tensor]] = {  # logits (N, V) -> (N, V), up to a factor
    "": lambda x: -x.log_softmax(-1),
    "a softmax is applied before cross entropy, which takes one itself": lambda x: -x.softmax(-1).log_softmax(-1),
    "log_softmax is taken of a sigmoid": lambda x: -x.sigmoid().log_softmax(-1),
    "the loss is minus the probability of the next token: the logarithm is missing": lambda x: -x.softmax(-1),
    "the loss is minus the logit: log_softmax is missing before nll_loss": lambda x: -x,
    "binary cross entropy, a yes-or-no question for each token": lambda x: F.softplus(x).sum(-1, keepdim=True) - x,
    "squared errors from one-hot vectors": lambda x: x.square().sum(-1, keepdim=True) - 2 * x + 1,
}


def smoothed(share: float, x: Tensor) -> Tensor:
    """The losses (N, V) of logits (N, V), of which all tokens have a share, as with `label_smoothing`."""
    logs = x.log_softmax(-1)
    return (share - 1) * logs - share * logs.mean(-1, keepdim=True)


@dataclass(frozen=True)
class WantedLoss(Wanted):
    """What a loss should be. Its logits (B, T, V) are the text of the reading, unless they are `logits`."""

    ids: Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.int64))
    """The tokens (B, T) whose logits they are."""
    targets: Tensor | None = None
    """The next tokens (B, T); None: the ids are all that it is given."""
    logits: Ids | None = None
    pads: bool = False
    """Whether it takes the token that stands for padding, 0 here, as an argument."""
    smoothing: float = 0.0
    """The label smoothing that it has as an argument."""
    shifts: bool = False
    """Whether the targets may as well be the ids, which it shifts by one."""


@dataclass
class Loss:
    """A loss in one reading. `number`: what it is."""

    reading: Reading
    number: int
    wanted: WantedLoss
    form: str = ""
    picks: dict[Token, int] = field(default_factory=dict)
    """For each token whose logits count: the token of the vocabulary at which they are read."""
    counts: dict[Token, float] = field(default_factory=dict)
    """How much it counts."""

    def __post_init__(self) -> None:
        self.line = self.reading.of.made_at[self.number]
        logits = self.reading.inputs if self.wanted.logits is None else self.wanted.logits
        assert logits is not None
        by_token: dict[Token, list[tuple[float, int]]] = {}
        for weight, number in self.terms(self.number):
            tokens = self.reading.of.tokens(number)
            if len(tokens) != 1:
                raise Strange("logits of several tokens meet", self.reading.of.made_at[number], "those of one token")
            by_token.setdefault(tokens[0], []).append((weight, number))
        for token, listed in by_token.items():
            self.pick(token, listed, logits[token].tolist())

    def terms(self, number: int) -> Iterator[tuple[float, int]]:
        """The features that a loss is a sum of, with their factors. Raises Ends."""
        of, meaning = self.reading.of, self.reading.of[number]
        if isinstance(meaning, Mixture) and all(of.is_kind(weight, Const) for weight, _ in of.terms(number)):
            for weight, inner in of.terms(number):
                yield from ((meaning.factor * of[weight].value * times, one) for times, one in self.terms(inner))
        elif isinstance(meaning, Feature):
            yield 1.0, number
        elif not isinstance(meaning, Const) or meaning.value:
            op, line = of.word(number), of.line_of(number) if isinstance(meaning, Other) else self.line
            if op in ("logsumexp", "softmax", "amax"):
                raise Strange(f"{op} runs over logits of several tokens: they are reshaped to (B, V, T) in place of a "
                              "transpose, or the softmax goes over the positions", line,
                              "over the vocabulary")  # fmt: skip
            if op == "exp":
                raise Strange("the exponential of the loss, the perplexity, is returned", line, "the loss")
            raise Ends(op, line, "a mean of the losses of all tokens is expected")

    def pick(self, token: Token, listed: list[tuple[float, int]], row: list[int]) -> None:
        """Which token of the vocabulary a token's loss is of, and how much it counts, by its values. Raises Ends.

        `row`: its logits.
        """
        of = self.reading.of
        x = torch.randn(N, len(row), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        atoms = {of[number].terms[0][0]: x[:, v] / of[number].terms[0][1] for v, number in enumerate(row)}
        values = Values(of, atoms, {}, N)
        try:
            total = torch.stack([weight * values.of_number(number) for weight, number in listed]).sum(0)  # (N)
        except NotGiven as error:
            raise Ends(str(error), self.line, "a function of the logits of one token is expected") from None
        share = self.wanted.smoothing
        forms = dict(FORMS)
        for words, by in ((f"labels are smoothed by {share:g}", share), ("the loss has label_smoothing=0.1", 0.1)):
            forms |= {words: partial(smoothed, by)} if by else {}
        for form, function in forms.items():
            each = function(x)
            factors = (total[:, None] * each).sum(0) / each.square().sum(0)  # (V)
            off = (total[:, None] - factors * each).abs().amax(0)
            v = int(off.argmin())
            if float(off[v]) < 1e-9 * max(float(total.abs().max()), 1e-12):
                self.form, self.picks[token], self.counts[token] = self.form or form, v, float(factors[v])
                return
        raise Strange("an unknown function of the logits stands here", self.line, "minus the log of their softmax")


@law("the loss of a token is minus the log of the softmax over the vocabulary", NEXT)
def of_log_softmax(loss: Loss, _: Wanted) -> Saws:
    if loss.form:
        smooth = "smoothed" if loss.form.startswith("labels are smoothed") else ""
        yield Saw(loss.line, loss.form, "cross entropy of the logits", "", smooth)


@law("the logits of a position are compared with the next token", "shift once: logits at t, the token at t + 1")
def shifted(loss: Loss, _: Wanted) -> Saws:
    ids, targets = loss.wanted.ids, loss.wanted.targets
    own, T, sources = targets is None, ids.shape[1], [ids] if targets is None else [targets, ids]
    fits = [(number, by) for number, source in enumerate(sources) for by in (0, 1, -1, 2, *range(3, T))
            if all(int(source[b, (t + by) % T]) == v for (b, t), v in loss.picks.items())]  # fmt: skip
    right = (0, 1) if own else (0, 0)
    if right in fits:
        return
    words = {
        (0, 0): "the loss is not shifted: each position is compared with its own token, which it sees",
        (0, 1): "the targets are shifted once more inside the loss: they hold the next tokens already",
        (0, -1): "the loss is shifted the wrong way: each position is compared with the token before",
        (0, 2): "the loss is shifted twice: each position learns the token after the next",
        (1, 0): "the loss compares with the ids, not with the targets: each position learns itself, it is not shifted",
        (1, 1): "the loss takes the ids, shifted by one, and leaves the targets unused",
        (1, -1): "the loss is shifted the wrong way: each position is compared with the token before",
    }
    allowed = "shifts" if fits and fits[0] == (0, 1) and not own else ""
    scrambled = ("logits and targets of different tokens are compared: logits are reshaped to (B, V, T) or flattened "
                 "in another order, or the softmax runs over another axis")  # fmt: skip
    yield Saw(loss.line, next((words[one] for one in fits if one in words), scrambled), "the next token", "", allowed)


@law("the loss is the mean over all positions", "reduction='mean' over all (B, T)")
def averaged(loss: Loss, _: Wanted) -> Saws:
    wanted, (B, T) = loss.wanted, loss.wanted.ids.shape
    shorter = wanted.targets is None or all(t < T - 1 for _, t in loss.picks)
    expected = [(b, t) for b in range(B) for t in range(T - shorter)]
    source = wanted.ids if wanted.targets is None else wanted.targets
    zeros = {(b, t) for b, t in expected if int(source[b, (t + shorter) % T]) == 0}
    missing, total = [token for token in expected if token not in loss.picks], sum(loss.counts.values())
    each = {round(count, 12) for count in loss.counts.values()}
    if T > 1 and missing and all(t == T - 1 for _, t in loss.picks):
        yield Saw(loss.line, "the loss is that of the last position only", "of all positions")
    elif missing and set(missing) == zeros:
        right = abs(total - 1) < 1e-9
        words = ("the token 0 is left out of the loss, as padding" if right else "the losses of the padding are set to "
                   "0, but the mean still counts its tokens: it is too small")  # fmt: skip
        yield Saw(loss.line, words, "the mean over the real tokens", "", "padding" if right and wanted.pads else "")
    elif missing and set(missing) == set(expected) - zeros:
        yield Saw(loss.line, "the mask of the padding is inverted: only its tokens are in the loss", "all others")
    elif missing:
        yield Saw(loss.line, f"the losses of {len(missing)} of {len(expected)} tokens are missing", "all")
    elif extra := [token for token in loss.picks if token not in expected]:
        yield Saw(loss.line, f"the ids are rolled: position {extra[0][1]}, the last, is compared with the first token",
                  "left out")  # fmt: skip
    if wanted.pads and not missing:
        yield Saw(loss.line, "the token that stands for padding is not left out", "left out")
    if len(each) > 1:
        yield Saw(loss.line, "the tokens count differently", f"1 / {len(loss.counts)} each")
    number, count = len(loss.counts), abs(total)
    if abs(total - 1) > 1e-6:
        divided = {1 / math.log(2): "the loss is divided by ln 2, in bits",
                   number: "the loss is the sum over all tokens, not their mean: it grows with B and T",
                   number / T: "the loss is summed over the batch and divided by T only",
                   number / B: "the loss is summed over the positions and divided by B only"}  # fmt: skip
        divided = {-total: "the loss has the wrong sign"} if abs(total + 1) < 1e-6 else divided
        named = (words for value, words in divided.items() if abs(value - count) < 1e-6)
        yield Saw(loss.line, next(named, f"the losses are multiplied by {total:.4g}"), "the mean")


LOSS_LAWS = (of_log_softmax, shifted, averaged)


def judge_loss(reading: Reading, output: Ids, wanted: Wanted) -> Judged:
    """A loss, one number; `wanted` says which ids and targets it was given. Raises Ends."""
    assert isinstance(wanted, WantedLoss)
    if output.size > 1:
        return Judged([Broken("the loss is one number", "the losses of all tokens are returned; their mean is missing",
                              "their mean", "reduction='mean', or .mean()", reading.of.made_at[int(output.flat[0])])],
                      [], 2)  # fmt: skip
    wanted = replace(wanted, allows=USUAL | {"smoothed", "padding"} | ({"shifts"} if wanted.shifts else set()))
    return judged(Loss(reading, int(output.flat[0]), wanted), wanted, LOSS_LAWS)
