"""The variants of a comparison: how its config is read, what is held equal, and how its runs are stored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import SMALL, small, written

from minigpt.comparison import variants as compare
from minigpt.comparison.data import text_and_tokenizer
from minigpt.comparison.matching import match_parameters, parameters
from minigpt.comparison.measurement import _characters, prepare
from minigpt.comparison.results import config_key, jobs, load_result, save_result
from minigpt.comparison.variants import load_comparison, slug
from minigpt.comparison.worker import do
from minigpt.config.options import CONFIGS, to_yaml
from minigpt.runs.assemble import build_model
from minigpt.system.errors import ConfigError, UserError
from minigpt.system.folder import InUse, Lock
from minigpt.text.corpus import StoriesConfig, tell_stories
from minigpt.text.dataset import Batch, Dataset
from minigpt.text.tokenizer import Char
from minigpt.training.loop import train


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.corpus.DATA", tmp_path / "data")
    monkeypatch.setattr(compare, "RUNS", tmp_path / "runs")


# ---- reading ----


@pytest.mark.parametrize("name", ["ladder.yaml", "positions.yaml"])
def test_the_comparisons_that_ship_can_be_read(name: str) -> None:
    found = load_comparison(name)
    assert len(found.variants) == 5
    assert found.settings.baseline in found.variants
    first, *others = found.variants.values()
    assert all((o.data, o.training) == (first.data, first.training) for o in others)
    assert (CONFIGS / name).read_text("utf-8").count("Predictions, written before") == 1


def test_a_variant_is_the_shared_config_with_its_own_keys(tmp_path: Path) -> None:
    wide = "  wide: {model.n_embd: 32, training.optimizer.learning_rate: 0.5}\n  one head:"
    found = small(tmp_path, SMALL.replace("  one head:", wide), ("training.max_steps=9",))
    assert list(found.variants) == ["mean", "wide", "one head"]
    assert found.variants["wide"].model.n_embd == 32
    assert found.variants["wide"].training.optimizer.learning_rate == 0.5
    assert found.variants["mean"].model.n_embd == 16
    assert {c.training.max_steps for c in found.variants.values()} == {9}
    assert found.differing == ("model.attention", "model.n_embd", "training.optimizer.learning_rate")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model.attention: average_softmax", "model.atention: average_softmax", r"small.yaml:3:10: model.atention"),
        ("average_softmax", "avarage_softmax", r"small.yaml:3:27: model.attention: unknown kind .*; did"),
        ("baseline: one head", "baseline: one hat", r"expected a variant, found 'one hat'; did you mean 'one head'\?"),
        ("seeds: [1, 2]", "seeds: [1, 1]", "a seed stands twice"),
        ("match: steps", "match: stairs", "match: expected one of steps, parameters, seconds"),
        ("match: steps", "match: seconds", "seconds: N"),
        ("match: steps", "seconds: 3", "match: seconds"),
        ("  mean:", "  one-head:", "a name of its own"),
        ("model.attention: average_softmax", "training.seed: 3", "compare.seeds"),
        ("{model.attention: average_softmax}", "average_softmax", r"variants.mean: expected \{group.key"),
        ("model.attention: average_softmax", "model.n_layer.x: 3", "n_layer is not a group"),
        ("variants:", "variant:", "`compare:` and `variants:`"),
        ("n_embd: 16", "n_embd: -16", r"small.yaml:6:\d+: model.n_embd"),
    ],
)
def test_a_mistake_is_told_where_it_stands(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError, match=message):
        small(tmp_path, SMALL.replace(old, new))


def test_a_mistake_in_what_all_share_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        small(tmp_path, SMALL.replace("n_embd: 16", "n_embd: -16"))
    assert len(error.value.mistakes) == 1


# ---- held equal ----


def batches_seen(config: Any, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    seen: list[Batch] = []
    original = Dataset.batch

    def batch(self: Dataset, *arguments: Any) -> Batch:
        seen.append(original(self, *arguments))
        return seen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "batch", batch)
        dataset, _, _, model, optimizer = prepare(config)
        for _ in train(model, dataset, optimizer, config.training):
            pass
    return seen


def test_all_variants_see_the_same_batches_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [(job.seed, batches_seen(job.config, monkeypatch)) for job in jobs(small(tmp_path), ())]
    assert [seed for seed, _ in seen] == [1, 1, 2, 2]
    assert all(len(batches) == 6 for _, batches in seen)

    def equal(a: list[Batch], b: list[Batch]) -> bool:
        return all(torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b))

    assert equal(seen[0][1], seen[1][1])
    assert equal(seen[2][1], seen[3][1])
    assert not equal(seen[0][1], seen[2][1])


@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
def test_parameters_are_matched_within_one_percent(tmp_path: Path, mlp: str) -> None:
    text = SMALL.replace("  one head:", "  four: {model.attention: multi_head, model.n_layer: 2}\n  one head:")
    before = small(tmp_path, text, (f"model.mlp={mlp}",))
    after = match_parameters(before)
    counts = {name: parameters(config) for name, config in after.variants.items()}
    wanted = parameters(before.variants["one head"])
    assert after.variants["one head"] == before.variants["one head"]
    assert parameters(before.variants["mean"]) < 0.9 * wanted < 1.1 * wanted < parameters(before.variants["four"])
    assert all(abs(count - wanted) <= 0.01 * wanted for count in counts.values())
    width = after.variants["mean"].model.mlp_width
    assert width
    for other in (width - 1, width + 1):  # no other is nearer
        config = replace(after.variants["mean"], model=replace(after.variants["mean"].model, mlp_width=other))
        assert abs(parameters(config) - wanted) >= abs(counts["mean"] - wanted)


STORIES = ("data.source=stories", "data.stories={count: 300, validation: 60}")


def test_every_variant_of_the_ablation_can_be_matched_and_trained() -> None:
    matched = match_parameters(load_comparison("shakespeare_ablation.yaml", STORIES)).variants
    widths = {name: config.model.mlp_width for name, config in matched.items()}
    assert len(set(widths.values())) > 2
    for config in matched.values():
        optimizer = config.training.optimizer
        assert optimizer.component(optimizer, build_model(config, text_and_tokenizer(config.data)[1]))


def test_parameters_that_cannot_be_matched_are_refused(tmp_path: Path) -> None:
    text = SMALL.replace("  one head:", "  vast: {model.n_embd: 128}\n  one head:")
    with pytest.raises(UserError, match=r"vast has [\d,]+ at best, the baseline [\d,]+"):
        match_parameters(small(tmp_path, text))


def test_counting_parameters_allocates_nothing_and_is_right(tmp_path: Path) -> None:
    config = small(tmp_path).variants["one head"]
    assert parameters(config) == sum(p.numel() for p in prepare(config)[3].parameters())


# ---- the stories ----


def test_validation_stories_are_new_and_do_not_change_with_the_number_of_the_others() -> None:
    few, many = (tell_stories(StoriesConfig(count=count, validation=1500)) for count in (3000, 9000))
    assert len(set(many)) == 9000
    assert set(many[-1500:]) & set(many[:-1500]) == set()
    assert few[-1500:] == many[-1500:]
    assert few[:1500] == many[:1500]


def test_a_story_that_was_told_before_is_no_validation_story(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {0: ["a", "b", "c"], -1: ["b", "d", "d", "a", "e", "f", "g", "h", "i", "j"]}
    monkeypatch.setattr("minigpt.text.corpus.stories", lambda seed, count, *rest: told[seed][:count])
    assert tell_stories(StoriesConfig(count=6, validation=3)) == ["a", "b", "c", "d", "e", "f"]


def test_the_default_has_1500_new_stories_and_the_split_is_between_them(tmp_path: Path) -> None:
    config = small(tmp_path, SMALL.replace(", stories: {count: 300, validation: 60}", "")).variants["mean"]
    corpus, tokenizer = text_and_tokenizer(config.data)
    dataset = Dataset(config.data, corpus, tokenizer, 128)
    validation = tokenizer.decode(dataset.ids[dataset.splits["val"].start :].tolist())
    assert validation.count("\n") == 1500
    assert validation == "".join(list(corpus.documents())[-1500:])


def test_stories_told_otherwise_than_the_config_says_are_refused(tmp_path: Path) -> None:
    data = small(tmp_path).variants["mean"].data
    corpus, tokenizer = text_and_tokenizer(data)
    with pytest.raises(ValueError, match="the corpus has other options"):
        Dataset(replace(data, stories=StoriesConfig(scenes=2)), corpus, tokenizer, 128)
    with pytest.raises(UserError, match=r"data.stories.validation, now 60"):
        Dataset(replace(data, validation=0.5), corpus, tokenizer, 128)


# ---- runs: kept apart, kept whole ----


def task(folder: Path, **changes: Any) -> dict[str, Any]:
    job = jobs(small(folder), ())[0]
    told = {"do": "run", "variant": job.variant, "seed": job.seed, "key": job.key, "folder": str(job.folder)}
    return told | {"config": to_yaml(job.config), "allow_leak": False} | changes


DIVERGED = {  # the shortest result that a run may leave behind
    **{"variant": "mean", "seed": 1, "key": "k", "status": "diverged", "message": "", "steps": 0, "curve": []},
    **{"parameters": 1, "flops_per_token": 1.0, "cache_bytes_per_token": 0.1},
}


def test_a_result_is_whole_or_not_there(tmp_path: Path) -> None:
    assert load_result(tmp_path, "k") == (None, "")
    save_result(tmp_path, DIVERGED)
    assert load_result(tmp_path, "k") == (DIVERGED, "")
    assert load_result(tmp_path, "other") == (None, "its config or a plugin has changed")
    path = tmp_path / "result.json"
    raw = path.read_text("utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
    for place in range(0, len(raw), 7):
        path.write_text(raw[:place] + chr(ord(raw[place]) ^ 1) + raw[place + 1 :], "utf-8")
        assert load_result(tmp_path, "k")[0] in (None, DIVERGED)
    for wrong in ("", "[]", "null", raw[:-9], raw.replace("0.1", "0.2"), '{"result": 3, "sha256": ""}'):
        path.write_text(wrong, "utf-8")
        assert load_result(tmp_path, "k") == (None, "its result is damaged")


def test_the_key_changes_with_config_and_plugin(tmp_path: Path) -> None:
    config = small(tmp_path).variants["mean"]
    plugin = tmp_path / "mine.py"
    plugin.write_text("x = 1\n")
    keys = {config_key(config, []), config_key(config, [plugin]), config_key(config, [], allow_leak=True)}
    plugin.write_text("x = 2\n")
    keys |= {config_key(config, [plugin])}
    keys |= {config_key(replace(config, training=replace(config.training, seed=5)), [])}
    assert len(keys) == 5


def test_a_folder_has_one_holder_and_is_free_when_its_process_dies(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from minigpt.system.folder import Lock
with Lock(Path({str(tmp_path)!r})):
    print("mine", flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        with pytest.raises(InUse, match=f"in use by process {other.pid} on "):
            Lock(tmp_path)
        other.kill()
    with Lock(tmp_path):
        pass


def test_a_run_that_another_process_is_doing_is_left_to_it(tmp_path: Path) -> None:
    asked = task(tmp_path)
    folder = Path(asked["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder):
        assert do(asked, lambda message: None) == {"event": "busy"}
    assert not (folder / "result.json").exists()


def test_a_run_that_is_there_is_not_done_again(tmp_path: Path) -> None:
    heard: list[Any] = []
    asked = task(tmp_path)
    assert do(asked, heard.append) == {"event": "done"}
    assert [message["step"] for message in heard] == [1, 2, 3, 4, 5, 6]
    first = (Path(asked["folder"]) / "result.json").read_bytes()
    heard.clear()
    assert do(asked, heard.append) == {"event": "done"}
    assert heard == []
    assert (Path(asked["folder"]) / "result.json").read_bytes() == first


def test_a_diverged_run_is_a_result_that_says_so(tmp_path: Path) -> None:
    job = jobs(small(tmp_path), ())[0]
    config = replace(job.config, training=replace(job.config.training, max_steps=30, grad_clip=0.0, warmup_steps=0))
    optimizer = replace(config.training.optimizer, learning_rate=1e30)
    config = replace(config, training=replace(config.training, optimizer=optimizer))
    assert do(task(tmp_path, config=to_yaml(config)), lambda message: None) == {"event": "done"}
    result, _ = load_result(job.folder, job.key)
    assert result is not None
    assert result["status"] == "diverged"
    assert re.match(r"step \d+: the (validation )?loss is", result["message"])
    assert result["parameters"] == parameters(job.config)
    json.dumps(result, allow_nan=False)


def test_a_run_folder_is_one_that_can_be_written_with(tmp_path: Path) -> None:
    from minigpt.runs.run import load

    asked = task(tmp_path)
    do(asked, lambda message: None)
    run = load(asked["folder"], "cpu")
    assert run.step == 6
    assert run.generate("\n", max_tokens=5).startswith("\n")


def test_a_model_that_sees_the_future_is_refused_before_any_training(tmp_path: Path) -> None:
    text = SMALL.replace("average_softmax", "{kind: average_softmax, causal: false}")
    job = jobs(small(tmp_path, text), ())[0]
    asked = task(tmp_path, do="try", config=to_yaml(job.config))
    answer = do(asked, lambda message: None)
    assert answer["event"] == "refused"
    assert answer["message"].startswith("layer 0 (average_softmax) sees the future")
    assert do(asked | {"allow_leak": True}, lambda message: None)["event"] == "done"


@pytest.mark.parametrize("name", ["../../esc", "a b", ".hidden"])
def test_a_comparison_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"--name .*: a comparison is named by letters"):
        load_comparison(str(written(tmp_path)), (), name)


def test_an_empty_group_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a group of options, found null"):
        small(tmp_path, "compare:\nvariants: {a: {}}\n")


class Halves(Char):
    """A tokenizer whose tokens are two characters, but for id 0, which ends a text."""

    end_of_text = 0

    def decode(self, ids: Any) -> str:
        return "".join("<end>" if id == 0 else "ab" for id in ids)


def test_what_ends_a_text_is_no_character(tmp_path: Path) -> None:
    _, aligned, tokenizer, _, _ = prepare(small(tmp_path).variants["mean"])
    where = aligned.splits["val"]
    targets = where.stop - where.start - 1
    assert _characters(aligned, tokenizer, targets) == targets
    assert _characters(aligned, tokenizer, 100) == 100
    halves = Halves.__new__(Halves)
    ends = int((aligned.ids[where.start + 1 : where.stop] == 0).sum())
    assert ends and _characters(aligned, halves, targets) == 2 * (targets - ends)


def test_names_become_folders(tmp_path: Path) -> None:
    assert slug("dot product, not itself") == "dot-product-not-itself"
    assert slug("../../etc") == "etc"
    assert jobs(small(tmp_path), ())[0].folder.parent == tmp_path / "runs" / "compare" / "small"
    assert written(tmp_path).name == "small.yaml"
