"""What goes wrong between queries, keys and weights: the scale, the mask, the softmax."""

from __future__ import annotations

import math

import torch

from minigpt.grading.target import Bug, Knobs

DIVIDE = "divide the scores by sqrt(d): query @ key.mT / d**0.5"
BIG = -1e9  # hides a score as well as -inf does


def emptied(**knobs: object) -> tuple[Knobs, ...]:
    """Other forms of a bug whose rows see no key: instead of NaN, numbers from a fill of -1e9, or a kernel's zeros."""
    return (
        {**knobs, "fill": BIG},
        {**knobs, "fill": BIG, "hide": "add"},
        {**knobs, "fill": torch_min()},
        {**knobs, "empty_rows": 0},
    )


def torch_min() -> float:
    """The smallest float64: torch.finfo(dtype).min."""
    return float(torch.finfo(torch.float64).min)


def scale_bugs() -> list[Bug]:
    """Scores divided by something else than sqrt(d)."""
    roots = {
        "D": "sqrt(D) = sqrt({D}), the width of the model,",
        "H": "sqrt(H) = sqrt({H}), the number of heads,",
        "2 d": "sqrt(2 d) = sqrt({2*d})",
        "3 D": "sqrt(3 D) = sqrt({3*D}), the width of the joined projection,",
        "3 d": "sqrt(3 d) = sqrt({3*d})",
        "d/2": "sqrt(d // 2) = sqrt({d//2})",
        "d - 1": "sqrt(d - 1) = sqrt({d-1})",
        "T": "sqrt(T), the number of tokens,",
        "B": "sqrt(B), the size of the batch,",
        "d whole": "d = {d} (or twice by sqrt(d))",
        "D whole": "D = {D}, the width of the model,",
        "H whole": "H = {H}, the number of heads,",
        "T whole": "T, the number of tokens,",
        "fourth": "the fourth root of d = {d} (once, or d**-0.25 on one of query and key only)",
        "square": "d squared",
        "three halves": "d**1.5: by sqrt(d) and once more by d",
        "8": "8, which is sqrt(64), a number of another model,",
        "integer": "int(sqrt(d)): the root of {d} is rounded down",
    }
    other = {"T": ({"scale": "S"},), "T whole": ({"scale": "S whole"},)}
    bugs = [
        Bug({"scale": kind}, f"you divide the scores by {words} instead of sqrt(d) = sqrt({{d}}), the width of a head",
            DIVIDE, other.get(kind, ()))
        for kind, words in roots.items()
    ]  # fmt: skip
    return [
        Bug({"scale": "1"}, "the scores are not scaled: you do not divide them by sqrt(d) = sqrt({d})", DIVIDE),
        *bugs,
        Bug({"scale": "times"}, "you multiply the scores by sqrt(d) = sqrt({d}) instead of dividing them", DIVIDE),
        Bug({"scale": "times d"}, "you multiply the scores by d = {d} instead of dividing them by sqrt(d)", DIVIDE),
        Bug({"scale": "minus"}, "the scores have the wrong sign: the best match gets the least weight",
            "query @ key.mT / d**0.5, without a minus", ({"softmax": "minus"},)),
        Bug({"scale_at": "after_softmax"}, "you divide by sqrt(d) = sqrt({d}) after the softmax: rows do not sum to 1",
            "divide the scores, before the softmax"),
    ]  # fmt: skip


FILL = "scores.masked_fill(~mask, -torch.inf), before the softmax"
TRIL = "torch.ones(T, T).tril(): row t has ones up to column t"


def early(value: float) -> tuple[Knobs, ...]:
    """The form of a bug in which scores are filled before they are scaled."""
    return ({"fill": value, "scale_at": "after_mask"},)


def leak_forms(value: float) -> tuple[Knobs, ...]:
    """The forms of a fill: filled or added, before the scale or after it. (Adding -1 equals +1 on what is seen.)"""
    early: Knobs = {"fill": value, "scale_at": "after_mask"}
    return (early,) if value == -1 else (early, {"fill": value, "hide": "add"}, {**early, "hide": "add"})


