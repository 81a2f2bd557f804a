"""A GGUF file (llama.cpp, ollama) in the form of a Hugging Face folder: a config, tensors by name, a tokenizer.

The metadata become the keys of a config.json, and the tensors get Hugging Face's names and layouts, so that the same
tables read both formats. The `gguf` library dequantises the tensors to float32, one at a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.attention.position import angles
from minigpt.attention.stretch import Llama3
from minigpt.hub.folder import TensorEntry, check_plain
from minigpt.hub.gguf_architectures import ARCHITECTURES, BY_FAMILY, OPTIONAL, nested
from minigpt.hub.gguf_header import Header, check_data, read_data, read_header
from minigpt.hub.gguf_vocabulary import read_vocabulary
from minigpt.hub.keys import BEFORE_TEXT, show
from minigpt.system.errors import UserError, package
from minigpt.system.folder import sha256_of
from minigpt.system.strict_json import has_form
from minigpt.system.terminal import one_line
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.ranked import Ranked
from minigpt.training.checkpoint import CheckpointError

Json = dict[str, Any]

OFF = {  # values without effect; the last key is ollama's
    "rope.scaling.type": "none", "expert_count": 0, "expert_used_count": 0, "attention.causal": True,
    "rope.local.freq_base": 10_000.0,
}  # fmt: skip
# Llama 3.1's RoPE scaling: divisors of frequencies in place of the rule's parameters (llama.cpp, convert_hf_to_gguf.py)
FREQUENCIES = "rope_freqs.weight"
LLAMA3_FACTORS = (8.0, 32.0)  # Llama 3.1 and 3.3, Llama 3.2; all with low 1, high 4, original 8192
OWN_KEYS = {"minigpt.before_text": BEFORE_TEXT}  # minigpt's own key, which other programs ignore
# The metadata beside those of the architecture: keys that are read here, keys that change no logit and no id (names and
# records, other special tokens, settings of generation), and keys that must have one value, or be missing.
READ = re.compile(
    r"general\.(architecture|alignment)|tokenizer\.(chat_template|ggml\.(model|pre|tokens|token_type|scores|merges"
    r"|add_bos_token|add_space_prefix|remove_extra_whitespaces|precompiled_charsmap|eos_token_ids))"
)
NO_EFFECT = re.compile(
    r"general\..*|split\..*|quantize\.imatrix\..*|tokenizer\.(chat_template\..*|chat_templates|huggingface\.json)"
    r"|tokenizer\.ggml\.(\w+_token_id|token_type_count)"
)
MUST_BE = {"general.type": "model", "general.quantization_version": 2} | dict.fromkeys(
    (f"tokenizer.ggml.add_{name}_token" for name in ("eos", "sep", "unknown", "padding", "cls", "mask")), False
)
UNKNOWN_KEY = "has no counterpart in minigpt, or minigpt does not know this key"


@dataclass(frozen=True)
class GGUF:
    """A GGUF file whose header was read."""

    header: Header
    config: Json
    """The metadata as the keys of a config.json."""
    gguf_names: dict[str, str]
    """Hugging Face's name of each tensor -> its name in the file."""

    @property
    def tensors(self) -> dict[str, TensorEntry]:
        """The tensors by Hugging Face's names, with the shapes and the dtype that `read` returns."""
        entries = {}
        for name, gguf_name in self.gguf_names.items():
            shape = self.in_layout(name, torch.empty(self.header.tensors[gguf_name].shape, device="meta")).shape
            entries[name] = TensorEntry(self.header.path, name, tuple(shape), "F32")
        return entries

    def in_layout(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor in Hugging Face's layout. Raises CheckpointError for a shape that is not made of heads."""
        architecture = ARCHITECTURES[BY_FAMILY[self.config["model_type"]]]
        if not re.fullmatch(architecture.converted, name):
            return tensor
        try:
            return architecture.layout(self.config.get("head_dim", 0)).outward([tensor])[0]
        except RuntimeError:
            problem = f"{tuple(tensor.shape)} is not made of heads of {self.config['head_dim']} rows"
            raise CheckpointError(f"{self.header.path}: {one_line(name)}: {problem}") from None

    def sums(self) -> dict[str, str]:
        """The SHA-256 sum of the file."""
        return {self.header.path.name: sha256_of(self.header.path)}

    def read(self, entry: TensorEntry) -> Tensor:
        """One tensor, in float32. Raises CheckpointError."""
        return self.in_layout(entry.name, dequantised(self.header, self.gguf_names[entry.name]))

    def tokenizer(self) -> Ranked | HuggingFace:
        """The tokenizer. Raises UserError for a vocabulary that is neither byte-level nor SentencePiece's."""
        try:
            return read_vocabulary({key.removeprefix("tokenizer."): value for key, value in self.header.values.items()})
        except UserError as error:
            raise UserError(f"{self.header.path}: {error}") from None


def open_gguf(path: Path) -> GGUF:
    """Open a GGUF file. Raises UserError for a model without a counterpart, CheckpointError if damaged, and OSError."""
    check_plain(path)
    header = read_header(path)
    name = header.values.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UserError(f"{path}: general.architecture: {show(name)} is not read (only {', '.join(ARCHITECTURES)})")
    if header.values.get("split.count", 1) != 1:
        raise UserError(f"{path}: one of several files of a model; llama-gguf-split --merge makes one of them")
    check_metadata(header, name)
    for tensor in header.tensors:
        stored_type(header, tensor)
    names = ARCHITECTURES[name].names
    gguf_names = {hf_name(tensor, names, path): tensor for tensor in header.tensors if tensor != FREQUENCIES}
    config = read_metadata(header, name)
    if FREQUENCIES in header.tensors:
        config["rope_scaling"] = read_stretch(header, config)
    return GGUF(header, config, gguf_names)


def check_metadata(header: Header, name: str) -> None:
    """Raises UserError for a key beside those of the architecture `name` that is not known, or has another value."""
    for key, value in header.values.items():
        if key.startswith(f"{name}.") or key in OWN_KEYS or READ.fullmatch(key):
            continue
        if value != MUST_BE[key] if key in MUST_BE else not NO_EFFECT.fullmatch(key):
            raise UserError(f"{header.path}: {one_line(key)[:60]}: {show(value)} {UNKNOWN_KEY}")


def read_stretch(header: Header, config: Json) -> Json:
    """`rope_scaling`, from the tensor that Llama 3.1's files have instead. Raises UserError, and CheckpointError."""
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


def stretch_of(factors: Tensor, base: float) -> dict[str, Any]:
    """`rope_scaling` of a config.json, from the divisors (n,) of the frequencies of n pairs; `base` is `rope_theta`.

    The published parameters are tried in turn. Raises UserError if none of them fits.
    """
    frequencies = angles(1, 1, 2 * factors.numel(), base, factors.device)[0]  # (n,)
    for factor in LLAMA3_FACTORS:
        rule = Llama3.Config(factor=factor)
        unscaled = rule.share(frequencies, base)  # (n,): the share of each frequency that is not divided
        divisors = 1 / (unscaled + (1 - unscaled) / factor)  # (n,)
        if torch.allclose(factors.double(), divisors, rtol=1e-5, atol=0):  # the file has float32
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": rule.low,
                "high_freq_factor": rule.high,
                "original_max_position_embeddings": rule.original,
            }
    published = " and ".join(f"{factor:g}" for factor in LLAMA3_FACTORS)
    raise UserError(
        f"the tensor {FREQUENCIES} is not that of a published Llama 3 (factors {published}): it is not read"
    )


