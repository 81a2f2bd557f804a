"""Families of models from elsewhere: the logits of transformers, and back again, for random weights of odd shapes.

B texts, T positions, V vocabulary.
"""

from __future__ import annotations

import json
import math
from copy import deepcopy
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from families import CASES, YARN, T, V, changed_config, changes, in_float64, make, random_config, read_by_transformers
from published_configs import PUBLISHED
from torch import Tensor, nn
from transformers import CONFIG_MAPPING

from minigpt.hub import FAMILIES, Family
from minigpt.hub.families import llama, neox
from minigpt.hub.family import to_external, to_internal
from minigpt.hub.folder import TensorEntry, check_tensors, open_folder
from minigpt.hub.importer import named, shapes
from minigpt.hub.keys import NO_EFFECT
from minigpt.hub.layouts import IDENTITY
from minigpt.hub.spelled import spell_out
from minigpt.model import GPT, ModelConfig
from minigpt.system.errors import UserError
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.memory import parameter_count

IDS = torch.randint(V, (2, T), generator=torch.Generator().manual_seed(3))  # (B, T)
FIRST = list({options[0]: case for case, options in reversed(CASES.items())}.values())  # a case of each family
ROTATED = [case for case in FIRST if case not in ("gpt2", "gptj", "bloom", "mpt")]


@cache
def reference(case: str) -> Any:
    """The model of transformers, in float32."""
    return make(case)


def config_json(model: Any) -> dict[str, Any]:
    """The config.json of a model of transformers."""
    values: dict[str, Any] = model.config.to_diff_dict()
    return values


def weights_of(model: nn.Module, family: Family) -> dict[str, Tensor]:
    """The tensors of a model of transformers by the names of the family's rules; a tied head is the embeddings'."""
    weights = {}
    for name, parameter in model.named_parameters():
        module, _, leaf = name.rpartition(".")
        weights[f"{family.renamed.get(module, module)}.{leaf}"] = parameter.detach()
    return weights


def family_of(model: Any) -> Family:
    return FAMILIES[model.config.model_type]


@torch.no_grad()
def imported_from(model: Any, values: dict[str, Any] | None = None) -> GPT:
    """The same model here, by the `values` of its config.json. Raises UserError or CheckpointError if it is refused."""
    family = family_of(model)
    config, weights = family.read_config(values or config_json(model)), weights_of(model, family)
    entries = {name: TensorEntry(Path("x"), name, tuple(tensor.shape), "F32") for name, tensor in weights.items()}
    check_tensors(named(entries, family, config.tied_head), shapes(family.rules(config), config, V))
    imported = GPT(config, V)
    parameters = dict(imported.named_parameters())
    converted = dict(to_internal(family.rules(config), weights.__getitem__))
    assert parameters.keys() == converted.keys()
    for name, parameter in parameters.items():
        parameter.copy_(converted[name])
    return imported.eval()


def written_config(family: Family, config: ModelConfig, vocab_size: int = V) -> dict[str, Any]:
    """The config.json of a model, all of whose options the family has."""
    values, missing = family.nearest(config, vocab_size)
    assert not missing
    return values


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers_and_those_of_the_written_config(case: str) -> None:
    assert outcome(config_json(reference(case))) == "equal"


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
    imported = imported_from(make("llama", **options))
    stretch = spell_out(imported.config)["attention"][0]["position"]["stretch"]
    assert stretch["attention_factor"] == (None if length is None else pytest.approx(length, rel=1e-15))
    with in_float64():
        logits = make("llama", **options)(IDS).logits  # (B, T, V)
    torch.testing.assert_close(imported.double()(IDS), logits, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("case", ROTATED)
def test_without_the_change_of_pairs_logits_are_others(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (llama, neox):
        monkeypatch.setattr(module, "halves", lambda width, rotated: IDENTITY)
    difference = imported_from(reference(case))(IDS) - reference(case)(IDS).logits  # (B, T, V)
    assert difference.abs().max() > 0.05


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_a_model_goes_back_as_it_came(case: str) -> None:
    model, family = reference(case), family_of(reference(case))
    config = family.read_config(config_json(model))
    assert spell_out(family.read_config(written_config(family, config))) == spell_out(config)
    imported, weights = imported_from(model), weights_of(model, family)
    exported = dict(to_external(family.rules(config), dict(imported.named_parameters())))
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], weights[name]) for name in exported)
    shapes = {name: parameter.shape for name, parameter in imported.named_parameters()}
    for rule in family.rules(config):
        assert rule.shape([shapes[name] for name in rule.internal]) == weights[rule.external].shape


@pytest.mark.parametrize("case", FIRST)
def test_a_saved_folder_has_the_tensors_that_its_config_says(case: str, tmp_path: Path) -> None:
    reference(case).save_pretrained(tmp_path)
    folder = open_folder(tmp_path)
    family = FAMILIES[folder.config["model_type"]]
    config = family.read_config(folder.config)
    check_tensors(named(folder.tensors, family, config.tied_head), shapes(family.rules(config), config, V))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_a_model_of_that_size(name: str) -> None:
    config, size = PUBLISHED[name]
    family = FAMILIES[config["model_type"]]
    model = family.read_config(config)
    assert parameter_count(model, config["vocab_size"]) == size
    written = written_config(family, model, config["vocab_size"])
    assert spell_out(family.read_config(written)) == spell_out(model)


