"""Small corpora with known ids, and a temporary data folder for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from minigpt.text import corpus as corpora
from minigpt.text.corpus import Corpus
from minigpt.text.dataset import DataConfig
from minigpt.text.tokenizer import Char

ROOT = Path(__file__).parents[1]
RANDOM, SHUFFLED, DOCUMENTS = DataConfig(), DataConfig(windows="shuffled"), DataConfig(windows="documents")


def own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder of a test file's own: `data = pytest.fixture(scope="module", autouse=True)(own_data)`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "DATA", tmp_path_factory.mktemp("data"))
        yield corpora.DATA


def shakespeare_file() -> Path:
    """The text of tiny Shakespeare, where somebody has put it."""
    for path in (ROOT.parent / "shared/data/tinyshakespeare.txt", ROOT / "data/shakespeare.txt"):
        if path.exists():
            return path
    pytest.skip("tiny Shakespeare is not here: minigpt downloads it to data/shakespeare.txt")


def corpus_of(*texts: str) -> Corpus:
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return Corpus("a test", "a test's own texts", digest, lambda skip=0: ([text] for text in texts[skip:]))


def numbered(count: int) -> tuple[Corpus, Char]:
    """A corpus whose n-th id is n: a window shows where it was taken from."""
    text = "".join(chr(0x20000 + n) for n in range(count))
    return corpus_of(text), Char(text)