def mask_bugs() -> list[Bug]:
    """What goes wrong with the causal mask."""
    leaks = {-1.0: "-1", -10.0: "-10", -100.0: "-100", -1e3: "-1000"}
    return [
        Bug({"mask": "none"}, "there is no causal mask: every position sees the tokens after it", FILL),
        Bug({"mask": "strict"}, "a position cannot see itself: the diagonal of the mask is hidden too",
            "tril() instead of tril(-1), or triu(1) instead of triu()",
            (*emptied(mask="strict"), {"mask": "strict_first"}, {"mask": "strict_open"})),
        Bug({"mask": "ahead"}, "every position also sees the next token: the mask is one diagonal too wide",
            "tril() instead of tril(1), or triu(1) instead of triu(2)"),
        Bug({"mask": "inverted"}, "the mask is upside down: a position sees itself and what comes after it",
            "tril() instead of triu()"),
        Bug({"mask": "hides_past"}, "the mask is inverted: it hides the past and the token itself, not the future",
            "hide where tril() == 0; scaled_dot_product_attention keeps where its mask is True",
            emptied(mask="hides_past")),
        Bug({"mask": "not_itself"}, "the mask hides only the token itself and leaves the future open", TRIL,
            emptied(mask="not_itself")),
        Bug({"mask": "itself"}, "a position sees only itself", TRIL),
        Bug({"mask": "first_row"}, "only the first row is masked", TRIL),
        Bug({"fill": 0.0}, "hidden scores become 0 before the softmax, and exp(0) = 1 is still a weight", FILL),
        Bug({"fill": 1e-9}, "hidden scores become 1e-9, which is almost 0, where you meant -1e9", FILL, early(1e-9)),
        Bug({"fill": -1e-9}, "hidden scores become -1e-9, which is almost 0, where you meant -1e9", FILL, early(-1e-9)),
        Bug({"fill": 1.0}, "hidden scores become 1 before the softmax, which is still a weight", FILL, early(1.0)),
        Bug({"fill": 1e9}, "hidden scores become +1e9: the future gets all the weight; the sign is missing", FILL,
            ({"fill": 1e4}, {"fill": -torch_min()})),
        *(
            Bug({"fill": value}, f"hidden scores become {word}: too little, where scores are large the future leaks",
                FILL, leak_forms(value))
            for value, word in leaks.items()
        ),
        Bug({"fill": -1e4, "scale_at": "after_mask"}, "hidden scores become -10000, and are then divided by sqrt(d): "
            "too little, where scores are large the future leaks", FILL,
            ({"fill": -1e4, "scale_at": "after_mask", "hide": "add"},)),
        Bug({"hide": "add_seen"}, "you add the mask of ones and zeros to the scores: nothing is hidden", FILL),
        Bug({"hide": "add_hidden"}, "you add 1 to the scores of the future instead of hiding them", FILL),
        Bug({"hide": "after"}, "you mask after the softmax: the rows no longer sum to one", FILL),
        Bug({"hide": "after_renormalised"},
            "you mask after the softmax and divide by the sum: with large scores all of the past is 0, and 0/0", FILL),
        Bug({"hide": "after_inf"}, "the weights become infinite or NaN in every row that hides something: -inf is "
            "filled in after the softmax, or +inf before it", FILL,
            ({"hide": "after_inf", "fill": BIG}, {"fill": math.inf})),
    ]  # fmt: skip


def corner_bugs() -> list[Bug]:
    """What goes wrong with the mask if there are fewer queries than keys."""
    lower = "torch.ones(T, S).tril(S - T): the last query sees all keys"
    return [
        Bug({"mask": "corner"}, "with fewer queries than keys the mask is aligned to the upper left corner: query t "
            "stands at S - T + t, and torch.ones(T, S).tril(), like is_causal=True, takes it for t", lower),
        Bug({"mask": "other_corner"}, "with fewer queries than keys the mask is moved the wrong way: tril(T - S)",
            lower,
            emptied(mask="other_corner")),
        Bug({"mask": "last_corner"}, "with fewer queries than keys the mask is one diagonal off: each query sees one "
            "key more or less than it should", lower),
    ]  # fmt: skip


SOFTMAX = "scores.softmax(dim=-1): over the keys"


def softmax_bugs() -> list[Bug]:
    """What goes wrong with the softmax."""
    return [
        Bug({"softmax": "query"}, "the softmax goes over the queries, not the keys: columns sum to one, rows do not",
            SOFTMAX, ({"softmax": "query", "fill": BIG}, {"softmax": "naive_query"}, {"softmax": "stable_query"})),
        Bug({"softmax": "batch"}, "the softmax goes over the batch (dim=0), not the keys: sequences are mixed", SOFTMAX,
            ({"softmax": "batch", "fill": BIG},)),
        Bug({"softmax": "none"}, "there is no softmax: the scores themselves are used as weights", SOFTMAX,
            ({"softmax": "none", "fill": 0.0}, {"softmax": "none", "fill": BIG})),
        Bug({"softmax": "twice"}, "there are two softmaxes, one after the other: the second flattens the weights, and "
            "hidden positions get weight again", "leave out one of them",
            ({"softmax": "twice", "fill": BIG},)),
        Bug({"softmax": "log"}, "log_softmax instead of softmax: the weights are negative", SOFTMAX,
            ({"softmax": "log", "fill": BIG},)),
        Bug({"softmax": "sigmoid"}, "sigmoid instead of softmax: the rows do not sum to one", SOFTMAX),
        Bug({"softmax": "relu"}, "relu instead of softmax: the rows do not sum to one", SOFTMAX),
        Bug({"softmax": "tanh"}, "tanh instead of softmax: weights are negative", SOFTMAX),
        Bug({"softmax": "sum"}, "the scores are divided by their sum without exp: weights can be negative or huge",
            SOFTMAX, ({"softmax": "sum", "fill": 0.0}, {"softmax": "sum", "fill": BIG})),
        Bug({"softmax": "exp"}, "exp without the division: the rows do not sum to one", SOFTMAX),
        Bug({"softmax": "naive"}, "exp(scores) / sum overflows where scores are large: subtract the maximum first",
            "scores.softmax(dim=-1) subtracts it", ({"softmax": "naive", "fill": BIG},)),
        Bug({"softmax": "naive_all"}, "exp is divided by the sum over all queries and keys, not over each row",
            SOFTMAX,
            ({"softmax": "flat"}, {"softmax": "flat", "fill": BIG})),
        Bug({"softmax": "one_more"}, "the denominator has an extra 1: exp / (1 + sum), so rows sum to less than 1",
            SOFTMAX),
        Bug({"softmax": "max"}, "only the best key gets weight: argmax instead of softmax", SOFTMAX),
        Bug({"softmax": "norm"}, "the scores are divided by their length (norm), without a softmax", SOFTMAX,
            ({"softmax": "norm", "fill": 0.0}, {"softmax": "norm", "fill": BIG})),
        Bug({"softmax": "two"}, "powers of 2 instead of e: exp2 needs the scores times log2(e)", SOFTMAX),
    ]  # fmt: skip


