"""The ladder: attention from a running mean to queries, keys and values, as plain functions.

Read it from top to bottom. Each function is complete in itself, and adds one idea to the one before. So it answers a
question that attention alone cannot answer without this idea (`text/languages/tasks/steps.py`; the last character of
each text is the answer):

    3131302|3    which digit comes most often?                    the mean: a mean is a count
    d7a3f5|a3    what is a's number?                              the dot product: who looks like me?
    a3b5c2|a5    the number of the next in the ring a, b, c, a?   queries and keys: what I look for is not what I am
    kpkkp|kp     which other letter is there?                     values and a projection: what I give is not what I am
    a4b1c2|ab3   how many more has a than b?                      two heads: one mean can add, but not subtract
    a3b5a7|a7    what is a's number now?                          order: a bag has no last one
    d7a3f5|a3    a's number, if no digit is told its neighbour?   two layers: first whose it is, then where it is

The other files of this folder turn the same steps into trainable modules, and add heads and order (`position`).

T positions (of the queries), S positions (of the keys), D width of a token, d width of a query and a key, e width of a
value; `...` is any number of batch dimensions. "Causal" means that position t sees the positions 0..t and no others.
"""

import torch
from torch import Tensor


def average_loop(x: Tensor) -> Tensor:
    """Each position becomes the mean of itself and all before it: (..., T, D) -> (..., T, D)."""
    means = [x[..., : t + 1, :].mean(dim=-2) for t in range(x.shape[-2])]  # T of (..., D)
    return torch.stack(means, dim=-2)  # (..., T, D)


def average_matrix(x: Tensor) -> Tensor:
    """The same mean as one product: a triangle of ones, each row divided by its sum, times x: (..., T, D)."""
    T = x.shape[-2]
    triangle = torch.ones(T, T, dtype=x.dtype, device=x.device).tril()  # (T, T)
    weights = triangle / triangle.sum(dim=-1, keepdim=True)  # (T, T): row t is 1/(t+1), t+1 times
    return weights @ x  # (..., T, D)


def average_softmax(x: Tensor) -> Tensor:
    """The same mean once more: the softmax of scores that are all zero, the future filled with -inf: (..., T, D)."""
    T = x.shape[-2]
    scores = torch.zeros(T, T, dtype=x.dtype, device=x.device)  # (T, T): all positions count the same
    past = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T)
    weights = scores.masked_fill(~past, -torch.inf).softmax(dim=-1)  # (T, T)
    return weights @ x  # (..., T, D)


def dot_product(x: Tensor, causal: bool = True, scale: float = 1.0) -> Tensor:
    """Scores that depend on the tokens: the dot product of each pair, x @ x^T; nothing is learned: (..., T, D).

    Behind a norm |x|^2 = D, and the products of unrelated tokens have the standard deviation sqrt(D): so large that a
    row of weights is mostly one token, and no mean. A `scale` of 1/sqrt(D) brings it to one. It is no detail: on the
    stories it is the difference between worse than the mean and better (`comparison/README.md`).
    """
    T = x.shape[-2]
    scores = x @ x.mT * scale  # (..., T, T)
    if causal:
        past = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T)
        scores = scores.masked_fill(~past, -torch.inf)
    return scores.softmax(dim=-1) @ x  # (..., T, D)


def query_key(x: Tensor, W_query: Tensor, W_key: Tensor, causal: bool = True) -> Tensor:
    """Learned queries and keys: what a token looks for is not what it is; the mean is still of x: (..., T, D).

    W_query and W_key (D, d). The dot product is symmetric, x_t . x_s = x_s . x_t, so it cannot find the next in a ring
    of three: b would have to match c better than a, c match a better than b, and a match b better than c.
    """
    T = x.shape[-2]
    query, key = x @ W_query, x @ W_key  # (..., T, d) twice
    scores = query @ key.mT * query.shape[-1] ** -0.5  # (..., T, T)
    if causal:
        past = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T)
        scores = scores.masked_fill(~past, -torch.inf)
    return scores.softmax(dim=-1) @ x  # (..., T, D)


def attention_weights(query: Tensor, key: Tensor, causal: bool = True, scale: float | None = None) -> Tensor:
    """The attention weights of any queries and keys: what a token looks for, and what it offers.

    query (..., T, d), key (..., S, d) -> (..., T, S); every row sums to one. The scores are multiplied by `scale`:
    None is 1/sqrt(d), which keeps their variance at one ("Attention Is All You Need", arXiv 1706.03762), and 1.0
    leaves them unscaled. With T < S the queries are the last T of the S positions, as when decoding with a cache.
    """
    T, S = query.shape[-2], key.shape[-2]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale  # (..., T, S)
    if causal:
        past = torch.ones(T, S, dtype=torch.bool, device=query.device).tril(S - T)  # (T, S)
        scores = scores.masked_fill(~past, -torch.inf)
    return scores.softmax(dim=-1)  # (..., T, S)


def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool = True, scale: float | None = None) -> Tensor:
    """Attention: the mean of the values (..., S, e), weighted by `attention_weights`: (..., T, e).

    A value is what a token hands over, and need not be x. So whoever adds it to x can tell the two apart.
    """
    return attention_weights(query, key, causal, scale) @ value  # (..., T, e)
