"""Experiments over sizes: the fit finds a known law and says where there is none; what is read, found and shown."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import THEMES as LOOKS
from browser import Visit, cut, overflow, violations
from running import script

from minigpt.comparison import variants
from minigpt.comparison.charts import growth_svg
from minigpt.comparison.figures import write_figures
from minigpt.comparison.growth import (
    csv_rows,
    lines,
    prediction_in_words,
    sentences,
    slope_of,
    summarise,
    trend_in_words,
)
from minigpt.comparison.page import page_of_sizes as page
from minigpt.comparison.power_law import PowerLaw, fit, loose
from minigpt.comparison.results import RESULT, Job, jobs, save_result
from minigpt.comparison.sizes import Scaling, blocks_of, load_scaling, refuse_fewer_kinds, refuse_other_settings
from minigpt.comparison.statistics import paired, t_quantile
from minigpt.comparison.tuning import trials
from minigpt.config.options import to_python
from minigpt.seeing.drawing import THEMES
from minigpt.system.errors import UserError
from minigpt.training.report import silent

SIZES = [3500.0, 6200, 9700, 13900, 24700, 38600]
SMALL = """\
scaling: {baseline: heads, seeds: [1, 2], tokens: 96, hold_out: 1, processes: 1}
sizes: {n_embd: [8, 12, 16, 20, 24, 32], n_layer: 1, n_head: 2}
kinds:
  heads: {}
  mean: {model.attention: average_softmax}
  four: {model.attention: {kind: multi_head, n_head: 4}}
