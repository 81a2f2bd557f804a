"""Export: what other programs read of a run is what the run itself computes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from running import SCRIPTS, Ended, forked, furnish, one_line, script, started, well
from transformers import AutoModelForCausalLM, AutoTokenizer

from minigpt import load, load_plugin
from minigpt.attention import Attention, Position
from minigpt.hub.model_card import model_card
from minigpt.hub.out_folder import LIST, write_folder
from minigpt.training.checkpoint import tensors_of

# ---- with minigpt's own code ----

SMALL = """\
data: {source: text.txt, tokenizer: char}
model: {n_layer: 2, n_embd: 16, block_size: 16, MODEL}
training: {batch_size: 4, max_steps: 4, eval_every: 4, sample_every: 0, checkpoint_every: 4, device: cpu}
"""
TINY = (  # the shape of tiny.yaml
    "bias: false, position: rotary, norm: {kind: layernorm, weights: false}, embedding_norm: true, mlp: swiglu, "
    "tied_head: false, attention: {kind: multi_head, n_head: 2, qk_norm: true}"
)
CARRIED = {
    "tiny": TINY,
    "average": "attention: average_softmax, position: learned",
    "hybrid": "attention: [gated_delta_net, {kind: multi_head, n_head: 2}], position: convolution",
    "plugin": "attention: {kind: mine, n_head: 2}, position: fresh, tied_head: true",
}
PLUGIN = '''\
"""A kind and a position of my own, with constants that are saved and constants that are not."""
import torch
from minigpt.attention import MultiHead, Position
from minigpt.attention import base as contract

class Fresh(Position, kind="fresh"):
    def __init__(self, config, model, layer=None):
        super().__init__(config, model, layer)
        self.register_buffer("waves", torch.linspace(0.5, 2, model.n_embd), persistent=False)
        self.plain = torch.arange(model.n_embd) / model.n_embd

    def embed(self, x, past):
        return x * self.waves + self.plain

class Mine(MultiHead, kind="mine"):
    def scores(self, query, key):
        return contract.SoftmaxAttention.scores(self, query, key).tanh()
'''
EXPRESSED = {
    "gpt2": "attention: {kind: multi_head, n_head: 2}",
    "llama": "bias: false, position: rotary, norm: rmsnorm, mlp: swiglu, tied_head: false, "
    "attention: {kind: grouped_query, n_head: 4, n_kv_head: 2}",
}
# Loads every folder in a Python without minigpt: its logits, and what it writes.
READER = """
import json, sys
sys.modules["minigpt"] = None
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folders, prompt = json.loads(sys.argv[1]), sys.argv[2]
results = {}
for folder, tokens in folders.items():
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
        consent = {}
    except ValueError as error:
        results[f"{folder} without consent"] = str(error)
        consent = {"trust_remote_code": True}
        model = AutoModelForCausalLM.from_pretrained(folder, **consent)
    tokenizer = AutoTokenizer.from_pretrained(folder, **consent)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits
    written = model.generate(ids, max_new_tokens=tokens, do_sample=False)
    results[folder] = [logits.tolist(), tokenizer.decode(written[0])]
