"""The HTTP server of the page. It answers this computer and this page only.

It listens on 127.0.0.1 only. A question (a POST request) is answered if its Host is this server (a foreign name that is
made to point here, DNS rebinding, sends another Host), if its Origin is this page, and if it carries the token from the
fragment of the page's address, which browsers send to nobody. It must be JSON of at most 64 KB. No address names a
file: the page's files are read at the start. All refusals are constant.

Other users of the computer see the command lines of all programs. A browser is therefore given the address of a file
that leads to the page, and that only its owner can read.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minigpt.learning.playground.answers import Malformed, Playground
from minigpt.seeing.document import asset, skeleton, style_sheet
from minigpt.system.errors import UserError
from minigpt.system.folder import as_bytes
from minigpt.system.machine import seen_by_browsers
from minigpt.system.process import NO_MORE, no_more
from minigpt.system.strict_json import parse_json
from minigpt.system.terminal import complain, one_line

HERE = "127.0.0.1"
LARGEST = 64 << 10  # bytes of a question
PATIENCE = 10.0  # seconds in which a request must have arrived
BUSY = 16  # questions that are answered at once
ASSETS = Path(__file__).with_name("assets")
TOKEN = "X-Minigpt-Token"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-src 'self'; frame-ancestors 'none'"
)
SANDBOX = "sandbox allow-scripts; frame-ancestors 'self'"  # of a page that shows a model, alone or in the playground's
STYLES, SCRIPTS = ("common", "play"), ("common", "play-server", "play-line", "play-edits", "play-losses", "play")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
REFUSALS = {
    400: "this is not a question of the page",
    403: "this playground is for its own page: open the address that the command printed",
    404: "there is nothing here",
    405: "only GET and POST",
    411: "a question says how long it is",
    413: "a question has at most 64 KB",
    415: "a question is JSON",
    500: "this went wrong here; the terminal says what",
    503: "too many questions at once: wait for one to end",
}


def page() -> str:
    """The playground's page, whose styles and scripts are files of the server."""
    styles = [f'<link rel="stylesheet" href="/{name}.css">' for name in STYLES]
    scripts = [f'<script src="/{name}.js"></script>' for name in SCRIPTS]
    body = (ASSETS / "play.html").read_text(encoding="utf-8")
    return skeleton("minigpt playground", styles, "\n".join([body, *scripts]))


