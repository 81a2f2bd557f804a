"""Makes a run from a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.hub.family import FAMILIES, Family, Rule, to_internal
from minigpt.hub.fetch import PACKAGES, fetch, looks_like_a_name, packaged
from minigpt.hub.folder import CONFIG, PICKLES, Folder, TensorEntry, check_tensors, open_folder, read_tensor
from minigpt.hub.gguf_model import GGUF, open_gguf
from minigpt.hub.keys import BEFORE_TEXT, show
from minigpt.hub.make_run import check_vocabulary, config_of, made_before, make_run
from minigpt.hub.tokenizer_json import odd_ends, read_tokenizer
from minigpt.model import ModelConfig
from minigpt.system.errors import UserError, meant
from minigpt.system.folder import check_name
from minigpt.system.memory import free_memory
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import CheckpointError, tensors_of
from minigpt.training.memory import NUMBER, outline, sampling_parts
from minigpt.training.report import Say

REMOTE_CODE = "minigpt"  # the model_type of a folder that was exported with --remote-code
TABLE = "position.table.weight"  # learned positions: a row for each position of the context


def import_from(source: str, name: str, block_size: int | None, say: Say) -> Path:
    """Make a run from a folder, a GGUF file, or a name on the Hub, as `import_folder` does, and return its folder.

    If `name` is empty, the run is named after the source.
    """
    if name:
        check_name(name, "a run")
    return open_source(located(source, say), block_size, say).make_run(name or name_of(source), say)


def import_folder(path: Path, name: str, block_size: int | None, say: Say) -> Path:
    """Make a run from a folder or a GGUF file, and return the run's folder.

    `block_size` shortens the context; None keeps that of the model. Raises UserError for a model that has no
    counterpart in minigpt, CheckpointError for weights that are refused, and OSError. No run is left behind then.
    """
    return open_source(path, block_size, say).make_run(name, say)


def located(source: str, say: Say) -> Path:
    """The folder or file of a source: a path, a name on the Hub, or a package in PACKAGES. Raises UserError."""
    if not source.strip():
        raise UserError("the source is empty: give a folder, a GGUF file, or a name on the Hub")
    path = packaged(source) or (fetch(source, say) if looks_like_a_name(source) else Path(source))
    if not os.path.lexists(path):
        near = meant(source, [*PACKAGES, *neighbours(path)])
        hub = "" if path.name != source else " A name on the Hub is OWNER/NAME, as in HuggingFaceTB/SmolLM2-135M"
        raise UserError(f"{source}: no such folder or file{near or ('.' if hub else '')}{hub}")
    if path.is_file() and path.suffix in (".safetensors", ".json", *PICKLES):
        raise UserError(f"{source}: a part of a model: give the folder that it is in, {path.parent}")
    return path


def neighbours(path: Path) -> list[str]:
    """The paths beside a path that does not exist, to suggest one of them."""
    try:
        return [str(path.with_name(entry.name)) for entry in path.parent.iterdir()]
    except OSError:
        return []


def name_of(source: str) -> str:
    """The default name of a run: the last part of its source, with hyphens for unusual characters."""
    return re.sub(r"[^\w.-]+", "-", Path(source).resolve().name.removesuffix(".gguf")).strip("-.") or "imported"


@dataclass(frozen=True)
class Source:
    """A folder or a GGUF file that was checked by its headers, before its weights are read."""

    path: Path
    folder: Folder | GGUF
    family: Family
    model: ModelConfig
    tokenizer: Tokenizer
    rules: list[Rule]
    tensors: dict[str, TensorEntry]

    @property
    def config(self) -> RunConfig:
        """The config of a run made from this source."""
        return config_of(self.model, self.tokenizer, self.folder.config.get(BEFORE_TEXT) == "\n")

    def origin(self) -> dict[str, Any]:
        """Where the weights come from, for origin.json. Reads all files once, for their SHA-256 sums."""
        sums = self.folder.sums()
        return {"from": str(self.path.absolute()), "model_type": self.family.model_type, "sha256": sums}

    def make_run(self, name: str, say: Say) -> Path:
        """Read the weights, make a run, and return its folder. Raises CheckpointError, and OSError."""
        numbers = sum(math.prod(entry.shape) for entry in self.tensors.values())
        say(f"{self.path}: {self.family.model_type}, {numbers:,} numbers in {len(self.tensors):,} tensors")
        tensors = to_internal(self.rules, lambda name: self.folder.read(self.tensors[name]))
        return make_run(name, self.config, self.tokenizer, fitted(tensors, self.model), self.origin(), say)

    def made_before(self) -> Path | None:
        """The newest run in runs/ that was made from the same files with the same config; None if there is none."""
        return made_before(self.config, self.tokenizer, self.origin)


def open_source(path: Path, block_size: int | None, say: Say) -> Source:
    """Check a folder or a GGUF file before its weights are read. Raises the same errors as `import_folder`."""
    folder = open_gguf(path) if os.path.lexists(path) and not path.is_dir() else open_folder(path)
    family = family_of(folder.config, path)
    try:
        full_model, vocab_size = family.read_config(folder.config), int(folder.config["vocab_size"])
    except UserError as error:
        raise UserError(
            f"{path / CONFIG if path.is_dir() else path}: {str(error).removeprefix('config.json: ')}"
        ) from None
    model = shortened(full_model, block_size)
    if "auto_map" in folder.config:
        say(f"note: {path} has code of its own (auto_map in {CONFIG}); it is not run, minigpt's own model is used")
    check_memory(model, vocab_size)
    rules, tensors = family.rules(model), named(folder.tensors, family, model.tied_head)
    check_tensors(tensors, shapes(rules, full_model, vocab_size))
    if model.tied_head:
        check_tied(folder.tensors, family)
    tokenizer = folder.tokenizer() if isinstance(folder, GGUF) else read_tokenizer(path, folder.config, vocab_size)
    check_vocabulary(tokenizer, vocab_size)
    if not isinstance(folder, GGUF) and (note := odd_ends(path, folder.config, tokenizer)):
        say(note)
    return Source(path, folder, family, model, tokenizer, rules, tensors)


def family_of(config: dict[str, Any], path: Path) -> Family:
    """The family that a config.json names. Raises UserError for one that is not known."""
    name = config.get("model_type")
    if name == REMOTE_CODE:
        problem = "exported with --remote-code, for transformers; what minigpt reads is the folder of the run itself"
        raise UserError(f"{path / CONFIG}: {problem}")
    if not isinstance(name, str) or name not in FAMILIES:
        names = ", ".join(sorted(FAMILIES))
        raise UserError(f"{path / CONFIG}: model_type: {show(name)} is not a family that minigpt reads ({names})")
    return FAMILIES[name]


def named(tensors: dict[str, TensorEntry], family: Family, tied: bool) -> dict[str, TensorEntry]:
    """The tensors by their names in the whole model, without buffers and a tied head, which hold no own weights."""
    by_full_name = {full_name(name, tensors, family): entry for name, entry in tensors.items()}
    copy = {f"{family.head}.weight"} if tied else set()
    return {n: entry for n, entry in by_full_name.items() if n not in copy and not re.fullmatch(family.buffers, n)}


def full_name(name: str, tensors: dict[str, TensorEntry], family: Family) -> str:
    """The name of a tensor in the whole model; the names in a folder of a model without its head lack the prefix."""
    module, _, parameter = name.rpartition(".")
    name = f"{family.renamed.get(module, module)}.{parameter}"
    bare = not any(other.startswith(family.prefix) for other in tensors)
    return f"{family.prefix}{name}" if bare and not name.startswith(f"{family.head}.") else name


def shapes(rules: list[Rule], model: ModelConfig, vocab_size: int) -> dict[str, tuple[int, ...]]:
    """The shape that each of their tensors must have, by name."""
    empty = tensors_of(outline(model, vocab_size))
    return {rule.external: rule.shape([empty[name].shape for name in rule.internal]) for rule in rules}


def check_memory(model: ModelConfig, vocab_size: int) -> None:
    """Raises UserError if the weights with a second copy of the largest tensor, or sampling, do not fit into memory."""
    sizes = [NUMBER * tensor.numel() for tensor in tensors_of(outline(model, vocab_size)).values()]
    required, free = sum(sizes) + max(sizes), free_memory()
    if free is not None and required > free:
        raise UserError(f"not enough memory: these weights take {required:,} bytes, and {free:,} are free")
    required = sum(sampling_parts(model, vocab_size).values())
    if free is not None and required > free:
        problem = (
            f"writing in a context of {model.block_size:,} positions takes {required:,} bytes, and {free:,} are free"
        )
        raise UserError(f"not enough memory: {problem}: give a shorter one, as in --block-size 1024")


def check_tied(tensors: dict[str, TensorEntry], family: Family) -> None:
    """Raises CheckpointError if the weights have a head that differs from the embeddings, although it is tied."""
    head = tensors.get(f"{family.head}.weight")
    if head is None:
        return
    embeddings = f"{family.embeddings}.weight"
    (tokens,) = (entry for name, entry in tensors.items() if full_name(name, tensors, family) == embeddings)
    if not torch.equal(read_tensor(head), read_tensor(tokens)):
        problem = "not equal to the embeddings, and by config.json the head is tied to them (tie_word_embeddings)"
        raise CheckpointError(f"{head.file}: {head.name}: {problem}")


def shortened(model: ModelConfig, block_size: int | None) -> ModelConfig:
    """The model with a shorter context. Raises UserError for a longer one, for which it was not trained."""
    if block_size is None:
        return model
    if not 1 <= block_size <= model.block_size:
        raise UserError(f"--block-size {block_size}: this model has a context of {model.block_size:,} positions")
    return replace(model, block_size=block_size)


def fitted(tensors: Iterator[tuple[str, Tensor]], model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """The tensors, with the table of learned positions cut to the length of the context."""
    for name, tensor in tensors:
        yield name, tensor[: model.block_size].clone() if name == TABLE else tensor
