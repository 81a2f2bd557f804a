"""A name in place of a folder: the Hub's own library with a server on this machine that answers as the Hub.

What the library does by itself is held as well: a user meets both.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import torch
from hub_folders import save
from hub_server import TOKEN, Hub, hub
from running import one_line, script, started, well
from transformers import AutoModelForCausalLM

from minigpt.hub import fetch
from minigpt.hub.importer import import_folder
from minigpt.system.errors import UserError
from minigpt.training.report import silent
from minigpt.training.run import load

SHARD = "model-00002-of-00004.safetensors"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the Hub has: a Llama in four files, with a pickle and a program beside it."""
    folder = tmp_path_factory.mktemp("hub")
    save(folder / "some" / "model", "llama", max_shard_size="100KB")
    for name in ("pytorch_model.bin", "modeling.py", "README.md"):
        (folder / "some" / "model" / name).write_text("not wanted", encoding="utf-8")
    return folder


@pytest.fixture
def server(models: Path) -> Iterator[Hub]:
    with hub(models) as server:
        yield server


def environment(folder: Path, address: str, **more: str) -> dict[str, str]:
    """What a user of this Hub has in the environment, with a cache of its own."""
    return {"HF_ENDPOINT": address, "HF_HOME": str(folder / "cache"), **more}


def refused(folder: Path, name: str, address: str, **more: str) -> str:
    """The line in which an import of a name ends."""
    ended = script("import_hf.py", name, cwd=folder, **environment(folder, address, **more))
    one_line(ended, 2)
    assert not (folder / "runs" / "model").exists()
    return ended.err.removeprefix("error: ").rstrip()


def test_a_model_is_downloaded_once_and_a_broken_connection_is_made_again(
    server: Hub, models: Path, tmp_path: Path
) -> None:
    server.cut[SHARD] = 5000
    settings = environment(tmp_path, server.address)
    ended = script("import_hf.py", "some/model", cwd=tmp_path, **settings)
    assert ended.code == 0 and "Trying to resume download" in ended.err and "Fetching" not in ended.err
    assert f"some/model: fetching it from {server.address}" in ended.out and "run: runs/model" in ended.out
    assert len(server.ranges(SHARD)) == 2  # the library goes on after each 10 MB, and asks for a small file again
    files = {path.rpartition("/")[2] for _, path, _ in server.requests}
    assert "tokenizer.json" in files and not files & {"pytorch_model.bin", "modeling.py", "README.md"}
    sums = json.loads((tmp_path / "runs" / "model" / "origin.json").read_text())["sha256"]
    assert len(sums) == 5  # the config and four files of weights
    for name, digest in sums.items():
        assert digest == hashlib.sha256((models / "some" / "model" / name).read_bytes()).hexdigest()

    server.requests.clear()
    assert "run: runs/model-2" in well(script("import_hf.py", "some/model", cwd=tmp_path, **settings))
    assert not [path for _, path, _ in server.requests if "/resolve/" in path or "/content/" in path]
    server.status = 500
    output = well(script("import_hf.py", "some/model", cwd=tmp_path, **settings))
    assert "500 Internal Server Error" in output and "; until then, the copy in the cache is used\n" in output
    server.requests.clear()
    output = well(script("import_hf.py", "some/model", cwd=tmp_path, **settings, HF_HUB_OFFLINE="1"))
    assert "some/model: only the cache is used, HF_HUB_OFFLINE is set\n" in output and not server.requests
    (tmp_path / "cache/hub/models--some--model/snapshots").joinpath("c" * 40, SHARD).unlink()
    ended = script("import_hf.py", "some/model", cwd=tmp_path, **settings, HF_HUB_OFFLINE="1")
    assert ended.code == 2 and "some/model: only a part of it is in the cache" in ended.err


