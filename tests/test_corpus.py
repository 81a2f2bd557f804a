"""Corpora: the text is exactly that of the files, and a file that cannot be read is named."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from small_corpora import shakespeare_file

from minigpt.system.errors import UserError
from minigpt.text import corpus as corpora
from minigpt.text.corpus import download, open_corpus
from minigpt.text.formats import decode_text
from minigpt.text.languages.language import Stories, StoriesConfig


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory and a data folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpora, "DATA", tmp_path / "data")
    return tmp_path


def write(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)


def texts(source: str) -> list[str]:
    return list(open_corpus(source).documents())


def refusal(source: str) -> str:
    with pytest.raises(UserError) as error:
        open_corpus(source)
    assert "\n" not in str(error.value)
    return str(error.value)


# --------------------------------------------------------------------------------------- files and folders


def test_a_file_of_any_suffix_is_one_document_and_its_bytes_are_kept() -> None:
    write({"text.poem": "one\r\ntwo\rthree\n\n é🦉".encode()})
    assert texts("text.poem") == ["one\r\ntwo\rthree\n\n é🦉"]
    assert "23 bytes" in open_corpus("text.poem").description
    assert str(Path("text.poem").absolute()) in open_corpus("text.poem").description


def test_a_folder_is_its_text_files_sorted_by_path() -> None:
    write({"f/b.txt": b"2", "f/a/z.md": b"1", "f/c.TXT": b"3", "f/d.text": b"4", "f/data.json": b"{}"})
    write({"f/.hidden.txt": b"no", "f/.git/x.txt": b"no", "f/empty.txt": b""})
    assert texts("f") == ["1", "2", "3", "4"]
    assert "4 files" in open_corpus("f").description


def test_a_glob_takes_what_it_matches() -> None:
    write({"f/b.log": b"2", "f/a.log": b"1", "f/deep/c.log": b"3", "f/d.txt": b"4"})
    assert texts("f/*.log") == ["1", "2"]
    assert texts("f/**/*.log") == ["1", "2", "3"]


def test_a_file_may_have_a_name_that_looks_like_a_glob() -> None:
    write({"[1].txt": b"yes", "1.txt": b"no"})
    assert texts("[1].txt") == ["yes"]


def test_the_current_directory_comes_before_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(corpora, "CHECKOUT", tmp_path / "repository")
    write({"repository/a.txt": b"there", "repository/b/c.txt": b"only there", "a.txt": b"here"})
    assert texts("a.txt") == ["here"]
    assert texts("b") == texts("b/*.txt") == ["only there"]


def test_documents_are_read_one_at_a_time() -> None:
    write({"f/1.txt": b"1", "f/2.txt": b"2"})
    corpus = open_corpus("f")
    documents = corpus.documents()
    assert next(documents) == "1"
    Path("f/2.txt").unlink()
    with pytest.raises(FileNotFoundError):
        next(documents)


def test_the_digest_follows_the_contents_and_nothing_else() -> None:
    write({"a.txt": b"12", "copy/b.txt": b"12", "other.txt": b"13", "split/1.txt": b"1", "split/2.txt": b"2"})
    write({"turned/1.txt": b"2", "turned/2.txt": b"1"})
    digest = {name: open_corpus(name).digest for name in ("a.txt", "copy", "other.txt", "split", "turned")}
    assert digest["a.txt"] == digest["copy"]
    assert len(set(digest.values())) == 4
    assert digest["a.txt"] == hashlib.sha256(hashlib.sha256(b"12").hexdigest().encode()).hexdigest()


# ----------------------------------------------------------------------------------------------- refusals


def test_a_byte_order_mark_is_dropped_and_this_is_said() -> None:
    write({"a.txt": b"\xef\xbb\xbfone", "b.txt": "two \ufeff".encode()})
    assert texts("a.txt") == ["one"]
    assert texts("b.txt") == ["two \ufeff"]
    assert "1 byte-order mark dropped" in open_corpus("a.txt").description
    assert "dropped" not in open_corpus("b.txt").description


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"one\ntw\xffo", "byte 6 (line 2) is 0xff: this is not UTF-8"),
        (b"caf\xe9", "byte 3 (line 1) is 0xe9: this is not UTF-8"),
        (b"\n\n\xed\xa0\x80", "byte 2 (line 3) is 0xed: this is not UTF-8"),  # half a surrogate pair
        ("wide\xff".encode("utf-16-le"), "byte 8 (line 1) is 0xff: this is not UTF-8"),
        ("\ufeffa\nb".encode("utf-16-le") + b"\0\xd8", "byte 8 (line 2) is 0x00: this is not utf-16-le"),
        (b"one\r\ntwo\0", "byte 8 (line 2) is 0x00: this is a binary file"),
        (b"\x7fELF\x01\x01\x01\x00", "byte 7 (line 1) is 0x00: this is a binary file"),
    ],
)
def test_what_is_not_text_is_refused_with_byte_and_line(raw: bytes, what: str) -> None:
    write({"f/a.txt": b"fine", "f/b.txt": raw})
    with pytest.raises(UserError) as error:
        open_corpus("f", refuse=True)
    assert f"{Path('f/b.txt').absolute()}: {what}" in str(error.value)
    assert f"{Path('f/b.txt').absolute()}: {what}" in refusal("f/b.txt")
    with pytest.raises(UserError, match=r"prompt: byte"):
        decode_text(raw, "prompt")


def test_nothing_to_read_is_refused() -> None:
    write({"empty.txt": b"", "mark.txt": b"\xef\xbb\xbf", "f/a.txt": b"", "f/b.txt": b"", "g/picture.png": b"\x89PNG"})
    assert "empty.txt is empty" in refusal("empty.txt")
    assert "mark.txt is empty" in refusal("mark.txt")
    assert "all 2 files of f are empty" in refusal("f")
    assert "contains no text (.txt, .text, .md, .jsonl, .ndjson, .parquet, each also .gz or .zst)" in refusal("g")
    assert "no file or folder 'shakespear'" in (line := refusal("shakespear")) and "did you mean 'shakespeare'" in line
    assert "no file or folder 'g/*.txt'" in refusal("g/*.txt")


# ------------------------------------------------------------------------------------------------ stories


def test_validation_stories_are_new_and_do_not_change_with_the_number_of_the_others() -> None:
    few, many = (Stories(StoriesConfig(count=count, validation=1500)).texts() for count in (3000, 9000))
    assert len(set(many)) == 9000
    assert set(many[-1500:]) & set(many[:-1500]) == set()
    assert few[-1500:] == many[-1500:]
    assert few[:1500] == many[:1500]


def test_a_story_that_was_told_before_is_no_validation_story(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {0: ["a", "b", "c"], -1: ["b", "d", "d", "a", "e", "f", "g", "h", "i", "j"]}
    monkeypatch.setattr("minigpt.text.languages.language.stories", lambda seed, count, *rest: told[seed][:count])
    assert Stories(StoriesConfig(count=6, validation=3)).texts() == ["a", "b", "c", "d", "e", "f"]


# ---------------------------------------------------------------------------------------------- downloads

GOOD = bytes(range(256)) * 1000
SUM = hashlib.sha256(GOOD).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """A small server that behaves as its path says."""

    def do_GET(self) -> None:
        if self.path == "/absent":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(GOOD)))
        self.end_headers()
        sent = {"/wrong": b"x" * len(GOOD), "/truncated": GOOD[:100_000], "/stalled": GOOD[:1000]}
        self.wfile.write(sent.get(self.path, GOOD))
        if self.path == "/stalled":
            self.server.over.wait(60)  # type: ignore[attr-defined]
        while self.path == "/endless" and not self.server.over.is_set():  # type: ignore[attr-defined]
            try:
                self.wfile.write(GOOD)
            except OSError:
                return

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def _server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.over = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.over.set()  # type: ignore[attr-defined]
            server.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server on this machine, reached without a proxy."""
    monkeypatch.setenv("no_proxy", "*")
    with _server() as address:
        yield address


