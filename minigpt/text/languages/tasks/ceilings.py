"""What a reader can reach at most on a task of `steps.py`, if it has the means of one rung only.

    ceiling(task, "mean")                        match: 0.337. It knows six numbers, and not whose they are
    ceiling(task, "dot product")                 None: these means suffice
    ceiling(task, "one layer", neighbours=False) match where no number is told its letter: 0.337, not proved

The model that is meant has attention and nothing else (`block: attention_only`), and a head that is not tied. Its
means, each with those before it:

    nothing         it sees the end of the question only
    mean            and all letters, added up: how often each is there
    dot product     and weights, from symmetric scores; what is added up is x itself
    query_key       and any scores
    one head        and any values
    heads           and several means
    one layer       and the order

An exact ceiling is computed from all texts: no reader with these means is better. The others are estimates: by fitting,
from a sample of the texts, or without a proof; `why` says which.

R restarts of a fit, V letters, n sorts of texts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from minigpt.text.languages.tale import tell
from minigpt.text.languages.tasks.base import BAR, Task
from minigpt.text.languages.tasks.steps import Current, Difference, Match, Most, Other, Trio

Means = Literal["nothing", "mean", "dot product", "query_key", "one head", "heads", "one layer"]
MEANS: tuple[Means, ...] = ("nothing", "mean", "dot product", "query_key", "one head", "heads", "one layer")


class Ceiling(NamedTuple):
    """The highest accuracy that a reader can reach: `exact`, or an estimate; and the reason, in a sentence."""

    value: float
    exact: bool
    why: str


def ceiling(task: Task, means: Means, neighbours: bool = True) -> Ceiling | None:
    """The ceiling on the texts for validation, all sizes alike; None where none below 1 is known: the means suffice.

    `neighbours` says whether the model tells a letter the one before it, as the position `convolution` does. None too
    of a task that is not one of `steps.py` or asks more than once. Raises ValueError for other means.
    """
    if means not in MEANS:
        raise ValueError(f"means: expected one of {', '.join(MEANS)}, found {means!r}")
    ceiling_of = next((function for kind, function in CEILINGS.items() if isinstance(task, kind)), None)
    if ceiling_of is None or getattr(task.config, "questions", 1) > 1:
        return None
    ceilings = list[Ceiling]()
    for size in task.new_sizes:
        if (of_size := ceiling_of(task.config, size, MEANS.index(means), neighbours)) is None:
            return None
        ceilings.append(of_size)
    value = sum(each.value for each in ceilings) / len(ceilings)
    return Ceiling(value, all(each.exact for each in ceilings), ceilings[0].why) if value <= 1 - 1e-9 else None


# ------------------------------------------------------------------------------------------ numbers without an owner

MEAN, DOT, HEAD, HEADS, LAYER = (MEANS.index(m) for m in ("mean", "dot product", "one head", "heads", "one layer"))
NOTHING = "It sees the question alone, and names the commonest answer."
BAG = "In the sum of all letters nobody knows whose a number is: it can only name the likeliest of the numbers told."
ORDER = (
    "A number does not know whose it is, and one layer cannot tell it first. An estimate, not proved: in a softmax's"
    " denominator two letters can meet, but training does not find it."
)


def without_owners(bag: Callable[[], float], rung: int, neighbours: bool) -> Ceiling | None:
    """The ceiling of a reader that knows the numbers and not whose they are; None where it may know."""
    if rung == MEAN or not neighbours:
        return Ceiling(bag(), rung < LAYER, BAG if rung < LAYER else ORDER)
    return None


def largest_share(size: int, values: int) -> float:
    """The mean share of the commonest of `size` numbers, each one of `values`.

    Counts are Poisson numbers with a given sum, so P(no count > m) is a power of a polynomial.
    """
    rate, largest = size / values, 0.0
    poisson = np.array([math.exp(j * math.log(rate) - rate - math.lgamma(j + 1)) for j in range(size + 1)])
    probability_of_sum = math.exp(size * math.log(size) - size - math.lgamma(size + 1))
    for most in range(size):
        sums = np.ones(1)
        for _ in range(values):
            sums = np.convolve(sums, poisson[: most + 1])[: size + 1]
        largest += 1 - (sums[size] / probability_of_sum if len(sums) > size else 0)
    return float(largest / size)


def of_most(config: Most.Config, size: int, rung: int, neighbours: bool) -> Ceiling | None:
    return None if rung else Ceiling(1 / config.digits, True, NOTHING)


def of_match(
    config: Match.Config | Trio.Config | Current.Config, size: int, rung: int, neighbours: bool
) -> Ceiling | None:
    if not rung:
        return Ceiling(1 / config.values, True, NOTHING)
    return without_owners(lambda: largest_share(size, config.values), rung, neighbours)


# ------------------------------------------------------------------------------------------------------- rings of three

RING = (
    "Each letter of a ring would have to score higher with the next than with the one after, but a symmetric score"
    " cannot rise all the way round: two of three questions are right, and the third if its answer happens to be the"
    " number that gets the higher weight. An estimate, proved for a reader that names the number with the most weight."
)


def of_trio(config: Trio.Config, size: int, rung: int, neighbours: bool) -> Ceiling | None:
    if rung == DOT and neighbours:
        return Ceiling((2 + (1 + 1 / config.values) / 2) / 3, False, RING)
    return of_match(config, 3 * size, rung, neighbours)


# ----------------------------------------------------------------------------------------------- fits: the other letter

Logits = Callable[[Sequence[Tensor]], Tensor]


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors as small as these are slower with several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def fitted(logits: Logits, shapes: Sequence[tuple[int, ...]], chance: Tensor, answer: Tensor, restarts: int) -> float:
    """The accuracy of the best of some restarts: logits (R, n, V) of n sorts of texts, their chances and answers.

    First the likelihood of the answers grows, then their probability, which is nearer to the accuracy.
    """
    random, steps = torch.Generator().manual_seed(0), 800
    parameters = [torch.randn(restarts, *shape, generator=random) for shape in shapes]
    for parameter in parameters:
        parameter.mul_(torch.linspace(0.1, 1, restarts).view(-1, *[1] * (parameter.dim() - 1))).requires_grad_()
    optimizer = torch.optim.Adam(parameters, lr=0.2)
    for step in range(steps):
        log_probabilities = logits(parameters).log_softmax(-1)  # (R, n, V)
        log_likelihood = log_probabilities.gather(-1, answer[None, :, None].expand(restarts, -1, 1))[..., 0]  # (R, n)
        loss = -(chance * (log_likelihood if step < steps / 8 else 3 * log_likelihood.exp())).sum()
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / steps)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = logits(parameters).argmax(-1) == answer  # (R, n)
    return float((right * chance).sum(-1).max())


OTHER = {
    "mean": "Both letters are added up, one a little heavier: only for some pairs does that say which is the other.",
    "dot product": "Both letters are added up as they are, and no two letters can look at each other rather than at"
    " themselves: only for some pairs does the sum say which is the other.",
    "query_key": "Both letters are added up as they are. If one looks at the other alone, the sum is the same for both"
    " questions and half the answers are right; with other weights, more.",
}


def of_other(config: Other.Config, size: int, rung: int, neighbours: bool) -> Ceiling | None:
    if not rung:
        return Ceiling(1 / (config.vocabulary - 1), True, "It sees the letter asked with, and any other may be it.")
    if rung >= HEAD or neighbours:  # a letter that is told its neighbour is there in two ways, as if it had values
        return None
    fewer = min(config.vocabulary, 16)  # a reader of more letters is at least as good at a part of them
    why = f"{OTHER[MEANS[rung]]} An estimate by fitting" + ("." if fewer == config.vocabulary else ", of 16 letters.")
    value = max(other_letter(means, fewer, size) for means in MEANS[MEAN : rung + 1])  # scores may all be equal
    return Ceiling(value, False, why)


@cache
def other_letter(means: str, V: int, size: int) -> float:
    """logits = M x_asked + sum of weights M x, with M and scores that are fitted. The newline and | are one sink."""
    cumulative = np.cumsum([math.comb(size, i) / (2**size - 2) for i in range(1, size)])
    counts = (
        range(1, size) if size <= 6 else [1 + int((cumulative < share).sum()) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    )
    asked_count = torch.tensor([float(i) for i in counts])  # (I,): how often the asked letter comes before the question
    chance = torch.tensor([math.comb(size, i) / (2**size - 2) for i in counts] if size <= 6 else [0.2] * len(counts))
    pairs = (1 - torch.eye(V)) / (V * (V - 1))  # (V, V)

    def logits(parameters: Sequence[Tensor]) -> Tensor:
        matrix, scores, sink = parameters[0], parameters[1], parameters[2][..., None, None]
        if means == "mean":
            scores, sink = 0 * scores, 0 * sink  # (R, V, V), (R, V, 1, 1)
        elif means == "dot product":
            scores = scores @ scores.mT  # (R, V, V)
        asked_score = scores.diagonal(dim1=1, dim2=2)[..., None, None] + (asked_count + 1).log()  # (R, V, 1, I)
        other_score = scores[..., None] + (size - asked_count).log()  # (R, V, V, I)
        sink_score = sink + math.log(2)  # (R, 1, 1)
        all_scores = torch.stack(torch.broadcast_tensors(asked_score, other_score, sink_score), -1)  # (R, V, V, I, 3)
        asked_weight, other_weight, sink_weight = all_scores.softmax(-1)[..., None].unbind(-2)  # (R, V, V, I, 1) each
        asked, other = matrix[:, :V, None, None], matrix[:, None, :V, None]  # (R, V, 1, 1, V), (R, 1, V, 1, V)
        mixed = (1 + asked_weight) * asked + other_weight * other + sink_weight * matrix[:, None, None, V:]
        return mixed.flatten(1, 3)  # (R, V V I, V)

    n = V * V * len(asked_count)
    answer = torch.arange(V)[None, :, None].expand(V, V, len(asked_count)).flatten()  # (n,)
    restarts = max(4, 80_000 // (n * V))
    return fitted(logits, [(V + 1, V), (V, V), (V,)], (pairs[..., None] * chance).flatten(), answer, restarts)


# ---------------------------------------------------------------------------------------------------------- differences

SUBTRACT = (
    "A mean adds what it reads, and a difference is no sum. An estimate by fitting, of a reader whose values say the"
    " numbers; if weights say the number and values the letter, one mean could subtract, but training does not find it."
)


def of_difference(config: Difference.Config, size: int, rung: int, neighbours: bool) -> Ceiling | None:
    _, bag, exact = two_numbers(size, config.values)
    if not rung:  # it does not see the size: one difference is the commonest in the texts of all sizes
        distributions = [differences(two_numbers(n, config.values)[0]) for n in config.validation_sizes or config.cards]
        return Ceiling(
            max(sum(each[d] for each in distributions) for d in range(config.values)) / len(distributions),
            exact,
            NOTHING,
        )
    if neighbours and MEAN < rung < HEADS:
        return Ceiling(max(one_mean(size, config.values), bag), False, SUBTRACT)
    of_bag = without_owners(lambda: bag, rung, neighbours)
    return of_bag and of_bag._replace(exact=exact and of_bag.exact)


Pairs = dict[tuple[int, int], float]  # {(number of the first letter asked for, of the second): probability}


def differences(pairs: Pairs) -> defaultdict[int, float]:
    """{difference: its probability}."""
    distribution = defaultdict[int, float](float)
    for (high, low), chance in pairs.items():
        distribution[high - low] += chance
    return distribution


def bags(size: int, values: int) -> Iterator[tuple[int, ...]]:
    """How often each value can come in `size` numbers."""
    if values == 1:
        yield (size,)
        return
    for count in range(size + 1):
        yield from ((count, *more) for more in bags(size - count, values - 1))


@cache
def two_numbers(size: int, values: int) -> tuple[Pairs, float, bool]:
    """The odds of the two numbers, how often the likeliest difference of a bag is right, and whether both are exact."""
    exact = math.comb(size + values - 1, size) <= 5_005
    samples = np.random.default_rng(0).multinomial(size, [1 / values] * values, size=5_000)  # (5000, values)
    pairs, right, weight = defaultdict[tuple[int, int], float](float), 0.0, 0.0
    for counts in bags(size, values) if exact else samples.tolist():
        texts = math.exp(math.lgamma(size + 1) - sum(math.lgamma(count + 1) for count in counts)) if exact else 1.0
        lower_cards = [sum(counts[: high + 1]) - 1 for high in range(values)]  # the cards that are not higher
        high_cards = sum(count for count, lower in zip(counts, lower_cards) if lower)
        of_bag = {
            (high, low): counts[high] / high_cards * (counts[low] - (high == low)) / lower_cards[high]
            for high in range(values)
            for low in range(high + 1)
            if counts[high] and lower_cards[high]
        }
        for pair, chance in of_bag.items():
            pairs[pair] += texts * chance
        right, weight = right + texts * max(differences(of_bag).values()), weight + texts
    return {pair: chance / weight for pair, chance in pairs.items()}, right / weight, exact


@cache
def one_mean(size: int, V: int) -> float:
    """logits = w_1 M v_1 + w_2 M v_2 + w_0 c, one mean of both numbers and a sink; weights depend on the numbers."""
    pairs = two_numbers(size, V)[0]
    high, low = torch.tensor(list(pairs)).T  # (n,), (n,)

    def logits(parameters: Sequence[Tensor]) -> Tensor:
        matrix, number, letter, sink = parameters  # (R, V, V), (R, V), (R, 2), (R, V)
        high_score, low_score = number[:, high] + letter[:, :1], number[:, low] + letter[:, 1:]  # (R, n), (R, n)
        weights = torch.stack((high_score, low_score, torch.zeros_like(high_score)), -1).softmax(-1)  # (R, n, 3)
        high_weight, low_weight, sink_weight = weights[..., None].unbind(-2)  # (R, n, 1) each
        return high_weight * matrix[:, high] + low_weight * matrix[:, low] + sink_weight * sink[:, None]  # (R, n, V)

    chance = torch.tensor(list(pairs.values()))
    return fitted(logits, [(V, V), (V,), (2,), (V,)], chance, high - low, restarts=200)


# -------------------------------------------------------------------------------------------------------- without order

NEXT = (
    "It knows the last number, and which letters stand side by side and how often, but not their order: often several"
    " orders fit. An estimate, the mean of 2,000 texts."
)


def of_current(config: Current.Config, size: int, rung: int, neighbours: bool) -> Ceiling | None:
    if MEAN < rung < LAYER and neighbours:
        return Ceiling(no_order(config, size), False, NEXT)
    return of_match(config, size, rung, neighbours)


@cache
def no_order(config: Current.Config, size: int) -> float:
    """How often the likeliest of the numbers that fit is right. The orders of the last 8 cards are counted; what comes
    before them is taken as known."""
    right = 0.0
    for number in range(2_000):
        cards, question = tell(Current(config).generator((size,)), Random(number)).lstrip("\n").split(BAR)
        late_cards, asked = cards[-16:], question[0]
        orders = last_numbers(late_cards, asked) if asked in late_cards else {"": 1}
        right += max(orders.values()) / sum(orders.values())
    return right / 2_000


def last_numbers(text: str, asked: str) -> dict[str, int]:
    """{number: in how many orders of the cards it is the last of `asked`}: orders that have the same last number, and
    the same neighbours equally often."""

    @cache
    def orders(cards: tuple[str, ...], links: tuple[str, ...], end: str, answer: str) -> dict[str, int]:
        """From the end on: these cards are left, these links of a number and the next letter, `end` is the number."""
        ways = Counter[str]()
        for card in {card for card in cards if card[1] == end}:
            last_number = answer or (end if card[0] == asked else "")
            earlier_cards = without(cards, card)
            for link in {link for link in links if link[1] == card[0]}:
                ways.update(orders(earlier_cards, without(links, link), link[0], last_number))
            if not earlier_cards:
                ways[last_number] += 1
        return ways

    cards, links = (tuple(sorted(text[i : i + 2] for i in range(start, len(text) - 1, 2))) for start in (0, 1))
    return orders(cards, links, text[-1], "")


def without(items: tuple[str, ...], item: str) -> tuple[str, ...]:
    """The items without one of them."""
    index = items.index(item)
    return items[:index] + items[index + 1 :]


CEILINGS: dict[type[Task], Callable[[Any, int, int, bool], Ceiling | None]] = {
    Most: of_most,
    Match: of_match,
    Trio: of_trio,
    Other: of_other,
    Difference: of_difference,
    Current: of_current,
}