def online_bug() -> Bug:
    """An online softmax, which goes through the keys in blocks ("Online normalizer calculation", arXiv 1805.02867)."""
    first, *others = [f"online {width}{both}" for both in ("", " both") for width in (1, 2, 3, 4, 5, 8)]
    return Bug({"softmax": first}, "the online softmax does not rescale: where the running maximum grows, what was "
               "summed up so far must shrink", "total *= exp(old_max - new_max), for outputs and normaliser",
               tuple({"softmax": other} for other in others))  # fmt: skip


def head_score_bugs() -> list[Bug]:
    """What goes wrong with the scores of several heads."""
    mask = Bug({"mask": "heads"}, "the mask is laid over heads and keys instead of queries and keys: head h sees the "
               "keys 0 to h", "a mask (T, S) for scores (B, H, T, S)", ({"mask": "heads", "fill": BIG},))  # fmt: skip
    return [head_softmax_bug(), summed_scores_bug(), mask]


def summed_scores_bug() -> Bug:
    """Scores that are summed over the heads."""
    return Bug(
        {"compare": "over heads"},
        "the scores are summed over the heads: all heads have the same weights",
        "one matrix of scores for each head: (B, H, T, S)",
        ({"compare": "mean of heads"},),
    )


def head_softmax_bug() -> Bug:
    """A softmax over the axis of the heads."""
    return Bug(
        {"softmax": "head"},
        "the softmax goes over the heads (dim=1), not the keys",
        SOFTMAX,
        (
            {"softmax": "head", "fill": BIG},
            {"softmax": "head", "fill": BIG, "hide": "add"},
            {"softmax": "head", "empty_rows": 0},
        ),
    )


def compare_bugs() -> list[Bug]:
    """Wrong products of queries and keys. Exchanging them is a bug only if both are arguments: `exchange_bug`."""
    product = "query @ key.mT: (..., T, d) @ (..., d, S)"
    return [
        Bug({"compare": "qq"}, "the scores are query @ query^T: the keys are not used", product),
        Bug({"compare": "kk"}, "the scores are key @ key^T: the queries are not used", product),
        Bug({"compare": "cosine"}, "queries and keys are normalised before the product: these are cosines", product,
            ({"compare": "cosine", "scale": "1"},)),
        Bug({"compare": "unit key"}, "the keys are normalised to length 1 before the product", product,
            ({"compare": "unit key", "scale": "1"},)),
        Bug({"compare": "unit query"}, "the queries are normalised to length 1 before the product", product,
            ({"compare": "unit query", "scale": "1"},)),
        Bug({"compare": "distance"}, "the scores are negative distances, not products", product,
            ({"compare": "distance", "scale": "1"}, {"compare": "square_distance"},
             {"compare": "square_distance", "scale": "1"})),
        Bug({"compare": "absolute"}, "the scores are made positive: abs() hides bad matches", product),
        Bug({"compare": "sum"}, "query and key are added instead of multiplied", product,
            ({"compare": "sum", "scale": "1"},)),
        Bug({"compare": "reshaped"}, "key is reshaped to (d, S) instead of transposed: view(d, S) mixes its numbers",
            "key.mT or key.transpose(-2, -1)"),
    ]  # fmt: skip


def exchange_bug() -> Bug:
    """Exchanged queries and keys, in a function with both as arguments."""
    return Bug(
        {"compare": "kq_late"},
        "the scores are key @ query^T: rows belong to keys; a row must belong to a query",
        "query @ key.mT",
        ({"compare": "kq"},),
    )
