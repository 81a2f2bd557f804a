"""What is held equal in a comparison: the batches, in their order, and the number of parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import SMALL, elsewhere, small  # noqa: F401

from minigpt.comparison.data import text_and_tokenizer
from minigpt.comparison.matching import match_parameters, parameters
from minigpt.comparison.measurement import prepare
from minigpt.comparison.results import jobs
from minigpt.comparison.variants import load_comparison
from minigpt.model import MLP
from minigpt.model.mlp import GELU
from minigpt.system.errors import UserError
from minigpt.text.dataset import Batch, Dataset
from minigpt.training.assemble import build_model
from minigpt.training.loop import train


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


def test_an_mlp_without_a_width_cannot_be_matched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed(GELU):
        @dataclass(frozen=True, kw_only=True)
        class Config(GELU.Config):
            without = ("width",)

    monkeypatch.setitem(MLP.kinds, "fixed", Fixed)
    comparison = small(tmp_path, SMALL.replace("match: steps", "match: parameters"), ("model.mlp=fixed",))
    with pytest.raises(UserError, match=r"match: parameters: .*the MLP .* has no width: compare with match: steps"):
        match_parameters(comparison)


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
    width = after.variants["mean"].model.mlp.width
    assert width
    for other in (width - 1, width + 1):  # no other is nearer
        model = after.variants["mean"].model
        config = replace(after.variants["mean"], model=replace(model, mlp=replace(model.mlp, width=other)))
        assert abs(parameters(config) - wanted) >= abs(counts["mean"] - wanted)


STORIES = ("data.source=stories", "data.stories={count: 300, validation: 60}")


@pytest.mark.slow
def test_every_variant_of_the_ablation_can_be_matched_and_trained() -> None:
    matched = match_parameters(load_comparison("shakespeare_ablation.yaml", STORIES)).variants
    widths = {name: config.model.mlp.width for name, config in matched.items()}
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
