"""A run as a folder that Hugging Face's transformers loads: equal logits, equal ids.

    config.json  model.safetensors  generation_config.json      the model
    tokenizer.json  tokenizer_config.json                       its tokenizer
    README.md                                                   what it is

With `remote_code` the folder carries minigpt's own code, and any model goes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from minigpt.config.options import to_python
from minigpt.hub.carried import ENTRY_FILE, carried_files
from minigpt.hub.model_card import model_card
from minigpt.hub.out_folder import Writer, check_out, write_folder
from minigpt.hub.tokenizer_json import tokenizer_files
from minigpt.runs.run import Run
from minigpt.system.waiting import interruptible

CONFIG_CLASS, MODEL_CLASS = "MinigptConfig", "MinigptForCausalLM"  # of modeling_minigpt.py

Files = dict[str, str | Writer]


def export_run(run: Run, out: Path, remote_code: bool = False) -> Path:
    """Write the folder `out`. Raises UserError for what cannot be exported, and OSError; then `out` is as it was."""
    check_out(out)
    files: Files = dict(tokenizer_files(run.tokenizer, run.config.model.block_size))
    files |= with_code(run)
    files["README.md"] = model_card(run, remote_code, MODEL_CLASS)
    write_folder(out, files)
    return out


def with_code(run: Run) -> Files:
    """The model with minigpt's own code beside it."""
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
    } | end_of_text(run)
    tensors = [*run.model.named_parameters(), *run.model.named_buffers()]  # a tied head comes once, as the tokens
    named = [(f"model.{name}", tensor.detach()) for name, tensor in tensors]
    return {
        **carried_files(model),
        "config.json": as_json(config),
        "generation_config.json": as_json({"use_cache": False} | end_of_text(run)),
        "model.safetensors": weights(named),
    }


def end_of_text(run: Run) -> dict[str, Any]:
    """The id at which `generate` stops, if there is one."""
    end = run.tokenizer.end_of_text
    return {} if end is None else {"eos_token_id": end}


def as_json(values: dict[str, Any]) -> str:
    """The text of a JSON file."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def weights(tensors: Iterable[tuple[str, Tensor]]) -> Writer:
    """Writes model.safetensors."""

    def write(path: Path) -> None:
        whole = {name: tensor.contiguous() for name, tensor in tensors}
        try:
            interruptible(lambda: save_file(whole, path, metadata={"format": "pt"}), f"writing {path.name}")
        except SafetensorError as error:  # how safetensors reports a full disk
            raise OSError(f"{path}: {error}") from error

    return write