def hf_name(name: str, names: dict[str, str], path: Path) -> str:
    """Hugging Face's name of a tensor, from its name in the file. Raises UserError if it has none."""
    module, _, parameter = name.rpartition(".")
    layer = re.match(r"blk\.(\d{1,5})\.", module)
    pattern = re.sub(r"^blk\.\d+\.", "blk.{}.", module)
    if pattern not in names or parameter not in ("weight", "bias"):
        raise UserError(f"{path}: the tensor {one_line(name)} has no counterpart in minigpt")
    return f"{names[pattern].format(layer[1] if layer else '')}.{parameter}"


def read_metadata(header: Header, name: str) -> Json:
    """The keys of a config.json, from those of the architecture `name`. Raises UserError for an unknown key."""
    architecture, values = ARCHITECTURES[name], header.values
    tokens = values.get("tokenizer.ggml.tokens")
    if not has_form(tokens, [str]) or not tokens:
        raise UserError(f"{header.path}: there is no vocabulary in it (tokenizer.ggml.tokens)")
    unread = {key[len(name) + 1 :]: value for key, value in values.items() if key.startswith(f"{name}.")}
    if missing := architecture.keys.keys() - unread.keys() - OPTIONAL:
        raise UserError(f"{header.path}: {name}.{min(missing)}: missing; llama.cpp reads no file without it")
    stated = [key for key in architecture.keys if key in unread and unread[key] != OFF.get(key)]
    config = nested({architecture.keys[key]: plain(unread.pop(key)) for key in stated})
    config |= {
        "model_type": architecture.model_type or name,
        "vocab_size": len(tokens),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    config |= {hf_key: values[key] for key, hf_key in OWN_KEYS.items() if key in values}
    width, n_head = config.get("hidden_size"), config.get("num_attention_heads")
    if has_form([width, n_head], (int, int)) and n_head:
        config = {"head_dim": width // n_head, "num_key_value_heads": n_head} | config
    repeated = ("rope.dimension_count", "attention.value_length", "attention.head_dim")
    same = dict.fromkeys(repeated, config.get("head_dim")) | {"vocab_size": len(tokens)}
    for key, value in unread.items():
        if value != same.get(key, OFF.get(key)):
            raise UserError(f"{header.path}: {one_line(name)}.{one_line(key)[:60]}: {show(value)} {UNKNOWN_KEY}")
    try:
        return config | architecture.implied(config)
    except UserError as error:
        raise UserError(f"{header.path}: {error}") from None


def plain(value: Any) -> Any:
    """A float32 value as its shortest decimal: 1e-5, not 9.9999997e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def stored_type(header: Header, name: str) -> Any:
    """The ggml type of a tensor. Raises UserError for an unknown one, CheckpointError if its data is cut short."""
    gguf = library()
    try:
        kind = gguf.GGMLQuantizationType(header.tensors[name].type)
        check_data(header, name, *gguf.GGML_QUANT_SIZES[kind])
    except (ValueError, KeyError):
        problem = f"type {header.tensors[name].type} is not known to this version of the package gguf"
        raise UserError(f"{header.path}: {one_line(name)}: {problem}") from None
    return kind


def dequantised(header: Header, name: str) -> Tensor:
    """A tensor in float32. Raises UserError for a type that the library cannot dequantise, and CheckpointError."""
    gguf, kind = library(), stored_type(header, name)
    raw = read_data(header, name, *gguf.GGML_QUANT_SIZES[kind])  # (rows, bytes of a row)
    try:
        numbers = gguf.quants.dequantize(raw, kind)  # (rows, columns)
    except NotImplementedError:
        raise UserError(f"{header.path}: {one_line(name)}: numbers of the type {kind.name} are not read") from None
    return torch.from_numpy(numbers).reshape(header.tensors[name].shape)


def library() -> ModuleType:
    """The package gguf. Raises UserError where it is not installed."""
    return package("gguf", "GGUF files are read and written with", "gguf")
