"""Mistakes in the input that would fail inside torch: each gives one line, and none is reported as a bug."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import untrusted
from running import Ended, script
from safetensors.torch import load_file, save_file
from stopping import furnished, train, train_until

from minigpt.system.errors import UserError
from minigpt.training import distributed


def one_line(ended: Ended, code: int, *said: str) -> None:
    assert ended.code == code and ended.err.count("\n") == 1 and "bug" not in ended.err, ended
    assert all(part in ended.err for part in said), ended.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = furnished(tmp_path_factory.mktemp("trained"))
    assert train(folder, "training.max_steps=4").code == 0
    return folder


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    """A folder with a run `small`."""
    return Path(shutil.copytree(trained, tmp_path / "home"))


HUGE = [2**63 - 1, 2**63, 2**64, 10**39]
SIZES = ["model.n_embd", "model.mlp.width", "model.block_size", "training.micro_batch_size", "training.max_steps"]


@pytest.mark.parametrize("key", [*SIZES, "model.attention.n_head", "model.attention.head_dim", "data.stories.count"])
def test_a_number_beyond_what_torch_counts_with(key: str, tmp_path: Path) -> None:
    furnished(tmp_path)
    for number in HUGE:
        one_line(train(tmp_path, f"{key}={number}"), 2, key, "at most")
    assert not (tmp_path / "runs").exists()


RATES = {
    "AdamW": ["training.optimizer.learning_rate=1e308"],
    "AdamW's decay": ["training.optimizer.weight_decay=1e308"],
    "Muon": ["training.optimizer.kind=muon", "training.optimizer.learning_rate=1e308"],
    "Muon's decay": ["training.optimizer.kind=muon", "training.optimizer.weight_decay=1e308"],
    "Muon's AdamW": ["training.optimizer.kind=muon", "training.optimizer.adamw_learning_rate=1e308"],
}


@pytest.mark.parametrize("what", RATES)
def test_a_rate_beyond_float32_has_diverged(what: str, tmp_path: Path) -> None:
    one_line(train(furnished(tmp_path), *RATES[what]), 3, "diverged: step", "lower the learning rate")


ENVIRONMENTS = [
    ({"WORLD_SIZE": "abc"}, "WORLD_SIZE='abc'"),
    ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 without RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
    ({"RANK": "1"}, "RANK=1 of WORLD_SIZE=1"),
    ({"RANK": "-1", "WORLD_SIZE": ""}, "RANK='-1', WORLD_SIZE=''"),
    ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}, "PORT='x'"),
]


@pytest.mark.parametrize(("variables", "said"), ENVIRONMENTS)
def test_half_of_what_torchrun_sets(variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"{re.escape(said)}.*torchrun"):
        distributed.rank()


def test_the_second_of_one_process(tmp_path: Path) -> None:
    """It would keep silent and train nothing: that is for the first to do."""
    ended = script("train.py", "--config", "small.yaml", cwd=furnished(tmp_path), RANK="1")
    one_line(ended, 2, "RANK=1 of WORLD_SIZE=1")
    assert ended.out == "" and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_weights_that_overflow_while_writing(weights: str, home: Path) -> None:
    [path] = (home / "runs" / "small" / "checkpoints").iterdir()
    tensors = {name: tensor.sign() * 1e30 for name, tensor in load_file(path / "model.safetensors").items()}
    save_file(tensors, path / "model.safetensors")
    untrusted.update_manifest(path)
    asked = ["--weights", weights] if weights != "float32" else []
    ended = script("sample.py", "--run", "small", "--prompt", "the", *asked, cwd=home)
    assert ended.code == 2 and ended.err.splitlines()[-1].startswith("error: the model's scores are NaN"), ended
    one_line(script("show_attention.py", "--run", "small", "--prompt", "the", cwd=home), 2, "overflow")


def test_a_prompt_file_without_end(home: Path) -> None:
    with (home / "prompt.txt").open("wb") as file:
        file.truncate(5 << 30)
    one_line(script("sample.py", "--run", "small", "--prompt-file", "prompt.txt", cwd=home), 2, "prompt.txt: more than")


def test_only_the_command_line_opens_the_text_for_writing(home: Path) -> None:
    """An untrusted config may name any file and ask for int8: the file is not read for that."""
    config = home / "runs" / "small" / "config.yaml"
    text = config.read_text("utf-8").replace("source: text.txt", "source: /proc/kmsg")
    config.write_text(text.replace("weights: float32", "weights: int8"), encoding="utf-8")
    untrusted.update_run(home / "runs" / "small")
    ended = script("sample.py", "--run", "small", "--prompt", "the", "--max-tokens", 3, cwd=home)
    assert (ended.code, ended.err) == (0, ""), ended


LITTLE_MEMORY = """
import re, resource
from pathlib import Path

now = 1024 * int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
resource.setrlimit(resource.RLIMIT_DATA, (now + (100 << 20),) * 2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the data of a process as Linux does")
def test_memory_that_the_system_refuses_after_all(tmp_path: Path) -> None:
    """What is free may be less than the system says: the limit of a process, or others who take it meanwhile."""
    (furnished(tmp_path) / "little.py").write_text(LITTLE_MEMORY, encoding="utf-8")
    ended = train(tmp_path, "--plugin", "little.py", "model.n_embd=1024", "model.n_layer=6")
    one_line(ended, 2, "error: not enough memory (", "can't allocate memory", "lower training.batch_size")


def test_memory_that_python_cannot_have(tmp_path: Path) -> None:
    ended = train_until(furnished(tmp_path), "bytes(1 << 60)", "minigpt.training.loop", "accumulate", 6)
    one_line(ended, 2, "error: not enough memory (", "lower training.batch_size")
