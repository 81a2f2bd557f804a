"""Families of models from elsewhere: the logits of transformers, and back again, for random weights of odd shapes.

B texts, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import CASES, YARN, T, V, in_float64, make
from published_configs import PUBLISHED
from torch import Tensor, nn

from minigpt.hub import FAMILIES, Family
from minigpt.hub.families import llama, neox
from minigpt.hub.family import to_ours, to_theirs
from minigpt.hub.folder import check_tensors, open_folder
from minigpt.hub.importer import named, shapes
from minigpt.hub.layouts import SAME
from minigpt.hub.spelled import spell_out
from minigpt.model import GPT
from minigpt.training.memory import parameter_count

IDS = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(3))  # (B, T)
ROTATED = [case for case in CASES if case.split()[0] not in ("gpt2", "gptj", "bloom", "mpt")]


@cache
def theirs(case: str) -> Any:
    """The model of transformers, in float32."""
    return make(case)


def said(model: Any) -> dict[str, Any]:
    """What config.json says of a model of transformers."""
    values: dict[str, Any] = model.config.to_diff_dict()
    return values


def weights_of(model: nn.Module, family: Family) -> dict[str, Tensor]:
    """The tensors of a model of transformers by the names of the family's rules; a tied head is the embeddings'."""
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {
        f"{family.renamed.get(n.rpartition('.')[0], n.rpartition('.')[0])}.{n.rpartition('.')[2]}": named[n]
        for n in named
    }


def family_of(model: Any) -> Family:
    return FAMILIES[model.config.model_type]


@torch.no_grad()
def ours_from(model: Any) -> GPT:
    """The same model here."""
    family = family_of(model)
    config, weights = family.read_config(said(model)), weights_of(model, family)
    ours = GPT(config, V)
    own = dict(ours.named_parameters())
    read = dict(to_ours(family.rules(config), weights.__getitem__))
    assert own.keys() == read.keys()
    for name, parameter in own.items():
        parameter.copy_(read[name])
    return ours.eval()


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str) -> None:
    logits = theirs(case)(IDS).logits  # (B, T, V)
    assert logits.std() > 0.3
    torch.testing.assert_close(ours_from(theirs(case))(IDS), logits, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_in_float64_they_are_equal_to_ten_digits(case: str) -> None:
    ours = ours_from(theirs(case)).double()
    with in_float64():
        logits = make(case)(IDS).logits  # (B, T, V)
    assert logits.dtype == torch.float64
    torch.testing.assert_close(ours(IDS), logits, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize(
    ("keys", "length"),
    [
        ({"mscale": 0.7, "mscale_all_dim": 1.3}, (1 + 0.07 * math.log(4)) / (1 + 0.13 * math.log(4))),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.7}, None),
        ({"mscale": 0.7, "mscale_all_dim": 1.3, "attention_factor": 1.5}, 1.5),
    ],
    ids=str,
)
def test_the_lengths_of_yarn_are_those_of_transformers(keys: dict[str, float], length: float | None) -> None:
    options = {"rope_parameters": YARN | keys}
    ours = ours_from(make("llama", **options))
    stretch = spell_out(ours.config)["attention"][0]["position"]["stretch"]
    assert stretch["attention_factor"] == (None if length is None else pytest.approx(length, rel=1e-15))
    with in_float64():
        logits = make("llama", **options)(IDS).logits  # (B, T, V)
    torch.testing.assert_close(ours.double()(IDS), logits, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_with_a_cache_logits_are_the_same(case: str) -> None:
    ours = ours_from(theirs(case)).double()
    cache = ours.make_cache()
    pieces = [ours(IDS[:, start : start + 1], cache) for start in range(T)]  # (B, 1, V) each
    torch.testing.assert_close(torch.cat(pieces, dim=1), ours(IDS), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("case", ROTATED)
def test_without_the_change_of_pairs_logits_are_others(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (llama, neox):
        monkeypatch.setattr(module, "halves", lambda width, rotated: SAME)
    difference = ours_from(theirs(case))(IDS) - theirs(case)(IDS).logits  # (B, T, V)
    assert difference.abs().max() > 0.05


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_a_model_goes_back_as_it_came(case: str) -> None:
    model, family = theirs(case), family_of(theirs(case))
    config = family.read_config(said(model))
    written = family.write_config(config, V)
    assert spell_out(family.read_config(written)) == spell_out(config)
    ours, weights = ours_from(model), weights_of(model, family)
    back = dict(to_theirs(family.rules(config), dict(ours.named_parameters())))
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in back)
    shapes = {name: parameter.shape for name, parameter in ours.named_parameters()}
    for rule in family.rules(config):
        assert rule.shape([shapes[name] for name in rule.ours]) == weights[rule.theirs].shape


@pytest.mark.parametrize("case", CASES)
def test_a_saved_folder_has_the_tensors_that_its_config_says(case: str, tmp_path: Path) -> None:
    theirs(case).save_pretrained(tmp_path)
    folder = open_folder(tmp_path)
    family = FAMILIES[folder.config["model_type"]]
    config = family.read_config(folder.config)
    check_tensors(named(folder.places, family, config.tied_head), shapes(family.rules(config), config, V))


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_the_written_config(case: str) -> None:
    model = theirs(case)
    written = family_of(model).write_config(family_of(model).read_config(said(model)), V)
    config = type(model.config).from_dict(written)
    config._attn_implementation = "eager"
    other = type(model)(config).eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(IDS).logits, model(IDS).logits, rtol=0, atol=0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_a_model_of_that_size(name: str) -> None:
    config, size = PUBLISHED[name]
    family = FAMILIES[config["model_type"]]
    model = family.read_config(config)
    assert parameter_count(model, config["vocab_size"]) == size
    assert spell_out(family.read_config(family.write_config(model, config["vocab_size"]))) == spell_out(model)


def test_every_family_has_a_case_and_a_published_config() -> None:
    assert {theirs(case).config.model_type for case in CASES} == FAMILIES.keys()
    assert {config["model_type"] for config, _ in PUBLISHED.values()} == FAMILIES.keys()