class Server(socketserver.ThreadingTCPServer):
    """Serves the page and answers its questions; `address` is what to open. Raises UserError for a port in use."""

    daemon_threads, block_on_close, request_queue_size = True, False, 64

    def __init__(self, playground: Playground, port: int = 0):
        self.playground, self.token = playground, secrets.token_urlsafe(32)
        self.free, self.crowded = threading.BoundedSemaphore(BUSY), threading.Event()
        self.private = ExitStack()  # what is removed when the page has been opened, and at the end
        self.files = {f"/{path.name}": (KINDS[path.suffix], path.read_bytes()) for path in ASSETS.iterdir()}
        common = {".css": style_sheet(), ".js": asset("common.js")}
        self.files |= {f"/common{end}": (KINDS[end], text.encode()) for end, text in common.items()}
        self.files["/"] = KINDS[".html"], page().encode()
        try:
            super().__init__((HERE, port), Handler)
        except OverflowError:
            raise UserError(f"--port {port}: expected a number from 0 to 65535") from None
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}: give another port, or none for a free one") from None
        self.port = self.server_address[1]
        self.names = {f"{name}:{self.port}" for name in (HERE, "localhost")}

    @property
    def address(self) -> str:
        """What to open in a browser of this computer."""
        return f"http://{HERE}:{self.port}/#{self.token}"

    def entrance(self) -> str:
        """The address of a file that leads to the page, until the page asks its first question. Raises OSError."""
        place = seen_by_browsers()
        folder = TemporaryDirectory(prefix="minigpt-", dir=place, ignore_cleanup_errors=True)  # of this user alone
        path = Path(self.private.enter_context(folder), "open.html")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            there = f'<meta http-equiv="refresh" content="0; url={self.address}">'
            quiet = '<meta name="referrer" content="no-referrer">'
            file.write(skeleton("minigpt", [quiet, there], f'<a href="{self.address}">the playground</a>'))
        return path.as_uri()

    def server_close(self) -> None:
        """End."""
        super().server_close()
        self.private.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say once that no thread can be started; all other errors are those of clients that went away."""
        if no_more(sys.exc_info()[1] or Exception()) and not self.crowded.is_set():
            self.crowded.set()
            complain(f"a question could not be answered: {NO_MORE}")


class Handler(BaseHTTPRequestHandler):
    """One request, on a connection of its own."""

    server: Server
    disable_nagle_algorithm = True  # a line must not wait for the next one
    protocol_version, server_version, sys_version = "HTTP/1.0", "minigpt", ""

    def handle(self) -> None:
        """Answer, unless the request takes longer than PATIENCE: a slow client keeps its thread no longer than that."""
        slow = threading.Timer(PATIENCE, self._hang_up)
        slow.daemon = True
        slow.start()
        self.arrived = slow.cancel
        with suppress(OSError):  # the client went away
            super().handle()
        slow.cancel()

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Answer a GET request: the page, its files, and explorer pages."""
        self.arrived()
        if self.headers.get_all("Host", []) not in [[name] for name in self.server.names]:
            self.refuse(403)
        elif self.path in self.server.files:
            kind, body = self.server.files[self.path]
            self.reply(200, kind, body)
        elif self.path.startswith("/explorer/") and (page := self.server.playground.page(self.path[10:])):
            self.reply(200, KINDS[".html"], as_bytes(page), policy=SANDBOX)
        else:
            self.refuse(404)

    def do_POST(self) -> None:
        """Answer a POST request: a question."""
        if (code := self.objection()) or not self.path.startswith("/api/"):
            self.arrived()
            return self.refuse(code or 404)
        self.server.private.close()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.arrived()
        if not self.server.free.acquire(blocking=False):
            return self.refuse(503)
        try:
            self.answer(self.path[5:], body)
        finally:
            self.server.free.release()

    def objection(self) -> int:
        """The status code with which a question is refused for its headers; 0 if it is not refused."""
        headers = {name: self.headers.get_all(name, []) for name in ("Host", "Origin", TOKEN, "Content-Type")}
        length = self.headers.get_all("Content-Length", [])
        own_origins = [[f"http://{name}"] for name in self.server.names]
        if headers["Host"] not in [[name] for name in self.server.names] or headers["Origin"] not in [[], *own_origins]:
            return 403
        if len(headers[TOKEN]) != 1 or not secrets.compare_digest(
            headers[TOKEN][0].encode(), self.server.token.encode()
        ):
            return 403
        if headers["Content-Type"] != ["application/json"]:
            return 415
        if "Transfer-Encoding" in self.headers or len(length) != 1 or not (length[0].isascii() and length[0].isdigit()):
            return 411
        return 413 if len(length[0]) > 9 or int(length[0]) > LARGEST else 0

    def answer(self, name: str, body: bytes) -> None:
        """Send one value, or lines of values. A UserError is sent as text, any other error as a status code."""
        try:
            answer = self.server.playground.answer(name, parse_json(body))
            if isinstance(answer, Iterator):
                return self.stream(answer)
            value = answer
        except UserError as error:
            value = {"error": one_line(str(error))}
        except (Malformed, ValueError):
            return self.refuse(400)
        except Exception as error:
            self.explain(error)
            return self.refuse(500)
        self.reply(200, "application/json", encoded(value))

    def stream(self, lines: Iterator[dict[str, Any]]) -> None:
        """Send each value as a line of JSON as it is computed; after an error, the last line is the error."""
        self.head(200, "application/x-ndjson", None)
        try:
            for value in lines:
                self.wfile.write(encoded(value))
        except UserError as error:
            self.wfile.write(encoded({"error": one_line(str(error))}))
        except OSError as error:
            if not isinstance(error, ConnectionError):
                self.wfile.write(encoded({"error": one_line(str(error))}))
        except Exception as error:
            self.explain(error)
            self.wfile.write(encoded({"error": REFUSALS[500]}))

    def explain(self, error: Exception) -> None:
        """Print an error on the terminal; the page is not told its text."""
        reason = NO_MORE if no_more(error) else one_line(f"{type(error).__name__}: {error}")
        complain(f"a question could not be answered: {reason}")

    def refuse(self, code: int) -> None:
        """Send the constant answer for a status code."""
        self.reply(code, "application/json", encoded({"error": REFUSALS[code]}))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what http.server itself refuses: its own answer would repeat the request."""
        self.arrived()
        self.request_version = "HTTP/1.0"
        self.refuse(405 if code == 501 else 400)

    def reply(self, code: int, kind: str, body: bytes, policy: str = POLICY) -> None:
        """Send a complete answer."""
        self.head(code, kind, len(body), policy)
        self.wfile.write(body)

    def head(self, code: int, kind: str, length: int | None, policy: str = POLICY) -> None:
        """Send the status and the headers of an answer."""
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal is for what its user should know."""


def encoded(value: Any) -> bytes:
    """A value as a line of JSON. Raises ValueError for a number that JSON does not have."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode() + b"\n"