# ---- every key of a config.json is used, or changes no logit, or is refused by its name ----


@torch.no_grad()
def outcome(values: dict[str, Any]) -> str:
    """What becomes of a config.json: it is `refused` here, `fails` in transformers, or has `equal` logits in both.

    What is equal is written as a config.json again, of which transformers makes the same model.
    """
    try:
        FAMILIES[values["model_type"]].read_config(json.loads(json.dumps(values)))
    except UserError as error:
        assert len(str(error).splitlines()) == 1
        return "refused"
    with in_float64():
        try:
            model: Any = read_by_transformers(values)
            logits = model(IDS).logits  # (B, T, V)
        except Exception:
            return "fails"
        try:
            imported = imported_from(model, values).double()
        except CheckpointError:
            return "refused"
        torch.testing.assert_close(imported(IDS), logits, rtol=0, atol=1e-10, msg=f"other logits: {values}")
        written, missing = family_of(model).nearest(imported.config, V)
        if missing:  # only newer versions of transformers have a key for it
            return "equal"
        again: Any = read_by_transformers(written)
        again.load_state_dict(model.state_dict())
        torch.testing.assert_close(again(IDS).logits, logits, rtol=0, atol=1e-10, msg=f"written otherwise: {values}")
    return "equal"


@pytest.mark.parametrize("case", FIRST)
def test_a_config_is_read_as_transformers_reads_it_or_is_refused(case: str) -> None:
    for seed in range(2):
        outcome(random_config(case, seed))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_many_configs_are_read_as_transformers_reads_them_or_are_refused(case: str, whole: bool) -> None:
    seeds = range(2, 60 if whole else 6)
    assert "equal" in {outcome(random_config(case, seed)) for seed in seeds}


@pytest.mark.slow
@pytest.mark.parametrize("case", FIRST)
def test_each_key_is_read_as_transformers_reads_it_or_is_refused(case: str, whole: bool) -> None:
    some = islice(changes(case), 0, None, 1 if whole else 3)
    assert {outcome(changed_config(case, change)) for change in some} >= {"equal", "refused"}


@pytest.mark.parametrize("name", FAMILIES)
def test_missing_keys_have_the_values_of_transformers(name: str) -> None:
    family, size = FAMILIES[name], {"vocab_size": V}
    everything = CONFIG_MAPPING[name](**size).to_dict()  # with no key that minigpt does not know
    assert family.read_config({"model_type": name} | size) == family.read_config(everything)


WORDS: dict[str, Any] = {
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), "eager"),
    **dict.fromkeys(("dtype", "torch_dtype"), "float32"),
    **dict.fromkeys(("output_attentions", "output_hidden_states"), True),
    "cache_implementation": "static",
}


@torch.no_grad()
@pytest.mark.parametrize("case", FIRST)
def test_keys_without_effect_change_no_logit(case: str) -> None:
    plain, family = config_json(reference(case)), family_of(reference(case))
    values = dict(plain)
    for key in " ".join([*NO_EFFECT.values(), *family.no_effect.values()]).split():
        for value in [WORDS[key]] if key in WORDS else (0.5, True, 3, "x", ["x"], {"3": "x"}):
            try:  # the first value that transformers accepts
                CONFIG_MAPPING[family.model_type].from_dict(deepcopy(values | {key: value}))
            except Exception:
                continue
            values[key] = value
            break
    values["model_type"] = family.model_type
    assert family.read_config(values) == family.read_config(plain)
    found, expected = (model(IDS).logits for model in (read_by_transformers(values), reference(case)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # the last bits differ on some processors


@pytest.mark.parametrize(
    ("case", "values"),
    [
        ("gpt2", {"n_embd": None, "hidden_size": 45, "num_attention_heads": 3}),
        ("gpt2", {"n_ctx": 30, "output_past": True, "n_special": 0, "predict_special_tokens": True}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 500.0}),
        ("qwen2 with windows", {"sliding_window": None}),
        ("gemma3", {"sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("gemma3", {"rope_theta": 500.0, "rope_local_base_freq": 300.0}),
        ("gpt_neox", {"rotary_emb_base": 500, "rope_theta": 500, "partial_rotary_factor": 0.5}),
        ("gpt_neox", {"rotary_pct": None, "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}),
        ("bloom", {"pretraining_tp": 2}),
        ("bloom", {"slow_but_exact": True}),
        ("bloom", {"hidden_size": None, "n_embed": 42}),
        ("mpt", {"attn_config": {"softmax_scale": 0.3, "model_type": "", "attn_impl": "flash"}}),
        ("phi", {"partial_rotary_factor": None, "rope_parameters": {"partial_rotary_factor": 0.4, "rope_theta": 1e4}}),
    ],
    ids=str,
)
def test_older_and_newer_spellings_of_a_config(case: str, values: dict[str, Any]) -> None:
    missing = {key for key, value in values.items() if value is None} - {"sliding_window"}
    changed = changed_config(case, *values.items())
    assert outcome({key: value for key, value in changed.items() if key not in missing}) == "equal"


def test_every_family_has_a_case_and_a_published_config() -> None:
    assert {reference(case).config.model_type for case in CASES} == FAMILIES.keys()
    assert {config["model_type"] for config, _ in PUBLISHED.values()} == FAMILIES.keys()