data: {source: {kind: facts, count: 60, validation: 20, questions: [2]}, windows: documents}
model: {block_size: 8}
training: {batch_size: 4, device: cpu, eval_every: 100}
"""


GRID = "training.optimizer.learning_rate="


def read(folder: Path, text: str = SMALL, *overrides: str) -> Scaling:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scaling(str(path), overrides)


def law_of(sizes: list[float], losses: Any, floor: float | None) -> PowerLaw:
    law = fit(sizes, list(losses), floor)
    assert isinstance(law, PowerLaw)
    return law


# ------------------------------------------------------------------------------------------------------------ the fit


@pytest.mark.parametrize(("E", "known"), [(0.0, True), (0.2, True), (1.5, False)])
def test_an_exact_law_is_found_exactly(E: float, known: bool) -> None:
    N = np.geomspace(2e3, 2e5, 7)
    law = law_of(list(N), E + 4.6 * N**-0.25, E if known else None)
    assert law.trouble == "" and not loose(law)
    assert law.alpha.value == pytest.approx(0.25, rel=1e-3) and law.E.value == pytest.approx(E, abs=2e-3)
    assert law.at(1e6) == pytest.approx(E + 4.6 * 1e6**-0.25, rel=1e-3)


@pytest.mark.parametrize(
    ("E", "known", "noise", "trials", "N"),
    [(0.0, True, 0.03, 200, SIZES[:5]), (1.5, False, 0.003, 25, list(np.geomspace(1.7e3, 2.2e5, 7)))],
)
def test_intervals_cover_the_truth_as_often_as_they_say(
    E: float, known: bool, noise: float, trials: int, N: list[float]
) -> None:
    """Of 95 %, at least 88 %: the law, and a new measurement at a size that was not fitted."""
    random, exponents, predictions = np.random.default_rng(0), 0, 0
    for _ in range(trials):
        at = np.array([*N, 1.6 * N[-1]])
        jitter = np.exp(noise * random.standard_normal(len(at)))
        losses = E + 60 * at**-0.42 * jitter if known else (E + 4.6 * at**-0.236) * jitter
        law = law_of(N, losses[:-1], E if known else None)
        exponents += (0.42 if known else 0.236) in law.alpha
        predictions += float(losses[-1]) in law.predict(float(at[-1]))
        assert not law.trouble
    assert exponents >= 0.88 * trials and predictions >= 0.88 * trials


@pytest.mark.parametrize(
    ("losses", "floor", "reason"),
    [
        ([0.8, 0.7, 0.4, 0.05, 0.006, 0.006], 0.0, "no power law: the curve explains"),  # the stories: a cliff
        ([0.8, 0.79, 0.81, 0.8, 0.805, 0.8], 0.0, "no power law shown: the exponent may be zero"),
        ([1.0, 0.97, 0.94, 0.88, 0.72, 0.6], 0.0, "no power law"),  # it bends downward
        ([0.8, 0.4, 0.2, 0.1, 0.01, 0.0], 0.0, "the curve has reached the floor: at 38,600 parameters"),
        ([3.95, 3.61, 3.07, 2.74, 2.59], None, "these sizes do not determine an exponent"),  # hardly trained
        ([3.0, 2.0, 1.0], 0.0, "too few sizes: 3 for 2 constants; an interval needs 4 or more"),
        ([4.0, 3.0, 2.0, 1.5], None, "too few sizes: 4 for 3 constants; an interval needs 5 or more"),
    ],
)
def test_what_is_no_power_law_is_said_in_words(losses: list[float], floor: float | None, reason: str) -> None:
    law = fit(SIZES[: len(losses)], losses, floor)
    assert reason in (law if isinstance(law, str) else law.trouble)


def test_an_end_that_the_sizes_do_not_show_is_called_so() -> None:
    """Over a factor of ten in size, noise of 2 % hides where the curve will end."""
    random = np.random.default_rng(1)
    N = np.geomspace(1e4, 1e5, 6)
    law = law_of(list(N), (1.5 + 4 * N**-0.2) * np.exp(0.02 * random.standard_normal(6)), None)
    assert loose(law)


# -------------------------------------------------------------------------------------------------------- the config


def test_every_kind_is_made_at_every_size_with_the_batches_of_the_baseline(tmp_path: Path) -> None:
    scaling = read(tmp_path, SMALL.replace("tokens: 96", "tokens_per_parameter: 0.5"))
    assert len(scaling.variants) == len(scaling.points) == 18
    for variant, point in scaling.points.items():
        config = scaling.variants[variant]
        assert point.parameters == blocks_of(config) and point.held_out == (config.model.n_embd == 32)
        base = scaling.points[f"heads, 1 x {config.model.n_embd}"]
        assert point.tokens == base.tokens == 32 * config.training.max_steps
        assert 0.5 * base.parameters <= point.tokens < 0.5 * base.parameters + 32
        heads = getattr(config.model.attention, "n_head", None)
        assert heads == {"heads": 2, "mean": None, "four": 4}[point.kind]


def test_the_rate_follows_its_rule(tmp_path: Path) -> None:
    scaling = read(tmp_path, SMALL, "scaling.rate_power=-1", "training.optimizer.learning_rate=0.01")
    rates = [config.training.optimizer.learning_rate for config in scaling.variants.values()]
    assert rates[0] == 0.01 and rates[-1] == pytest.approx(0.01 / 4)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("tokens: 96", "tokens: 96, tokens_per_parameter: 20", "give tokens or tokens_per_parameter, and not both"),
        ("tokens: 96, ", "", "give tokens or tokens_per_parameter"),
        ("hold_out: 1", "hold_out: 5", "5 of 6 sizes leave fewer than two to fit"),
        ("seeds: [1, 2]", "seeds: [1]", "expected two or more, all different, found [1]"),
        ("n_layer: 1", "n_layer: [1, 2]", "2 numbers for 6 widths: expected one number, or one for each"),
        ("[8, 12, 16,", "[12, 8, 16,", "expected sizes that grow"),
        ("n_head: 2", "n_head: 3", "heads, 8 wide: "),
        ("mean: {model", "heads : {model", "heads"),
        ("kinds:", "kind:", "an experiment over sizes has `scaling:`, `sizes:` and `kinds:`"),
        ("seeds: [1, 2]", "seeds: [1, 2], tune: {values: [2]}", "scaling.tune: its values stand where the option does"),
    ],
)
def test_a_bad_config_is_refused(tmp_path: Path, old: str, new: str, what: str) -> None:
    assert old in SMALL
    with pytest.raises(UserError) as refused:
        read(tmp_path, SMALL.replace(old, new))
    assert what in str(refused.value)


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("training.max_steps=5", "training.max_steps follows from scaling.tokens"),
        ("model.n_embd=99", "model.n_embd follows from sizes.n_embd"),
        ("training.seed=4", "training.seed follows from scaling.seeds"),
        ("kinds.mean={model: {n_layer: 3, attention: linear}}", "model.n_layer follows from sizes.n_layer"),
        ("seeds=[1, 2]", "seeds: unknown key; did you mean 'scaling.seeds'?"),
        ("size=3", "size: unknown key; did you mean 'sizes'? (known: scaling, sizes, kinds, data, model"),
        ("kinds.mean={attention: linear}", "kinds.mean: attention: unknown key; did you mean 'model.attention'?"),
        ("training.threads=2", "training.threads"),
        ("training.stop.patience=2", "training.stop: every run takes all its steps"),
    ],
)
def test_a_mistake_is_said_once_and_names_the_key(tmp_path: Path, override: str, what: str) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, SMALL, override)
    assert what in str(refused.value) and len(str(refused.value).splitlines()) == 1


def test_a_budget_on_the_command_line_takes_the_place_of_the_other(tmp_path: Path) -> None:
    """Only from there: a file with both is refused."""
    scaling = read(tmp_path, SMALL, "scaling.tokens_per_parameter=0.5")
    assert scaling.settings.tokens is None and scaling.settings.tokens_per_parameter == 0.5
    with pytest.raises(UserError, match="and not both"):
        read(tmp_path, SMALL, "scaling.tokens_per_parameter=0.5", "scaling.tokens=96")


@pytest.mark.slow
def test_finished_runs_are_not_trained_again_with_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variants, "RUNS", tmp_path / "runs")

    def refuse(*overrides: str) -> None:
        refuse_others(read(tmp_path, SMALL, *overrides))

    refuse()  # nothing is there
    for job in jobs(read(tmp_path), []):
        finish(job)
    for added in ("scaling.seeds=[1, 2, 3]", "sizes.n_embd=[8, 12, 16, 20, 24, 28, 32]", "scaling.hold_out=2"):
        refuse(added)
    refuse("kinds.more={model.attention: linear}")
    for changed, what in {
        "scaling.tokens=64": "36 finished runs .*heads, 1 x 8, seed 1: training.max_steps .from scaling.tokens. is 2",
        "scaling.rate_power=-1": "30 finished runs .*heads, 1 x 12, seed 1: training.optimizer.learning_rate is ",
        "data.source.count=61": "data.source.count is 61, and was 60.: give another --name",
        "kinds.mean={model.attention: linear}": "12 finished runs .*mean, 1 x 8, seed 1: model.attention",
        GRID + "[0.01, 0.02]": r"36 .*the grid is 0.01, 0.02 .seed 101., and was none.: give another",
    }.items():
        with pytest.raises(UserError, match=what):
            refuse(changed)


@pytest.mark.slow
def test_finished_runs_are_not_trained_again_after_other_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials of an experiment that has not got as far as a run may be others; one that failed is tried again."""
    monkeypatch.setattr(variants, "RUNS", tmp_path / "runs")
    tune, rate = GRID + "[0.01, 1.0e-9]", "training.optimizer.learning_rate=0.01"
    first = read(tmp_path, SMALL, tune)
    for trial in trials(first, []):
        finish(trial)
    refuse_others(read(tmp_path, SMALL, GRID + "[0.5, 0.6]"))
    for job in jobs(read(tmp_path, SMALL, rate), []):  # the trials chose this rate
        finish(job)
    (trials(first, [])[3].folder / RESULT).unlink()
    added = "sizes.n_embd=[8, 12, 16, 20, 24, 28, 32]", "kinds.more={model.attention: linear}"
    for overrides in ((), *((each,) for each in added)):
        refuse_others(read(tmp_path, SMALL, tune, *overrides))
    was = r"and was 0.01, 1e-09 .seed 101..: give another --name"
    for changed, what in {
        (GRID + "[0.01, 0.02]",): f"36 finished runs .*heads, 1 x 8, seed 1: the grid is 0.01, 0.02 .*{was}",
        (tune, "scaling.trial_seeds=[101, 102]"): f"the grid is 0.01, 1e-09 .seed 101, 102., {was}",
        ("training.optimizer.beta1=[0.01, 1.0e-9]",): "with 0.01, seed 101: .*beta1 is 0.01, and was 0.9",
        (GRID + "[0.0100000001, 1.0e-9]",): f"the grid is 0.0100000001, 1e-09 .seed 101., {was}",
        (tune, "training.optimizer.beta1=[0.8, 0.9]"): f"the grid is 0.8-0.01-[0-9a-f]{{6}}, .*{was}",
        (): "learning_rate is 0.001, and was 0.01",
    }.items():
        with pytest.raises(UserError, match=what):
            refuse_others(read(tmp_path, SMALL, *changed))


