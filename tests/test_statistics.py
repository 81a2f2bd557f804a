"""Confidence intervals: scipy's t-quantiles, paired differences, how often an interval holds the true value, and how
often at least one of many words is wrong."""

from __future__ import annotations

import random

import pytest
from equal_variants import any_word

from minigpt.comparison.statistics import Estimate, holm, judged, least_shown, paired, pairs_for, t_quantile

SCIPY = {  # scipy.stats.t.ppf(p, degrees) of scipy 1.17.1, for p = 0.975 and p = 0.995
    1: (12.706204736174694, 63.656741162871526),
    2: (4.302652729749462, 9.924843200918287),
    3: (3.1824463052837078, 5.840909309733355),
    4: (2.7764451051977934, 4.604094871349992),
    5: (2.5705818356363146, 4.032142983555228),
    9: (2.262157162798205, 3.249835541592126),
    30: (2.0422724563012378, 2.7499956535672254),
    120: (1.9799304050824402, 2.6174211451068654),
}


@pytest.mark.parametrize(("degrees", "quantiles"), SCIPY.items())
def test_the_quantiles_are_those_of_scipy(degrees: int, quantiles: tuple[float, float]) -> None:
    for p, quantile in zip((0.975, 0.995), quantiles):
        assert t_quantile(p, degrees) == pytest.approx(quantile, rel=1e-9)


@pytest.mark.parametrize(
    ("values", "base", "mean", "margin", "shown"),
    [
        ([3.0, 4.0, 8.0], [1.0, 3.0, 5.0], 2.0, 4.3027 / 3**0.5, False),  # 2, 1, 3: deviation 1
        ([3.0, 3.1, 2.9], [1.0, 1.0, 1.0], 2.0, 0.43027 / 3**0.5, True),
        ([1.0, 1.0, 1.0], [3.0, 3.1, 2.9], -2.0, 0.43027 / 3**0.5, True),
        ([0.1, 0.2, 0.3], [0.1, 0.2, 0.3], 0.0, 0.0, False),  # a thing is exactly equal to itself
    ],
)
def test_a_difference_by_hand(values: list[float], base: list[float], mean: float, margin: float, shown: bool) -> None:
    difference = paired(values, base)
    assert difference.mean == pytest.approx(mean, abs=1e-15)
    assert difference.low == pytest.approx(mean - margin, abs=1e-4 * margin)
    assert difference.high == pytest.approx(mean + margin, abs=1e-4 * margin)
    assert (difference.pairs, difference.excludes_zero) == (3, shown)


def test_one_pair_has_no_interval_and_none_is_refused() -> None:
    alone = paired([2.0], [1.0])
    assert (alone.mean, alone.low, alone.high, alone.excludes_zero) == (1.0, None, None, False)
    with pytest.raises(ValueError, match="no pair"):
        paired([], [])
    with pytest.raises(ValueError, match="zip"):
        paired([1.0], [1.0, 2.0])


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_intervals_cover_as_often_as_they_claim(pairs: int) -> None:
    draw = random.Random(pairs)
    trials = 4000
    covered = 0
    for _ in range(trials):
        difference = paired([draw.gauss(0.3, 1) for _ in range(pairs)], [draw.gauss(0.1, 2) for _ in range(pairs)])
        assert difference.low is not None and difference.high is not None
        covered += difference.low <= 0.2 <= difference.high
    assert covered / trials == pytest.approx(0.95, abs=0.011)  # three standard deviations


# ---- many differences together ----


def with_p(*values: float | None) -> list[Estimate]:
    """Differences with these p; an interval excludes zero where p is below 0.05."""
    ends = {False: (-0.1, 2.1), True: (0.5, 1.5)}
    return [Estimate(1, None, None, 1) if p is None else Estimate(1, *ends[p < 0.05], 3, p) for p in values]


def test_the_adjusted_values_of_a_textbook() -> None:
    """R: p.adjust(c(0.01, 0.02, 0.03, 0.04), "holm") and that of 0.01, 0.04, 0.03, 0.005 (Wikipedia, Holm)."""
    assert [p for p, _ in holm(with_p(0.01, 0.02, 0.03, 0.04))] == pytest.approx([0.04, 0.06, 0.06, 0.06])
    adjusted = holm(with_p(0.01, 0.04, None, 0.03, 0.005))
    assert [p for p, _ in adjusted] == [pytest.approx(p) if p else None for p in (0.03, 0.06, None, 0.06, 0.02)]
    assert [shown for _, shown in adjusted] == [True, False, False, False, True]
    assert [holm(with_p(p))[0][1] for p in (0.049, 0.051, None)] == [True, False, False]


def rejected(p: list[float], level: float) -> set[int]:
    """Holm's procedure in his words: the smallest p against level / n, the next against level / (n - 1), until one is
    above."""
    left, gone = dict(enumerate(p)), set[int]()
    while left:
        index = min(left, key=lambda i: left[i])
        if left[index] > level / len(left):
            break
        gone.add(index)
        del left[index]
    return gone


def test_what_is_shown_is_what_the_procedure_rejects() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        p = [draw.random() ** draw.choice([1, 6]) for _ in range(draw.randint(1, 9))]
        assert {i for i, (_, shown) in enumerate(holm(with_p(*p))) if shown} == rejected(p, 0.05)


@pytest.mark.parametrize("seeds", [3, 5])
def test_ten_equal_variants_are_all_called_equal_as_often_as_is_claimed(seeds: int) -> None:
    alone, together = any_word(seeds, 1500, 1)
    assert together == pytest.approx(0.045, abs=0.016)  # three standard deviations
    assert 0.27 < alone < 0.37  # as it would be without the correction


def test_how_many_seeds_are_needed_is_what_finds_four_of_five() -> None:
    assert least_shown(3, 9) == pytest.approx(13.34 / 3**0.5, rel=1e-2)  # scipy: t.ppf(1 - 0.05 / 18, 2)
    words = judged(9, 3)
    assert "These are 9 comparisons" in words and "With 3 seeds" in words and "; 7 seeds show one of 2 " in words
    assert judged(1, 3) == judged(0, 3) == judged(9, 1) == "" and "seeds" not in judged(9, 7)
    draw = random.Random(2)
    for deviations, comparisons in ((2.0, 9), (1.5, 4), (1.0, 2)):
        pairs, shown = pairs_for(deviations, comparisons), 0
        for _ in range(400):
            values = [[draw.gauss(deviations * (n == 0), 1) for _ in range(pairs)] for n in range(comparisons)]
            shown += holm([paired(row, [0.0] * pairs) for row in values])[0][1]
        assert 0.74 < shown / 400 < 0.95
