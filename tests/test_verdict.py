"""What evaluations decide: the best step, when patience ends, the verdict."""

from __future__ import annotations

import re

import pytest

from minigpt.training.verdict import StopConfig, best_of, better_before, out_of_patience, verdict


def losses(*values: float, every: int = 10) -> list[tuple[int, float, float]]:
    """Evaluations with these validation losses."""
    return [(every * n, 9.0, value) for n, value in enumerate(values, start=1)]


# ---- the best step ----


def test_the_best_step_is_the_first_with_the_lowest_loss() -> None:
    assert best_of([]) is None
    assert best_of(losses(3.0, 1.0, 2.0, 1.0)) == (20, 9.0, 1.0)
    assert best_of(losses(3.0, 1.0, 2.0, 0.9999999)) == (40, 9.0, 0.9999999)  # by however little


def test_an_earlier_step_is_better_where_the_verdict_says_so() -> None:
    assert better_before(losses(1.0, 2.0)) is None is better_before(losses(3.0, 2.0, 2.02))
    assert better_before(losses(3.0, 2.0, 2.03)) == (20, 9.0, 2.0)


# ---- early stopping ----


@pytest.mark.parametrize(
    ("values", "stops"),
    [
        ((3.0, 2.0, 2.5, 2.4), False),
        ((3.0, 2.0, 2.5, 2.4, 2.3), True),  # each is lower than the one before, and none than 2.0
        ((3.0, 2.0, 2.5, 2.4, 1.9), False),
        ((3.0, 2.0, 1.995, 1.99, 1.9901), True),  # 0.01 is not more than 0.01
        ((3.0, 2.0, 1.995, 1.98, 1.98, 1.98), False),
        ((3.0, 2.0, 2.0, 2.0, 2.0), True),
        ((3.0,) * 3, False),
        ((3.0,) * 4, True),
    ],
)
def test_patience_by_example(values: tuple[float, ...], stops: bool) -> None:
    assert bool(out_of_patience(losses(*values), StopConfig(patience=3, least=0.01), 0)) is stops


def test_many_small_gains_are_not_taken_for_none() -> None:
    """The rule that compares with the lowest loss, and not with the last that counted, would stop at the fourth."""
    falling = losses(*(3 - 0.009 * n for n in range(30)))
    stop = StopConfig(patience=3, least=0.01)
    assert not any(out_of_patience(falling[:n], stop, 0) for n in range(31))
    assert out_of_patience(losses(3.0, *(3 - 0.003 * n for n in (1, 2, 3))), stop, 0)  # these are too small


def test_patience_counts_from_the_first_evaluation_after_the_warmup() -> None:
    stop, rising = StopConfig(patience=2, least=0.0), losses(1.0, 2.0, 3.0, 4.0, 5.0)
    assert out_of_patience(rising[:3], stop, 0) and out_of_patience(rising[:3], stop, 10)
    assert not out_of_patience(rising[:3], stop, 11) and out_of_patience(rising[:4], stop, 11)
    assert not out_of_patience(rising, stop, 40) and not out_of_patience(rising, stop, 1000)


def test_what_is_said_names_the_loss_and_the_step_that_counted() -> None:
    said = out_of_patience(losses(3.0, 2.0, 1.9995, 2.5), StopConfig(patience=2, least=0.001), 0)
    assert said == "no validation loss of the last 2 was more than 0.001 below 2.0000, that of step 20 (training.stop)"
    assert out_of_patience(losses(3.0, 2.0, 1.9995, 2.5), None, 0) == ""


# ---- the verdict ----


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([(1, 3.0, 3.0), (2, 2.0, 2.0)], "too few evaluations"),
        ([(1, 3.0, 3.0), (2, 2.5, 2.5), (3, 2.0, 2.1), (4, 1.9, 2.0)], "still improving at step 4"),
        ([(1, 3.0, 3.0), (2, 2.0, 2.0), (3, 1.5, 2.1), (4, 1.0, 2.4)], "overfitting since step 2: the validation loss"),
        ([(1, 3.0, 3.0), (2, 2.0, 2.0), (3, 1.995, 1.999), (4, 1.99, 1.998)], "levelled off"),
        ([(1, 3.0, 3.0), (2, 2.0, 2.0), (3, 2.5, 2.5)], "getting worse since step 2: both losses rose"),
        ([(1, 3.0, 3.0), (2, 2.0, 2.0), (3, 2.005, 2.01)], "levelled off"),
        (
            [(80, 3.0, 3.0), (240, 2.0, 2.0), (320, 2.0, 1.99)],
            "levelled off: .* within 1 % of what it was at step 240 ",
        ),
        # evaluations that are nearer to one another after a resume: what is compared is a quarter of the run apart
        ([(80, 3.0, 3.0), (240, 2.0, 2.0), (320, 1.5, 1.5), (330, 1.5, 1.5)], "still improving at step 330"),
        ([(160, 3.0, 3.0), (320, 2.0, 2.0), (330, 2.0, 2.0), (340, 2.0, 2.0)], "still improving at step 340"),
        ([(300, 3.0, 3.0), (320, 3.0, 2.99), (340, 3.0, 2.98)], "levelled off: .* at step 300 "),
    ],
)
def test_the_verdict_by_example(curve: list[tuple[int, float, float]], expected: str) -> None:
    assert re.match(expected, verdict(curve))


def test_a_step_that_the_verdict_names_is_followed_by_what_is_left_of_it() -> None:
    for train_loss in (1.0, 4.0):  # overfitting, and getting worse
        curve = [(1, 3.0, 3.0), (2, 2.0, 2.0), (3, train_loss, 2.4)]
        assert verdict(curve, lambda step: f"; of step {step} a copy is left").endswith("; of step 2 a copy is left")
