"""What all suites share: the device, the programs that are compared, the number of rounds; and a new report."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import Hardware, Shape
from benchmarks.nanogpt import check_checkout
from benchmarks.report import Report
from minigpt.system.errors import UserError
from minigpt.text.corpus import shakespeare


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings of a suite. Raises UserError before anything is measured if something is missing."""

    device: torch.device
    command: str
    repeat: int = 1
    plugins: Sequence[Path] = ()
    nanogpt: Path | None = None
    transformers: bool = False  # whether the suite needs the package
    square: int = 0  # side of the large square matrices; 0: a size that suits the device

    def __post_init__(self) -> None:
        if self.repeat < 1:
            raise UserError(f"--repeat: expected at least 1, found {self.repeat}")
        if self.nanogpt is not None:
            check_checkout(self.nanogpt)
        if self.transformers and importlib.util.find_spec("transformers") is None:
            raise UserError("transformers is not installed, but minigpt is compared with it: pip install transformers")

    def report(self, suite: str, alone: str = "", shapes: Sequence[Shape] = ()) -> Report:
        """A report with a first measurement of the hardware. `alone`: what is left to compare with without nanoGPT."""
        report = Report(suite, self.command, Hardware(self.device, shapes, self.square), self.nanogpt)
        if self.nanogpt is None and alone:
            report.notes.append(f"no checkout of nanoGPT was given (--nanogpt DIR): minigpt is compared with {alone}")
        return report

    def spec(self, **spec: Any) -> dict[str, Any]:
        """The instructions for a worker (see worker.py); for nanoGPT, with the path of its code."""
        compiled = self.device.type == "cuda"
        where = {"path": str(self.nanogpt.resolve())} if self.nanogpt and spec["program"] == "nanogpt" else {}
        return {"device": self.device.type, "compile": compiled, **where, **spec}

    def others(self) -> dict[str, str]:
        """The programs that minigpt is compared with: the name to print, and the name in a spec."""
        there = {"nanoGPT": "nanogpt"} if self.nanogpt else {}
        return there | {"transformers": "transformers"}


def find_text(name: str) -> Path:
    """The path of the text to train on: a file, or `shakespeare`, which is downloaded once. Raises UserError."""
    path = shakespeare() if name == "shakespeare" else Path(name)
    if not path.is_file():
        raise UserError(f"--text {name}: no such file, and not the name `shakespeare`")
    return path.resolve()