print(json.dumps(results))
"""
PROMPT = "the cat sat"


def read_elsewhere(folders: dict[Path, int], tmp_path: Path) -> dict[str, Any]:
    """What transformers makes of exported folders, in a process in which minigpt cannot be imported.

    `folders`: how many tokens are written with each.
    """
    words = [json.dumps({str(folder): tokens for folder, tokens in folders.items()}), PROMPT]
    hub = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", READER, *words], env={**os.environ, **hub}, capture_output=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    results: dict[str, Any] = json.loads(ended.stdout)
    return {Path(folder).name: result for folder, result in results.items()}


def read_here(folder: Path, tokens: int) -> list[Any]:
    """The same of one folder that needs no code of ours, in this process, which has imported transformers already."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(ids).logits
    written = model.generate(ids, max_new_tokens=tokens, do_sample=False)
    return [logits.tolist(), tokenizer.decode(written[0])]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run for each model of CARRIED and EXPRESSED."""
    folder = tmp_path_factory.mktemp("trained")
    furnish(folder)
    (folder / "mine.py").write_text(PLUGIN, encoding="utf-8")
    for name, model in (CARRIED | EXPRESSED).items():
        (folder / f"{name}.yaml").write_text(SMALL.replace("MODEL", model), encoding="utf-8")
        plugin = ["--plugin", "mine.py"] if name == "plugin" else []
        assert script("train.py", "--config", f"{name}.yaml", *plugin, cwd=folder).code == 0
    return folder


def as_we_read(folder: Path, name: str, tokens: int) -> list[Any]:
    """The logits of a run for the prompt, and what it writes greedily."""
    run = load(folder / "runs" / name, fast=False)
    with torch.no_grad():
        logits = run.model(run.prompt_ids(PROMPT))
    return [logits.tolist(), run.generate(PROMPT, temperature=0, max_tokens=tokens)]


def assert_near(reference: list[Any], own: list[Any]) -> None:
    """Logits within 1e-5, and the same text."""
    torch.testing.assert_close(torch.tensor(reference[0]), torch.tensor(own[0]), rtol=0, atol=1e-5)
    assert reference[1] == own[1]


@pytest.mark.slow
def test_any_model_goes_with_our_code_and_computes_the_same_where_minigpt_is_not(trained: Path, tmp_path: Path) -> None:
    for name in CARRIED:
        plugin = ["--plugin", "mine.py"] if name == "plugin" else []
        output = well(
            script("export_hf.py", "--run", name, "--out", f"hf-{name}", "--remote-code", *plugin, cwd=trained)
        )
        assert output == f"wrote hf-{name}: AutoModelForCausalLM.from_pretrained('hf-{name}', trust_remote_code=True)\n"
    for name in EXPRESSED:
        well(script("export_hf.py", "--run", name, "--out", f"far-{name}", cwd=trained))
    folders = {trained / f"hf-{name}": 40 for name in CARRIED} | {trained / f"far-{name}": 5 for name in EXPRESSED}
    results = read_elsewhere(folders, tmp_path)
    for name in EXPRESSED:
        assert_near(results[f"far-{name}"], as_we_read(trained, name, 5))
    load_plugin(trained / "mine.py")
    try:
        for name in CARRIED:
            assert "trust_remote_code=True" in results[f"hf-{name} without consent"]
            assert results[f"hf-{name}"] == as_we_read(trained, name, 40)  # also past the context
    finally:
        del Attention.kinds["mine"], Position.kinds["fresh"]
    assert (trained / "hf-plugin" / "minigpt_plugin_mine.py").read_text("utf-8").startswith('"""A kind and a position')


def test_a_run_goes_to_transformers_and_comes_back_the_same(trained: Path) -> None:
    for name in EXPRESSED:
        output = well(script("export_hf.py", "--run", name, "--out", f"hf-{name}", cwd=trained))
        assert output == f"wrote hf-{name}: AutoModelForCausalLM.from_pretrained('hf-{name}')\n"
        assert script("import_hf.py", f"hf-{name}", "--name", f"{name}-again", cwd=trained).code == 0
    for name in EXPRESSED:
        own = as_we_read(trained, name, 5)
        assert_near(read_here(trained / f"hf-{name}", 5), own)
        assert as_we_read(trained, f"{name}-again", 5) == own
        before, after = (load(trained / "runs" / run) for run in (name, f"{name}-again"))
        assert list(tensors_of(after.model)) == list(tensors_of(before.model))
        for tensor, again in zip(tensors_of(before.model).values(), tensors_of(after.model).values()):
            assert torch.equal(tensor, again)
        assert after.tokenizer.encode("the cat").tolist() == before.tokenizer.encode("the cat").tolist()


def test_a_folder_with_our_code_is_no_source(trained: Path) -> None:
    well(script("export_hf.py", "--run", "average", "--out", "coded", "--remote-code", cwd=trained))
    refused = script("import_hf.py", "coded", cwd=trained)
    one_line(refused, 2, "coded/config.json: exported with --remote-code, for transformers")


def test_what_no_family_has_is_refused_and_told(trained: Path) -> None:
    refused = script("export_hf.py", "--run", "tiny", "--out", "hf-refused", cwd=trained)
    one_line(refused, 2, "model.embedding_norm: true has no counterpart", "--remote-code")
    assert not (trained / "hf-refused").exists()


