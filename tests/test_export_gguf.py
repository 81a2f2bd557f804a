"""GGUF files that we write: read by transformers, an independent reader, and by ourselves, with equal logits."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from families import in_float64
from hub_folders import in_its_folder
from laws import stir
from running import furnish, one_line, script, small_text
from torch import Tensor
from transformers import AutoModelForCausalLM

from minigpt.config.options import from_dict
from minigpt.hub.exporter import export_run
from minigpt.hub.gguf_header import MAGIC, read_header
from minigpt.hub.gguf_model import open_gguf
from minigpt.hub.gguf_vocabulary import write_vocabulary
from minigpt.hub.gguf_writer import Weights, export_gguf
from minigpt.hub.importer import import_folder
from minigpt.hub.tokenizer_json import steps_of
from minigpt.model import GPT
from minigpt.system.errors import UserError
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.tokenizer import BPE, GPT2, Byte, Char, Tokenizer
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import tensors_of
from minigpt.training.report import silent
from minigpt.training.run import Run, load

elsewhere = pytest.fixture(autouse=True)(in_its_folder)

gguf = pytest.importorskip("gguf")

SIZES: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "block_size": 20}  # rows of whole blocks of 32
LLAMA = SIZES | {
    "bias": False,
    "position": {"kind": "rotary", "base": 5000.0},
    "norm": {"kind": "rmsnorm", "epsilon": 1e-5},
    "mlp": {"kind": "swiglu", "width": 96},
    "tied_head": False,
    "attention": {"kind": "grouped_query", "n_head": 4, "n_kv_head": 2},
}
GEMMA = LLAMA | {
    "mlp": {"kind": "geglu_tanh", "width": 96},
    "tied_head": True,
    "embedding_scale": 8.0,  # sqrt(64)
    "attention": LLAMA["attention"] | {"head_dim": 32},
}


def gemma(width: int, every: int, **more: Any) -> list[dict[str, Any]]:
    """The attention of a Gemma 2 or 3 with heads of a width: the last of `every` layers sees all that went before."""
    attention = GEMMA["attention"] | {"head_dim": width, "score_scale": width**-0.5, "kind": "soft_cap", "cap": 50.0}
    near = attention | {"kind": "soft_cap_window", "window": 5}
    return [(near if layer % every else attention) | more for layer in range(1, every + 1)]


def gemma3(width: int, local: float, **stretch: Any) -> dict[str, Any]:
    """A Gemma 3, with these positions in layers with a window, and in the last layer."""
    here, far = {"kind": "rotary", "base": local}, {"kind": "rotary", "base": 5000.0, **stretch}
    layers = gemma(width, 6, qk_norm=True, qk_norm_epsilon=1e-5)
    for layer in layers:
        del layer["cap"]
        near = "window" in layer
        layer |= {"kind": "sliding_window" if near else "grouped_query", "position": here if near else far}
    return GEMMA | {"n_layer": 6, "block": "sandwich", "attention": layers}


GEMMA2 = GEMMA | {"block": "sandwich", "head_cap": 30.0, "attention": gemma(256, 2)}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama tied": LLAMA | {"tied_head": True, "attention": LLAMA["attention"] | {"head_dim": 32}},
    "qwen2": LLAMA | {"attention": LLAMA["attention"] | {"qkv_bias": True}},
    # transformers reads heads of 128 for this architecture, and a context of 1024 for the next, whatever the file says
    "qwen3": LLAMA | {"attention": LLAMA["attention"] | {"qk_norm": True, "qk_norm_epsilon": 1e-5, "head_dim": 128}},
    "gpt2": SIZES | {"mlp": "gelu_tanh", "block_size": 1024},
    # transformers scales scores as for heads of 256, and has caps of 50 and 30, whatever the file says
    "gemma2": GEMMA2,
    "gemma3": gemma3(256, 10_000.0),
}
ALSO = {  # what transformers does not read in such a file
    "gemma": GEMMA,
    "gemma2 with other caps": GEMMA2 | {"head_cap": 10.0, "attention": gemma(32, 2, cap=20.0)},
    "gemma3 with other positions": gemma3(32, 3000.0, stretch={"kind": "linear", "factor": 4.0}),
}


@cache
def learned() -> Tokenizer:
    return BPE.fit(BPE.Config(vocab_size=300), [small_text()])


def random_run(options: dict[str, Any], tokenizer: Tokenizer | None = None) -> Run:
    """A run of this model with random weights."""
    config, tokenizer = from_dict(RunConfig, {"model": options}), tokenizer or learned()
    torch.manual_seed(0)
    model = GPT(config.model, tokenizer.vocab_size).eval()
    with torch.no_grad():
        stir(model)
    return Run(Path("x"), config, tokenizer, model, 0, [])


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("llama tied", "qwen2", "gemma2"))) for name in MODELS],
)
@torch.no_grad()
def test_an_independent_reader_computes_the_same(name: str, tmp_path: Path) -> None:
    run = random_run(MODELS[name])
    export_gguf(run, tmp_path / "model.gguf")
    ids = torch.randint(run.tokenizer.vocab_size, (2, 18), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        deepcopy(run.model).double()(ids), read_by_transformers(tmp_path, ids), rtol=0, atol=1e-10
    )
    comes_back(run, tmp_path / "model.gguf")


def read_by_transformers(folder: Path, ids: Tensor) -> Tensor:
    """The logits of ids (B, T) by the model in `model.gguf`, computed in float64: (B, T, V)."""
    with in_float64():
        plain = {"dtype": torch.float64, "attn_implementation": "eager"}  # older ones' kernel has no cap
        reference = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", **plain).eval()
        return reference(ids).logits


def comes_back(run: Run, path: Path) -> None:
    """The file, read again, is the same model with the same vocabulary."""
    again = load(import_folder(path, "again", None, silent), "cpu", fast=False)
    ids = torch.arange(18)[None]
    assert torch.equal(again.model(ids), run.model(ids))
    assert all(torch.equal(tensors_of(again.model)[name], one) for name, one in tensors_of(run.model).items())
    text = "the cat sat on 123 don't\n\n  é🙂"
    assert again.tokenizer.encode(text).tolist() == run.tokenizer.encode(text).tolist()


@pytest.mark.parametrize("name", ALSO)
@torch.no_grad()
def test_what_transformers_does_not_read_comes_back(name: str, tmp_path: Path) -> None:
    """`test_llama_cpp_computes_the_same` holds these against another reader."""
    run = random_run(ALSO[name])
    export_gguf(run, tmp_path / "model.gguf")
    comes_back(run, tmp_path / "model.gguf")


@pytest.mark.parametrize("source", ["stories", "text.txt"])
def test_a_run_that_comes_back_writes_the_same_text(source: str, tmp_path: Path) -> None:
    """A prompt follows a line end where the model learned the built-in stories, and only there."""
    furnish(tmp_path)
    run = random_run(LLAMA)
    run.config = replace(run.config, data=replace(run.config.data, source=source))
    export_gguf(run, tmp_path / "model.gguf")
    export_run(run, tmp_path / "model")
    for file in ("model.gguf", "model"):
        again = load(import_folder(tmp_path / file, "again", None, silent), "cpu", fast=False)
        for prompt in ("the cat", "\nthe cat", ""):
            options = {"temperature": 0, "max_tokens": 12}
            assert again.generate(prompt, **options) == run.generate(prompt, **options)
            assert again.context_ids(prompt).tolist() == run.context_ids(prompt).tolist()
        assert (again.tells(), again.context_ids("the").tolist()[0][0] == 10) == (source == "stories",) * 2


@pytest.mark.parametrize(("weights", "far"), [("float16", 0.01), ("q8_0", 0.1)])
@torch.no_grad()
def test_rounded_numbers_are_the_librarys_and_read_alike(weights: Weights, far: float, tmp_path: Path) -> None:
    run = random_run(LLAMA)
    export_gguf(run, tmp_path / "model.gguf", weights)
    again = load(import_folder(tmp_path / "model.gguf", "again", None, silent), "cpu", fast=False)
    ids = torch.arange(18)[None]
    own = deepcopy(again.model).double()(ids)  # (1, 18, V)
    torch.testing.assert_close(own, read_by_transformers(tmp_path, ids), rtol=0, atol=1e-10)
    error = (again.model(ids) - run.model(ids)).std() / run.model(ids).std()
    assert 0 < error < far  # rounded, and the same model
    types = {one.type for one in read_header(tmp_path / "model.gguf").tensors.values()}
    assert types == {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType[weights.upper().replace("FLOAT", "F")]}


def test_rows_without_whole_blocks_stay_float32(tmp_path: Path) -> None:
    export_gguf(random_run(LLAMA | {"mlp": {"kind": "swiglu", "width": 50}}), tmp_path / "model.gguf", "q8_0")
    tensors = read_header(tmp_path / "model.gguf").tensors
    assert tensors["blk.0.ffn_down.weight"].type == gguf.GGMLQuantizationType.F32  # rows of 50
    assert tensors["blk.0.ffn_up.weight"].type == gguf.GGMLQuantizationType.Q8_0


def gpt2() -> Tokenizer:
    """The published encoding, where tiktoken's cache has it."""
    try:
        return GPT2()
    except UserError:
        pytest.skip("the encoding gpt2 is not in tiktoken's cache: set TIKTOKEN_CACHE_DIR")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "gpt2", "hf", "ranked"])
