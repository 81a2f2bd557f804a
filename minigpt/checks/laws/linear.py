"""The laws of linear attention, asked of its weights: w_ts = f(q_t) . f(k_s) / sum over j <= t of f(q_t) . f(k_j).

The output is linear in the values, so the weights can be measured whatever the form of the program: a matrix, running
sums, a recurrence, chunks. The feature map f is elu + 1 ("Transformers are RNNs", arXiv 2006.16236); other positive
ones are right, too. What is left of a weight behind its laws says what it was divided by.

N texts and heads, T query positions, S key positions, d width of a query and a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.checks.laws.law import Saw, law
from minigpt.checks.reading.structure import Broken

CLOSE = 1e-4  # relative: a normaliser may have an epsilon
SMALL = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
Map = Callable[[Tensor], Tensor]
POSITIVE: dict[str, Map] = {
    "elu + 1": lambda x: F.elu(x) + 1,
    "exp": torch.exp,
    "softplus": F.softplus,
    "relu": torch.relu,
    **{f"relu + {more:g}": partial(lambda more, x: x.relu() + more, more) for more in (1e-6, 1e-4, 1e-3, 1e-2, 0.1)},
}
OTHERS: dict[str, Map] = {
    "no feature map": lambda x: x,
    "elu without + 1": F.elu,
    "relu + 1": lambda x: x.relu() + 1,
    "a sigmoid": torch.sigmoid,
    "silu": F.silu,
    "the square": torch.square,
    "a softmax over the features": lambda x: x.softmax(-1),
    "a softmax over the positions": lambda x: x.softmax(-2),
    "elu + 1 of what is divided by sqrt(d)": lambda x: F.elu(x / x.shape[-1] ** 0.5) + 1,
}


@dataclass
class Weights:
    """Measured weights (N, T, S), and the queries and keys (N, T, d) before their feature maps."""

    weights: Tensor
    query: Tensor
    key: Tensor
    notes: list[str] = field(default_factory=list)
    """What is right in another convention."""
    feature: str = "elu + 1"
    """The feature map that was found; "" in efficient attention."""
    epsilon: float = 0.0
    """What is added to the normaliser."""

    def products(self, of_query: Map, of_key: Map) -> Tensor:
        """f(q_t) . f(k_s): (N, T, S)."""
        return of_query(self.query) @ of_key(self.key).mT

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Linear attention as it was found: (N, T, d), (N, S, d), (N, S, e) -> (N, T, e)."""
        if not self.feature:
            return query.softmax(-1) @ (key.softmax(-2).mT @ value)
        products = (POSITIVE[self.feature](query) @ POSITIVE[self.feature](key).mT).tril()
        return products / (products.sum(-1, keepdim=True) + self.epsilon) @ value


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal but for an epsilon."""
    return bool(((one - other).abs() <= CLOSE * other.abs().max().clamp(min=1e-12)).all())


def broken(measured: Weights) -> Iterator[Broken]:
    """Where the weights break a law, the first cause first."""
    efficient = measured.products(OTHERS["a softmax over the features"], OTHERS["a softmax over the positions"])
    if equal(measured.weights, efficient):
        measured.feature = ""
        measured.notes.append("it is efficient attention (arXiv 1812.01243), which is not causal")
        return
    laws: Any = (sees, counted_once, features, divided)
    yield from (one for law_ in laws for one in law_(measured, None))


@law("a token sees itself and what came before", "update the state first, then read it; look at what the sums run over")
def sees(measured: Weights, _: Any) -> Iterator[Saw]:
    """A token sees itself and what came before, and nothing later."""
    seen = (measured.weights.abs() > 1e-9 * measured.weights.abs().max()).any(0)  # (T, S)
    right = torch.ones_like(seen).tril()
    ahead, lost = seen & ~right, (right & ~seen)[len(seen) // 2 :]
    if seen.all():
        yield Saw(0, "the state is the sum over the whole text, later tokens too: it is not causal", "the past alone")
    elif ahead.any():
        t, s = ahead.nonzero()[0].tolist()
        last = [row.nonzero().max().item() for row in ahead if row.any()]  # in chunks, several end at one token
        why = ": the state is updated with the chunk before the chunk is read, or the mask inside a chunk is missing"
        yield Saw(0, f"token {t} sees token {s}, which comes later{why * (len(set(last)) < len(last))}",
                  "the past alone")  # fmt: skip
    elif not seen.diagonal()[1:].any():
        actual = "a token does not see itself: the state is read before the token is added to it"
        yield Saw(0, actual, "itself and what came before")
    elif lost.any():
        t, s = (lost.nonzero()[0] + torch.tensor([len(seen) // 2, 0])).tolist()
        actual = f"token {t} does not see token {s}: the past is lost, or overwritten and not summed up"
        yield Saw(0, actual, "all that came before")


@law("each key counts once", "read the state first, and add the chunk to it then")
def counted_once(measured: Weights, _: Any) -> Iterator[Saw]:
    """No key counts twice."""
    for map_ in POSITIVE.values():
        share = (measured.weights / measured.products(map_, map_)).tril()  # (N, T, S)
        share = share / share.where(share > 1e-9, torch.inf).amin(-1, keepdim=True)
        if equal(share, share.round()) and 1 < share.max().round() < 5:
            t, s = (share[0].round() > 1).nonzero()[0].tolist()
            actual = f"token {t} counts token {s} twice: a chunk is added to the state before it is read"
            yield Saw(0, actual, "once")


@law("features are positive, of queries as of keys", "f(x) = F.elu(x) + 1, on queries and on keys")
def features(measured: Weights, _: Any) -> Iterator[Saw]:
    """Weights are products of positive features of queries and keys, the same map for both."""

    def shares(rows: Tensor) -> Tensor:
        sums = rows.sum(-1, keepdim=True)
        return (rows / sums).where(sums.abs() > 1e-9, 0.0)  # all features may be 0

    rows, maps = shares(measured.weights.tril()), POSITIVE | OTHERS
    for of_query, of_key in sorted(product(maps, maps), key=lambda names: names[0] != names[1]):
        if equal(rows, shares(measured.products(maps[of_query], maps[of_key]).tril())):
            break
    else:
        yield Saw(0, "the weights of a row are not products of features of its query and keys", "f(q) . f(k)")
        return
    if of_query == of_key and of_query in POSITIVE:
        measured.feature = of_query
        more = f"the feature map is {of_query}, not elu + 1: it is positive, too"
        measured.notes += [more] * (of_query != "elu + 1")
    elif of_query == of_key:
        yield Saw(0, f"the feature map is {of_query}", "elu + 1 for both")
    else:
        yield Saw(0, f"the queries have {of_query}, the keys {of_key} as their feature map", "elu + 1 for both")


@law("the weights of a row sum to one", "divide row t by f(q_t) . (the sum of f(k_s) over s <= t)")
def divided(measured: Weights, _: Any) -> Iterator[Saw]:
    """Each row sums to one."""
    weights, map_ = measured.weights, POSITIVE[measured.feature]
    sums, all_products = weights.sum(-1), measured.products(map_, map_)  # (N, T), (N, T, S)
    if (sums - 1).abs().max() < 1e-9:
        return
    products = all_products.tril()
    past = products.sum(-1)  # (N, T)
    gaps = {small: float((weights - products / (past[..., None] + small)).abs().max()) for small in SMALL}
    if min(gaps.values()) < CLOSE:
        measured.epsilon = min(gaps, key=lambda small: gaps[small])
        measured.notes.append("the normaliser has an epsilon")
        return
    ways = {
        "the normaliser is missing: rows are not divided by their sum": torch.ones_like(past),
        "it is multiplied by the normaliser, not divided by it": 1 / past,
        "rows are divided by the number of tokens, not by the normaliser": torch.ones_like(past).cumsum(-1),
        "rows are divided by T": torch.full_like(past, len(past.mT)),
        "rows are divided by sqrt(d)": torch.full_like(past, measured.key.shape[-1] ** 0.5),
        "the normaliser sums over all keys, later ones too": all_products.sum(-1),
        "the normaliser is one step behind: it leaves the token itself out": products.tril(-1).sum(-1),
        "the normaliser holds the newest key only": products.diagonal(dim1=1, dim2=2),
        "the normaliser is the sum of the keys' features, without the query": map_(measured.key).cumsum(1).sum(-1),
        "rows are divided by the square root of their sum": past.sqrt(),
        "rows are divided by their length": products.norm(dim=-1),
        "the weights are divided by the sums of the columns": products.sum(-2),
        "the normaliser sums the raw keys": (map_(measured.query) * measured.key.cumsum(1)).sum(-1),
    }
    t = int((sums - 1).abs().amax(0).argmax())
    other = f"the weights of token {t} sum to {float(sums[0, t]):.4g}: the normaliser is another"
    named = (words for words, below in ways.items() if equal(weights[:, 1:], (products / below[..., None])[:, 1:]))
    yield Saw(0, next(named, other), "divided by the sum of the row")
