"""Reads the tokenizer of an untrusted folder: tokenizer.json, and the ids that begin and end a text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from minigpt.hub.folder import check_plain, read_json
from minigpt.system.errors import UserError
from minigpt.system.folder import read_start
from minigpt.system.strict_json import has_form, parse_json
from minigpt.text.hf_steps import LARGEST
from minigpt.text.tokenizer import Tokenizer

FILE, SETTINGS, GENERATION, TEMPLATE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
MAX_SETTINGS = 1 << 22  # bytes; tokenizer_config.json may list thousands of tokens


def read_tokenizer(folder: Path, config: Mapping[str, Any], vocab_size: int) -> Tokenizer:
    """The tokenizer of a folder, for a model with `vocab_size` embeddings. Raises UserError, and OSError."""
    path = folder / FILE
    if not path.exists():
        raise UserError(f"{folder}: there is no {FILE} in it, and without one text cannot become ids")
    check_plain(path)
    raw = read_start(path, LARGEST + 1)
    if len(raw) > LARGEST:
        raise UserError(f"{path}: larger than {LARGEST:,} bytes: this is not a tokenizer")
    try:
        steps = parse_json(raw.decode("utf-8"), huge=True)
        return Tokenizer.from_json(
            {
                "kind": "hf",
                "text": json.dumps(steps, ensure_ascii=False, separators=(",", ":")),  # a third to a half of its size
                "vocab_size": vocab_size,
                "begin_of_text": begin_of_text(steps),
                "ends": [id for id in said_ends(folder, config) if 0 <= id < vocab_size],
                "chat_template": chat_template(folder),
            }
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except ValueError as error:
        raise UserError(f"{path}: not the JSON of a tokenizer: {' '.join(str(error).split())[:200]}") from None


def begin_of_text(steps: Any) -> int | None:
    """The id that a template (`<s> $A`) puts in front of a text; None if there is none."""
    for one in templates(steps.get("post_processor") if isinstance(steps, dict) else None):
        first = one["single"][0] if has_form(one.get("single"), [{str: {str: str | int}}]) and one["single"] else {}
        name = first.get("SpecialToken", {}).get("id")
        special = one.get("special_tokens", {})
        if name is not None and has_form(special, {str: {"ids": [int]}}) and special.get(name, {}).get("ids"):
            return int(special[name]["ids"][0])
    return None


def templates(processor: Any) -> Iterator[dict[str, Any]]:
    """The templates of a post-processor, which is one step or a sequence of steps."""
    if not isinstance(processor, dict):
        return
    if processor.get("type") == "TemplateProcessing":
        yield processor
    if processor.get("type") == "Sequence" and isinstance(processor.get("processors"), list):
        for one in processor["processors"]:
            if isinstance(one, dict) and one.get("type") == "TemplateProcessing":
                yield one


def said_ends(folder: Path, config: Mapping[str, Any]) -> list[int]:
    """The ids at which generation stops: those of generation_config.json, or of config.json. Raises UserError."""
    path = folder / GENERATION
    said = read_json(path, MAX_SETTINGS) if path.exists() else {}
    found = said.get("eos_token_id", config.get("eos_token_id"))
    if not has_form(found, int | None) and not has_form(found, [int]):
        raise UserError("eos_token_id is neither an id nor a list of ids")
    listed = found if isinstance(found, list) else [] if found is None else [found]
    return list(dict.fromkeys(listed))


def odd_ends(folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    """A note about end-of-text ids that are out of range or missing; an empty string if all is well."""
    left = [id for id in said_ends(folder, config) if id not in tokenizer.ends]
    if left:
        ids = f"the model has the ids 0 to {tokenizer.vocab_size - 1:,}"
        return f"note: eos_token_id {', '.join(map(str, left))} cannot be written, and is left out: {ids}"
    if tokenizer.special_tokens and not tokenizer.ends:
        return "note: it has special tokens, and eos_token_id names none: writing ends after --max-tokens only"
    return ""


def chat_template(folder: Path) -> str | None:
    """The chat template of a folder, or None. It is kept for an export, and never run."""
    if (folder / TEMPLATE).exists():
        check_plain(folder / TEMPLATE)
        return read_start(folder / TEMPLATE, MAX_SETTINGS).decode("utf-8", "replace")
    path = folder / SETTINGS
    found = read_json(path, MAX_SETTINGS, huge=True).get("chat_template") if path.exists() else None
    return found if isinstance(found, str) else None