def test_the_vocabulary_is_read_again_with_the_same_ids(kind: str, tmp_path: Path) -> None:
    if kind == "hf":
        tokenizer: Tokenizer = HuggingFace(steps_of(learned()), learned().vocab_size, None, [], "{{ x }}")
    else:
        tokenizer = learned() if kind in ("bpe", "ranked") else gpt2()
    path = tmp_path / "model.gguf"
    export_gguf(random_run(LLAMA, tokenizer), path)
    again = open_gguf(path).tokenizer()
    if kind == "ranked":
        tokenizer = again
        export_gguf(random_run(LLAMA, tokenizer), tmp_path / "again.gguf")
        again = open_gguf(tmp_path / "again.gguf").tokenizer()
    text = "The cat's 1,234 hats;\n\n\tdon't <|endoftext|> naïve 🦉  x"
    assert again.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert (again.ends, again.begin_of_text) == (list(tokenizer.ends), tokenizer.begin_of_text)
    assert dict(again.special_tokens) == dict(tokenizer.special_tokens)
    assert again.chat_template == getattr(tokenizer, "chat_template", None)


def test_unused_ids_have_tokens_of_their_own() -> None:
    keys = write_vocabulary(HuggingFace(steps_of(learned()), learned().vocab_size + 3, None, [], None))
    assert keys["tokenizer.ggml.tokens"][-2:] == [f"<unused{learned().vocab_size + n}>" for n in (1, 2)]
    assert keys["tokenizer.ggml.token_type"][-3:] == [5, 5, 5]


