"""Writes a run as a folder that Hugging Face's transformers loads: equal logits, equal ids.

    config.json  model.safetensors  generation_config.json      the model
    tokenizer.json  tokenizer_config.json                       its tokenizer
    README.md                                                   what it is

With `remote_code`, the folder contains minigpt's own code, and any model can be exported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from minigpt.config.options import to_python
from minigpt.hub.carried import ENTRY_FILE, carried_files
from minigpt.hub.family import FAMILIES, Family, NoCounterpart, to_external
from minigpt.hub.keys import BEFORE_TEXT
from minigpt.hub.model_card import model_card, tokenizer_class
from minigpt.hub.out_folder import Writer, check_out, write_folder
from minigpt.hub.tokenizer_json import tokenizer_files
from minigpt.model import ModelConfig
from minigpt.system.errors import UserError
from minigpt.training.checkpoint import tensors_of, write_tensors
from minigpt.training.report import Say, silent
from minigpt.training.run import Run

ORDER = (  # families that can express fewer models first
    "gpt2", "llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt_neox", "gptj", "phi", "mpt", "bloom",
    "gemma", "gemma2", "gemma3_text",
)  # fmt: skip
LAST = 1000  # stands for all options: a family that cannot express a model at all comes last
CONFIG_CLASS, MODEL_CLASS = "MinigptConfig", "MinigptForCausalLM"  # of modeling_minigpt.py

Files = dict[str, str | Writer]
Json = dict[str, Any]


def export_run(run: Run, out: Path, remote_code: bool = False, say: Say = silent) -> None:
    """Write the folder `out`. Raises UserError if it cannot be exported, and OSError: `out` is unchanged then."""
    check_out(out, run.folder.resolve().name)
    verb = "replaced" if out.is_dir() and any(out.iterdir()) else "wrote"
    files: Files = dict(tokenizer_files(run.tokenizer, run.config.model.block_size))
    if remote_code:
        model, architecture = with_code(run), MODEL_CLASS
    else:
        family, config = expressed(run.config.model, run.tokenizer.vocab_size)
        model, architecture = as_family(run, family, config), family.architecture
    files |= model
    files["README.md"] = model_card(run, remote_code, architecture)
    write_folder(out, files, run.folder.resolve().name)
    consent = ", trust_remote_code=True" if remote_code else ""
    say(f"{verb} {out}: AutoModelForCausalLM.from_pretrained({str(out)!r}{consent})")
    if (reader := tokenizer_class(run, architecture)) != "AutoTokenizer":
        say(f"note: its tokenizer is read by {reader}.from_pretrained; AutoTokenizer would split texts as Qwen 2 does")


def expressed(model: ModelConfig, vocab_size: int, names: Sequence[str] = ORDER) -> tuple[Family, Json]:
    """The first of these families that can express a model, and its config.json.

    Raises UserError, which lists the options without a counterpart in the family that comes nearest.
    """
    missing_by_family: list[list[NoCounterpart]] = []
    for name in names:
        try:
            config, missing = FAMILIES[name].nearest(model, vocab_size)
        except NoCounterpart as error:
            missing_by_family.append([error] * LAST)
            continue
        if not missing:
            return FAMILIES[name], config
        missing_by_family.append(missing)
    nearest = dict.fromkeys(re.sub(r"\[\d+\]", "", str(lack)) for lack in min(missing_by_family, key=len))
    problem = f"none of {', '.join(names)} computes the same; of the nearest, these options have no counterpart"
    raise UserError(f"{problem}: {'; '.join(nearest)}. --remote-code exports any model to transformers, with its code")


def as_family(run: Run, family: Family, config: Json) -> Files:
    """The files of the model as one of transformers' own classes."""
    tensors = to_external(family.rules(run.config.model), tensors_of(run.model))
    return {
        "config.json": as_json(config | ends(run) | before_text(run)),
        "generation_config.json": as_json(ends(run)),
        "model.safetensors": weights(tensors),
    }


def with_code(run: Run) -> Files:
    """The files of the model with minigpt's own code."""
    model = run.config.model
    config = {
        "model_type": "minigpt",
        "architectures": [MODEL_CLASS],
        "auto_map": {
            "AutoConfig": f"{ENTRY_FILE}.{CONFIG_CLASS}",
            "AutoModelForCausalLM": f"{ENTRY_FILE}.{MODEL_CLASS}",
        },
        "vocab_size": run.tokenizer.vocab_size,
        "hidden_size": model.n_embd,
        "num_hidden_layers": model.n_layer,
        "max_position_embeddings": model.block_size,
        "tie_word_embeddings": model.tied_head,
        "minigpt": to_python(model),
    }
    config |= ends(run) | before_text(run)
    tensors = [*run.model.named_parameters(), *run.model.named_buffers()]  # a tied head is listed once, as the tokens
    renamed = [(f"model.{name}", tensor.detach()) for name, tensor in tensors]
    return {
        **carried_files(model),
        "config.json": as_json(config),
        "generation_config.json": as_json({"use_cache": False} | ends(run)),
        "model.safetensors": weights(renamed),
    }


def ends(run: Run) -> Json:
    """The ids that begin and end a text; null if there are none, because transformers has defaults of its own."""
    ids = list(run.tokenizer.ends)
    end = None if not ids else ids[0] if len(ids) == 1 else ids
    return {"bos_token_id": run.tokenizer.begin_of_text, "eos_token_id": end}


def before_text(run: Run) -> Json:
    """The key for the line end before each text of a built-in language: a run imported from the export reads it."""
    return {BEFORE_TEXT: "\n"} if run.tells() else {}


def as_json(values: Json) -> str:
    """The text of a JSON file."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def weights(tensors: Iterable[tuple[str, Tensor]]) -> Writer:
    """A function that writes model.safetensors."""

    def write(path: Path) -> None:
        write_tensors(dict(tensors), path, {"format": "pt"})  # transformers needs this entry

    return write
