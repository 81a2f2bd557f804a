"""The processor time of the playground for a token and for a step of a slider: over real HTTP, client included."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from time import process_time
from typing import Any

from minigpt.learning.playground.answers import EDITS
from minigpt.learning.playground.server import HERE, TOKEN, Server

TOKENS, SLIDES = 100, 50
NO_EDITS: dict[str, Any] = {name: [] for name in EDITS}
ONE_HEAD = NO_EDITS | {"heads_off": [[0, 0]]}


def ask(server: Server, name: str, **question: Any) -> list[dict[str, Any]]:
    """The lines of an answer."""
    connection = HTTPConnection(HERE, server.port)
    headers = {"Content-Type": "application/json", TOKEN: server.token}
    connection.request("POST", f"/api/{name}", json.dumps(question), headers)
    lines = connection.getresponse().read().splitlines()
    connection.close()
    return [json.loads(line) for line in lines]


def measure(server: Server) -> str:
    """Milliseconds of processor time with the first run of a server, as text. Ends the server."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run = ask(server, "hello")[0]["runs"][0]
    ids, settings = ask(server, "encode", run=0, text=run["beginning"], begins=True)[0]["ids"], run["settings"]
    text = {"run": 0, "begun": len(ids)}
    lines = [f"{run['name']}: {', '.join(run['kinds'])}, {run['parameters']:,} parameters"]
    for name, edits in (("a token", NO_EDITS), ("a token, one head off", ONE_HEAD)):
        n_written, start = 0, process_time()
        while n_written < TOKENS:
            tokens = ask(server, "write", ids=ids, edits=edits, settings=settings, tokens=TOKENS - n_written, **text)
            n_written += sum("id" in line for line in tokens)
            settings = settings | {"seed": settings["seed"] + 1}
        lines.append(f"{name:>22}: {1000 * (process_time() - start) / n_written:.1f} ms")
    longer = [*ids, *(line["id"] for line in tokens if "id" in line)]
    ask(server, "read", run=0, ids=longer, edits=NO_EDITS)
    start = process_time()
    for slide in range(SLIDES):
        warmer = settings | {"temperature": 0.5 + slide / SLIDES}
        ask(server, "look", ids=longer, edits=NO_EDITS, at=len(longer) - 1, settings=warmer, **text)
    lines.append(f"{'a step of a slider':>22}: {1000 * (process_time() - start) / SLIDES:.1f} ms")
    server.shutdown()
    return "\n".join(lines)
