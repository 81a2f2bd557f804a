"""What numbers that break a law look like, in the field's words. No law depends on it: it only names what is wrong.

T positions, D model width, d width of a head, H heads of queries, G heads of keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import Tensor

from minigpt.checks.reading.meanings import Token

OTHER_BASES = (1000, 100000, 500000)  # of rotary frequencies


def tokens_in_words(tokens: tuple[Token, ...] | list[int]) -> str:
    """Tokens, by position: "0 to 4"."""
    positions = sorted({token[1] if isinstance(token, tuple) else token for token in tokens})
    if len(positions) > 2 and positions == list(range(positions[0], positions[-1] + 1)):
        return f"{positions[0]} to {positions[-1]}"
    return ", ".join(map(str, positions)) or "none"


def several(factors: Iterable[float]) -> str:
    """Some of these factors."""
    return ", ".join(f"{factor:.4g}" for factor in sorted(factors)[:4])


def scale_in_words(factor: float, d: int, D: int, T: int, H: int, G: int) -> str:
    """Which formula a wrong scale is."""
    formulas = {
        "not scaled: multiplied by 1, not divided by sqrt(d)": 1.0,
        "multiplied by sqrt(d), not divided: the scale is the wrong way round": d**0.5,
        "divided by sqrt(d)": d**-0.5,
        "divided by d instead of sqrt(d): scaled twice": 1 / d,
        "those of powers of 2 (exp2), without the factor log2(e)": d**-0.5 * math.log(2),
        "divided by the fourth root of d: only one of query and key is scaled by it": d**-0.25,
        f"divided by sqrt(D) = sqrt({D}), the width of the model": max(D, 1) ** -0.5,
        f"divided by D = {D}, the width of the model": 1 / max(D, 1),
        f"divided by sqrt(T) = sqrt({T}), the number of tokens (the length)": T**-0.5,
        f"divided by T = {T}, the number of tokens": 1 / T,
        f"divided by sqrt(H) = sqrt({H}), the number of heads": H**-0.5,
        f"divided by sqrt(D/G) = sqrt({D // G}), the width of the model by the key heads": (D // G) ** -0.5,
        f"divided by sqrt(G d) = sqrt({G * d}), the width of all keys": (G * d) ** -0.5,
    }
    names = [name for name, value in formulas.items() if abs(value - factor) < 1e-6]
    return names[0] + f" (times {factor:.4g})" if names else f"multiplied by {factor:.4g}"


def seen_in_words(table: list[list[int]], allowed: list[list[int]], t: int) -> str:
    """What tokens see, `table` for the queries, which are the last tokens; token t is the first that sees wrong."""
    T = len(allowed)
    first = T - len(table)
    keys, right = table[t - first], allowed[t]
    sees = f"token {t} sees {tokens_in_words(keys)}"
    if len(set(keys)) < len(keys):
        return f"{sees}, some keys twice: repeated along the positions, or handed on twice"
    causal = all(row == list(range(s + 1)) for s, row in enumerate(allowed))
    every = [(seen, allowed[first + i], first + i) for i, seen in enumerate(table)]
    extra, missing = sorted(set(keys) - set(right)), sorted(set(right) - set(keys))
    why = ""
    if all(seen == list(range(T)) for seen in table):
        why = "there is no causal mask: every token sees the future"
    elif all(seen == list(range(s, T)) for seen, _, s in every):
        why = "the mask is upside down (transposed): a token sees itself and the future"
    elif all(seen == sorted(set(range(T)) - set(ok)) for seen, ok, _ in every):
        why = "the mask is inverted: what may be seen is hidden, and the future is seen"
    elif first and all(seen == allowed[i] for i, (seen, _, _) in enumerate(every)):
        why = (
            f"the mask is aligned to the upper left corner: query {t} is taken for position {t - first}, not S - T + t"
        )
    elif t in missing and missing == [t]:
        why = "a token cannot see itself, there is no weight to itself: the diagonal is hidden"
    elif missing and not extra and keys == list(range(len(keys))):
        why = "the mask is aligned to the upper left corner: the first positions, as is_causal=True with a cache does"
    elif causal and missing and not extra and keys == list(range(keys[0], t + 1)):
        why = "older keys are lost: hidden, or in a cache that is overwritten and keeps only what the last call brought"
    elif extra == [t + 1]:
        why = "a token sees the next token: the diagonal is one too far"
    elif extra and extra[0] > t:
        why = "the future is not hidden: " + ("within a chunk, perhaps" if causal
                                              else "the window reaches into the future")  # fmt: skip
    elif extra and not missing:
        wide = "one too wide" if len(extra) == 1 else "too wide"
        why = f"the window is {wide}: {len(keys)} keys, not {len(right)}"
    elif missing and not extra and keys[0] < missing[0]:
        why = (
            "a key in between is lost: in a cache that keeps only the first call and the last, or in a mask with a hole"
        )
    elif missing and not extra:
        why = f"the window is too narrow, or begins in fixed blocks: {len(keys)} keys, not {len(right)}"
    return f"{sees}: {why}" if why else sees


def bias_in_words(wrong: list[float], slopes: list[float], bias: Tensor, d: int) -> str:
    """How what is added differs from the bias (H, T, T). `slopes`: what is added more for the key one token nearer."""
    H, right = len(bias), (bias[:, -1, -1] - bias[:, -1, -2]).tolist()
    if not any(right):
        is_mask = set(wrong) <= {0.0, 1.0, -1.0} and any(wrong)
        words = ": a mask of ones and zeros is added, which add 1 to the scores of the future, or of the past"
        return words if is_mask else ""
    sign = "the sign of the bias is wrong, far tokens are favoured"
    known: dict[str, Callable[[int], float]] = {
        sign: lambda h: -right[h],
        "nothing is added: no positions": lambda h: 0.0,
        "the bias is added before the division by sqrt(d), so the slopes are divided, too": lambda h: right[h] / d**0.5,
        "the slopes begin at h = 0, with 1, not at h = 1": lambda h: 2 ** (-8 * h / H),
        "the slopes are 1/2, 1/4, ..., which is right for 8 heads only": lambda h: 2.0 ** -(h + 1),
        "all heads have one slope": lambda h: slopes[0],
    }
    named = [name for name, slope in known.items() if len(slopes) == H
             and all(abs(a - b) < 1e-6 for a, b in zip(sorted(slopes), sorted(map(slope, range(H)))))]  # fmt: skip
    if not named and len(slopes) == H and all(slope < 0 for slope in slopes):
        named = [f"{sign}, by other slopes, too"]
    return f": {named[0]}" if named else ": other slopes than 2^(-8h/H), h = 1, 2, ..., H"


def angles_in_words(slopes: list[float], base: float, D: int, H: int) -> str:
    """Which formula wrong frequencies are. `slopes`: the angle of each pair from one position to the next."""
    n, d = len(slopes), 2 * len(slopes)
    formulas: dict[str, Callable[[int], float]] = {
        "the angle is one at all positions: the number of the head, or of the text, is taken for the position": (
            lambda i: 0.0
        ),
        **{f"the base is {other} instead of 10000": lambda i, b=other: b ** (-2 * i / d) for other in OTHER_BASES},  # type: ignore[misc]
        "the exponent is i/d instead of 2i/d, as with a base of 100": lambda i: base ** (-i / d),
        f"the exponent is 2i/D, with D = {D} the width of the model, not 2i/d": lambda i: base ** (-2 * i / max(D, 1)),
        "the exponent is 4i/d: arange(0, d, 2) counts in twos already": lambda i: base ** (-4 * i / d),
        "the exponent is (2i + 2)/d: i starts at 0": lambda i: base ** (-(2 * i + 2) / d),
        "the exponent is (2i - 2)/d: i starts at 0": lambda i: base ** (-(2 * i - 2) / d),
        "the exponent is 2(i // 2)/d: two pairs turn alike": lambda i: base ** (-2 * (i // 2) / d),
        "the exponent is +2i/d instead of -2i/d": lambda i: base ** (2 * i / d),
        "every pair turns by the same angle, 1": lambda i: 1.0,
        "the angles are exp(-2i/d): the logarithm of the base is missing": lambda i: math.exp(-2 * i / d),
        "the angles are taken for degrees: times pi/180": lambda i: math.pi / 180 * base ** (-2 * i / d),
        "the angles are 2 pi times too large": lambda i: 2 * math.pi * base ** (-2 * i / d),
        "the angles are twice too large: rotated twice": lambda i: 2 * base ** (-2 * i / d),
        "the angles are half as large": lambda i: base ** (-2 * i / d) / 2,
        "the frequencies stand in reversed order": lambda i: base ** (-2 * (n - 1 - i) / d),
    }
    return next((name for name, angle in formulas.items() for sign in (1, -1)
                 if all(math.cos(slope - sign * angle(i)) > 1 - 1e-9 for i, slope in enumerate(slopes))),
                "")  # fmt: skip


def matrix_in_words(a: float, b: float, c: float, d: float) -> str:
    """What a matrix of factors [[a, b], [c, d]] is, if it is no rotation [[cos, -sin], [sin, cos]]."""
    length = math.hypot(a, b) or 1.0  # queries and keys may be scaled
    a, b, c, d = (number / length for number in (a, b, c, d))
    known = {
        "the other feature of the pair is not used": abs(b) + abs(c),
        "the minus is missing: (a cos + b sin, a sin + b cos)": abs(a - d) + abs(b - c) + (b < 0),
        "there is a minus in both: (a cos - b sin, -a sin + b cos)": abs(a - d) + abs(b - c) + (b > 0),
        "the second feature is made of the first one that was overwritten in place": abs(c + a * b)
        + abs(d - a + b * b),
        "the first feature is made of the second one that was overwritten in place": abs(b + d * c)
        + abs(a - d + c * c),
        "the cosine is missing": abs(a) + abs(d),
    }
    named = [name for name, error in known.items() if error < 1e-6]
    if not named and abs(a * a + b * b - 1) + abs(c * c + d * d - 1) < 1e-6:
        named = ["the features of a pair turn by two different angles: the pairs are neighbours and the angles stand "
                 "in halves, or the pairs are halves and the angles stand for neighbours"]  # fmt: skip
    return f": {named[0]}" if named else ""