def refuse_others(scaling: Scaling) -> None:
    refuse_other_settings(scaling, jobs(scaling, []), trials(scaling, []))


def finish(job: Job) -> None:
    """Leave the result of a run in its folder."""
    job.folder.mkdir(parents=True)
    ran = {"variant": job.variant, "seed": job.seed, "key": job.key, "status": "diverged", "message": "", "steps": 1}
    counts = {"curve": [], "parameters": 1, "flops_per_token": 1.0, "cache_bytes_per_token": 1.0}
    save_result(job.folder, ran | counts | {"config": to_python(job.config)})


def test_the_unit_is_what_the_loss_counts(tmp_path: Path) -> None:
    assert summary_of(read(tmp_path), {})["unit"] == "nats an answer above the floor"
    stories = SMALL.replace("{kind: facts, count: 60, validation: 20, questions: [2]}", "stories")
    assert summary_of(read(tmp_path, stories), {})["unit"] == "nats a character above the floor"


def test_the_config_that_ships_can_be_made() -> None:
    scaling = load_scaling("scaling.yaml")
    kinds, sizes = ({getattr(point, what) for point in scaling.points.values()} for what in ("kind", "size"))
    assert len(scaling.variants) == len(kinds) * len(sizes) and len(sizes) > 3  # so few have no interval


