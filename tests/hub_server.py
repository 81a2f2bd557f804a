"""A server on this machine that speaks as much of the Hugging Face Hub's HTTP interface as a download needs.

The interface is the one that huggingface_hub asks (hf_api.py, file_download.py): the commit of a branch, the list of
its files, and each file with the headers by which the library knows it. As on the Hub, weights lie on another server
(another port of this machine), to which the address of the file leads.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40
TOKEN = "hf_accepted"  # of somebody who has accepted all terms


class Hub(ThreadingHTTPServer):
    """The models of a folder: `models/OWNER/NAME` is the model OWNER/NAME."""

    daemon_threads = True

    def __init__(self, models: Path):
        super().__init__(("127.0.0.1", 0), partial(Answer, self))
        self.weights = ThreadingHTTPServer(("127.0.0.1", 0), partial(Answer, self))
        self.weights.daemon_threads = True
        self.models = models
        self.gated = set[str]()
        """Names of models that need consent and a token."""
        self.status = 200
        """What every question about a model is answered with, where it is not 200."""
        self.cut: dict[str, int] = {}
        """Files whose connection is closed after so many bytes, once."""
        self.stuck: dict[str, int] = {}
        """Files of which no more comes after so many bytes, once."""
        self.requests: list[tuple[str, str, str]] = []
        """The method, the path and the range of every request."""
        self.waiting = threading.Event()
        """Set as soon as a file is stuck."""
        self.over = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ranges(self, file: str) -> list[str]:
        """The ranges that were asked of a file's content; empty for the whole."""
        return [
            part
            for method, path, part in self.requests
            if method == "GET" and re.fullmatch(f"/content/.*/{file}", path)
        ]


class Answer(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *connection: Any):
        self.hub = hub
        super().__init__(*connection)

    def log_message(self, format: str, *values: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if path == "/":
            self.send(200, b"the Hub")
        elif match := re.fullmatch(r"/content/([\w-]+/[\w-]+/[\w.-]+)", path):
            self.content(self.hub.models / match[1])
        elif match := re.fullmatch(r"/api/models/([\w-]+/[\w-]+)(/revision/main|/tree/\w+)?", path):
            if self.allowed(match[1]):
                self.send(
                    200, json.dumps(self.listed(match[1], tree="/tree/" in path)).encode(), type="application/json"
                )
        elif match := re.fullmatch(r"/([\w-]+/[\w-]+)/resolve/(main|" + COMMIT + r")/([\w.-]+)", path):
            if self.allowed(match[1]) and self.consented(match[1]):
                self.file(match[1], match[3])
        else:
            self.send(404, b"")

    def allowed(self, name: str) -> bool:
        """Whether a model is there and open; else what the Hub says in that case."""
        if self.hub.status != 200:
            self.send(self.hub.status, b"")
        elif not (self.hub.models / name).is_dir():  # the Hub does not say whether a hidden model is there
            message = "Invalid username or password."
            self.send(401, message.encode(), **{"X-Error-Message": message})
        else:
            return True
        return False

    def consented(self, name: str) -> bool:
        """Whether the files of a model may be read; anybody may read their names."""
        if name not in self.hub.gated or self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        message = f"Access to model {name} is restricted."
        self.send(401, message.encode(), **{"X-Error-Code": "GatedRepo", "X-Error-Message": message})
        return False

    def listed(self, name: str, tree: bool) -> object:
        """A model's description, or the list of its files."""
        files = sorted((self.hub.models / name).iterdir())
        if not tree:
            siblings = [{"rfilename": file.name} for file in files]
            return {"_id": "1", "id": name, "modelId": name, "sha": COMMIT, "private": False, "siblings": siblings,
                    "tags": [], "downloads": 0, "likes": 0}  # fmt: skip
        entries = []
        for file in files:
            data = file.read_bytes()
            entry = {"type": "file", "path": file.name, "size": len(data), "oid": sum_of("sha1", data)}
            if is_large(file):
                entry["lfs"] = {"oid": sum_of("sha256", data), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        return entries

    def file(self, name: str, file: str) -> None:
        """The address of a file: small ones are there, weights elsewhere."""
        path = self.hub.models / name / file
        if not path.is_file():
            self.send(404, b"Entry not found", **{"X-Error-Code": "EntryNotFound"})
            return
        data = path.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if is_large(path):
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{sum_of("sha256", data)}"'}
            location = f"http://localhost:{self.hub.weights.server_port}/content/{name}/{file}"  # another host for some
            self.send(302, b"", Location=location, **headers)
        else:
            self.send(200, data, ETag=f'"{sum_of("sha1", data)}"', **headers)

    def content(self, path: Path) -> None:
        """The bytes of a file, or those from a position on."""
        data, range_ = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        begin = int(range_[1]) if range_ else 0
        end = int(range_[2]) + 1 if range_ and range_[2] else len(data)
        range_header = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"} if range_ else {}
        self.send(
            206 if range_ else 200, data[begin:end], path.name, ETag=f'"{sum_of("sha256", data)}"', **range_header
        )

    def send(self, status: int, data: bytes, file: str = "", type: str = "text/plain", **headers: str) -> None:
        """One answer; the connection of a file in `cut` or `stuck` ends before its last byte."""
        self.send_response(status)
        for name, value in {"Content-Type": type, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        short = self.hub.cut.pop(file, None), self.hub.stuck.pop(file, None)
        self.wfile.write(data[: max(short, key=lambda n: n or 0)])
        if short[1] is not None:
            self.wfile.flush()
            self.hub.waiting.set()
            self.hub.over.wait()
        self.close_connection = short != (None, None)


def is_large(path: Path) -> bool:
    """Whether the Hub keeps a file on the host of large files."""
    return path.suffix == ".safetensors"


def sum_of(kind: str, data: bytes) -> str:
    """The sum of a file by which the library names it in its cache."""
    return hashlib.new(kind, data).hexdigest()


@contextmanager
def hub(models: Path) -> Iterator[Hub]:
    """A Hub with the models of a folder, as long as the block runs."""
    with Hub(models) as server, server.weights:
        both = server, server.weights
        for each in both:
            threading.Thread(target=each.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            server.over.set()
            for each in both:
                each.shutdown()