LINEAR = {"kind": "rotary", "stretch": {"kind": "linear", "factor": 2.0}}


@pytest.mark.parametrize(
    ("options", "tokenizer", "why"),
    [
        (SIZES, None, r'model\.mlp: "gelu" .*gelu_tanh'),
        (SIZES | {"attention": "average_softmax"}, None, r"model\.attention"),
        (LLAMA | {"bias": True}, None, "model.bias|model.attention"),
        (GEMMA | {"tied_head": False}, None, r"gemma, .*model\.tied_head: false"),
        (GEMMA2 | {"head_cap": None}, None, r"gemma2, .*model\.head_cap: null"),
        (GEMMA2 | {"attention": gemma(32, 2, score_scale=0.2)}, None, r"gemma2, .*score_scale: 0\.2 \(there: 0\.17"),
        (GEMMA2 | {"attention": gemma(32, 2)[::-1]}, None, r"gemma2, .*model\.attention"),
        (LLAMA, Byte(), "data.tokenizer: byte has no merges"),
        (LLAMA | {"position": LINEAR}, None, r"model\.(attention\.)?position"),
        (LLAMA, Char("ab"), "data.tokenizer: char has no merges"),
        (SIZES | {"attention": "average_softmax"}, Byte(), r"byte has no merges.*; none of .*model\.attention"),
    ],
)
def test_what_a_file_cannot_say_is_refused(
    options: dict[str, Any], tokenizer: Tokenizer | None, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why) as refused:
        export_gguf(random_run(options, tokenizer), tmp_path / "model.gguf")
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


