"""Files as documents: every format has the same ones, bad files and lines are named, and memory does not grow."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from minigpt.system.errors import ConfigError, UserError
from minigpt.text import corpus as corpora
from minigpt.text import cuts, files, formats
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import DataConfig
from minigpt.text.shards import write_shards
from minigpt.text.tokenizer import Byte, Char

TEXTS = ["Zoë said: «日本 🦉»\r\n", "second", "<|endoftext|> is text"]
LINES = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)).encode()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpora, "DATA", tmp_path / "data")
    Path("f").mkdir()


def zst(raw: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as packed:
        packed.write(raw)
    return bytes(sink.getvalue())


def parquet(column: str = "text", **options: object) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"id": [0, 1, 2], column: TEXTS}), sink, **options)
    return bytes(sink.getvalue())


def same(raw: bytes) -> bytes:
    return raw


PACKERS: dict[str, Callable[[bytes], bytes]] = {"": same, ".gz": gzip.compress, ".zst": zst}
CONTENTS = {".jsonl": LINES, ".ndjson": LINES, ".parquet": parquet(row_group_size=2)}


def texts(source: str, **options: str | bool) -> list[str]:
    return list(open_corpus(source, **options).documents())  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("suffix", CONTENTS)
def test_every_format_has_the_same_documents(suffix: str, packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = PACKERS[packed](CONTENTS[suffix])
    Path("f", f"a{suffix}{packed}").write_bytes(raw)
    assert texts("f") == texts(f"f/a{suffix.upper()}{packed}".replace(suffix.upper(), suffix)) == TEXTS
    corpus = open_corpus("f")
    assert f"{len(raw):,} bytes, 3 documents" in corpus.description
    assert corpus.characters == sum(map(len, TEXTS))
    assert corpus.largest == max(len(text.encode()) for text in TEXTS)
    assert list(map("".join, corpus.pieces(2))) == TEXTS[2:]
    monkeypatch.setattr(formats, "CHUNK", 7)
    assert texts("f") == TEXTS


@pytest.mark.parametrize("packed", PACKERS)
def test_text_is_one_document_compressed_or_not(packed: str) -> None:
    Path("f", f"a.txt{packed}").write_bytes(PACKERS[packed]("\ufeff".encode() + TEXTS[0].encode() * 3))
    assert texts("f") == [TEXTS[0] * 3]


def test_a_folder_may_have_all_of_them() -> None:
    Path("f/a.jsonl.gz").write_bytes(gzip.compress(LINES))
    Path("f/b.txt").write_text("plain")
    Path("f/c.parquet").write_bytes(parquet())
    Path("f/d.json").write_text("{}")
    corpus = open_corpus("f")
    assert list(corpus.documents()) == [*TEXTS, "plain", *TEXTS]
    for skip in range(8):
        assert list(map("".join, corpus.pieces(skip))) == [*TEXTS, "plain", *TEXTS][skip:]
    assert texts("f/*.txt") == ["plain"]


def test_the_field_is_an_option_and_belongs_to_the_digest() -> None:
    Path("a.jsonl").write_text('{"text": "one", "other": "two"}\n')
    Path("b.parquet").write_bytes(parquet("other"))
    assert texts("a.jsonl", field="other") == ["two"]
    assert texts("b.parquet", field="other") == TEXTS
    assert open_corpus("a.jsonl").digest != open_corpus("a.jsonl", field="other").digest
    with pytest.raises(UserError, match=r"b\.parquet: no column 'text' among id, other: set data\.field"):
        open_corpus("b.parquet")


# ---------------------------------------------------------------------------------------------- encodings

ENCODED = "\ufeffOne é ü\r\nи 😀\n", "no mark: é\nüß"


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize("order", ["le", "be"])
@pytest.mark.parametrize("bits", [16, 32])
def test_a_byte_order_mark_says_the_encoding(
    bits: int, order: str, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = ENCODED[0].encode(f"utf-{bits}-{order}")
    Path(f"f/a.txt{packed}").write_bytes(PACKERS[packed](raw))
    Path(f"f/b.jsonl{packed}").write_bytes(PACKERS[packed]('\ufeff{"text": "é"}\n'.encode(f"utf-{bits}-{order}")))
    for encoding in ("utf-8", "iso8859-1"):  # what is said of the others does not count
        assert texts("f", encoding=encoding) == [ENCODED[0][1:], "é"]
        for chunk in (7, 8):
            monkeypatch.setattr(formats, "CHUNK", chunk)
            assert texts("f", encoding=encoding) == [ENCODED[0][1:], "é"]


@pytest.mark.parametrize(
    "name", ["latin-1", "cp1252", "utf-16-le", "iso2022_jp_2", "utf-7", "utf-8-sig", "L1", "utf-16"]
)
def test_any_other_encoding_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("f/a.txt").write_bytes(ENCODED[1].encode(name))
    Path("f/b.jsonl").write_bytes('{"text": "é"}\n'.encode(name))
    config = DataConfig(source="f", encoding=name)
    assert list(config.open().documents()) == [ENCODED[1], "é"]
    monkeypatch.setattr(formats, "CHUNK", 3)
    assert list(config.open().documents()) == [ENCODED[1], "é"]


def test_the_encoding_belongs_to_the_digest_and_to_what_is_kept_of_large_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "REMEMBERED", 1)
    monkeypatch.setattr(files, "SETTLED", -1)
    Path("a.txt").write_bytes("é".encode())
    corpora = [DataConfig(source="a.txt", encoding=name).open() for name in ("utf-8", "utf8", "latin-1", "cp1252")]
    assert [corpus.characters for corpus in corpora] == [1, 1, 2, 2]
    assert len({corpus.digest for corpus in corpora}) == 3 and corpora[0].digest == open_corpus("a.txt").digest


@pytest.mark.parametrize("name", ["hex", "rot13", "nonsense", "", "idna", "undefined", "zlib", "a\0b"])
def test_what_is_no_text_encoding_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match="encoding: expected a text encoding, such as utf-8, latin-1 or cp1252, found"
    ):
        DataConfig(source="f", encoding=name)


@pytest.mark.parametrize("chunk", [2, 5, 1 << 20])
@pytest.mark.parametrize(
    ("name", "raw", "what"),
    [
        ("cp1252", b"one\ntw\x81o", "byte 6 (line 2) is 0x81: this is not cp1252"),
        ("ascii", b"caf\xc3\xa9", "byte 3 (line 1) is 0xc3: this is not ascii"),
        ("shift_jis", "ひら\nが".encode("shift_jis")[:-1], "byte 5 (line 2) is 0x82: this is not shift_jis"),
        ("utf-16-le", "a\n".encode("utf-16-le") + b"\x00\xdc", "byte 4 (line 2) is 0x00: this is not utf-16-le"),
        ("utf-16-le", "ab\0".encode("utf-16-le"), "byte 4 (line 1) is 0x00: this is a binary file"),
        ("latin-1", b"a\n\0", "byte 2 (line 2) is 0x00: this is a binary file"),
        ("utf-8", "\ufeffab".encode("utf-32-le")[:-2], "byte 8 (line 1) is 0x62: this is not utf-32-le"),
    ],
)
def test_a_wrong_byte_is_named_with_its_offset(
    name: str, raw: bytes, what: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("a.txt").write_bytes(raw)
    monkeypatch.setattr(formats, "CHUNK", max(chunk, 4))
    with pytest.raises(UserError) as error:
        DataConfig(source="a.txt", encoding=name).open()
    assert f"a.txt: {what}" in str(error.value)


# ------------------------------------------------------------------------------------------------ what is bad

BAD_LINES = {
    b'{"text": ': "line 2: Expecting value",
    b'["text"]': "line 2: expected an object with the field 'text', found ['text']",
    b'{"body": "x"}': "line 2: no field 'text' among body",
    b'{"text": 7}': "line 2: the field 'text' has no text but 7",
    b'{"text": "\xff"}': "line 2: 'utf-8' codec can't decode byte 0xff",
    b'{"text": "\\ud800"}': "line 2: half a surrogate pair",
    b"[" * 100_000: "line 2: nested too deep",
    b'{"text": "' + b"x" * 2000 + b'"}': "line 2: longer than 0 MiB",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=BAD_LINES.values())
def test_a_bad_line_is_named_and_passed_over(
    line: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if len(line) < 10_000:
        monkeypatch.setattr(formats, "LONGEST", 1000)
        monkeypatch.setattr(formats, "CHUNK", 500)
    Path("a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n' + line + b'\n\n{"text": ""}\n{"text": "two"}')
    assert texts("a.jsonl") == ["one", "two"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("passed over: ") and f"a.jsonl: {BAD_LINES[line]}" in said[0]
    assert open_corpus("a.jsonl").description.endswith(", 2 documents, 1 line passed over")
    with pytest.raises(UserError, match=r"a\.jsonl: line 2"):
        open_corpus("a.jsonl", refuse=True)
    Path("a.jsonl").write_bytes(line)
    with pytest.raises(UserError, match=r"a\.jsonl: no line can be used; the first of 1: line 1: "):
        open_corpus("a.jsonl")


def test_of_many_bad_lines_some_are_shown_and_all_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.jsonl").write_text('{"text": "one"}\n' + "{}\n" * 1234)
    assert open_corpus("a.jsonl").description.endswith("1,234 lines passed over")
    assert capsys.readouterr().err.splitlines()[3] == "passed over: and 1,231 more like these"


def without_end(raw: bytes) -> bytes:
    return raw[: len(raw) - 9]


BAD_FILES = {
    "a.txt": (b"caf\xe9", "byte 3 (line 1) is 0xe9: this is not UTF-8"),
    "b.txt.gz": (without_end(gzip.compress(b"text" * 99)), "damaged: "),
    "c.txt.gz": (b"text", "damaged: Not a gzipped file"),
    "d.txt.zst": (without_end(zst(os.urandom(5000).hex().encode())), "damaged: "),
    "e.txt.zst": (b"text", "damaged: "),
    "f.jsonl.gz": (without_end(gzip.compress(LINES)), "damaged: "),
    "g.parquet": (without_end(parquet()), "damaged, or not Parquet: "),
    "h.parquet": (parquet("body"), "no column 'text' among id, body"),
    "i.parquet": (b"text", "damaged, or not Parquet: "),
    "j.jsonl": (b'{"body": "x"}\n{}\n', "no line can be used; the first of 2: line 1: no field"),
    "k.jsonl": (b"\n\n", "empty"),
    "l.txt": (b"", "empty"),
    "m.parquet.zst": (zst(b"PAR1" * 9), "damaged, or not Parquet: "),
    "n.txt.gz": (gzip.compress(b"text\0"), "byte 4 (line 1) is 0x00: this is a binary file"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_in_a_folder_is_named_and_passed_over(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    raw, what = BAD_FILES[name]
    Path("f", name).write_bytes(raw)
    with pytest.raises(UserError) as alone:
        open_corpus(f"f/{name}")
    assert (what if what != "empty" else "is empty") in str(alone.value) and "\n" not in str(alone.value)
    Path("f/good.txt").write_text("good")
    Path("f/other.txt").write_text("other")
    corpus = open_corpus("f")
    assert list(corpus.documents()) == ["good", "other"]
    assert "(2 files)" in corpus.description and corpus.description.endswith(", 1 file passed over")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and str(Path("f", name).absolute()) in said[0] and what in said[0]
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        open_corpus("f", refuse=True)


def test_where_no_file_can_be_used_one_line_says_so() -> None:
    Path("f/a.txt").write_bytes(b"\xff")
    Path("f/b.jsonl").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"none of the 2 files of f can be used; the first: .*a\.txt: byte 0"):
        open_corpus("f")


PLACES = {  # a file with a document that is good, and one that is not -> the place of the é in it
    "a.txt": ("good\nand\nsé".encode(), "a.txt: unknown character 'é' (U+00E9) at index 10 (line 3, column 2)"),
    "a.md.gz": (gzip.compress("sé".encode()), "a.md.gz: unknown character 'é' (U+00E9) at index 1"),
    "a.txt.zst": (
        zst("\ufeffa\nsé".encode()),
        "a.txt.zst: unknown character 'é' (U+00E9) at index 3 (line 2, column 2)",
    ),
    "a.jsonl": ('{"text": "a"}\n\n{}\n{"text": "b\\ns\u00e9"}'.encode(), "a.jsonl: line 4: unknown character 'é' "),
    "a.ndjson.gz": (
        gzip.compress('{"text": "é"}'.encode()),
        "a.ndjson.gz: line 1: unknown character 'é' (U+00E9) at index 0",
    ),
    "a.parquet": (parquet(), "a.parquet: row 1: unknown character 'Z' (U+005A) at index 0"),
}


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("source", ["f", "f/*"])
@pytest.mark.parametrize("name", PLACES)
def test_what_cannot_be_tokenized_is_named_with_its_file_and_line(
    name: str, source: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuts, "STEP", 3)  # the place is that in the document, not in a piece of it
    for other in ("0.txt", "z.txt"):
        Path("f", other).write_bytes(b"good and sane\n" * 5)
    Path("f", name).write_bytes(PLACES[name][0])
    corpus = open_corpus(source)
    with pytest.raises(UserError) as failed:
        write_shards(Path("f"), corpus, Char("\n abdegnos"), np.dtype("<u2"), processes)
    assert str(failed.value).startswith(str(Path("f", PLACES[name][1]).absolute())), failed.value


LATER = {"a.txt": b"some text", "a.jsonl": LINES, "a.parquet": parquet(), "a.jsonl.gz": gzip.compress(LINES)}


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("change", ["gone", "no permission", "a bad disk", "cut short", "other bytes", "a folder"])
def test_a_file_that_changes_after_the_check_is_named(change: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("f", name)
    path.write_bytes(LATER[name])
    Path("f/0.txt").write_text("good")
    corpus = open_corpus("f")
    if change in ("gone", "a folder"):
        path.unlink()
    if change == "a folder":
        path.mkdir()
    elif change == "no permission":
        monkeypatch.setattr(files, "open_plain", refusing(files.open_plain, name))
    elif change == "a bad disk":
        monkeypatch.setattr(files, "open_plain", failing_later(files.open_plain, name))
    elif change == "cut short":
        path.write_bytes(LATER[name][:-3])
    elif change == "other bytes":
        path.write_bytes(bytes([LATER[name][0] ^ 1]) + LATER[name][1:])
    with pytest.raises((UserError, OSError), match=rf"{name}: changed while|{name}: a folder|{name}'$") as failed:
        write_shards(Path("f"), corpus, Byte(), np.dtype("<u2"), 0)
    assert ("changed while" in str(failed.value)) == (change in ("cut short", "other bytes"))


def refusing(open_plain: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`open_plain` that has no permission for files of a name, as a user has who is not root."""

    def opened(path: Path) -> Any:
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_plain(path)

    return opened


