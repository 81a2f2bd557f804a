"""The laws of the running mean: the output of token t is the mean of the tokens 0 to t, number by number.

However it is written, by a loop, a matrix or a softmax of zeros, each number comes out as a sum of numbers of the text
with constant weights; the laws look at these weights.

B batch, T positions, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from minigpt.checks.laws.law import Judged, Saw, Wanted, judged, law
from minigpt.checks.laws.words import seen_in_words, tokens_in_words
from minigpt.checks.reading.meanings import Atom, Const, Feature, Mixture
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.structure import Ends, Strange

Saws = Iterator[Saw]
Place = tuple[int, int, int]  # text, position, feature


@dataclass
class Mean:
    """The sums in one reading. `output`: the meanings (B, T, D) of what was returned."""

    reading: Reading
    output: Ids
    weights: dict[Place, dict[Place, float]] = field(default_factory=dict)
    """Of each number of the output: how much each number of the text counts."""

    def __post_init__(self) -> None:
        for place in np.ndindex(*self.output.shape):
            b, t, j = place
            self.weights[b, t, j] = self.sum(int(self.output[place]))

    def sum(self, number: int) -> dict[Place, float]:
        """A number as a sum of numbers of the text. Raises Ends."""
        of, meaning = self.reading.of, self.reading.of[number]
        parts = list[tuple[float, dict[Place, float]]]()
        match meaning:
            case Const(0.0):
                return {}
            case Feature(tokens, terms):
                for one, factor in terms:
                    atom: Atom = of[one]
                    if atom.op == "input":
                        parts.append((factor, {(*tokens[0], atom.place): 1.0}))
                    elif atom.op == "sum":
                        parts += [(factor, self.sum(inner)) for inner in of.numbers_in(atom.row)]
                    else:
                        raise Strange(f"{atom.op} stands here", of.made_at[number], "a sum with constant weights")
            case Mixture(_, _, factor) if all(of.is_kind(weight, Const) for weight, _ in of.terms(number)):
                parts = [(factor * of[weight].value, self.sum(inner)) for weight, inner in of.terms(number)]
            case Const():
                raise Ends("a constant", self.reading.operations.lost, "a mean of the text is expected")
            case Mixture() if not any(of.tokens(weight) for weight, _ in of.terms(number)):
                raise Ends("learned weights", of.line_of(number), "constant weights are expected")
            case _:
                words = f"{of.word(number)} stands here"
                raise Strange(words, of.line_of(number), "a sum of x with constant weights")
        total = dict[Place, float]()
        for factor, some in parts:
            for place, weight in some.items():
                total[place] = total.get(place, 0.0) + factor * weight
        return {place: weight for place, weight in total.items() if weight}

    def line(self, place: Place) -> int:
        """The line at which a number of the output was made."""
        return self.reading.of.made_at[int(self.output[place])]

    def table(self, b: int, j: int) -> list[dict[int, float]]:
        """The weights of the positions, for each position of one text and feature."""
        return [{s: weight for (_, s, _), weight in self.weights[b, t, j].items()} for t in range(self.output.shape[1])]


def seen(table: list[dict[int, float]]) -> list[list[int]]:
    """The positions that each position sees."""
    return [sorted(row) for row in table]


@law("a mean is of one text", "x[b], or x[:, : t + 1].mean(dim=1): dim=0 is the batch, dim=1 the position")
def one_text(mean: Mean, wanted: Wanted) -> Saws:
    for (b, t, j), row in mean.weights.items():
        texts = sorted({text for text, _, _ in row})
        if texts and texts != [b]:
            same = {s for _, s, _ in row} == {t}
            words = ("the running mean goes along the batch, dim=0, not along the positions" if same and len(texts) > 1
                     else f"sequences of the batch are mixed: text {b} gets numbers of the texts {texts}")  # fmt: skip
            yield Saw(mean.line((b, t, j)), words, f"of text {b} alone")


@law("a mean is of one feature", "dim=1 is the position: x[:, : t + 1].mean(dim=1) keeps the features")
def one_feature(mean: Mean, wanted: Wanted) -> Saws:
    for (b, t, j), row in mean.weights.items():
        if features := {feature for _, _, feature in row} - {j}:
            along = {s for _, s, _ in row} == {t}
            words = "the running mean goes along the features (dim=2)" if along else "the mean runs over features, too"
            yield Saw(mean.line((b, t, j)), f"{words}: feature {j} gets {sorted(features)[:3]}", f"feature {j} alone")


@law("token t sees itself and all before it, and nothing later", "x[:, : t + 1]; tril() with the diagonal")
def sees(mean: Mean, wanted: Wanted) -> Saws:
    T = mean.output.shape[1]
    allowed = [list(range(t + 1)) for t in range(T)]
    for b, j in ((b, j) for b in range(mean.output.shape[0]) for j in range(mean.output.shape[2])):
        table = mean.table(b, j)
        own, others = table[-1].get(T - 1, 0.0), {round(table[-1].get(s, 0.0), 9) for s in range(T - 1)}
        if others == {round(-1 / T, 9)} and abs(own - 1 + 1 / T) < 1e-9:
            yield Saw(mean.line((b, T - 1, j)), "x minus the mean is returned", "the mean alone")
        for t, keys in enumerate(seen(table)):
            row = "".join("x" if s in keys else "." for s in range(T))
            line = mean.line((b, t, j))
            if keys == allowed[t] or any(math.isnan(weight) for weight in table[t].values()):
                continue
            if (not keys and seen(table)[t + 1 :] == allowed[t + 1 :]) or (t == T - 1 and not keys):
                yield Saw(line, f"position {t} stays zero: the loop leaves it out",
                          f"the mean of {tokens_in_words(allowed[t])}")  # fmt: skip
            future = {round(table[t][s], 6) for s in keys if s > t}
            past = {round(table[t][s], 6) for s in keys if s <= t}
            if len(keys) == T and len(future) == 1 and len(past) == 1 and future != past:
                yield Saw(line, f"the mask fills in 0, not -inf: hidden positions still get exp(0), so that the future "
                                f"keeps a share, {future.pop():.3g} each", "no share", row)  # fmt: skip
            yield Saw(line, what_is_seen(seen(table), t), tokens_in_words(allowed[t]), row)


def what_is_seen(table: list[list[int]], t: int) -> str:
    """Who sees what, in words, where it is wrong."""
    T = len(table)
    known: dict[str, Callable[[int], range]] = {
        "the mean of all positions, the later ones included": lambda t: range(T),
        "the positions before it, and leaves itself out: the slice stops too early": lambda t: range(t),
        "position t + 1, too: the slice or triangle is one too long": lambda t: range(min(t + 2, T)),
        "itself and all after it: the triangle is upside down, triu for tril": lambda t: range(t, T),
        "only what comes after it: the mask hides the past": lambda t: range(t + 1, T),
        "itself and the one before it only": lambda t: range(max(t - 1, 0), t + 1),
        "all but the first token": lambda t: range(1, t + 1),
        "the first token alone": lambda t: range(1),
        "itself alone: no mean is taken, x comes out": lambda t: range(t, t + 1),
        "the token before it alone": lambda t: range(max(t - 1, 0), t),
    }
    for words, rule in known.items():
        if sum(row == list(rule(t)) for t, row in enumerate(table)) >= T - 1:
            return f"position t sees {words}"
    return seen_in_words(table, [list(range(t + 1)) for t in range(T)], t)


@law(
    "all tokens that are seen count the same", "a row of weights is 1 / (t + 1), t + 1 times: divide rows, keepdim=True"
)
def equal(mean: Mean, wanted: Wanted) -> Saws:
    for (b, t, j), row in mean.weights.items():
        weights = [row[place] for place in sorted(row)]
        if any(math.isnan(weight) or math.isinf(weight) for weight in weights):
            yield Saw(mean.line((b, t, j)), f"position {t} is divided by zero", f"divided by {t + 1}")
        if max(weights, default=0.0) - min(weights, default=0.0) > 1e-9:
            table, T = mean.table(b, j), mean.output.shape[1]
            columns = all(abs(row.get(s, 0.0) - table[s][s]) < 1e-9 for r in range(T) for s, row in [(s, table[r])
                          for s in range(r + 1)])  # fmt: skip
            last = weights[-1] / sum(weights)
            half, alike = abs(last - 0.5) < 1e-9, len({round(one, 9) for one in weights[:-1]}) == 1
            words = ("the columns are divided, not the rows: token s counts the same wherever it is seen, dim=0 or no "
                     "keepdim" if columns else
                     "x itself is added to, or subtracted from the mean" if alike and not half else
                     "the newest token counts half, recent ones more than old ones: m = (m + x_t) / 2" if half else
                     "tokens count differently")  # fmt: skip
            yield Saw(mean.line((b, t, j)), f"{words}: position {t} has the weights "
                      f"{', '.join(f'{one:.3g}' for one in weights)}", f"{1 / (t + 1):.3g} each")  # fmt: skip


@law("the weights of a mean sum to one", "divide the sum of t + 1 tokens by t + 1")
def sums_to_one(mean: Mean, wanted: Wanted) -> Saws:
    T = mean.output.shape[1]
    bad = [place for place, row in mean.weights.items() if abs(sum(row.values()) - 1) > 1e-6]
    for b, t, j in bad[-1:]:
        divisor = (t + 1) / sum(mean.weights[b, t, j].values()) if sum(mean.weights[b, t, j].values()) else math.inf
        first = 1 / sum(mean.weights[b, 0, j].values()) if sum(mean.weights[b, 0, j].values()) else math.inf
        known = {"1: they are summed, and not divided": (1.0, 1.0), f"by T = {T}, the length of the text": (T, T),
                 "t": (t, first), "t + 2: one too many": (t + 2, 2), "sqrt(t + 1)": ((t + 1) ** 0.5, 1),
                 "the sum of the whole triangle": (T * (T + 1) / 2, T * (T + 1) / 2)}  # fmt: skip
        words = next((words for words, (late, early) in known.items()
                      if abs(divisor - late) < 1e-6 and abs(first - early) < 1e-6), f"{divisor:.4g}")  # fmt: skip
        sign = ": x minus the mean" if sum(mean.weights[b, t, j].values()) < 0 else ""
        yield Saw(mean.line((b, t, j)), f"the sum of position {t} is divided by {words}{sign}",
                  f"by the number of tokens, {t + 1}")  # fmt: skip


MEAN_LAWS = (one_text, one_feature, sees, equal, sums_to_one)


def judge_mean(reading: Reading, output: Ids, wanted: Wanted) -> Judged:
    """A running mean of x (B, T, D). Raises Ends where the reading ends."""
    return judged(Mean(reading, output), wanted, MEAN_LAWS)
