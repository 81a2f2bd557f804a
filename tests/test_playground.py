"""The playground: a real server, real HTTP. It answers its own page, with the model's numbers, and nobody else."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch
from running import furnish, script, started, wait_until
from test_trace import make_model

from minigpt.attention import Attention
from minigpt.learning.playground import server as serving
from minigpt.learning.playground.answers import Playground
from minigpt.learning.playground.line import die, line
from minigpt.learning.playground.player import Player, in_context
from minigpt.learning.playground.server import REFUSALS, TOKEN, Server
from minigpt.model import SamplingConfig
from minigpt.seeing.edits import Edits, edited
from minigpt.text.talks import Turn
from minigpt.text.tokenizer import Byte
from minigpt.training.floor import predict, score
from minigpt.training.run import Run, load

SMALL = """\
data: {source: stories, stories: {count: 60, validation: 20}, tokenizer: char, windows: documents}
model: {n_layer: 2, n_embd: 32, block_size: 128, position: rotary, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 8, max_steps: 3, eval_every: 3, sample_every: 0, device: cpu}
sampling: {max_tokens: 40}
"""
EDITS = "heads_off", "running_mean", "scale", "cut", "attentions_off", "mlps_off"
NONE: dict[str, Any] = {name: [] for name in EDITS}
HEAD = NONE | {"heads_off": [[1, 0]]}
USUAL = {"temperature": 1.5, "top_k": None, "top_p": 1.0, "seed": 7}
OWN = "data: {source: text.txt, tokenizer: byte}\nmodel: {n_layer: 1, n_embd: 16, block_size: 16}\n" + (
    "training: {batch_size: 4, max_steps: 2, eval_every: 2, sample_every: 0, device: cpu}\n"
)


CHAT = SMALL.replace("{source: stories, stories: {count: 60, validation: 20}", "{source: {kind: talks, count: 60, "
    "validation: 20}, format: chat").replace("block_size: 128", "block_size: 256")  # fmt: skip
STORY = "Fay has a pot in Rome. Pam has a cup in Oslo. Hal has a hat in Bonn. Where is the cup?"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on stories, one of averages, and one on a text of one's own in bytes."""
    folder = furnish(tmp_path_factory.mktemp("playground"))
    (folder / "stories.yaml").write_text(SMALL, encoding="utf-8")
    (folder / "own.yaml").write_text(OWN, encoding="utf-8")
    (folder / "chat.yaml").write_text(CHAT, encoding="utf-8")
    of_averages = ("stories", "model.attention=average_softmax")
    for name, words in {"stories": ["stories"], "average": of_averages, "own": ["own"], "chat": ["chat"]}.items():
        done = script("train.py", "--config", f"{words[0]}.yaml", "--name", name, *words[1:], cwd=folder)
        assert done.code == 0, done.err
    return folder


@pytest.fixture(scope="module")
def run(home: Path) -> Run:
    """One whose weights are large enough that every edit shows."""
    loaded = load(home / "runs" / "stories", "cpu")
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    return loaded


@pytest.fixture(scope="module")
def server(home: Path, run: Run) -> Iterator[Server]:
    """A server for three runs, in a thread."""
    own = load(home / "runs" / "own", "cpu")
    with Server(Playground([run, load(home / "runs" / "average", "cpu"), own])) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture(scope="module")
def talks(home: Path) -> Iterator[Server]:
    """A server for a run that talks."""
    with Server(Playground([load(home / "runs" / "chat", "cpu")])) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield made
        made.shutdown()


