"""Texts larger than memory: tokenized in pieces where the tokenizer allows it, else refused before memory runs out."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from running import data_folder, forked, furnish, one_line, script, small_text
from stopping import furnished, leftovers, train_until

from minigpt.system.memory import free_memory
from minigpt.text import corpus as corpora

MIXED = "\ufeff" + "Zoë said: «日本 🦉», don't!\r\n" * 40  # with a byte-order mark
MEGABYTES = 16
MEBI = MEGABYTES << 20
# With 96 MiB more than the program has: less than the ids of the whole text take while they are made.
TRAIN = """
import ctypes, resource, sys
from pathlib import Path
from minigpt.config.options import load
from minigpt.training.assemble import RunConfig, open_text
from minigpt.text.dataset import Dataset

ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX: a thread's own arena takes 64 MiB
config = load(RunConfig, "small.yaml", sys.argv[1:])
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (96 << 20), now + (96 << 20)))
corpus, tokenizer = open_text(config.data)
dataset = Dataset(config.data, corpus, tokenizer, 1024)
print(len(dataset.ids), tokenizer.vocab_size)
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own."""
    monkeypatch.setattr(corpora, "DATA", tmp_path / "data")
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="/proc belongs to Linux")
@pytest.mark.parametrize(
    ("kind", "tokens", "ids"),
    [
        pytest.param("char", 5, MEBI + 1, id="char"),
        pytest.param("byte", 256, MEBI + 2, id="byte", marks=pytest.mark.slow),
        pytest.param("{kind: bpe, vocab_size: 260}", 259, MEBI // 2 + 1, id="bpe", marks=pytest.mark.slow),
    ],
)
def test_a_text_larger_than_memory_is_read_in_pieces(kind: str, tokens: int, ids: int, tmp_path: Path) -> None:
    with (furnish(tmp_path) / "large.txt").open("wb") as file:
        for _ in range(MEGABYTES):
            file.write(b"abc\n" * (1 << 18))
        file.write("é".encode())
    request = {"argv": ["-c", "data.source=large.txt", f"data.tokenizer={kind}"], "cwd": str(tmp_path)}
    running = forked([1, 2], code=TRAIN, env={"MINIGPT_DATA": str(tmp_path / "data")}, **request)
    with running.stdout, running.stderr:  # type: ignore[union-attr]
        said, complained = running.stdout.read(), running.stderr.read()  # type: ignore[union-attr]
    assert (running.wait(), said) == (0, f"{ids} {tokens}\n"), complained


def test_a_tokenizer_that_needs_the_whole_text_is_refused_one_that_does_not_fit(tmp_path: Path) -> None:
    """In one line, before it is read."""
    (furnish(tmp_path) / "full.py").write_text(
        """
import minigpt.text.corpus
from minigpt.text.tokenizer import Byte

minigpt.text.corpus.free_memory = lambda: 4000


class Whole(Byte, kind="whole"):
    def encode(self, text):
        return super().encode(text)
""",
        encoding="utf-8",
    )
    size, plugin = len(small_text()), ("--config", "small.yaml", "--plugin", "full.py")
    ended = script("train.py", *plugin, "data.tokenizer=whole", cwd=tmp_path)
    one_line(ended, 2)
    what = f"to tokenize {size:,} bytes at once would need {4 * size:,} bytes"
    assert re.search(rf"not enough memory for \S*text\.txt: {what}", ended.err), ended.err
    assert "and 4,000 are free" in ended.err and not (tmp_path / "runs").exists()
    assert leftovers(Path(data_folder())) == []
    assert script("train.py", *plugin, "data.tokenizer={kind: bpe, vocab_size: 300}", cwd=tmp_path).code == 0


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)], ids=["INT", "HUP"])
def test_a_signal_within_a_file_that_is_tokenized(signum: int, code: int, tmp_path: Path) -> None:
    (furnished(tmp_path) / "text.txt").write_text("another long text. " * (1 << 18), encoding="utf-8")
    stopped = train_until(tmp_path, f"os.kill(os.getpid(), {int(signum)})", "minigpt.text.tokenizer.Char", "encode", 3)
    assert stopped.code == code and stopped.err.splitlines()[-1] == "stopped", stopped
    assert not (tmp_path / "runs").exists() and leftovers(Path(data_folder())) == []


def test_pages_that_cache_files_are_free(tmp_path: Path) -> None:
    """Else a container in which a large text was read would seem full."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n", encoding="ascii")
    assert free_memory(tmp_path, tmp_path) == 8000 * 1024
    for name, value in (("memory.max", "5000000"), ("memory.current", "4900000")):
        (tmp_path / name).write_text(f"{value}\n", encoding="ascii")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 3000000\nactive_file 500000\n", encoding="ascii")
    assert free_memory(tmp_path, tmp_path) == 3_600_000
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    assert free_memory(tmp_path, tmp_path) == 8000 * 1024
    assert free_memory(tmp_path / "elsewhere", tmp_path) is None
