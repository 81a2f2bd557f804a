"""Mistakes in the input that would fail inside torch: each gives one line, and none is reported as a bug."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import untrusted
from comparing import written
from running import WAITING, Ended, command_line, environment, one_line, script
from safetensors.torch import load_file, save_file
from stopping import furnished, train, train_until

from minigpt.system.errors import UserError
from minigpt.system.process import NO_MORE
from minigpt.training import distributed

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
    path = home / "runs" / "small" / "checkpoints" / "step-000008"
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


# ---- no further thread or process ----

# Root's processes are not counted. A user of a number that nobody has may do what this one may, but for that.
AS_NOBODY = "setpriv --reuid {user} --regid {user} --clear-groups --inh-caps +dac_override --ambient-caps +dac_override"
LIMITED = AS_NOBODY + " --bounding-set -sys_resource,-sys_admin prlimit --nproc={most}:{most}"
STARTING = {
    "train": "train.py --config small.yaml --name another",
    "resume": "train.py --resume small training.max_steps=10",
    "learn": "train.py --config bpe.yaml training.max_steps=2",
    "sample": "sample.py --run small --prompt the --max-tokens 3",
    "show": "show_attention.py --run small --prompt the",
    "explore": "explore.py --run small --prompt the",
    "export": "export_hf.py --run small --out out",
    "play": "play.py --run small --measure",
    "compare": "compare.py --config compared.yaml",
    "check": "check.py mine.py --as attend",
    "class": "check.py class",
    "plan": "plan.py --config small.yaml",
}


def limited(folder: Path, most: int, words: str, **env: str) -> Ended:
    """A command of a user who may have so many threads and processes, all together."""
    if os.name != "posix" or os.geteuid() != 0 or not (shutil.which("setpriv") and shutil.which("prlimit")):
        pytest.skip("another user with a limit of threads takes root, setpriv and prlimit")
    command = LIMITED.format(user=50_000 + os.getpid() % 10_000, most=most).split()
    script, *arguments = words.split()
    own = environment(MINIGPT_DATA=str(folder / "data"), HOME=str(folder), **env)
    command += command_line(script, *arguments)
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=300)
    return Ended(done.returncode, done.stdout, WAITING.sub("", done.stderr))


@pytest.fixture
def classroom(home: Path) -> Path:
    """A folder with all that the commands need."""
    for learner in ("ana", "bob"):
        (home / "class" / learner).mkdir(parents=True)
        (home / "class" / learner / "attention_weights.py").write_text(
            "def attention_weights(q, k): return q\n", "utf-8"
        )
    (home / "mine.py").write_text("def attend(q, k, v): return v\n", encoding="utf-8")
    written(home, name="compared")
    text = (home / "small.yaml").read_text("utf-8")
    small = text.replace("source: text.txt", "source: text.txt, tokenizer: {kind: bpe, vocab_size: 270}")
    (home / "bpe.yaml").write_text(small, encoding="utf-8")
    return home


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "threads", "command"), [(2, 2, "train"), (2, 1, "sample"), (3, 1, "class"), (8, 2, "train")]
)
def test_a_machine_that_allows_no_further_thread_is_one_line(
    most: int, threads: int, command: str, classroom: Path
) -> None:
    """numpy would be the first to need one, and end Python; then the program; then torch, which ends the process."""
    ended = limited(classroom, most, STARTING[command], OMP_NUM_THREADS=str(threads))
    assert (ended.code, ended.err) == (2, f"error: {NO_MORE}\n"), ended


@pytest.mark.slow
@pytest.mark.sample(28)  # another number for each command, all with one thread
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("most", range(1, 14))
@pytest.mark.parametrize("command", STARTING)
def test_any_command_with_a_few_threads_works_or_says_that_it_needs_more(
    command: str, most: int, threads: int, trained: Path, classroom: Path
) -> None:
    """A learner is not blamed for the machine."""
    shutil.rmtree(classroom / "runs")
    shutil.copytree(trained / "runs", classroom / "runs")
    ended = limited(classroom, most, STARTING[command], OMP_NUM_THREADS=str(threads))
    lines = [line for line in ended.err.splitlines() if NO_MORE not in line]
    assert lines in ([], ["error: the playground could not be measured"]), ended
    judged = ended.out.startswith(("WRONG", "CANNOT TELL", "learner"))  # of functions that return their values
    assert ended.code == 0 or (ended.code == 2 and (NO_MORE in ended.err or judged)), ended
