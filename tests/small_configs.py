"""Two small option classes, and a reader that writes a text to `c.yaml` and loads them from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from minigpt.config.options import Count, Options, Positive, load
from minigpt.model.gpt import ModelConfig
from minigpt.system.errors import ConfigError, Mistake


@dataclass(frozen=True, kw_only=True)
class Inner(Options):
    rate: Positive = 1.0
    steps: Count = 10
    name: str | None = None
    choice: Literal["left", "right"] = "left"
    flag: bool = True


@dataclass(frozen=True, kw_only=True)
class Outer(Options):
    model: ModelConfig = ModelConfig()
    inner: Inner = Inner()


Reader = Callable[..., Outer]


def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A fixture, `read = pytest.fixture(reader)`: writes a text to `c.yaml` and loads it, with overrides.

    An empty text is written as `{}`, a config of nothing but defaults.
    """
    monkeypatch.chdir(tmp_path)

    def read(text: str | bytes, *overrides: str) -> Outer:
        text = text or "{}"
        Path("c.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        return load(Outer, "c.yaml", overrides)

    return read


def mistakes_of(read: Reader, text: str | bytes, *overrides: str) -> list[Mistake]:
    with pytest.raises(ConfigError) as caught:
        read(text, *overrides)
    return caught.value.mistakes


def the_mistake(read: Reader, text: str | bytes, *overrides: str) -> str:
    (mistake,) = mistakes_of(read, text, *overrides)
    return ": ".join(mistake)