def failing_later(open_plain: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`open_plain` that gives files of a name whose disk fails once they are read."""

    class Bad(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            raise OSError(errno.EIO, "Input/output error")

    def opened(path: Path) -> Any:
        return io.BufferedReader(Bad(path)) if path.name == name else open_plain(path)

    return opened


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_links_pipes_and_sockets_in_a_folder_are_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    Path("f/good.txt").write_text("good")
    Path("elsewhere.txt").write_text("elsewhere")
    os.symlink(Path("elsewhere.txt").absolute(), "f/link.txt")
    os.symlink("self.txt", "f/self.txt")
    os.symlink(".", "f/loop")
    os.mkfifo("f/pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("f/s.txt")
        corpus = open_corpus("f")
        assert list(corpus.documents()) == ["good"]
        assert corpus.description.endswith("5 files passed over")
        said = capsys.readouterr().err
        words = "link.txt: a link", "loop: a link", "and 2 more: 2 not a plain file\n"
        assert [said.count(word) for word in words] == [1, 1, 1]
        assert texts("f/**/*.txt") == ["good", "elsewhere"]  # each once, although the loop has them many times
    with pytest.raises(UserError, match=r"link.txt: a link: correct or remove it, or .* data.bad_files=pass_over"):
        open_corpus("f", refuse=True)


def test_of_many_bad_files_some_are_named_and_the_others_counted_by_reason(capsys: pytest.CaptureFixture[str]) -> None:
    for name, (raw, _) in BAD_FILES.items():
        Path("f", name).write_bytes(raw)
    Path("f/good.txt").write_text("good")
    open_corpus("f")
    *named, last = capsys.readouterr().err.splitlines()
    reasons = "6 damaged, 2 empty, 1 no column 'text', 1 no line can be used, 1 a binary file"
    assert len(named) == 3 and last == f"passed over: and 11 more: {reasons}"


def test_a_missing_package_is_not_a_bad_file(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("f/a.txt").write_text("good")
    Path("f/b.parquet").write_bytes(parquet())
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r'b\.parquet: this file is read by .* pyarrow: pip install -e "\.\[data\]"'):
        open_corpus("f")


# ------------------------------------------------------------------------------------ what is remembered


def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are looked through from now on."""
    names, look = list[str](), files.look

    def count(path: Path, field: str, encoding: str) -> files.FileSummary:
        names.append(path.name)
        return look(path, field, encoding)

    monkeypatch.setattr(files, "look", count)
    return names


def test_large_texts_are_looked_through_once_and_again_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "REMEMBERED", 5)
    monkeypatch.setattr(files, "SETTLED", -1.0)
    for name in "ab":
        Path("f", f"{name}.txt").write_text(f"text {name}")
    names = looked(monkeypatch)
    first = open_corpus("f")
    assert (open_corpus("f"), names)[1] == ["a.txt", "b.txt"]
    again = open_corpus("f")
    assert (again.digest, again.description) == (first.digest, first.description)
    before = os.stat("f/b.txt")
    Path("f/b.txt").write_text("TEXT b")  # as long as before, and its time is set back
    os.utime("f/b.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert open_corpus("f").digest != first.digest
    assert names == ["a.txt", "b.txt", "b.txt"]
    (record,) = (corpora.DATA / "cache").glob("files-*.json")
    record.write_text('{"x": 7}')
    assert open_corpus("f").documents() and names[3:] == ["a.txt", "b.txt"]


def test_small_texts_and_those_that_just_changed_are_always_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("f/a.txt").write_text("text")
    names = looked(monkeypatch)
    open_corpus("f"), open_corpus("f")
    monkeypatch.setattr(files, "REMEMBERED", 1)
    open_corpus("f"), open_corpus("f")
    assert names == ["a.txt"] * 4


# ------------------------------------------------------------------------------------------- bounded memory

WITHIN = """
import re, sys
from pathlib import Path
from minigpt.text.corpus import open_corpus
import pyarrow.parquet

def peak():  # in KiB; getrusage would count what the process was before exec, the tests' own
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = peak()
characters = 0
for source in sys.argv[1:]:
    corpus = open_corpus(source)
    characters += sum(len(piece) for document in corpus.pieces() for piece in document)
print(characters, (peak() - before) // 1024)
"""


def bomb(path: str, raw: bytes, times: int) -> None:
    """A gzip file that expands a thousandfold."""
    with gzip.open(path, "wb", 1) as file:
        for _ in range(times):
            file.write(raw)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc belongs to Linux")
def test_what_expands_or_has_no_end_of_a_line_is_read_within_bounded_memory() -> None:
    bomb("a.txt.gz", b"x" * (1 << 20), 200)
    bomb("b.jsonl.gz", b"x" * (1 << 20), 200)
    with gzip.open("b.jsonl.gz", "ab") as file:
        file.write(b'\n{"text": "after"}\n')
    value = "y" * (8 << 20)
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 30, pyarrow.int32()), [value])
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), "c.parquet", compression="zstd")
    rows = [os.urandom(500).hex() for _ in range(100_000)]
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), "d.parquet", use_dictionary=False)
    ended = subprocess.run(
        [sys.executable, "-c", WITHIN, "a.txt.gz", "b.jsonl.gz", "c.parquet", "d.parquet"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    characters, grown = map(int, ended.stdout.split())
    assert characters == (200 << 20) + len("after") + 30 * len(value) + 100_000 * 1000
    assert "longer than 16 MiB" in ended.stderr
    assert grown < 120, f"{grown} MiB"
