"""Schedules: by hand, never below zero, the same for a resumed run, and refused where wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from small_trainings import settings

from minigpt.config.options import from_dict
from minigpt.system.errors import ConfigError, UserError
from minigpt.training.loop import TrainingConfig
from minigpt.training.schedule import Constant, Schedule, WarmupStableDecay, check_schedule

FALLING = ("cosine", "linear", "warmup_stable_decay")


def factor(kind: str, step: int, steps: int, warmup: int, final: float) -> float:
    made: Schedule = Schedule.kinds[kind](Schedule.kinds[kind].Config(), warmup, final)
    return made.factor(step, steps)


def test_the_warm_up_by_hand() -> None:
    for kind in Schedule.kinds:
        assert [factor(kind, step, 100, 4, 0.1) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factor("cosine", 0, 100, 0, 0.1) == 1.0


def test_the_fall_by_hand() -> None:
    middle, quarter = 4 + 48, 4 + 24  # of the 96 steps after the warm-up
    assert factor("linear", middle, 100, 4, 0.1) == pytest.approx(0.55)
    assert factor("linear", quarter, 100, 4, 0.1) == pytest.approx(0.775)
    assert factor("cosine", middle, 100, 4, 0.1) == pytest.approx(0.55)
    assert factor("cosine", quarter, 100, 4, 0.1) == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.sqrt(0.5)))
    assert [factor("constant", step, 100, 4, 0.7) for step in (quarter, 99, 1000)] == [1.0] * 3
    assert factor("warmup_stable_decay", 4 + 76, 100, 4, 0.1) == 1.0  # a fifth of 96 steps is left after 76.8
    assert factor("warmup_stable_decay", 4 + 86, 100, 4, 0.1) == pytest.approx(0.1 + 0.9 * (10 / 96) / 0.2)
    assert factor("inverse_root", 19, 100, 4, 0.1) == pytest.approx(0.5)  # four times the 5 steps up to the largest
    assert factor("inverse_root", 19, 10**6, 4, 0.1) == factor("inverse_root", 19, 100, 4, 0.1)
    for kind in FALLING:
        assert factor(kind, 100, 100, 4, 0.1) == pytest.approx(0.1)
        assert factor(kind, 1000, 100, 4, 0.1) == pytest.approx(0.1)  # a run that was given more steps than planned


@pytest.mark.parametrize("kind", [*FALLING, "inverse_root"])
def test_it_only_falls_and_no_step_stands_still(kind: str) -> None:
    factors = [factor(kind, step, 50, 5, 0.0) for step in range(50)]
    assert all(each > 0 for each in factors)
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert factors[:6] == sorted(factors[:6])


def test_a_run_shorter_than_its_warm_up_only_rises() -> None:
    assert [factor("cosine", step, 3, 20, 0.1) for step in range(3)] == pytest.approx([1 / 21, 2 / 21, 3 / 21])


def test_a_word_chooses_it_in_python_as_in_yaml() -> None:
    assert settings(schedule="constant").schedule == Constant.Config()
    assert from_dict(TrainingConfig, {"schedule": "constant"}) == TrainingConfig(schedule=Constant.Config())
    schedule = from_dict(TrainingConfig, {"schedule": {"kind": "warmup_stable_decay", "decay": 1}}).schedule
    assert schedule == WarmupStableDecay.Config(decay=1.0)
    with pytest.raises(ConfigError, match=r"schedule\.decay: expected a number above 0 and at most 1, found 0"):
        from_dict(TrainingConfig, {"schedule": {"kind": "warmup_stable_decay", "decay": 0}})


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[int], float]], Schedule.Config]]:
    """Makes a schedule of a function of the step."""
    monkeypatch.setattr(Schedule, "kinds", dict(Schedule.kinds))

    def made(function: Callable[[int], float]) -> Schedule.Config:
        class Mine(Schedule, kind="mine"):
            def factor(self, step: int, steps: int) -> float:
                return function(step)

        return Mine.Config()

    yield made


@pytest.mark.parametrize("kind", Schedule.kinds)
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (7, 20), (10**9, 20)])
def test_those_that_ship_pass_the_check(kind: str, steps: int, warmup: int) -> None:
    check_schedule(Schedule.kinds[kind].Config(), warmup, 0.0, steps)


CALLS = iter(range(10**9))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda step: math.nan if step == 99 else 1.0, r"factor\(99, 100\) is nan: expected a finite number"),
        (lambda step: math.inf if step == 0 else 1.0, r"factor\(0, 100\) is inf: expected a finite number"),
        (lambda step: 50.0 - step, r"factor\(51, 100\) is -1.0: expected a finite number of at least 0"),
        (lambda step: None, r"factor\(0, 100\) is None: expected a finite number"),
        (lambda step: 1 / (1 + next(CALLS)), r"factor\(0, 100\) is .*, and .* when it is asked in another order"),
    ],
)
def test_a_wrong_one_is_named(
    function: Callable[[int], float], message: str, own: Callable[[Callable[[int], float]], Schedule.Config]
) -> None:
    with pytest.raises(UserError, match=r"^training\.schedule: mine: " + message):
        check_schedule(own(function), 2, 0.0, 100)
