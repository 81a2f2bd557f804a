"""Other systems: the main job in processes that imitate Windows, and a file system of a network without locks.

No test here has met a real Windows. What an imitation refuses is in `imitated/`, and no more than that is known.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from imitated.windows.absent import MODULES, is_absent
from imitating import commands_like, like
from running import ROOT, SCRIPTS, furnish, one_line, script, well
from solutions import solved

from minigpt.comparison.variants import load_comparison
from minigpt.system import locks
from minigpt.system.errors import UserError
from minigpt.system.folder import check_name
from minigpt.system.terminal import command_line

MINE = """\
from minigpt.attention.softmax.multi_head import MultiHead


class Bounded(MultiHead, kind="bounded"):
    def scores(self, query, key):
        return super().scores(query, key).tanh()
"""
TRAIN = ("train.py", "--config", "small.yaml", "training.max_steps=2", "training.eval_every=2")
MAIN = [TRAIN, ("train.py", "--resume", "small", "training.max_steps=4"), ("sample.py", "--max-tokens", "3")]
LOCKED = """
from pathlib import Path
from minigpt.system.locks import InUse, Lock
with Lock(Path("runs/small")):
    try:
        Lock(Path("runs/small"))
    except InUse as error:
        print(error)
"""


@pytest.mark.parametrize("system", ["windows", pytest.param("network", marks=pytest.mark.slow)])
def test_a_model_is_trained_goes_on_and_writes(system: str, tmp_path: Path) -> None:
    """Two runs cannot share a folder there either, and nothing is left beside the files of a run."""
    out = well(commands_like(system, *MAIN, cwd=furnish(tmp_path), code=LOCKED))
    assert "done: 4 steps" in out and "runs/small is in use by process" in out
    kept = sorted(path.name for path in (tmp_path / "runs" / "small" / "checkpoints").iterdir())
    assert kept == ["step-000002", "step-000004"]
    left = [path for path in tmp_path.rglob("*") if path.name.endswith((".lock", ".holder", ".part"))]
    assert [path.name for path in left if path.parent.name != "small"] == []


INT8 = re.compile("int8 weights: .*\n")  # what they cost
SETTINGS = """\
compare: {baseline: heads, seeds: [1], processes: 2}
variants: {average: {model.attention: average_softmax}, heads: {model.attention: single_head}}
data: {source: text.txt}
model: {n_layer: 1, n_embd: 16, block_size: 16}
training: {batch_size: 4, max_steps: 4, eval_every: 4, sample_every: 0, checkpoint_every: 4, device: cpu}
"""
EVERY = [  # each in a process of its own
    ("train.py", "--config", "small.yaml", "training.checkpoint_every=1"),
    ("train.py", "--resume", "training.max_steps=10"),
    ("train.py", "--config", "small.yaml"),  # its ids are there already
    ("train.py", "--config", "small.yaml", "--name", "bpe", "data.tokenizer=bpe"),  # learned in another process
    ("train.py", "--config", "small.yaml", "--name", "mine", "--plugin", "mine.py", "model.attention=bounded"),
    ("train.py", "--from-run", "small", "--config", "small.yaml", "--name", "tuned"),
    ("sample.py", "--run", "mine", "--plugin", "mine.py", "--max-tokens", "3"),
    ("sample.py", "--run", "small", "--weights", "int8", "--max-tokens", "3"),
    ("show_attention.py", "--run", "small", "--prompt", "the cat"),
    ("explore.py", "--run", "small", "--prompt", "the cat"),
    ("explore.py", "--run", "small", "--prompt", "the dog"),  # the page is there already
    ("plan.py", "--config", "small.yaml"),
    ("exercises.py", "--out", "exercises"),
    ("check.py", "running_mean_loop.py"),  # in a process that starts with nothing imported
    ("compare.py", "--config", "compared.yaml"),
    ("compare.py", "--config", "compared.yaml"),  # done already
    ("export_hf.py", "--run", "small", "--out", "for transformers"),
    ("export_hf.py", "--run", "small", "--out", "for transformers"),
    ("import_hf.py", "for transformers", "--name", "back"),
    ("lessons.py", "1"),
    ("lessons.py", "--notebooks", "notebooks"),
    ("kinds.py", "gated"),
    ("follow.py",),
]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["windows", "network"])
def test_every_command_does_its_work(system: str, tmp_path: Path) -> None:
    furnish(tmp_path)
    (tmp_path / "compared.yaml").write_text(SETTINGS, encoding="utf-8")
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "running_mean_loop.py").write_text(solved("running_mean_loop"), encoding="utf-8")
    ended = commands_like(system, *EVERY, cwd=tmp_path)
    assert (ended.code, INT8.sub("", ended.err)) == (0, ""), ended
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob(".*") if not path.name.startswith(".lock")]
    assert left == []


@pytest.mark.slow
def test_what_windows_lacks_ends_in_a_line_and_loses_nothing(tmp_path: Path) -> None:
    """What is printed can have characters that cp1252 lacks; a file that another program has open stays as it is."""
    well(commands_like("windows", TRAIN, cwd=furnish(tmp_path)))
    ended = like("windows", SCRIPTS / "sample.py", "--prompt", "the \N{BLACK STAR}", cwd=tmp_path)
    assert ended.code == 2 and "unknown character '\\u2605'" in ended.err and ended.err.count("\n") == 1
    page = tmp_path / "runs" / "small" / "explorer.html"
    explore = (SCRIPTS / "explore.py", "--prompt", "the")
    well(like("windows", *explore, cwd=tmp_path))
    before = page.read_bytes()
    with page.open("rb"):
        ended = like("windows", *explore, cwd=tmp_path)
    one_line(ended, 5, "does another program have it open?")
    assert page.read_bytes() == before and like("windows", *explore, cwd=tmp_path).code == 0


def of_one_system(source: str) -> Iterator[str]:
    """What a source names that only some systems have: modules, names in modules, folders, the system's own name."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    said = {node.body[0].value for node in ast.walk(tree) if isinstance(node, documented) and node.body
            and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names
                        if node.module in MODULES or is_absent(str(node.module), alias.name))  # fmt: skip
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if is_absent(node.value.id, node.attr) or name in ("sys.platform", "os.name"):
                yield name
        elif isinstance(node, ast.keyword) and node.arg in ("preexec_fn", "pass_fds", "dir_fd"):
            yield node.arg
        elif isinstance(node, ast.Call) and [ast.unparse(word) for word in node.args[:2]] == ["None"]:
            yield from ["CDLL(None)"] * ast.unparse(node.func).endswith("CDLL")
        elif isinstance(node, ast.Constant) and node not in said and str(node.value).startswith(("/proc", "/sys")):
            yield str(node.value)