def request(
    server: Server, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, Any]:
    """One request as it stands: its code, its body, its headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


def post(server: Server, name: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """A question of the page, with other headers where they are given; one that is empty is left out."""
    usual = {"Content_Type": "application/json", "Content_Length": str(len(body)), TOKEN: server.token}
    given = {key: value for key, value in (usual | headers).items() if value}
    return request(server, "POST", f"/api/{name}", body, **given)[:2]


def asked(server: Server, name: str, **question: Any) -> list[dict[str, Any]]:
    """The lines of an answer."""
    code, body = post(server, name, json.dumps(question).encode())
    assert code == 200, body
    return [json.loads(part) for part in body.splitlines()]


def written(
    server: Server, prompt: str, edits: dict[str, Any] = NONE, run: int = 0, n: int = 40
) -> tuple[list[int], list[int]]:
    """The ids of a prompt, and those written after it."""
    [found] = asked(server, "encode", run=run, text=prompt, begins=True)
    ids = found["ids"]
    lines = asked(server, "write", run=run, ids=ids, edits=edits, begun=len(ids), settings=USUAL, tokens=n)
    return ids, [one["id"] for one in lines if "id" in one]


# ---- talks ----


def test_a_talk_goes_on_with_the_ids_that_training_sees(talks: Server) -> None:
    run = talks.playground.open_runs[0].run
    turns = [Turn("user", STORY), Turn("assistant", "Oslo", True), Turn("user", "And the hat?")]
    [begun] = asked(talks, "encode", run=0, text=STORY, begins=True)
    assert begun["ids"] == run.talking.ids(turns[:1], answering=True)[0].tolist()
    whole = run.talking.ids(turns, answering=True)[0].tolist()
    for answer in (whole[len(begun["ids"]) :][:4], whole[len(begun["ids"]) :][:5]):  # without its end, and with it
        ids = begun["ids"] + answer
        [reply] = asked(talks, "reply", run=0, ids=ids, text="And the hat?")
        assert ids + reply["ids"] == whole
    [read] = asked(talks, "read", run=0, ids=whole, edits=NONE, kept=len(whole))
    assert [read["tokens"][at] for at in read["turns"]] == ["<|user|>", "<|assistant|>"] * 2
    assert read["outside"] == ""


def test_a_talk_ends_with_its_context(talks: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run = talks.playground.open_runs[0].run
    monkeypatch.setattr(run.talking, "ends", [])
    ids = run.talking.ids([Turn("user", "Who has it? " * 20)], answering=True)[0].tolist()
    lines = asked(talks, "write", run=0, ids=ids, edits=NONE, begun=len(ids), settings=USUAL, tokens=200)
    assert sum("id" in one for one in lines) == 256 - len(ids)
    n = len(ids) + len(run.talking.reply(ids[-1], "And the hat?"))
    [refused] = asked(talks, "reply", run=0, ids=ids, text="And the hat?")
    assert refused == {"error": f"the talk would have {n} tokens; the context holds 256: begin a new one"}


# ---- the numbers are the model's ----


@pytest.mark.parametrize("number", [0, 1, 2])
def test_it_writes_what_sampling_writes(server: Server, number: int) -> None:
    run = server.playground.open_runs[number].run
    text = run.generate("Mia was a ", max_tokens=60, seed=7, temperature=1.5)
    _, ids = written(server, "Mia was a ", run=number, n=60)
    assert "Mia was a " + run.tokenizer.decode(ids).rstrip("\n" if run.tells() else "") == text


def test_a_die_depends_on_the_seed_and_its_turn_alone() -> None:
    generator = torch.Generator().manual_seed(5)
    in_turn = [torch.rand(1, 1, dtype=torch.float64, generator=generator) for _ in range(40)]
    for turn, expected in enumerate(in_turn):
        assert torch.equal(torch.rand(1, 1, dtype=torch.float64, generator=die(5, turn)), expected)


def test_a_forced_token_leaves_the_later_dice(server: Server) -> None:
    ids, first = written(server, "Mia was a ")
    forced = [*ids, first[0], (first[1] + 1) % 20]
    lines = asked(server, "write", run=0, ids=forced, edits=NONE, begun=len(ids), settings=USUAL, tokens=5)
    dice = [one["line"]["die"] for one in lines if "line" in one]
    turns = range(2, 2 + len(dice))
    assert dice == [float(torch.rand(1, 1, dtype=torch.float64, generator=die(7, turn))) for turn in turns]


def test_on_the_line_a_token_is_as_long_as_it_is_likely() -> None:
    logits, config = torch.tensor([0.0, 1.0, 2.0, -1.0]), serving_config(temperature=0.5, top_k=3)
    found = line(logits, config, 3, Byte())
    p = (torch.tensor([0.0, 2.0, 4.0]).softmax(0)).tolist()
    assert [one[0] for one in found["segments"]] == [0, 1, 2] and found["left"] == 3
    assert [end - start for _, _, start, end in found["segments"]] == pytest.approx(p)
    [taken] = [one for one in found["segments"] if one[0] == found["chosen"]]
    assert taken[2] <= found["die"] < taken[3]
    assert line(logits, serving_config(temperature=0), 3, Byte())["chosen"] == 2


def serving_config(**options: Any) -> SamplingConfig:
    return SamplingConfig(seed=3, **options)


def test_surprises_and_lines_are_those_of_the_model_past_the_context(server: Server) -> None:
    """Where a text is longer than the context, each token is read as it was written."""
    player, ids = server.playground.open_runs[2].player, list(b"the cat sat on a mat and the dog ran far from it.")
    found = asked(server, "read", run=2, ids=ids, edits=NONE, kept=0)[0]["surprise"]
    assert found[0] is None and len(found) == len(ids) > 2 * player.run.config.model.block_size
    stream = player.write(ids[:1], 0, serving_config(), Edits())
    next(stream)
    for n in (1, 15, 16, 17, 24, 25, 40, 48):
        expected = -player.logits(ids[:n], n, Edits()).log_softmax(-1)[ids[n]]
        assert found[n] == pytest.approx(float(expected), rel=1e-4)
        [look] = asked(server, "look", run=2, ids=ids, edits=NONE, at=n, begun=1, settings=USUAL)
        assert look["stands"] == ids[n]
        own = {one[0]: one[3] for one in look["likeliest"]}
        assert own[ids[n]] == pytest.approx(math.exp(-found[n]), rel=1e-4)


def unlikely(player: Player, n: int) -> list[int]:
    """A text of n tokens, each the one that the model expects least."""
    ids = [0]
    while len(ids) < n:
        ids.append(int(player.logits(ids, len(ids), Edits()).argmin()))
    return ids


def test_a_text_of_ones_own_that_is_far_outside_is_told_whatever_the_model_wrote_after_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = server.playground.open_runs[0].player
    given = unlikely(player, 100)
    written = [id for (id, _), _ in zip(player.write(given, 0, serving_config(), Edits()), range(60))]
    question: dict[str, Any] = {"run": 0, "ids": [*given, *written], "edits": HEAD}
    [answer] = asked(server, "read", **question, kept=100)
    mean = sum(player.surprises(given, Edits())) / 99
    usual = player.run.usual_loss()
    assert f"costs the model {mean:.2f} nats a character, its validation text {usual:.2f}" in answer["outside"]
    assert [asked(server, "read", **question, kept=n)[0]["outside"] for n in (0, 1, 2)] == [""] * 3
    monkeypatch.setattr(player, "usual", None)
    assert asked(server, "read", **question, kept=100)[0]["outside"] == ""
    monkeypatch.setattr(player, "usual", mean)
    assert asked(server, "read", **question, kept=100)[0]["outside"] == ""
    for kept in (-1, 161):
        assert post(server, "read", json.dumps(question | {"kept": kept}).encode())[0] == 400


# ---- edits ----


@pytest.mark.parametrize(
    ("values", "edits"),
    [
        (HEAD, Edits(heads_off=frozenset({(1, 0)}))),
        (NONE | {"running_mean": [0]}, Edits(running_mean=frozenset({0}))),
        (
            NONE | {"attentions_off": [0], "mlps_off": [1]},
            Edits(attentions_off=frozenset([0]), mlps_off=frozenset([1])),
        ),
        (NONE | {"scale": [[None, 3.0]]}, Edits(scale={"all": 3.0})),
        (NONE | {"scale": [[None, 3.0], [1, 0.0]]}, Edits(scale={0: 3.0, 1: 0.0})),
        (NONE | {"cut": [[0, 5, 2]]}, Edits(cut=frozenset({(0, 5, 2)}))),
    ],
)
def test_an_edit_of_the_page_is_that_of_the_model(server: Server, run: Run, values: Any, edits: Edits) -> None:
    ids = run.context_ids("Mia was a shy fox.")[0].tolist()
    [found] = asked(server, "read", run=0, ids=ids, edits=values, kept=1)
    with torch.no_grad(), edited(run.model, edits):
        log_p = run.model(torch.tensor([ids]))[0].log_softmax(-1)
    expected = [-float(log_p[n, ids[n + 1]]) for n in range(len(ids) - 1)]
    assert found["surprise"][1:] == pytest.approx(expected, rel=1e-4)
    assert found["loss"] != pytest.approx(found["before"], rel=1e-6)


def test_the_loss_and_what_is_remembered_are_those_of_the_floor(
    server: Server, run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = asked(server, "measure", run=0, edits=HEAD, whole=True)[-1]
    assert last["done"] == last["of"]
    text = server.playground.open_runs[0].measure.open_text()
    with edited(run.model, Edits(heads_off=frozenset({(1, 0)}))):
        expected = score(predict(run.model, text.dataset, run.config.training, text.expected), text.expected)
    found = last["score"]
    assert found["loss"] == pytest.approx(expected.loss, abs=1e-3) and found["characters"] == expected.characters
    assert found["names"]["recall"]["accuracy"] == pytest.approx(expected.names["recall"].accuracy, abs=0.02)
    before = asked(server, "measure", run=0, edits=NONE, whole=True)[-1]["score"]
    assert before["loss"] != pytest.approx(found["loss"], abs=1e-6)
    assert "text.txt" in asked(server, "measure", run=2, edits=NONE, whole=False)[-1]["error"]
    monkeypatch.chdir(home)  # where the text of one's own is
    assert asked(server, "measure", run=2, edits=NONE, whole=False)[-1]["score"]["above"] is None


def test_an_edit_that_does_nothing_is_not_offered_and_refused(server: Server) -> None:
    average = asked(server, "hello")[0]["runs"][1]["layers"][0]
    assert average == {"heads": 1, "mlp": True, "running_mean": False, "scale": False}
    for edit in ({"running_mean": [0]}, {"scale": [[1, 2.0]]}, {"heads_off": [[0, 1]]}, {"heads_off": [[9, 0]]}):
        [answer] = asked(server, "read", run=1, ids=[1, 2], edits=NONE | edit, kept=2)
        assert answer["error"].startswith("layer")


def test_two_browsers_do_not_mix(server: Server) -> None:
    alone = {name: written(server, "Mia", edits)[1] for name, edits in (("plain", NONE), ("head", HEAD))}
    found: dict[str, list[int]] = {}
    threads = [
        threading.Thread(target=lambda n=name, e=edits: found.update({n: written(server, "Mia", e)[1]}))  # type: ignore[misc]
        for name, edits in (("plain", NONE), ("head", HEAD))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone and found["plain"] != found["head"]


def test_a_cut_moves_with_the_context() -> None:
    cut = Edits(cut=frozenset({(0, 20, 12), (0, 20, 3)}))
    assert in_context(cut, 8) == Edits(cut=frozenset({(0, 12, 4)}))
    assert in_context(cut, 0) is not None and in_context(Edits(), 8) == Edits()


@pytest.mark.parametrize("kind", ["gated_linear", "sliding_window", "delta_product", "native_sparse"])
def test_kinds_without_keys_in_their_cache_write_with_edits(kind: str, run: Run) -> None:
    model = make_model(kind).float()
    one = Run(run.folder, run.config, Byte(), model, 1, [])
    player = Player(one)
    stream = player.write([1, 2, 3], 0, serving_config(), Edits(heads_off=frozenset({(0, 0)})))
    assert all(0 <= next(stream)[0] < 11 for _ in range(12))  # past the context of 12
    assert kind in Attention.kinds


def test_the_explorers_page_is_sandboxed_and_needs_its_name(server: Server) -> None:
    [found] = asked(server, "explore", run=0, ids=[1, 2, 3, 4, 5])
    code, body, headers = request(server, "GET", f"/explorer/{found['page']}")
    assert code == 200 and b"<!doctype html>" in body[:20]
    assert headers["Content-Security-Policy"] == "sandbox allow-scripts; frame-ancestors 'self'"
    assert request(server, "GET", "/explorer/x")[0] == 404


def test_the_page_of_the_whole_model_is_of_the_model_with_its_changes(server: Server) -> None:
    facts = []
    for edits in (NONE, NONE | {"mlps_off": [0], "heads_off": [[1, 0]]}):
        [found] = asked(server, "whole", run=0, ids=[1, 2, 3, 4, 5], edits=edits)
        body = request(server, "GET", f"/explorer/{found['page']}")[1].decode()
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', body)
        assert data
        [shown] = json.loads(data[1])["runs"]
        facts.append((shown["live"], dict(shown["facts"])["loss here"]))
    assert facts[0][0] and not facts[1][0] and facts[0][1] != facts[1][1]
    [refused] = asked(server, "whole", run=0, ids=[1, 2], edits=NONE | {"mlps_off": [9]})
    assert "layer 10" in refused["error"]


# ---- who may ask ----

READ = json.dumps({"run": 0, "ids": [1, 2], "edits": NONE, "kept": 2}).encode()
WRITE = {"run": 0, "ids": [1], "edits": NONE, "begun": 1, "settings": USUAL, "tokens": 1}


def changed(**values: Any) -> bytes:
    return json.dumps(WRITE | values).encode()


HOSTILE: list[tuple[str, int, str, bytes, dict[str, str]]] = [
    ("no token", 403, "read", READ, {TOKEN: ""}),
    ("a wrong token", 403, "read", READ, {TOKEN: "x" * 43}),
    ("a token that is no text", 403, "read", READ, {TOKEN: "\xe9\xff"}),
    ("another host", 403, "read", READ, {"Host": "evil.example"}),
    ("another host, this port", 403, "read", READ, {"Host": "evil.example:{port}"}),
    ("no port in the host", 403, "read", READ, {"Host": "127.0.0.1"}),
    ("another origin", 403, "read", READ, {"Origin": "http://evil.example"}),
    ("no origin at all", 403, "read", READ, {"Origin": "null"}),
    ("another port as origin", 403, "read", READ, {"Origin": "http://127.0.0.1:1"}),
    ("https as origin", 403, "read", READ, {"Origin": "https://127.0.0.1:{port}"}),
    ("a form", 415, "read", READ, {"Content_Type": "application/x-www-form-urlencoded"}),
    ("plain text, which no preflight protects", 415, "read", READ, {"Content_Type": "text/plain"}),
    ("no type", 415, "read", READ, {"Content_Type": ""}),
    ("no length", 411, "read", READ, {"Content_Length": ""}),
    ("a negative length", 411, "read", READ, {"Content_Length": "-1"}),
    ("a length in other digits", 411, "read", READ, {"Content_Length": "\u00b2"}),
    ("too large", 413, "read", READ, {"Content_Length": "65537"}),
    ("a length of many digits", 413, "read", READ, {"Content_Length": "9" * 5000}),
    ("chunks", 411, "read", READ, {"Transfer_Encoding": "chunked"}),
    ("no JSON", 400, "read", b"{", {}),
    ("no UTF-8", 400, "read", b"\xff\xfe", {}),
    ("a list", 400, "read", b"[]", {}),
    ("30,000 brackets", 400, "read", b"[" * 30_000, {}),
    ("infinity", 400, "write", changed().replace(b"1.5", b"1e999"), {}),
    ("NaN", 400, "write", changed().replace(b"1.5", b"NaN"), {}),
    ("a number of many digits", 400, "read", READ.replace(b"[1, 2]", b"[" + b"9" * 6000 + b"]"), {}),
    ("a text instead of ids", 400, "read", READ.replace(b"[1, 2]", b'"ab"'), {}),
    ("an id beyond the vocabulary", 400, "write", changed(ids=[10**6]), {}),
    ("a negative id", 400, "write", changed(ids=[-1]), {}),
    ("no ids", 400, "write", changed(ids=[]), {}),
    ("a truth instead of a number", 400, "write", changed(begun=True), {}),
    ("another run", 400, "write", changed(run=3), {}),
    ("a run from the end", 400, "write", changed(run=-1), {}),
    ("more tokens than at once", 400, "write", changed(tokens=10**9), {}),
    ("an unknown key", 400, "write", changed(out="/tmp/x"), {}),
    ("an unknown setting", 400, "write", changed(settings=USUAL | {"max_tokens": 9}), {}),
    ("an unknown edit", 400, "write", changed(edits=NONE | {"code": []}), {}),
    ("a layer that is a text", 400, "write", changed(edits=NONE | {"running_mean": ["0"]}), {}),
    ("a method of the object", 400, "answer", b"{}", {}),
    ("a private method", 400, "_written", b"{}", {}),
    ("a path", 400, "../../etc/passwd", READ, {}),
]


@pytest.mark.parametrize(
    ("code", "name", "body", "headers"), [one[1:] for one in HOSTILE], ids=[one[0] for one in HOSTILE]
)
def test_hostile_requests_are_refused(
    server: Server, code: int, name: str, body: bytes, headers: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    given = {key: value.replace("{port}", str(server.port)) for key, value in headers.items()}
    found, answer = post(server, name, body, **given)
    assert (found, json.loads(answer)) == (code, {"error": REFUSALS[code]})
    assert capfd.readouterr().err == ""  # the handler did not crash
    assert post(server, "read", READ)[0] == 200


@pytest.mark.parametrize("temperature", [-1.0, 2.0**63])
def test_a_setting_that_no_slider_has_is_told_and_not_taken(server: Server, temperature: float) -> None:
    code, body = post(server, "write", changed(settings=USUAL | {"temperature": temperature}))
    assert code in (200, 400) and (code == 400 or temperature > 0 or b"temperature" in body)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"GET /etc/passwd HTTP/1.1\r\nHost: {host}\r\n\r\n", b"404"),
        (b"GET /../pyproject.toml HTTP/1.1\r\nHost: {host}\r\n\r\n", b"404"),
        (b"GET //evil.example/ HTTP/1.1\r\nHost: {host}\r\n\r\n", b"404"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n", b"403"),
        (b"GET /api/hello HTTP/1.1\r\nHost: {host}\r\n\r\n", b"404"),
        (b"POST / HTTP/1.1\r\nHost: {host}\r\n\r\n", b"403"),
        (b"DELETE / HTTP/1.1\r\nHost: {host}\r\n\r\n", b"405"),
        (b"<script>alert(1)</script> x y z\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: {host}\r\n" + b"X: y\r\n" * 300 + b"\r\n", b"400"),
    ],
)
def test_raw_requests_are_refused_and_never_repeated(server: Server, raw: bytes, code: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
        plain.sendall(raw.replace(b"{host}", f"127.0.0.1:{server.port}".encode()))
        with plain.makefile("rb") as answer:
            found = answer.read()
    assert found.split(b" ", 2)[1] == code, found[:200]
    assert b"script" not in found.split(b"\r\n\r\n", 1)[1] and server.token.encode() not in found


def test_the_page_is_served_with_a_policy_and_without_the_token(server: Server) -> None:
    for path in server.files:
        code, body, headers = request(server, "GET", path)
        assert code == 200 and server.token.encode() not in body
        assert "connect-src 'self'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_an_entrance_is_for_its_owner_and_gone_when_the_page_has_asked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.umask(0)
    address = server.entrance()
    os.umask(before)
    path = Path(unquote(urlsplit(address).path))
    assert address.startswith("file:///") and path.parents[1] == tmp_path
    assert path.read_text().count(f'"0; url={server.address}"') == 1
    if os.name == "posix":
        assert [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path)] == [0o700, 0o600]
    post(server, "read", READ, **{TOKEN: "of a neighbour"})
    assert path.exists()
    post(server, "read", READ)
    assert list(tmp_path.iterdir()) == []


# Takes the place of a browser: it is open for as long as a file is there.
BROWSER = """
import pathlib, sys, time
folder = pathlib.Path(__file__).parent
(folder / "opened").write_text(sys.argv[1])
while not (folder / "closed").exists():
    time.sleep(0.01)