# -------------------------------------------------------------------------------------------------------- what is found


def summary_of(scaling: Scaling, gains: dict[str, float], noise: float = 0.01, metric: str = "above") -> dict[str, Any]:
    """The summary of made-up results: 40 N^-0.4 of the baseline's N, and of other kinds with another exponent."""
    random, results = np.random.default_rng(0), []
    for job in jobs(scaling, [], False):
        point = scaling.points[job.variant]
        N = scaling.points[job.variant.replace(point.kind, "heads")].parameters
        loss = 40 * N ** -(0.4 + gains.get(point.kind, 0)) * math.exp(noise * float(random.standard_normal()))
        values = {"status": "done", "message": "", "loss": loss, "above": loss if metric == "above" else None}
        results.append((job, {**values, "characters": 1000}))
    return summarise(scaling, results, "a <test>", [])


ENDS = {  # the gains of the smallest and the largest size, each less and more 0.02 in two seeds -> the sentence
    (0.3, 0.6): "The gain of mean against heads grows",
    (0.6, 0.3): "The gain of mean against heads shrinks",
    (-0.3, -0.6): "The lag of mean against heads grows",
    (-0.6, -0.3): "The lag of mean against heads shrinks",
    (0.6, -0.3): "The gain of mean against heads turns into a lag",
    (-0.6, 0.3): "The lag of mean against heads turns into a gain",
    (0.6, -0.1): "The gain of mean against heads shrinks",  # that the last is a lag is not shown
    (-0.1, 0.6): "Compared with heads, mean becomes better",  # nor that the first is one
    (0.1, -0.6): "Compared with heads, mean becomes worse",
    (0.3, 0.3): "mean against heads: no trend shown in 6 sizes,",
}


def trend_of(scaling: Scaling, gains: Sequence[float], spread: Callable[[int, int], float]) -> str:
    """The sentence about gains, one a size; `spread` is added for a seed at a size."""
    results = []
    for job in jobs(scaling, [], False):
        kind, sizes = scaling.points[job.variant].kind, [p.size for p in scaling.points.values() if p.kind == "heads"]
        at = sizes.index(scaling.points[job.variant].size)
        loss = math.exp(-(gains[at] + spread(job.seed, at)) if kind == "mean" else 0)
        results.append((job, {"status": "done", "message": "", "loss": loss, "above": loss, "characters": 1000}))
    summary = summarise(scaling, results, "", [])
    trend = trend_in_words(summary["kinds"][1], summary)
    assert escape(trend) in page(summary) and trend in sentences(summary)
    return trend


def test_trends_of_several_kinds_are_judged_together(tmp_path: Path) -> None:
    """A trend with p = 0.05 x 0.8 is one if it is the only one, and among two kinds it is none."""
    two, one = read(tmp_path), read(tmp_path, SMALL.replace("  four:", "  # four:"))
    sizes = np.log([p.parameters for p in two.points.values() if p.kind == "heads"])
    slope, degrees = sizes - sizes.mean(), 1  # of two seeds
    scatter = t_quantile(1 - 0.05 * 0.8 / 2, degrees)  # the slopes of the seeds are 1 - 1 / scatter, 1 + 1 / scatter
    trends = [trend_of(s, list(slope), lambda seed, at: (2 * seed - 3) * slope[at] / scatter) for s in (one, two)]
    assert "turns into a gain" in trends[0] and "no trend shown in 6 sizes among 2 kinds" in trends[1]
    for scaling, count in ((one, 1), (two, 2)):
        summary = summary_of(scaling, {"mean": -0.1})
        assert summary["comparisons"] == count
        assert ("These are 2 comparisons" in "".join(sentences(summary))) is (count == 2)


