"""What all suites are told: who takes part, where, how often; and their report, begun."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minigpt.bench.checkout import check_checkout
from minigpt.bench.hardware import Shape, Yardstick
from minigpt.bench.ledger import Report
from minigpt.system.errors import UserError
from minigpt.text.corpus import shakespeare


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is the same for every suite. Raises UserError for what cannot be measured, before anything is."""

    device: torch.device
    command: str
    repeat: int = 1
    plugins: Sequence[Path] = ()
    nanogpt: Path | None = None
    transformers: bool = False  # whether the suite needs it
    square: int = 0  # the side of the yardstick's large matrix; 0 for one that suits the device

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise UserError(f"--repeat: expected at least 1, found {self.repeat}")
        if self.nanogpt is not None:
            check_checkout(self.nanogpt)
        if self.transformers and importlib.util.find_spec("transformers") is None:
            raise UserError(
                "transformers is not installed, and it is what minigpt is compared with: pip install transformers"
            )

    def report(self, suite: str, alone: str = "", shapes: Sequence[Shape] = ()) -> Report:
        """A report, the machine measured for the first time; `alone` is what is left to compare with but nanoGPT."""
        made = Report(suite, self.command, Yardstick(self.device, shapes, self.square), self.nanogpt)
        if self.nanogpt is None and alone:
            made.notes.append(f"no checkout of nanoGPT was given (--nanogpt DIR): minigpt is compared with {alone}")
        return made

    def driver(self, **spec: Any) -> dict[str, Any]:
        """What a driver is told; nanoGPT's is told where its code lies."""
        compiled = self.device.type == "cuda"
        where = {"path": str(self.nanogpt.resolve())} if self.nanogpt and spec["rival"] == "nanogpt" else {}
        return {"device": self.device.type, "compile": compiled, **where, **spec}

    def rivals(self) -> dict[str, str]:
        """Whom minigpt is compared with: its name, and as a driver knows it."""
        there = {"nanoGPT": "nanogpt"} if self.nanogpt else {}
        return there | {"transformers": "transformers"}


def find_text(name: str) -> Path:
    """The text to train on: a file, or `shakespeare`, which is fetched once. Raises UserError."""
    path = shakespeare() if name == "shakespeare" else Path(name)
    if not path.is_file():
        raise UserError(f"--text {name}: no such file, and not the name `shakespeare`")
    return path.resolve()