"""
READER = """
import os, sys
os.setgid(65534)
os.setuid(65534)
open(sys.argv[1]).read()
"""


def command_lines() -> Iterator[bytes]:
    """Those of all processes of this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_bytes()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc here")
def test_who_reads_the_command_lines_of_all_programs_learns_nothing(home: Path, tmp_path: Path) -> None:
    """A browser that is started really, and a neighbour who looks at every process meanwhile."""
    (tmp_path / "browser.py").write_text(BROWSER, encoding="utf-8")
    (tmp_path / "home").mkdir()
    own = {"BROWSER": f"{sys.executable} {tmp_path / 'browser.py'} %s &", "HOME": str(tmp_path / "home")}
    with started("play.py", "--run", "stories", cwd=home, stdout=True, **own) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[1]
            wait_until((tmp_path / "opened").exists, process)
            lines = list(command_lines())
            (line,) = (line for line in lines if str(tmp_path).encode() in line)
            token, (*_, opened) = address.partition("#")[2], line.decode().strip("\0").split("\0")
            assert not any(token.encode() in line for line in lines)
            path = Path(unquote(urlsplit(opened).path))
            assert opened == path.as_uri() and address in path.read_text()  # who owns it is led to the page
            if os.geteuid() == 0:
                neighbour = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True)
                assert "PermissionError" in neighbour.stderr
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130 and list((tmp_path / "home").iterdir()) == []
        finally:
            (tmp_path / "closed").touch()