@pytest.mark.parametrize("ends", ENDS)
def test_the_words_of_a_trend_are_those_that_its_interval_and_those_of_its_ends_support(
    ends: tuple[float, float], tmp_path: Path
) -> None:
    """With two seeds that differ by 2 d, an interval is the mean and 12.7 d to both sides."""
    scaling = read(tmp_path, SMALL.replace("  four: {model.attention: {kind: multi_head, n_head: 4}}\n", ""))
    sizes = [p.parameters for p in scaling.points.values() if p.kind == "heads"]
    share = np.log(np.array(sizes) / sizes[0]) / math.log(sizes[-1] / sizes[0])
    assert trend_of(
        scaling, ends[0] + (ends[1] - ends[0]) * share, lambda seed, at: (0.02 + 1e-4 * at) * (2 * seed - 3)
    ).startswith(ENDS[ends] + " from 1 x 8 to 1 x 32 (")


def test_a_gain_that_goes_up_and_down_with_the_size_is_no_trend(tmp_path: Path) -> None:
    """Although all seeds are alike: the line through these sizes falls, and its interval is from their scatter."""
    up_and_down = [0.3, 0.5, 0.1, 0.4, 0.0, 0.3]
    assert "no trend shown in 6 sizes" in trend_of(read(tmp_path), up_and_down, lambda seed, at: 1e-5 * seed)


def test_the_interval_of_a_trend_is_that_of_the_seeds_or_that_of_the_line(tmp_path: Path) -> None:
    """Of the line as of an exponent, whose interval is tested on its own."""
    x, scatter = np.log([10, 20, 40, 80, 160]), np.array([0.1, -0.2, 0.0, 0.2, -0.1])
    law = fit(list(np.exp(x)), list(np.exp(-0.5 * x + scatter)), 0.0)
    assert isinstance(law, PowerLaw)
    alike = slope_of([list(zip(x, -0.5 * x + scatter))] * 2)
    assert [-alike["mean"], -alike["high"], -alike["low"]] == pytest.approx([*asdict(law.alpha).values()])
    straight = slope_of([list(zip(x, slope * x)) for slope in (-0.4, -0.6)])
    assert straight == pytest.approx(asdict(paired([-0.4, -0.6], [0, 0])))
    assert slope_of([[(0, 0), (1, 2)], [(0, 0), (1, 4)]]) == pytest.approx(asdict(paired([2, 4], [0, 0])))


def test_without_a_floor_gains_are_in_nats(tmp_path: Path) -> None:
    said = sentences(summary_of(read(tmp_path), {"mean": -0.1}, noise=1e-6, metric="loss"))
    assert any("nats for each e-fold of parameters" in line and "nats (+" in line for line in said)


def test_the_exponents_differ_by_the_slope_of_the_gain(tmp_path: Path) -> None:
    summary = summary_of(read(tmp_path), {"mean": -0.1}, noise=1e-6)
    slope = summary["kinds"][1]["trend"]["slope"]
    assert slope["mean"] == pytest.approx(-0.1, abs=1e-4) and slope["pairs"] == 2


