"""The variants of a comparison: how its config is read, and what its folders are named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from comparing import SMALL, elsewhere, finished, small, written  # noqa: F401

from minigpt.comparison.page import page_of_variants
from minigpt.comparison.results import jobs
from minigpt.comparison.summary import in_words
from minigpt.comparison.variants import load_comparison, slug
from minigpt.system.errors import ConfigError, UserError


@pytest.mark.parametrize("name", ["ladder.yaml", "positions.yaml"])
def test_the_comparisons_that_ship_can_be_read(name: str) -> None:
    comparison = load_comparison(name)
    assert comparison.settings.baseline in comparison.variants
    first, *others = comparison.variants.values()
    assert all((o.data, o.training) == (first.data, first.training) for o in others)


def test_a_variant_is_the_shared_config_with_its_own_keys(tmp_path: Path) -> None:
    wide = "  wide: {model.n_embd: 32, training.optimizer.learning_rate: 0.5}\n  one head:"
    comparison = small(tmp_path, SMALL.replace("  one head:", wide), ("training.max_steps=9",))
    assert list(comparison.variants) == ["mean", "wide", "one head"]
    assert comparison.variants["wide"].model.n_embd == 32
    assert comparison.variants["wide"].training.optimizer.learning_rate == 0.5
    assert comparison.variants["mean"].model.n_embd == 16
    assert {c.training.max_steps for c in comparison.variants.values()} == {9}
    assert comparison.differing == ("model.attention", "model.n_embd", "training.optimizer.learning_rate")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model.attention: average_softmax", "model.atention: average_softmax", r"small.yaml:3:10: model.atention"),
        ("baseline: one head", "baseline: one hat", r"expected a variant, found 'one hat'; did you mean 'one head'\?"),
        ("seeds: [1, 2]", "seeds: [1, 1]", "a seed more than once"),
        ("match: steps", "match: stairs", "match: expected one of steps, parameters, seconds"),
        ("match: steps", "match: seconds", "seconds: N"),
        ("match: steps", "seconds: 3", "match: seconds"),
        ("  mean:", "  one-head:", "a name of its own"),
        ("model.attention: average_softmax", "training.seed: 3", "compare.seeds"),
        ("{model.attention: average_softmax}", "average_softmax", r"variants.mean: expected \{group.key"),
        ("model.attention: average_softmax", "model.n_layer.x: 3", "n_layer is not a group"),
        ("variants:", "variant:", "`compare:` and `variants:`"),
        ("n_embd: 16", "n_embd: -16", r"small.yaml:6:\d+: model.n_embd"),
        ("max_steps: 6", "max_steps: 6, stop: {patience: 2}", r"small.yaml:7:\d+: training.stop: every run takes all"),
        ("device: cpu", "device: cpu, threads: 2", "training.threads: every run of a comparison has one thread"),
        ("  mean: {", "  mean: {training.stop.patience: 2, ", r"small.yaml:3:\d+: training.stop: every run takes all"),
    ],
)
def test_a_mistake_is_told_where_it_stands(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError, match=message):
        small(tmp_path, SMALL.replace(old, new))


@pytest.mark.parametrize(("old", "new"), [("n_embd: 16", "n_embd: -16"), ("max_steps: 6", "stop: {patience: 2}")])
def test_a_mistake_in_what_all_share_is_told_once(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ConfigError) as error:
        small(tmp_path, SMALL.replace(old, new))
    assert len(error.value.mistakes) == 1


@pytest.mark.parametrize("name", ["../../esc", "a b", ".hidden"])
def test_a_comparison_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"^--name "):
        load_comparison(str(written(tmp_path)), (), name)


def test_an_empty_group_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a group of options, found null"):
        small(tmp_path, "compare:\nvariants: {a: {}}\n")


def test_names_become_folders(tmp_path: Path) -> None:
    assert slug("dot product, not itself") == "dot-product-not-itself"
    assert slug("../../etc") == "etc"
    assert jobs(small(tmp_path), ())[0].folder.parent == tmp_path / "runs" / "compare" / "small"
    assert written(tmp_path).name == "small.yaml"


TOKENIZERS = """
compare: {baseline: characters, seeds: [1]}
variants:
  characters: {data.tokenizer: char}
  bytes: {data.tokenizer: byte}
  pieces: {data.tokenizer: {kind: bpe, vocab_size: 300, end_of_text: true}}
data: {source: talk.jsonl, validation: 20 documents, windows: packed}
model: {n_layer: 1, n_embd: 16, block_size: 16}
training: {batch_size: 8, max_steps: 6, eval_every: 3, device: cpu}
"""


def test_tokenizers_are_compared_in_bits_a_byte_of_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": f"naïve text number {n} about crème brûlée"}) for n in range(60)]
    Path("talk.jsonl").write_text("\n".join(lines), encoding="utf-8")
    content, _ = finished(small(tmp_path, TOKENIZERS))
    assert (content["metric"], content["unit"]) == ("bits_per_byte", "bits a byte")
    assert "bits a byte of the same validation text are compared" in content["held_equal"]
    for row in content["variants"]:
        assert 1 < row["bits_per_byte"] < 9 and row["curve"][-1][2] == pytest.approx(row["bits_per_byte"], rel=0.02)
        if row["difference"]:
            mean = [r["bits_per_byte"] for r in content["runs"] if r["variant"] == row["variant"]]
            base = [r["bits_per_byte"] for r in content["runs"] if r["variant"] == "characters"]
            assert row["difference"]["mean"] == pytest.approx(mean[0] - base[0])
    assert all(r["curve"][-1][2] == pytest.approx(r["loss"], rel=0.02) for r in content["runs"])  # nats a character
    of_bytes = [r for r in content["runs"] if r["variant"] == "bytes"]
    assert all(r["bits_per_byte"] < r["loss"] / math.log(2) for r in of_bytes)  # the loss is one a character
    page, shown = page_of_variants(content), in_words(content)
    assert "Curves: validation loss, bits a byte, by step" in page and "bits/byte" in shown
    assert content["floor"] is None and "accuracy by what must be remembered" not in page


@pytest.mark.parametrize("validation", ["0.1", "500"])
def test_tokenizers_without_the_same_validation_text_are_refused(validation: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizers can only be compared on the same validation text: give all the"):
        small(tmp_path, TOKENIZERS, (f"data.validation={validation}",))
    assert small(tmp_path, TOKENIZERS, ("data.validation=test.txt",)).variants
    assert small(tmp_path, TOKENIZERS, ("data.source=stories", "data.windows=random", "data.validation=0.1")).variants