def test_the_command_writes_a_file_and_replaces_nothing(tmp_path: Path) -> None:
    furnish(tmp_path)
    model = "{n_layer: 1, n_embd: 16, block_size: 16, mlp: gelu_tanh, attention: {kind: multi_head, n_head: 2}}"
    options = ["data.tokenizer={kind: bpe, vocab_size: 280}", f"model={model}", "training.max_steps=2"]
    assert script("train.py", "--config", "small.yaml", *options, cwd=tmp_path).code == 0
    wrote = script("export_hf.py", "--gguf", "a.gguf", "--gguf-weights", "float16", cwd=tmp_path)
    assert (wrote.code, wrote.err) == (0, "")
    assert (tmp_path / "a.gguf").read_bytes()[:4] == MAGIC
    before = (tmp_path / "a.gguf").read_bytes()
    for path, why in (("a.gguf", "already"), ("runs", "already"), ("no/a.gguf", "no folder")):
        refused = script("export_hf.py", "--gguf", path, cwd=tmp_path)
        one_line(refused, 2)
        assert why in refused.err
    assert (tmp_path / "a.gguf").read_bytes() == before
    (tmp_path / "link.gguf").symlink_to("a.gguf")
    assert "a symbolic link" in script("export_hf.py", "--gguf", "link.gguf", cwd=tmp_path).err
    assert "give --out DIR, --gguf FILE, or both" in script("export_hf.py", cwd=tmp_path).err
    (tmp_path / "without.py").write_text("import sys; sys.modules['gguf'] = None")
    both = ("--out", "folder", "--gguf", "b.gguf", "--remote-code")
    refused = script("export_hf.py", *both, "--plugin", "without.py", cwd=tmp_path)
    assert refused.code == 2 and 'written with the package gguf: pip install -e ".[gguf]"' in refused.err
    assert not (tmp_path / "folder").exists() and not (tmp_path / "b.gguf").exists()


# ---- llama.cpp itself ----

# llama.cpp looks GELU up in a table of half precision; all else is float32 there
FAR = {"gpt2": 2e-3, "gemma": 1e-2, "gemma2": 1e-2, "gemma3": 1e-2}
TEXTS = [*small_text(20).splitlines(), "The cat's 1,234 hats;\n\n\tdon't", "naïve 🦉  x   y", " é\n \n", "a\r\nb"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS | ALSO)
@torch.no_grad()
def test_llama_cpp_computes_the_same(name: str, tmp_path: Path) -> None:
    """Logits, ids, and what is written greedily. It keeps keys and values in half precision unless told not to."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed: pip install llama-cpp-python")
    run = random_run((MODELS | ALSO)[name] | {"block_size": 64})
    export_gguf(run, tmp_path / "model.gguf")
    exact = {"n_ctx": 64, "type_k": 0, "type_v": 0, "flash_attn": False, "logits_all": True}
    reference = llama_cpp.Llama(str(tmp_path / "model.gguf"), n_threads=1, verbose=False, **exact)
    for text in TEXTS:
        ids = run.tokenizer.encode(text).tolist()
        assert reference.tokenize(text.encode(), add_bos=False, special=False) == ids, text
    ids = run.tokenizer.encode(small_text(1)).tolist()[:20]
    for _ in range(20):
        reference.reset()
        reference.eval(ids)
        logits = torch.tensor(reference.scores[: len(ids)])  # (T, V)
        own = run.model(torch.tensor([ids]))[0]  # (T, V)
        torch.testing.assert_close(logits, own, rtol=0, atol=FAR.get(name.split()[0], 3e-5))
        assert logits[-1].argmax() == own[-1].argmax()
        ids.append(int(own[-1].argmax()))