def test_the_card_says_what_it_is(trained: Path) -> None:
    well(script("export_hf.py", "--run", "average", "--out", "card", "--remote-code", cwd=trained))
    card = (trained / "card" / "README.md").read_text("utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| attention | average_softmax |" in card
    assert "| validation loss | " in card
    assert "trust_remote_code=True" in card
    assert "source: text.txt" in card
    assert "A small language model that was trained with minigpt, here as" in card


def test_the_card_says_where_weights_from_elsewhere_are_from(trained: Path, tmp_path: Path) -> None:
    run = load(trained / "runs" / "average")
    run.folder = tmp_path
    (tmp_path / "environment.json").write_text(json.dumps({"weights": {"run": "/there/runs/first"}}), encoding="utf-8")
    assert "began with the weights of the run `first`" in model_card(run, False, "X")
    (tmp_path / "origin.json").write_text(json.dumps({"from": "/models/gpt2", "model_type": "gpt2"}), encoding="utf-8")
    assert "made from `gpt2` (`gpt2`), not trained with minigpt. The licence is that" in model_card(run, False, "X")


# ---- the folder ----


def test_only_an_export_of_the_same_run_is_replaced(trained: Path) -> None:
    def export(out: str, run: str = "average") -> Ended:
        return script("export_hf.py", "--run", run, "--out", out, "--remote-code", cwd=trained)

    def refused(out: str, message: str, run: str = "average") -> None:
        ended = export(out, run)
        one_line(ended, 2)
        assert message in ended.err

    folder = trained / "twice"
    assert export("twice").out.startswith("wrote twice: ")
    first = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert export("twice").out.startswith("replaced twice: ")
    assert all(path.stat().st_ino != first[path.name] for path in folder.iterdir())  # it was written anew
    refused("twice", "it holds an export of the run average, not of hybrid", run="hybrid")
    card = (folder / "README.md").read_text("utf-8")
    (folder / "README.md").write_text(card + "My notes.", encoding="utf-8")
    refused("twice", "README.md in it was changed after it was exported")
    assert (folder / "README.md").read_text("utf-8").endswith("My notes.")
    (folder / "README.md").write_text(card, encoding="utf-8")
    (folder / "thesis.txt").write_text("mine", encoding="utf-8")
    refused("twice", "'thesis.txt' in it is not of an export")
    (trained / "other").mkdir()
    (trained / "other" / "thesis.txt").write_text("mine", encoding="utf-8")
    refused("other", "it is not empty, and no export")
    (trained / "file").write_text("mine", encoding="utf-8")
    refused("file", "not a folder")
    (trained / "link").symlink_to(trained / "other", target_is_directory=True)
    refused("link", "a symbolic link")
    (folder / "thesis.txt").unlink()
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(trained / "text.txt")
    refused("twice", "not a plain file")
    refused("no/where", "there is no folder")
    assert {path.name for path in trained.iterdir() if path.name.startswith(".")} <= {".lock"}


def test_an_export_that_fails_leaves_the_former_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", {"a.txt": "one"}, "mine")

    def full(path: Path) -> None:
        path.write_text("half", encoding="utf-8")
        raise OSError(28, "No space left on device")

    for error, writer in ((OSError, full), (KeyboardInterrupt, interrupted)):
        with pytest.raises(error):
            write_folder(tmp_path / "out", {"a.txt": "two", "b.txt": writer}, "mine")
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        assert (tmp_path / "out" / "a.txt").read_text("utf-8") == "one"
    write_folder(tmp_path / "out", {"c.txt": "three"}, "mine")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"c.txt", LIST}


def test_ctrl_c_leaves_nothing_half(trained: Path) -> None:
    with started("export_hf.py", "--run", "hybrid", "--out", "stopped", "--remote-code", cwd=trained) as command:
        while command.poll() is None and not list(trained.glob(".stopped.writing-*")):
            time.sleep(0.001)
        command.send_signal(signal.SIGINT)
        assert command.wait() in (0, 130)
    assert not list(trained.glob(".stopped*"))
    assert command.code == 130 or (trained / "stopped" / LIST).exists()


def interrupted(path: Path) -> None:
    raise KeyboardInterrupt


def test_a_disk_without_room_is_one_line_and_leaves_nothing(trained: Path) -> None:
    code = (
        "import resource, sys, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000));"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    words = [str(SCRIPTS / "export_hf.py"), "--run", "average", "--out", "full", "--remote-code"]
    export = forked([2], code=code, argv=words, cwd=str(trained))
    output = export.rest()
    assert (export.code, output.startswith("input/output error: ")) == (5, True), output
    assert not [path for path in trained.iterdir() if "full" in path.name]