def test_the_largest_size_is_predicted_without_having_been_seen(tmp_path: Path) -> None:
    scaling = read(tmp_path)
    found = summary_of(scaling, {})
    first = found["kinds"][0]
    assert first["points"][-1]["predicted"]["held"] and "inside" in prediction_in_words("heads", first["points"][-1])
    for run in (job for job in jobs(scaling, [], False) if job.variant == "heads, 1 x 32"):
        assert scaling.points[run.variant].held_out
    changed = replace(scaling, settings=replace(scaling.settings, hold_out=0))
    assert first["law"] == summary_of(changed, {})["kinds"][0]["law"]  # the fit knows nothing of the held-out size


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"status": "diverged", "message": "step 3: nan"}, "it diverged: step 3: nan"),
        ({"status": "done", "loss": 0.1, "above": -0.1, "characters": 10_000}, "its loss is below the floor"),
    ],
)
def test_a_run_that_diverged_or_cannot_be_is_left_out_and_named(
    result: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    scaling = read(tmp_path)
    summary = summarise(scaling, [(job, result) for job in jobs(scaling, [], False)], "a test", [])
    assert f"heads, 1 x 8, seed 1 is left out: {reason}" in summary["notes"]
    assert "too few sizes: 0" in sentences(summary)[0] and lines(summary)[1][1] == "-"
    page(summary)


def test_sizes_of_as_many_parameters_have_no_law(tmp_path: Path) -> None:
    scaling = read(tmp_path)
    points = {variant: replace(point, parameters=1000) for variant, point in scaling.points.items()}
    summary = summary_of(replace(scaling, points=points), {})
    assert {row["law"]["trouble"] for row in summary["kinds"]} == {"two sizes have as many parameters"}


def test_the_table_the_chart_and_the_file_have_the_same_numbers(tmp_path: Path) -> None:
    summary = summary_of(read(tmp_path), {"mean": -0.1})
    json.dumps(summary, allow_nan=False)
    assert lines(summary)[1][1] == f"{summary['kinds'][0]['points'][0]['mean']:.4f}"
    assert len(list(csv_rows(summary))) == 1 + 36
    write_figures(summary, tmp_path / "figures", silent)
    for name, theme in THEMES.items():
        picture = (tmp_path / "figures" / f"growth-{name}.svg").read_text("utf-8")
        assert picture == growth_svg(summary, 720, theme)
        drawn = xml.etree.ElementTree.fromstring(picture)
        assert len(drawn.findall(".//{http://www.w3.org/2000/svg}circle")) == 18
    html = page(summary)
    assert "of all kinds <b>584 to 12,704</b>" in html and "positions trained on <b>96</b>" in html
    assert "a &lt;test&gt;" in html and "<test>" not in html and "http" not in html.replace("http-equiv", "")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_the_page_in_a_browser(visit: Visit, tmp_path: Path, width: int, theme: str) -> None:
    (tmp_path / "page.html").write_text(page(summary_of(read(tmp_path), {"mean": -0.1})), encoding="utf-8")
    opened = visit(tmp_path / "page.html", width, theme)
    assert overflow(opened) <= 0 and violations(opened) == [] and cut(opened) == []


# --------------------------------------------------------------------------------------------------------- for real


@pytest.mark.slow
def test_an_experiment_is_trained_continued_and_shown(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(
        SMALL.replace("  four: {model.attention: {kind: multi_head, n_head: 4}}\n", "")
    )
    command = ["scaling.py", "--config", "small.yaml", "--skip-checks", "sizes.n_embd=[8, 12]", "scaling.hold_out=0"]
    first = script(*command, cwd=tmp_path)
    assert first.code == 0, first.err
    folder = tmp_path / "runs" / "scaling" / "small"
    assert "too few sizes: 2 for 2 constants" in first.out and (folder / "page.html").exists()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    assert len(before) == 8
    gone = next(iter(before))
    gone.unlink()
    again = script(*command, "--figures", "pictures", cwd=tmp_path)
    assert again.code == 0 and "1 of 8 runs to do" in again.out
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path != gone)
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["growth-dark.svg", "growth-light.svg"]
    shown = (folder / "page.html").read_bytes()
    other = script(*command, "scaling.tokens=64", cwd=tmp_path)
    assert other.code == 2 and "has 8 finished runs with other settings" in other.err
    fewer = script(*command, "kinds={heads: {}}", cwd=tmp_path)
    assert fewer.code == 2 and "has a page that compares mean too" in fewer.err
    assert (folder / "page.html").read_bytes() == shown
    nowhere = script(*command, "--figures", "", cwd=tmp_path)
    assert nowhere.code == 2 and "--figures: expected a path, found nothing" in nowhere.err
    refused = script("scaling.py", "--config", "small.yaml", "sizes.n_embd=[8]", cwd=tmp_path)
    assert refused.code == 2 and "expected two widths or more" in refused.err


def test_a_page_is_not_replaced_by_one_of_fewer_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "RUNS", tmp_path / "runs")
    whole = read(tmp_path)
    refuse_fewer_kinds(whole)  # nothing is there
    whole.folder.mkdir(parents=True)
    results = [(job, {"status": "diverged", "message": ""}) for job in jobs(whole, [])]
    (whole.folder / "results.json").write_text(json.dumps(summarise(whole, results, "", [])), encoding="utf-8")
    refuse_fewer_kinds(whole)
    refuse_fewer_kinds(read(tmp_path, SMALL, "kinds.more={model.attention: linear}"))
    with pytest.raises(UserError, match="has a page that compares four too: give all its kinds, or another --name"):
        refuse_fewer_kinds(read(tmp_path, SMALL, "kinds={heads: {}, mean: {model.attention: average_softmax}}"))
