"""A GGUF file (llama.cpp, ollama) as what a folder of Hugging Face's holds: a config, tensors by name, a tokenizer.

The metadata are written as the keys of a config.json, and the tensors get Hugging Face's names and layouts, so that the
same tables read both. Quantised numbers are made float32 by the `gguf` library, one tensor at a time.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.hub.folder import Place, check_plain
from minigpt.hub.gguf_header import Header, check_numbers, read_header, read_numbers
from minigpt.hub.gguf_pieces import steps_of_pieces
from minigpt.hub.gguf_rope import FREQUENCIES, stretch_of
from minigpt.hub.keys import BEFORE_TEXT, show
from minigpt.hub.layouts import SAME, TRANSPOSED, Layout, halves
from minigpt.runs.checkpoint import CheckpointError
from minigpt.system.errors import UserError
from minigpt.system.folder import sha256_of
from minigpt.system.strict_json import has_form
from minigpt.system.terminal import one_line
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.ranked import Ranked

Json = dict[str, Any]

# Their names in a GGUF file -> Hugging Face's; {} is the number of the layer.
LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
# The keys of the metadata, after the name of the architecture -> those of a config.json.
LIKE_LLAMA = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
LIKE_GPT2 = {
    "block_count": "n_layer",
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
OFF = {"rope.scaling.type": "none", "expert_count": 0, "expert_used_count": 0}  # values that change nothing
NOTHING = ("vocab_size",)  # the number of tokens says it
OURS = {"minigpt.before_text": BEFORE_TEXT}  # our own key, which other readers pass over


@dataclass(frozen=True)
class Architecture:
    """How a GGUF file of one architecture is read."""

    names: dict[str, str]
    keys: dict[str, str]
    turned: str = "(?!)"
    """A pattern of tensors whose layout differs from Hugging Face's."""
    layout: Callable[[int], Layout] = lambda width: SAME
    """Their layout, for heads of this width."""


KNOWN = {
    # llama.cpp keeps the two features of a rotation side by side in this architecture, as minigpt does, and only there
    "llama": Architecture(LLAMA, LIKE_LLAMA, r".*\.[qk]_proj\.(weight|bias)", lambda width: halves(width, width)),
    "qwen2": Architecture(LLAMA, LIKE_LLAMA),
    "qwen3": Architecture(LLAMA, LIKE_LLAMA),
    "gpt2": Architecture(GPT2, LIKE_GPT2, r".*\.c_(attn|proj|fc)\.weight", lambda width: TRANSPOSED),
}
SPECIAL, WHOLE = 3, 4  # types of tokens: control, and found in a text before all else
BEGINS = ("llama-bpe", "llama3", "llama-v3", "falcon3")  # vocabularies of which llama.cpp begins a text with a token