ELSEWHERE = {
    "minigpt/fast/threads.py",  # Linux's scheduler and libgomp; its first lines say what happens elsewhere
    "scripts/begin.py",  # runs before anything of minigpt is imported
}


def test_only_one_part_knows_what_some_systems_lack() -> None:
    code = "'/proc'\nimport os, fcntl\nfrom signal import SIGKILL, SIGINT\nos.fork()\nos.path\nf('/proc/x', dir_fd=1)"
    found = sorted(of_one_system(f"{code}\nctypes.CDLL(None).x"))
    assert found == ["/proc/x", "CDLL(None)", "dir_fd", "fcntl", "os.fork", "signal.SIGKILL"]
    files = [path for folder in ("minigpt", "scripts") for path in (ROOT / folder).rglob("*.py")]
    names = {path.relative_to(ROOT).as_posix(): [*of_one_system(path.read_text(encoding="utf-8"))] for path in files}
    found = {name: some for name, some in names.items() if some and not name.startswith("minigpt/system/")}
    assert {name: some for name, some in found.items() if name not in ELSEWHERE} == {}


@pytest.mark.parametrize("name", ["con", "Aux", "nul.txt", "PRN.a.b", "com1", "lpt9.x", "com¹", "run.", "a:b", "a?"])
def test_a_name_that_windows_cannot_have_is_refused_everywhere(name: str) -> None:
    with pytest.raises(UserError, match=f"--name {re.escape(name)}: "):
        check_name(name, "a run")
    with pytest.raises(UserError, match=f"--name {re.escape(name)}: "):
        load_comparison("ladder.yaml", (), name)


