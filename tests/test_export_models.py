"""Models as models of transformers: which family can express one, equal logits, and what none can express.

All weights are random, those of biases and norms too: a weight of zero or one would not be tested.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import stir
from running import slow_but
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from minigpt.attention import Attention, Shape
from minigpt.config.options import from_dict
from minigpt.hub.exporter import ORDER, export_run, expressed
from minigpt.hub.family import FAMILIES
from minigpt.model import GPT, ModelConfig, SamplingConfig, generate
from minigpt.model.mlp import SwiGLU
from minigpt.model.norm import Norm, RMSNorm
from minigpt.system.errors import UserError
from minigpt.text.tokenizer import Byte, Char
from minigpt.training.assemble import RunConfig
from minigpt.training.run import Run

SIZES: dict[str, Any] = {"n_layer": 3, "n_embd": 24, "block_size": 20}
MANY = {"kind": "multi_head", "n_head": 3}
GROUPED = {"kind": "grouped_query", "n_head": 4, "n_kv_head": 2, "head_dim": 10}
WINDOW = {"kind": "sliding_window", "n_head": 4, "n_kv_head": 2, "head_dim": 10, "window": 5}
LLAMA = SIZES | {
    "bias": False,
    "position": "rotary",
    "norm": "rmsnorm",
    "mlp": {"kind": "swiglu", "width": 40},
    "tied_head": False,
    "attention": GROUPED,
}
NEOX = SIZES | {"position": {"kind": "rotary", "share": 0.5}, "attention": MANY, "tied_head": False}
BARE = MANY | {"qkv_bias": False, "project_bias": False}
GEMMA = LLAMA | {"mlp": {"kind": "geglu_tanh", "width": 40}, "embedding_scale": 24**0.5, "tied_head": True}
BLOOM = SIZES | {"attention": MANY, "position": {"kind": "alibi", "slopes": "bloom"}}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {  # what it is: the family that is chosen, the options
    "minigpt's default": ("gpt2", SIZES),
    "GPT-2 with its own GELU": ("gpt2", SIZES | {"attention": MANY, "mlp": {"kind": "gelu_tanh", "width": 50}}),
    "GPT-2 with a head of its own": ("gpt2", SIZES | {"tied_head": False}),
    "one head": ("gpt2", SIZES | {"attention": "single_head"}),
    "Llama": ("llama", LLAMA),
    "Llama with biases": ("llama", LLAMA | {"bias": True, "norm": {"kind": "rmsnorm", "epsilon": 1e-3}}),
    "Llama with a tied head": ("llama", LLAMA | {"tied_head": True}),
    "longer texts": (
        "llama",
        LLAMA | {"position": {"kind": "rotary", "stretch": {"kind": "llama3", "factor": 8, "original": 8}}},
    ),
    "Mistral": ("mistral", LLAMA | {"attention": WINDOW}),
    "Qwen 2": ("qwen2", LLAMA | {"attention": GROUPED | {"qkv_bias": True}}),
    "windows in some layers": (
        "qwen2",
        LLAMA | {"attention": [WINDOW | {"qkv_bias": True}, GROUPED | {"qkv_bias": True}]},
    ),
    "Qwen 3": ("qwen3", LLAMA | {"attention": GROUPED | {"qk_norm": True}}),
    "OLMo 2": ("olmo2", LLAMA | {"block": "post_norm", "attention": MANY | {"qk_norm": "whole"}}),
    "NeoX": ("gpt_neox", NEOX),
    "Pythia": ("gpt_neox", NEOX | {"block": "parallel"}),
    "GPT-J": ("gptj", NEOX | {"block": "parallel_one_norm", "mlp": "gelu_tanh", "head_bias": True, "attention": BARE}),
    "Phi": ("phi", NEOX | {"block": "parallel_one_norm", "mlp": "gelu_tanh", "head_bias": True}),
    "BLOOM": ("bloom", BLOOM | {"mlp": "gelu_tanh", "embedding_norm": True}),
    "MPT": ("mpt", BLOOM | {"bias": False}),
    "Gemma": ("gemma", GEMMA),
    "Gemma 2": (
        "gemma2",
        GEMMA
        | {
            "block": "sandwich",
            "head_cap": 3.0,
            "attention": [WINDOW | {"kind": "soft_cap_window", "cap": 2.0}, GROUPED | {"kind": "soft_cap", "cap": 2.0}],
        },
    ),
    "Gemma 3": (
        "gemma3_text",
        GEMMA
        | {
            "block": "sandwich",
            "position": {"kind": "rotary", "base": 1e6},
            "attention": [WINDOW | {"qk_norm": True, "position": "rotary"}] * 2 + [GROUPED | {"qk_norm": True}],
        },
    ),
}


def random_run(options: dict[str, Any]) -> Run:
    """A run of this model with random weights and a vocabulary of bytes."""
    config = from_dict(RunConfig, {"model": options})
    torch.manual_seed(0)
    model = GPT(config.model, 256).eval()
    with torch.no_grad():
        stir(model)
    return Run(Path("x"), config, Byte(), model, 0, [])


OF_EACH_FAMILY = {family: name for name, (family, _) in reversed(MODELS.items())}.values()


@pytest.mark.parametrize("name", slow_but(MODELS, *OF_EACH_FAMILY))
@torch.no_grad()
def test_a_model_is_exported_with_equal_logits(name: str, tmp_path: Path) -> None:
    family, options = MODELS[name]
    run = random_run(options)
    assert expressed(run.config.model, 256)[0].model_type == family
    export_run(run, tmp_path / "out")
    reference, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(loading.values()), loading  # every tensor has its place
    ids = torch.randint(256, (2, 18), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(reference(ids).logits, run.model(ids), rtol=0, atol=1e-5)
    generated = reference.generate(ids[:1, :5], max_new_tokens=12, do_sample=False)
    expected = torch.stack(list(generate(run.model, ids[:1, :5], SamplingConfig(temperature=0, max_tokens=12))), dim=1)
    assert generated[:, 5:].tolist() == expected.tolist()


def test_a_cap_asks_for_the_form_that_has_it(tmp_path: Path) -> None:
    """By default older transformers take a kernel without caps, unless config.json says another."""
    export_run(random_run(MODELS["Gemma 2"][1]), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["_attn_implementation"] == "eager"
    export_run(random_run(MODELS["Gemma 3"][1]), tmp_path / "far")
    assert "_attn_implementation" not in json.loads((tmp_path / "far" / "config.json").read_text())


def test_no_family_has_caps_and_norms_of_queries_and_keys() -> None:
    """A config.json of Gemma 3 has a key for the cap, and transformers computes without it."""
    capped = [
        attention | {"kind": "soft_cap_window" if "window" in attention else "soft_cap", "cap": 2.0}
        for attention in MODELS["Gemma 3"][1]["attention"]
    ]
    with pytest.raises(UserError, match=r"model\.attention"):
        expressed(from_dict(ModelConfig, MODELS["Gemma 3"][1] | {"attention": capped}), 256)


def test_every_family_is_asked() -> None:
    assert sorted(ORDER) == sorted(FAMILIES)


def test_all_options_without_a_counterpart_are_told_at_once() -> None:
    class Odd(RMSNorm, kind="norm_of_no_family"):
        pass

    class OddMLP(SwiGLU, kind="mlp_of_no_family"):
        pass

    mlp = {"kind": "mlp_of_no_family", "width": 40}
    with pytest.raises(UserError) as refused:
        expressed(from_dict(ModelConfig, LLAMA | {"norm": "norm_of_no_family", "mlp": mlp}), 50)
    for option in ('model.norm: "norm_of_no_family"', 'model.mlp: "mlp_of_no_family"'):
        assert option in str(refused.value)
    assert "--remote-code" in str(refused.value)
    assert str(refused.value).count("has no counterpart in") == str(refused.value).count("(there: ")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (n % 4 > 0)) for n, kind in enumerate(sorted(Attention.kinds))],
)
def test_no_kind_is_taken_for_another(kind: str) -> None:
    model = from_dict(ModelConfig, SIZES | {"attention": kind})
    if kind in ("single_head", "multi_head", "grouped_query"):
        assert expressed(model, 50)[0].model_type == "gpt2"
    else:
        with pytest.raises(UserError, match=r"model\.attention"):
            expressed(model, 50)


@pytest.mark.parametrize("change", [{"causal": False}, {"scaled": False}, {"score_scale": 0.1}, {"position": "alibi"}])
def test_an_option_of_the_attention_is_not_passed_over(change: dict[str, Any]) -> None:
    model = from_dict(ModelConfig, LLAMA | {"attention": GROUPED | change})
    with pytest.raises(UserError, match=r"model\.attention"):
        expressed(model, 50)


def test_a_norm_of_ones_own_is_refused() -> None:
    class Halved(Norm, kind="halved"):
        """Not a norm of any family."""

        def __init__(self, config: Norm.Config, model: Shape):
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return x / 2  # (B, T, D)

    try:
        with pytest.raises(UserError, match="--remote-code"):
            expressed(from_dict(ModelConfig, SIZES | {"norm": "halved"}), 50)
    finally:
        del Norm.kinds["halved"]


def test_the_tokenizer_of_a_qwen_2_has_a_reader_of_its_own(tmp_path: Path) -> None:
    """transformers 5 splits texts in such a folder as Qwen 2 does, whatever its files say."""
    run, lines = random_run(MODELS["Qwen 2"][1]), list[str]()
    run.tokenizer = Char("".join(sorted("the ca\n")))
    run.model = GPT(run.config.model, run.tokenizer.vocab_size)
    export_run(run, tmp_path / "out", say=lines.append)
    assert "PreTrainedTokenizerFast.from_pretrained" in lines[-1]
    assert "PreTrainedTokenizerFast" in (tmp_path / "out" / "README.md").read_text("utf-8")
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    assert reference("the\ncat")["input_ids"] == run.tokenizer.encode("the\ncat").tolist()


def test_transformers_has_no_ends_of_its_own(tmp_path: Path) -> None:
    """Without an end of text `generate` must not stop: GPT-2's class would, at id 50256, and Llama's at id 2."""
    for name, options in (("gpt2", SIZES), ("llama", LLAMA)):
        export_run(random_run(options), tmp_path / name)
        reference = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert (reference.generation_config.eos_token_id, reference.config.eos_token_id) == (None, None)
        assert json.loads((tmp_path / name / "config.json").read_text("utf-8"))["model_type"] == name