@dataclass(frozen=True)
class GGUF:
    """A GGUF file, by its header."""

    header: Header
    config: Json
    """The keys of a config.json that says the same."""
    stored: dict[str, str]
    """Hugging Face's name of each tensor -> the file's."""

    @property
    def places(self) -> dict[str, Place]:
        """The tensors as they will be once they are read."""
        found = {}
        for name, own in self.stored.items():
            shape = self.turn(name, torch.empty(self.header.tensors[own].shape, device="meta")).shape
            found[name] = Place(self.header.path, name, tuple(shape), "F32")
        return found

    def turn(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor in Hugging Face's layout."""
        known = KNOWN[self.config["model_type"]]
        if not re.fullmatch(known.turned, name):
            return tensor
        try:
            return known.layout(self.config.get("head_dim", 0)).outward([tensor])[0]
        except RuntimeError:
            what = f"{tuple(tensor.shape)} is not made of heads of {self.config['head_dim']} rows"
            raise CheckpointError(f"{self.header.path}: {one_line(name)}: {what}") from None

    def sums(self) -> dict[str, str]:
        """The SHA-256 sum of the file."""
        return {self.header.path.name: sha256_of(self.header.path)}

    def read(self, place: Place) -> Tensor:
        """One tensor, in float32. Raises CheckpointError."""
        return self.turn(place.name, dequantised(self.header, self.stored[place.name]))

    def tokenizer(self) -> Ranked | HuggingFace:
        """Its vocabulary. Raises UserError for one that is neither of bytes nor of SentencePiece's pieces."""
        values = {key.removeprefix("tokenizer."): value for key, value in self.header.values.items()}
        known: dict[Any, Callable[[Json], Ranked | HuggingFace]] = {"gpt2": of_bytes, "llama": of_pieces}
        if (model := values.get("ggml.model")) not in known:
            what = "only vocabularies of bytes (gpt2) and of SentencePiece (llama) are read"
            hint = "the model's folder with tokenizer.json may be"
            raise UserError(f"{self.header.path}: tokenizer.ggml.model: {show(model)}: {what}; {hint}")
        try:
            return known[model](values)
        except UserError as error:
            raise UserError(f"{self.header.path}: {error}") from None


def of_bytes(values: Json) -> Ranked:
    """A byte-level vocabulary, of the keys `ggml.*`."""
    tokens, split = values["ggml.tokens"], values.get("ggml.pre", "gpt-2")
    types = values.get("ggml.token_type", [1] * len(tokens))
    if not has_form(types, [int]) or len(types) != len(tokens):
        raise UserError("tokenizer.ggml.token_type: expected a number for each token")
    begins = values.get("ggml.add_bos_token", split in BEGINS)
    return Ranked(
        tokens,
        values.get("ggml.merges", []),
        split,
        special=[id for id, kind in enumerate(types) if kind == SPECIAL],
        whole=[id for id, kind in enumerate(types) if kind == WHOLE],
        begin_of_text=values.get("ggml.bos_token_id") if begins else None,
        ends=ends_of(values),
        chat_template=values.get("chat_template"),
    )


def of_pieces(values: Json) -> HuggingFace:
    """A vocabulary of SentencePiece, of the keys `ggml.*`. llama.cpp begins its texts with the token 1 by default."""
    begin = values.get("ggml.bos_token_id", 1) if values.get("ggml.add_bos_token", True) else None
    text = json.dumps(steps_of_pieces(values), ensure_ascii=False, separators=(",", ":"))
    ends = ends_of({"ggml.eos_token_id": 2} | values)
    return HuggingFace(text, len(values["ggml.tokens"]), begin, ends, values.get("chat_template"))


def ends_of(values: Json) -> list[Any]:
    """The ids after which nothing more is written."""
    found = dict.fromkeys(values.get(f"ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return [id for id in found if id is not None]


def open_gguf(path: Path) -> GGUF:
    """A GGUF file. Raises UserError for a model that has no counterpart here, CheckpointError, and OSError."""
    check_plain(path)
    header = read_header(path)
    name = header.values.get("general.architecture")
    if not isinstance(name, str) or name not in KNOWN:
        raise UserError(f"{path}: general.architecture: {show(name)} is not read (only {', '.join(KNOWN)})")
    if header.values.get("split.count", 1) != 1:
        raise UserError(f"{path}: one of several files of a model; llama-gguf-split --merge makes one of them")
    for tensor in header.tensors:
        stored_type(header, tensor)
    stored = {renamed(own, KNOWN[name].names, path): own for own in header.tensors if own != FREQUENCIES}
    config = read_metadata(header, name)
    if FREQUENCIES in header.tensors:
        config["rope_scaling"] = read_stretch(header, config)
    return GGUF(header, config, stored)


def read_stretch(header: Header, config: Json) -> Json:
    """`rope_scaling` of the tensor that Llama 3.1's files have for it. Raises UserError, and CheckpointError."""
    width: Any = config.get("head_dim")
    base: Any = config.get("rope_theta", 10_000.0)
    if config["model_type"] != "llama" or not has_form([width, base], (int, float)) or base <= 0:
        raise UserError(f"{header.path}: the tensor {FREQUENCIES} has no counterpart in minigpt")
    if header.tensors[FREQUENCIES].shape != (width // 2,):
        raise CheckpointError(f"{header.path}: {FREQUENCIES}: expected a number for each of {width // 2} pairs")
    try:
        return stretch_of(dequantised(header, FREQUENCIES), base)
    except UserError as error:
        raise UserError(f"{header.path}: {error}") from None


def renamed(name: str, names: dict[str, str], path: Path) -> str:
    """Hugging Face's name of a tensor. Raises UserError for one that has none."""
    own, _, parameter = name.rpartition(".")
    layer = re.match(r"blk\.(\d{1,5})\.", own)
    pattern = re.sub(r"^blk\.\d+\.", "blk.{}.", own)
    if pattern not in names or parameter not in ("weight", "bias"):
        raise UserError(f"{path}: the tensor {one_line(name)} has no counterpart in minigpt")
    return f"{names[pattern].format(layer[1] if layer else '')}.{parameter}"


def read_metadata(header: Header, name: str) -> Json:
    """The keys of a config.json, from those of one architecture. Raises UserError for one that is not known."""
    keys, values = KNOWN[name].keys, header.values
    tokens = values.get("tokenizer.ggml.tokens")
    if not has_form(tokens, [str]) or not tokens:
        raise UserError(f"{header.path}: there is no vocabulary in it (tokenizer.ggml.tokens)")
    own = {key[len(name) + 1 :]: value for key, value in values.items() if key.startswith(f"{name}.")}
    config = {theirs: plain(own.pop(key)) for key, theirs in keys.items() if key in own}
    config |= {
        "model_type": name,
        "vocab_size": len(tokens),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    config |= {theirs: values[key] for key, theirs in OURS.items() if key in values}
    width, n_head = config.get("hidden_size"), config.get("num_attention_heads")
    if has_form([width, n_head], (int, int)) and n_head:
        config.setdefault("head_dim", width // n_head)
    same = dict.fromkeys(("rope.dimension_count", "attention.value_length"), config.get("head_dim"))
    for key, value in own.items():
        if key not in NOTHING and value != same.get(key, OFF.get(key)):
            what = f"{show(value)} has no counterpart in minigpt, or minigpt does not know this key"
            raise UserError(f"{header.path}: {one_line(name)}.{one_line(key)[:60]}: {what}")
    return config


def plain(value: Any) -> Any:
    """A number as it was meant: float32 has 1e-5 as 9.9999997e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def stored_type(header: Header, name: str) -> Any:
    """The type of a tensor, in the library's words. Raises CheckpointError unless its numbers are in the file."""
    gguf = library()
    try:
        kind = gguf.GGMLQuantizationType(header.tensors[name].type)
        check_numbers(header, name, *gguf.GGML_QUANT_SIZES[kind])
    except (ValueError, KeyError):
        what = f"type {header.tensors[name].type} is not known to this version of the package gguf"
        raise UserError(f"{header.path}: {one_line(name)}: {what}") from None
    return kind


def dequantised(header: Header, name: str) -> Tensor:
    """The numbers of a tensor, float32."""
    gguf, kind = library(), stored_type(header, name)
    raw = read_numbers(header, name, *gguf.GGML_QUANT_SIZES[kind])  # (rows, bytes of a row)
    try:
        found = gguf.quants.dequantize(raw, kind)  # (rows, columns)
    except NotImplementedError:
        raise UserError(f"{header.path}: {one_line(name)}: numbers of the type {kind.name} are not read") from None
    return torch.from_numpy(found).reshape(header.tensors[name].shape)


def library() -> ModuleType:
    """The package gguf. Raises UserError where it is not installed."""
    try:
        return importlib.import_module("gguf")
    except ImportError:
        raise UserError('GGUF files are read and written with the package gguf: pip install -e ".[gguf]"') from None