def test_a_download_that_was_stopped_keeps_the_files_that_are_whole(server: Hub, tmp_path: Path) -> None:
    server.stuck[SHARD] = 5000
    settings = environment(tmp_path, server.address)
    with started("import_hf.py", "some/model", cwd=tmp_path, **settings) as running:
        assert server.waiting.wait(60)
        running.send_signal(signal.SIGINT)
        assert running.wait() == 130
    first = "model-00001-of-00004.safetensors"
    assert len(server.ranges(SHARD)) == len(server.ranges(first)) == 1
    assert "run: runs/model" in well(script("import_hf.py", "some/model", cwd=tmp_path, **settings))
    assert (len(server.ranges(SHARD)), len(server.ranges(first))) == (2, 1)


@pytest.mark.slow
def test_what_the_hub_does_not_give_is_one_line(server: Hub, tmp_path: Path) -> None:
    server.gated.add("some/model")
    token = "log in (hf auth login), or set HF_TOKEN"
    gated = f"some/model is gated: accept its terms on {server.address}/some/model, then {token}"
    assert refused(tmp_path, "some/model", server.address) == gated
    settings = environment(tmp_path, server.address, HF_TOKEN=TOKEN)
    well(script("import_hf.py", "some/model", "--name", "open", cwd=tmp_path, **settings))
    absent = f"{server.address} has no model some/other, or it is not open to you: check the name; for a private one "
    assert refused(tmp_path, "some/other", server.address) == absent + token
    (tmp_path / "file").touch()
    ended = script("import_hf.py", "some/model", cwd=tmp_path, **environment(tmp_path / "file", server.address))
    assert ended.code == 5 and re.fullmatch(r"input/output error: \[Errno .*Not a directory: .*file.*\n", ended.err)
    server.status = 500
    message = refused(tmp_path, "some/other", server.address)
    assert message.startswith("some/other could not be fetched (") and "500 Internal Server Error" in message
    assert message.endswith("): try again (whole files are kept)")


def test_whatever_the_library_raises_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*values: object) -> Path:
        raise RuntimeError("Data processing error:\n\x1b[31mCAS service")

    monkeypatch.setattr(fetch, "why_offline", str)
    monkeypatch.setattr(fetch, "download", fails)
    with pytest.raises(
        UserError, match=r"^some/model could not be fetched \(Data processing error: \\x1b\[31mCAS service\)"
    ):
        fetch.fetch("some/model", silent)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, r"http://127\.0\.0\.1:9 cannot be reached \(.*\)"),
    ],
)
def test_a_name_offline_is_one_line(environment: dict[str, str], why: str, tmp_path: Path) -> None:
    ended = script("import_hf.py", "some/model", cwd=tmp_path, HF_HOME=str(tmp_path / "cache"), **environment)
    assert ended.code == 2
    expected = (
        f"error: some/model is neither a folder here nor in the cache .* and {why}: connect once, or give a folder\n"
    )
    assert re.fullmatch(expected, ended.err)


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(fetch, "ANSWER", 0.2)
        assert "cannot be reached (" in fetch.why_offline()


def test_a_folder_that_is_here_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    save(tmp_path / "some" / "model", "gpt2")
    assert "cache" not in well(script("import_hf.py", "some/model", cwd=tmp_path, HF_HUB_OFFLINE="1"))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"huggingface_hub: pip install -e \"\.\[hub\]\""):
        fetch.fetch("some/model", silent)


@pytest.mark.slow
def test_the_published_weights_of_gpt2_give_transformers_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are in Hugging Face's cache: in float32, of 1,024 tokens."""
    try:
        files = ["config.json", "tokenizer.json", "model.safetensors"]
        real = Path(
            huggingface_hub.snapshot_download("openai-community/gpt2", local_files_only=True, allow_patterns=files)
        )
    except huggingface_hub.errors.LocalEntryNotFoundError:
        pytest.skip("GPT-2's weights are not in Hugging Face's cache: hf download openai-community/gpt2")
    monkeypatch.chdir(tmp_path)
    import_folder(real, "gpt2", None, silent)
    reference = AutoModelForCausalLM.from_pretrained(real).eval()
    ids = torch.randint(reference.config.vocab_size, (1, reference.config.n_positions))  # (1, T)
    with torch.no_grad():
        logits, expected = load(tmp_path / "runs" / "gpt2", "cpu").model(ids), reference(ids).logits  # (1, T, V) each
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
