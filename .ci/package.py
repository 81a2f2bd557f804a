"""What hatchling asks while it builds a wheel or an sdist: the README of an index, and the commit of the source.

On an index the README stands alone, so its links and pictures need addresses: those of `Repository` in
`[project.urls]`, at this commit. Without that line, links become plain text there, and pictures are left out.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

COMMIT = "minigpt/system/commit.txt"  # `minigpt/system/version.py` reads it
LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((?!\w+:)([^()\s]+)\)")  # but for those with a scheme, such as https:
PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.S)


def commit_of(root: Path) -> str:
    """The commit of a checkout; of an unpacked sdist, that which it was made from; "" where nothing tells."""
    if (root / COMMIT).is_file():
        return (root / COMMIT).read_text(encoding="utf-8").strip()
    if not (root / ".git").exists():
        return ""
    words = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def for_an_index(readme: str, repository: str, commit: str) -> str:
    """The README with addresses in place of paths; without a repository, with neither links to files nor pictures."""
    if not repository:
        return LINK.sub(r"\1", PICTURE.sub("", readme))
    at = commit.removesuffix("-dirty") or "HEAD"
    readme = re.sub(r'(src|srcset)="(?!\w+:)', rf'\1="{repository}/raw/{at}/', readme)
    return LINK.sub(rf"[\1]({repository}/blob/{at}/\2)", readme)


class Readme(MetadataHookInterface):
    """The README as an index shows it."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        repository = metadata.get("urls", {}).get("Repository", "").rstrip("/")
        text = for_an_index((root / "README.md").read_text(encoding="utf-8"), repository, commit_of(root))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Commit(BuildHookInterface):
    """A file with the commit, for what is built from a repository."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or (root / COMMIT).exists() or not (commit := commit_of(root)):
            return
        self.scratch = tempfile.TemporaryDirectory()
        path = Path(self.scratch.name) / "commit.txt"
        path.write_text(f"{commit}\n", encoding="utf-8")
        build_data["force_include"][str(path)] = COMMIT