@pytest.mark.parametrize("name", ["console", "com", "com10", "lpt0", "nul_", "auxiliary.v2", "a.con", "\u00fc"])
def test_a_name_that_only_looks_like_one_is_allowed(name: str) -> None:
    check_name(name, "a run")


def test_a_config_of_such_a_name_is_told_in_a_line_before_anything_is_made(tmp_path: Path) -> None:
    (furnish(tmp_path) / "small.yaml").rename(tmp_path / "aux.yaml")
    ended = script("train.py", "--config", "aux.yaml", cwd=tmp_path)
    said = "error: --name aux: Windows cannot have a folder of this name: give a run another --name\n"
    assert (ended.code, ended.err) == (2, said) and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_file_whose_name_is_no_utf8_is_used_and_shown_escaped(tmp_path: Path) -> None:
    odd = os.fsdecode(b"na\xefve")
    folder = tmp_path / odd
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    furnish(folder)
    for name, new in (("text.txt", f"{odd}.txt"), ("small.yaml", f"{odd}.yaml")):
        (folder / name).rename(folder / new)
    (folder / f"{odd}.py").write_text(MINE, encoding="utf-8")
    own = ("--plugin", f"{folder}/{odd}.py")
    train = ("train.py", "--config", f"{odd}.yaml", "--name", "small", *own, "model.attention=bounded")
    assert "/na\\udcefve.txt, " in well(script(*train, f"data.source={odd}.txt", cwd=folder))
    for command in (
        ("train.py", "--resume", f"{folder}/runs/small", *own, "training.max_steps=10"),
        ("sample.py", "--run", f"{folder}/runs/small", *own, "--max-tokens", "3"),
        ("explore.py", "--run", f"{folder}/runs/small", *own, "--prompt", "the", "--out", f"{folder}/{odd}.html"),
        ("show_attention.py", *own, "--prompt", "the", "--out", f"{odd}.svg"),
        ("train.py", "--config", f"{odd}.yaml", f"data.source={odd}.txt", "--name", "plain"),
        ("export_hf.py", "--run", f"{folder}/runs/plain", "--out", f"{folder}/{odd} export"),
        ("import_hf.py", f"{folder}/{odd} export", "--name", "back"),
    ):
        well(script(*command, cwd=folder))
    assert "na\\udcefve" in (folder / f"{odd}.html").read_text(encoding="utf-8")
    ended = script("sample.py", "--run", odd, cwd=folder)
    assert ended.code == 2 and ended.err.startswith("error: there is no run na\\udcefve: ")


def test_a_command_is_quoted_as_the_systems_shells_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--resume", "C:\\runs\\tiny", "two words", "a&b", ""]
    assert command_line(words) == r"--resume 'C:\runs\tiny' 'two words' 'a&b' ''"
    monkeypatch.setattr("sys.platform", "win32")
    assert command_line(words) == r'--resume C:\runs\tiny "two words" "a&b" ""'


def test_windows_is_not_asked_by_a_signal_whether_a_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the signal 0 is Ctrl-C for every process of the console."""
    sent = list[tuple[int, int]]()
    monkeypatch.setattr("os.kill", lambda *signal: sent.append(signal))
    monkeypatch.setattr("sys.platform", "win32")
    assert not locks._is_gone(2) and sent == []
    monkeypatch.setattr("sys.platform", "linux")
    assert not locks._is_gone(2) and sent == [(2, 0)]
