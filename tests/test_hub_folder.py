"""An untrusted folder of weights becomes a run, or it is refused in one line and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from families import YARN, make
from hub_folders import BYTES, WEIGHTS, edit, gpt2_folder, in_its_folder, refused, rewrite, save
from running import small_text
from transformers import PreTrainedTokenizerFast

from minigpt.hub import importer
from minigpt.hub.importer import import_folder, open_source
from minigpt.system.errors import UserError
from minigpt.text.corpus import open_corpus
from minigpt.training.report import silent
from minigpt.training.run import load

folder = pytest.fixture(gpt2_folder)
elsewhere = pytest.fixture(autouse=True)(in_its_folder)


# ---- what becomes of a folder that is right ----


@torch.no_grad()
@pytest.mark.parametrize("case", ["gpt2", "llama", "gemma3", "gpt_neox"])
def test_a_folder_becomes_a_run(case: str, tmp_path: Path) -> None:
    source = save(tmp_path / "model", case)
    path = import_folder(source, "mine", None, silent)
    run = load(path)
    assert (path, run.step) == (Path("runs/mine"), 0)
    ids = run.prompt_ids("Mia was a shy fox")
    torch.testing.assert_close(run.model(ids), make(case, **BYTES)(ids).logits, rtol=0, atol=1e-5)
    assert len(run.generate("Mia", max_tokens=5, temperature=0)) > 3
    assert [weights.shape[1:] for weights in run.attention("Mia was")] == [(7, 7)] * 3
    assert "Mia was" in run.explore("Mia was").html
    origin = json.loads((path / "origin.json").read_text())
    assert origin["model_type"] == json.loads((source / "config.json").read_text())["model_type"]
    assert origin["sha256"].keys() == {"config.json", WEIGHTS}


def test_the_tokenizer_of_a_folder_marks_the_begin_and_knows_the_end(tmp_path: Path) -> None:
    steps = tokenizers.Tokenizer(tokenizers.models.BPE())
    steps.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    steps.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    steps.train_from_iterator([small_text()], trainer)
    steps.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 0)])
    reference = PreTrainedTokenizerFast(tokenizer_object=steps, bos_token="<s>", eos_token="</s>")
    make("llama", vocab_size=293, eos_token_id=1).save_pretrained(tmp_path / "model")  # three ids more than tokens
    reference.save_pretrained(tmp_path / "model")
    run = load(import_folder(tmp_path / "model", "mine", None, silent))
    assert run.context_ids("the cat sat")[0].tolist() == reference("the cat sat")["input_ids"]
    assert (run.tokenizer.begin_of_text, list(run.tokenizer.ends), run.tokenizer.vocab_size) == (0, [1], 293)


def test_the_text_of_such_a_run_has_to_be_given() -> None:
    with pytest.raises(UserError, match="it has no text: give one"):
        open_corpus("pretrained")


@torch.no_grad()
def test_shards_and_a_shorter_context(tmp_path: Path) -> None:
    source = save(tmp_path / "model", "gpt2", max_shard_size="40KB")
    assert len(list(source.glob("model-*.safetensors"))) > 2
    run = load(import_folder(source, "mine", 7, silent))
    assert run.config.model.block_size == 7
    ids = run.prompt_ids("shy fox")
    torch.testing.assert_close(run.model(ids), make("gpt2", **BYTES)(ids).logits, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_becomes_float32(dtype: torch.dtype, folder: Path) -> None:
    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    rewrite(folder, halve)
    run = load(import_folder(folder, "mine", None, silent))
    reference = make("gpt2", **BYTES).to(dtype).float()
    ids = run.prompt_ids("Mia")
    torch.testing.assert_close(run.model(ids), reference(ids).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_names_without_the_prefix_and_buffers_are_read(folder: Path) -> None:
    def bare(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 40, 40)

    rewrite(folder, bare)
    run = load(import_folder(folder, "mine", None, silent))
    ids = run.prompt_ids("Mia")
    torch.testing.assert_close(run.model(ids), make("gpt2", **BYTES)(ids).logits, rtol=0, atol=1e-5)


def test_code_of_a_folder_is_not_run_and_that_is_said(folder: Path) -> None:
    edit(folder, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    (folder / "modeling_evil.py").write_text("raise SystemExit(99)")
    lines = list[str]()
    import_folder(folder, "mine", None, lines.append)
    assert any("auto_map" in line and "not run" in line for line in lines)


# ---- what is refused: the config ----


@pytest.mark.parametrize(
    ("case", "values", "message"),
    [
        ("gpt2", {"model_type": "mamba"}, 'model_type: "mamba" is not a family'),
        ("gpt2", {"model_type": ["gpt2"]}, "model_type"),
        ("gpt2", {"activation_function": "quick_gelu"}, 'activation_function: "quick_gelu" has no counterpart'),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention: true has no counterpart"),
        ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("gpt2", {"a_new_option": 3}, "a_new_option: 3: minigpt does not know this key"),
        ("gpt2", {"n_layer": "3"}, "n_layer: expected a whole number"),
        ("gpt2", {"n_layer": 10**9}, "n_layer: expected a whole number"),
        ("gpt2", {"n_layer": 5000}, "n_layer"),
        ("gpt2", {"vocab_size": 1 << 40}, "vocab_size: expected a whole number"),
        ("gpt2", {"vocab_size": "256"}, "vocab_size: expected a whole number"),
        ("gpt2", {"activation_function": ["gelu"]}, "activation_function: .* has no counterpart"),
        ("gpt2", {"hidden_size": 7}, "hidden_size: 7, and n_embd is 45"),
        ("gpt2", {"n_positions": None}, "n_positions: expected a whole number from 1 to .*, found null"),
        ("gpt2", {"n_head": 7}, "7 heads do not divide"),
        ("gpt2", {"layer_norm_epsilon": -1}, "layer_norm_epsilon: expected a number above 0"),
        ("gpt2", {"scale_attn_weights": "yes"}, "scale_attn_weights: expected true or false"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 'rope_type: "dynamic"'),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "more": 1}}, "rope_parameters.more"),
        ("llama", {"rope_parameters": 3}, "rope_parameters: expected a group of keys"),
        ("llama", {"rope_parameters": {"rope_type": ["linear"]}}, "rope_parameters.rope_type"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling: not what rope_parameters says"),
        ("llama yarn", {"rope_parameters": YARN | {"truncate": False}}, "rope_parameters.truncate: false"),
        ("gptj", {"rotary_dim": 5}, "rotary_dim: 5 of 10 features are rotated"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "use_sliding_window is false"),
        ("llama", {"hidden_act": "relu"}, 'hidden_act: "relu"'),
        ("llama", {"head_dim": 7}, "7 of 7 features are rotated"),
        ("llama", {"num_key_value_heads": 4}, "6 query heads cannot share 4"),
        ("mpt", {"attn_config": {"clip_qkv": 8}}, "attn_config.clip_qkv: 8"),
        ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln: true"),
        ("mpt", {"no_bias": False}, "no_bias: false"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention: true"),
        ("phi", {"qk_layernorm": True}, "qk_layernorm: true"),
        ("gptj", {"rotary": False}, "rotary: false"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
        *[
            (case, {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 has no counterpart")
            for case in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "olmo2")
        ],
        ("qwen3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor: 0.5"),
        ("llama", {"rope_theta": 500.0}, "rope_parameters.rope_theta: 10000.0, and rope_theta is 500.0"),
        (
            "llama",
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 500.0}},
            "rope_scaling.rope_theta: 500.0, and rope_theta is 10000.0",
        ),
        ("gemma3", {"rope_parameters": {"rope_theta": 500.0}}, "rope_parameters.rope_theta: 500.0: minigpt does not"),
        (
            "gemma3",
            {"layer_types": None, "_sliding_window_pattern": 3},
            "_sliding_window_pattern: 3 has no counterpart",
        ),
        ("gemma3", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping: 2.0 has no counterpart"),
        ("bloom", {"pretraining_tp": 2, "slow_but_exact": True}, r"slow_but_exact: true .*pretraining_tp is above 1"),
        ("gptj", {"rotary_dim": None}, "rotary_dim: expected a whole number .*, found null"),
        ("mpt", {"attn_config": {"kv_n_heads": 1}}, "attn_config.kv_n_heads: 1: minigpt does not know"),
        (
            "qwen2 with windows",
            {"sliding_window": None, "layer_types": ["sliding_attention"] * 3},
            "layer_types: a layer has a window, and sliding_window is null",
        ),
    ],
)
def test_an_option_without_counterpart_is_refused_by_name(
    case: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source = save(tmp_path / "model", case)
    edit(source, **values)
    refused(source, UserError, message)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", "not the JSON"),
        ("config.json", '{"n_layer": 3, "n_layer": 4}', "'n_layer' is there twice"),
        ("config.json", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
        ("config.json", '{"n_embd": NaN}', "NaN"),
        ("config.json", "[1]", "expected a JSON object"),
        ("config.json", "\xff", "not the JSON"),
        ("tokenizer.json", "{", "not the JSON of a tokenizer"),
        ("tokenizer.json", "[" * 100_000, "nested too deep"),
        ("tokenizer.json", "{}", r"tokenizer\.json"),
        ("tokenizer.json", '{"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}}', "'a' is there twice"),
        ("tokenizer.json", '{"model": {"type": "Evil"}}', r"tokenizer\.json"),
        ("tokenizer.json", " " * (41 << 20), "this is not a tokenizer"),
    ],
    ids=lambda value: value[:20],
)
def test_a_config_or_a_tokenizer_that_is_none(file: str, text: str, message: str, folder: Path) -> None:
    (folder / file).write_bytes(text.encode("latin-1"))
    refused(folder, UserError, message)


def test_a_config_of_a_gigabyte_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("ab") as file:
        file.truncate(1 << 30)
    refused(folder, UserError, "1,073,741,824 bytes; such a file has at most")


def test_a_folder_without_a_config_or_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    refused(folder, UserError, r"tokenizer\.json")
    (folder / "config.json").unlink()
    refused(folder, UserError, r"config\.json: no such file")
    refused(folder / "nothing", UserError, "no such folder")


def test_an_end_of_text_that_is_no_id(folder: Path) -> None:
    edit(folder, "generation_config.json", eos_token_id="</s>")
    refused(folder, UserError, "eos_token_id is neither an id nor a list of ids")


@pytest.mark.parametrize(
    ("eos", "ends", "note"),
    [
        (5, [5], ""),
        ([5, 7, 5], [5, 7], ""),
        ([5, 999], [5], "note: eos_token_id 999 cannot be written, and is left out: the model has the ids 0 to 255"),
        (-1, [], "note: eos_token_id -1 cannot be written"),
        (None, [], ""),  # these are bytes: there is no token that could end a text
    ],
)
def test_ends_of_text_are_kept_or_it_is_said(eos: Any, ends: list[int], note: str, folder: Path) -> None:
    edit(folder, eos_token_id=eos)
    edit(folder, "generation_config.json", eos_token_id=eos)
    lines = list[str]()
    source = open_source(folder, None, lines.append)
    assert list(source.tokenizer.ends) == ends
    assert "\n".join(lines).startswith(note) and bool(lines) == bool(note)


def test_special_tokens_of_which_none_ends_a_text_are_said(folder: Path) -> None:
    steps = json.loads((folder / "tokenizer.json").read_text())
    steps["added_tokens"] = [{"id": 255, "content": "ÿ", "special": True}]
    (folder / "tokenizer.json").write_text(json.dumps(steps), encoding="utf-8")
    edit(folder, eos_token_id=None)
    edit(folder, "generation_config.json", eos_token_id=None)
    lines = list[str]()
    open_source(folder, None, lines.append)
    assert lines == ["note: it has special tokens, and eos_token_id names none: writing ends after --max-tokens only"]


def test_a_model_that_does_not_fit_into_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "free_memory", lambda: 300_000)
    refused(folder, UserError, r"these weights take [\d,]+ bytes, and 300,000 are free")
    monkeypatch.setattr(importer, "free_memory", lambda: 700_000)
    refused(folder, UserError, "in a context of 40 positions .* as in --block-size")


def test_a_context_that_the_model_does_not_have(folder: Path) -> None:
    with pytest.raises(UserError, match="--block-size 41: this model has a context of 40"):
        import_folder(folder, "mine", 41, silent)
