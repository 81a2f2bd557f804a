"""Writes a run as a GGUF file for llama.cpp and ollama, with its vocabulary.

The tables that read such files (`gguf_architectures.py`) are used backwards. The metadata are read again before
anything is written: an option that does not come back has no counterpart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from minigpt.hub.exporter import before_text, expressed
from minigpt.hub.family import Family, to_external
from minigpt.hub.gguf_architectures import ARCHITECTURES, BY_FAMILY, Architecture, flat
from minigpt.hub.gguf_header import Header, HeaderEntry
from minigpt.hub.gguf_model import OWN_KEYS, library, read_metadata
from minigpt.hub.gguf_vocabulary import write_vocabulary
from minigpt.hub.keys import show
from minigpt.hub.spelled import differences, spell_out
from minigpt.model import ModelConfig
from minigpt.system.beside import written_beside
from minigpt.system.errors import UserError
from minigpt.system.folder import sync
from minigpt.system.moving import rename
from minigpt.system.waiting import interruptible, progress
from minigpt.training.checkpoint import tensors_of
from minigpt.training.run import Run

Weights = Literal["float32", "float16", "q8_0"]
TYPES = {"float32": "F32", "float16": "F16", "q8_0": "Q8_0"}  # names of ggml's types
FILE_TYPES = {"float32": "ALL_F32", "float16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}
LAYER = r"\[\d+\]"  # the number of the layer in the name of an option
assert set(TYPES) == set(get_args(Weights))

Json = dict[str, Any]


def check_file(path: Path) -> None:
    """Raises UserError unless `path` is free, its folder exists, and the package gguf is installed.

    An existing file is never replaced: it may be the only copy of a model. Callers check before they write anything.
    """
    library()
    if path.is_symlink():
        raise UserError(f"--gguf {path}: a symbolic link: give the file itself")
    if path.exists():
        raise UserError(f"--gguf {path}: it is there already: give the name of a new file, or remove it")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--gguf {path}: there is no folder {path.absolute().parent}")


def export_gguf(run: Run, path: Path, weights: Weights = "float32") -> None:
    """Write a run as a GGUF file, or leave none: raises UserError for options without a counterpart, and OSError."""
    check_file(path)
    gguf, model = library(), run.config.model
    family, config, words = counterparts(run)
    name = BY_FAMILY[family.model_type]
    values = metadata(config, name) | words
    values |= {gguf_key: text for gguf_key, key in OWN_KEYS.items() if (text := before_text(run).get(key))}
    check_read_again(values, model, family)
    writer = gguf.GGUFWriter(None, name)
    writer.add_name(run.folder.name)
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[weights]])
    if weights == "q8_0":
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add = {bool: writer.add_bool, str: writer.add_string, list: writer.add_array, float: writer.add_float32}
    for key, value in values.items():
        add.get(type(value), writer.add_uint32)(key, value)
    rules = family.rules(model)
    for hf_name, tensor in progress(to_external(rules, tensors_of(run.model)), "converting", len(rules), "tensors"):
        add_tensor(writer, *converted(hf_name, tensor, ARCHITECTURES[name], config), weights)
    final = path.absolute()
    with written_beside(final) as staging:
        file = staging.path / final.name
        interruptible(lambda: write_file(writer, file), f"writing {path.name}")
        sync(file)
        check_file(path)  # again: it may have been made meanwhile
        rename(file, final)
        sync(final.parent)


def counterparts(run: Run) -> tuple[Family, Json, Json]:
    """The family, its config.json, and the vocabulary. Raises UserError, which lists all without a counterpart."""
    problems = list[str]()
    words: Json = {}
    try:
        words = write_vocabulary(run.tokenizer)
    except UserError as error:
        problems.append(str(error))
    try:
        family, config = expressed(run.config.model, run.tokenizer.vocab_size, tuple(BY_FAMILY))
    except UserError as error:
        problems.append(str(error))
    if problems:
        raise UserError("; ".join(problems))
    return family, config, words


def metadata(config: Json, name: str) -> Json:
    """The metadata of the architecture `name`, from the keys of a config.json."""
    values, hf_keys = flat(config), ARCHITECTURES[name].keys
    keys = {key: values[hf_key] for key, hf_key in hf_keys.items() if values.get(hf_key) is not None}
    if "head_dim" in config:
        keys |= dict.fromkeys(("rope.dimension_count", "attention.value_length"), config["head_dim"])
    return {f"{name}.{key}": value for key, value in keys.items()}


def check_read_again(values: Json, model: ModelConfig, family: Family) -> None:
    """Raises UserError, which lists all options that a GGUF file of this family cannot express."""
    name = BY_FAMILY[family.model_type]
    headless = model.tied_head or "output" not in ARCHITECTURES[name].names
    head = {} if headless else {"output.weight": HeaderEntry("output.weight", (), 0, 0)}
    header = Header(Path("its GGUF file"), values, head, 0)
    read_again = family.read_config(read_metadata(header, name))
    missing = [
        f"model.{re.sub(LAYER, '', option)}: {show(value)} (there: {show(other)})"
        for option, value, other in differences(spell_out(model), spell_out(read_again))
    ]
    if missing:
        problem = f"GGUF files of the architecture {name}, as minigpt knows them, cannot say"
        raise UserError(f"--gguf: {problem}: {'; '.join(dict.fromkeys(missing))}")


def converted(name: str, tensor: Tensor, architecture: Architecture, config: Json) -> tuple[str, Tensor]:
    """The name and the layout of a tensor in the file, from Hugging Face's."""
    module, _, parameter = name.rpartition(".")
    layer, pattern = re.search(r"\.(\d+)\.", module), re.sub(r"\.\d+\.", ".{}.", module, count=1)
    gguf_name = next(gguf_name for gguf_name, hf_name in architecture.names.items() if hf_name == pattern)
    if re.fullmatch(architecture.converted, name):
        (tensor,) = architecture.layout(config.get("head_dim", 0)).inward([tensor])
    return f"{gguf_name.format(layer[1] if layer else '')}.{parameter}", tensor


def add_tensor(writer: Any, name: str, tensor: Tensor, weights: Weights) -> None:
    """Add one tensor. Vectors stay float32, and so do rows that cannot be divided into blocks of 32, as q8_0 needs."""
    gguf, numbers = library(), tensor.contiguous().numpy()  # as torch has them: (rows, columns), or (n,)
    kind = gguf.GGMLQuantizationType[TYPES[weights]]
    block = gguf.GGML_QUANT_SIZES[kind][0]
    if numbers.ndim == 1 or numbers.shape[-1] % block:
        kind = gguf.GGMLQuantizationType.F32
    data: npt.NDArray[Any] = gguf.quants.quantize(np.ascontiguousarray(numbers), kind)
    writer.add_tensor(name, data, raw_dtype=kind)


def write_file(writer: Any, path: Path) -> None:
    """Write all that was added."""
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