def test_a_slow_client_blocks_nobody_and_is_hung_up_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.3)
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(40)]
    for one in slow:
        one.sendall(b"POST /api/read HTTP/1.1\r\nHo")
    assert post(server, "read", READ)[0] == 200
    for one in slow:
        with one, one.makefile("rb") as answer:
            answer.read()  # it ends


def test_a_client_that_goes_away_stops_its_writing(server: Server) -> None:
    body = changed(run=2, tokens=2000)
    head = f"POST /api/write HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n{TOKEN}: {server.token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
        plain.sendall(head.encode() + body)
        assert plain.recv(100)
    deadline = time.monotonic() + 60
    while not all(server.free.acquire(blocking=False) for _ in range(serving.BUSY)):
        for _ in range(serving.BUSY):
            try:
                server.free.release()
            except ValueError:
                break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for _ in range(serving.BUSY):
        server.free.release()
    assert post(server, "read", READ)[0] == 200


# ---- the command ----


def test_mistakes_are_one_line(home: Path, server: Server) -> None:
    for words, message in (
        (["--run", "nowhere"], "there is no run nowhere"),
        (["--run", "stories", "--port", server.port], "Address already in use: give another port"),
        (["--run", "stories", "--port", 70_000], "expected a number from 0 to 65535"),
        (["--run", "stories", "--special"], "--special: the tokenizer of "),
        (["--run", "a", "--run", "b", "--run", "c"], "two runs fit side by side, found 3"),
    ):
        ended = script("play.py", "--no-open", *words, cwd=home)
        assert ended.code == 2 and message in ended.err and len(ended.err.splitlines()) == 1


@pytest.mark.slow
def test_its_cost_is_measured_over_http(home: Path) -> None:
    said = script("play.py", "--measure", "--run", "stories", cwd=home)
    rows = [line.rsplit(":")[0].strip() for line in said.out.splitlines()]
    assert said.code == 0 and rows == ["stories", "a token", "a token, one head off", "a step of a slider"]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(home: Path, signum: int, code: int) -> None:
    with started("play.py", "--no-open", "--run", "stories", cwd=home, stdout=True) as process:
        assert process.stdout is not None and "http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signum)
        assert process.wait() == code