def test_a_good_file_arrives_whole_and_nothing_else_is_left(server: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    download(f"{server}/good", path, len(GOOD), SUM)
    assert path.read_bytes() == GOOD
    assert os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize(
    ("page", "what"),
    [
        ("/wrong", "sent something else: 256,000 of 256,000 bytes, SHA-256"),
        ("/wrong", hashlib.sha256(b"x" * len(GOOD)).hexdigest()),
        ("/truncated", "/truncated"),
        ("/endless", "sent something else: more than 256,000 bytes"),
        ("/stalled", "timed out"),
        ("/absent", "404"),
    ],
)
def test_anything_else_is_refused_and_leaves_no_file(server: str, page: str, what: str, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with pytest.raises(UserError) as error:
        download(server + page, folder / "file.txt", len(GOOD), SUM, timeout=0.3)
    assert what in str(error.value) and server in str(error.value)
    assert os.listdir(folder) == []


def refused_address() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/input.txt"


@pytest.mark.parametrize("address", [refused_address, lambda: "http://name.invalid/input.txt"])
def test_shakespeare_offline_says_where_to_put_the_file(
    address: Callable[[], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(corpora, "SHAKESPEARE_URL", address())
    line = refusal("shakespeare")
    sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    for part in ("could not be downloaded", str(tmp_path / "data" / "shakespeare.txt"), "1,115,394 bytes", sha256):
        assert part in line


def test_shakespeare_is_downloaded_once(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = b"To be, or not to be."  # stands in for the file, with its own sum
    monkeypatch.setattr(
        Handler, "do_GET", lambda self: (self.send_response(200), self.end_headers(), self.wfile.write(text))
    )
    monkeypatch.setattr(corpora, "SHAKESPEARE_URL", f"{server}/input.txt")
    monkeypatch.setattr(corpora, "SHAKESPEARE_BYTES", len(text))
    monkeypatch.setattr(corpora, "SHAKESPEARE_SHA256", hashlib.sha256(text).hexdigest())
    assert texts("shakespeare") == ["To be, or not to be."]
    monkeypatch.setattr(corpora, "SHAKESPEARE_URL", refused_address())
    assert texts("shakespeare") == ["To be, or not to be."]


def test_another_file_in_shakespeares_place_is_neither_used_nor_overwritten(tmp_path: Path) -> None:
    write({"data/shakespeare.txt": b"my own notes"})
    assert hashlib.sha256(b"my own notes").hexdigest() in refusal("shakespeare")
    assert (tmp_path / "data" / "shakespeare.txt").read_bytes() == b"my own notes"


def test_the_real_shakespeare_is_known_by_its_sum() -> None:
    write({"data/shakespeare.txt": shakespeare_file().read_bytes()})
    (text,) = texts("shakespeare")
    assert len(text) == corpora.SHAKESPEARE_BYTES == 1_115_394
    assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.\n")
