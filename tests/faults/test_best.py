"""The best step and early stopping, whatever stops a training: the same checkpoints and the same end, to the bit."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import ranks
from running import Ended, contents, one_line, script, slow_but
from stopping import STEP, STEPS, equal, furnished, happening, leftovers, metrics, newest, same, train

import minigpt
from minigpt.system.errors import UserError
from minigpt.training import checkpoint
from minigpt.training.checkpoint import Checkpoint
from minigpt.training.run import newest_run, open_checkpoint

LOSSES = {2: 3.0, 4: 2.0, 6: 2.5, 8: 2.6, 10: 2.7, 12: 2.8}  # the validation losses of all runs here
PLUGIN = f"""
from minigpt.training.trainer import Trainer

plain = Trainer.validate

def validate(self, reporter):
    plain(self, reporter)  # which a signal may stop
    return {LOSSES}[self.history.step]

Trainer.validate = validate
"""
KEEP = "training.keep={newest: 1, best: 1}"
STOP = "training.stop={patience: 2, least: 0.001}"
RATE = "training.optimizer.learning_rate=0.05"  # checkpoints that differ write different texts
OPTIONS = "training.eval_every=2", "training.checkpoint_every=5", "training.warmup_steps=1", "training.sample_every=0"
OPTIONS = *OPTIONS, RATE, KEEP
SAVE = "minigpt.training.saver.Saver", "save"  # the saves without a signal: of steps 2, 4, 5, ...
EVALUATION = "minigpt.training.trainer", "measure"
KILL, TERM = "os.kill(os.getpid(), 9)", f"os.kill(os.getpid(), {int(signal.SIGTERM)})"


def prepared(folder: Path) -> Path:
    (furnished(folder) / "losses.py").write_text(PLUGIN, encoding="utf-8")
    return folder


def begin(folder: Path, *arguments: object) -> Ended:
    return train(prepared(folder), "--plugin", "losses.py", *OPTIONS, *arguments)


def go_on(folder: Path, *arguments: object) -> Ended:
    return script("train.py", "--resume", "small", "--plugin", "losses.py", *arguments, cwd=folder)


def kept(folder: Path) -> dict[int, Checkpoint]:
    """All checkpoints of the run, each of which is whole."""
    paths = checkpoint.checkpoints(folder / "runs" / "small" / "checkpoints")
    return {checkpoint.step_of(path): checkpoint.load(path) for path in reversed(paths)}


def weights_differ(a: Checkpoint, b: Checkpoint) -> bool:
    return any(not torch.equal(tensor, b.model[name]) for name, tensor in a.model.items())


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped, and keeps its best checkpoint beside the newest one."""
    folder = tmp_path_factory.mktemp("best")
    ended = begin(folder)
    assert ended.code == 0 and ended.err == "", ended
    said = [line for line in ended.out.splitlines() if "validation loss" in line and line.startswith("step ")]
    assert ["the best is 2.0000, at step 4" in line for line in said] == [False, False, True, True, True, True], said
    return folder


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stops early, after the second evaluation that is no better than that of step 4."""
    folder = tmp_path_factory.mktemp("early")
    ended = begin(folder, STOP)
    assert ended.code == 0 and ended.err == "" and ended.out.count("stopped early after step 8: ") == 1, ended
    assert "done: 8 steps" in ended.out and [line["step"] for line in metrics(folder)] == list(range(1, 9))
    assert newest(folder).state["step"] == 8 and list(kept(folder)) == [4, 8]
    return folder


# ---- the best checkpoint ----


def test_it_is_written_at_its_step_and_kept_beside_the_newest(best: Path, tmp_path: Path) -> None:
    assert list(kept(best)) == [4, STEPS]
    assert [step for step, _, _ in kept(best)[4].state["evaluations"]] == [2, 4]
    assert begin(tmp_path, "training.keep.best=0").code == 0  # the option changes no number
    assert list(kept(tmp_path)) == [STEPS] and equal(tmp_path, best)


def test_without_the_option_no_checkpoint_is_due_for_it(tmp_path: Path) -> None:
    """The first one is that of step 5."""
    killed = begin(tmp_path, "training.keep.best=0", *happening(prepared(tmp_path), KILL, *SAVE, 1))
    assert killed.code == -9 and len(metrics(tmp_path)) == 5 and kept(tmp_path) == {}


MOMENTS = {  # what happens when; None: SIGTERM, else SIGKILL; the checkpoints that are there then
    "before the best one is saved": (KILL, *SAVE, 2, [2]),
    "while it is written": (KILL, "minigpt.training.checkpoint", "write_tensors", 4, [2]),
    "before the one before is removed": (KILL, "minigpt.training.checkpoint", "prune", 2, [2, 4]),
    "in a later step": (KILL, *STEP, 8, [4, 5]),
    "while a later one is written": (KILL, "minigpt.training.checkpoint", "write_tensors", 8, [4, 5]),
    "before a later one is removed": (KILL, "minigpt.training.checkpoint", "prune", 4, [4, 5, 10]),
    "SIGTERM in a step before": (TERM, *STEP, 3, [2, 3]),
    "SIGTERM in its evaluation": (TERM, *EVALUATION, 2, [2, 4]),
    "SIGTERM in a later evaluation": (TERM, *EVALUATION, 4, [4, 8]),
}


@pytest.mark.parametrize(
    "moment", slow_but(MOMENTS, "while it is written", "before the one before is removed", "SIGTERM in its evaluation")
)
def test_stopped_and_resumed_the_best_one_is_the_same(moment: str, best: Path, tmp_path: Path) -> None:
    act, owner, name, nth, there = MOMENTS[moment]
    stopped = begin(tmp_path, *happening(prepared(tmp_path), act, owner, name, nth))
    assert stopped.code == (-9 if act == KILL else 143), stopped
    assert list(kept(tmp_path)) == there
    assert go_on(tmp_path).code == 0
    assert leftovers(tmp_path) == [] and metrics(tmp_path) == metrics(best)
    assert kept(tmp_path).keys() == kept(best).keys()
    for step, saved in kept(tmp_path).items():
        assert not weights_differ(saved, kept(best)[step])
        assert same(saved, kept(best)[step]) or (step == 4 and "in its evaluation" in moment)  # saved without its loss


def test_an_evaluation_made_up_for_after_the_last_step_may_be_the_best(tmp_path: Path) -> None:
    """No checkpoint holds it: it is found in the metrics."""
    act = happening(prepared(furnished(tmp_path)), TERM, *EVALUATION, 2)
    assert begin(tmp_path, *act, "training.max_steps=4").code == 143
    assert go_on(tmp_path).code == 0 and list(kept(tmp_path)) == [2, 4]
    assert newest(tmp_path).state["evaluations"] == kept(tmp_path)[2].state["evaluations"]
    assert open_checkpoint(tmp_path / "runs" / "small", at="best")[0].state["step"] == 4


def test_a_full_disk_leaves_the_best_one_so_far(best: Path, tmp_path: Path) -> None:
    act = "raise OSError(28, 'No space left on device')"
    full = begin(tmp_path, *happening(prepared(tmp_path), act, "minigpt.training.checkpoint", "write_tensors", 4))
    one_line(full, 5, "No space left on device")
    assert list(kept(tmp_path)) == [2] and leftovers(tmp_path) == []
    assert go_on(tmp_path).code == 0
    assert all(same(saved, kept(best)[step]) for step, saved in kept(tmp_path).items())


def test_one_that_the_system_refuses_does_not_cost_the_best_of_those_that_are_there(tmp_path: Path) -> None:
    """As on Windows, while another program has it open: step 4 is lost, and step 2 is the best one that is left."""
    act = "from minigpt.system.moving import Refused; raise Refused(13, 'in use')"
    lost = happening(prepared(tmp_path), act, "minigpt.training.checkpoint", "save", 2)
    (tmp_path / "losses.py").write_text(PLUGIN.replace("2: 3.0", "2: 2.1"), encoding="utf-8")
    ended = train(tmp_path, "--plugin", "losses.py", *OPTIONS, *lost)
    one_line(ended, 0, "the next checkpoint is tried")
    assert list(kept(tmp_path)) == [2, STEPS]
    one_line(script("sample.py", "--run", "small@best", cwd=tmp_path), 2, "no checkpoint of step 4 is kept")


def test_a_loss_that_is_no_number_is_not_the_best(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "losses.py").write_text(PLUGIN.replace("6: 2.5", "6: float('nan')"), encoding="utf-8")
    ended = train(tmp_path, "--plugin", "losses.py", *OPTIONS, STOP)
    assert ended.code == 3 and "diverged: step 6: the validation loss is nan" in ended.err, ended
    assert list(kept(tmp_path)) == [4, 5]


# ---- early stopping ----


WHILE_PATIENT = {
    "before the last one is saved": (KILL, *SAVE, 4),  # between the evaluation that ends patience and its checkpoint
    "while it is written": (KILL, "minigpt.training.checkpoint", "write_tensors", 8),
    "before the others are removed": (KILL, "minigpt.training.checkpoint", "prune", 4),
    "in a step before": (KILL, *STEP, 7),
    "SIGTERM in a step before": (TERM, *STEP, 7),
    "SIGTERM in an evaluation before": (TERM, *EVALUATION, 3),
    "SIGTERM in the last evaluation": (TERM, *EVALUATION, 4),
}


@pytest.mark.parametrize(
    "moment",
    slow_but(
        WHILE_PATIENT, "before the last one is saved", "before the others are removed", "SIGTERM in the last evaluation"
    ),
)
def test_stopped_and_resumed_patience_ends_at_the_same_step(moment: str, early: Path, tmp_path: Path) -> None:
    act, owner, name, nth = WHILE_PATIENT[moment]
    stopped = begin(tmp_path, STOP, *happening(prepared(tmp_path), act, owner, name, nth))
    assert stopped.code == (-9 if act == KILL else 143), stopped
    resumed = go_on(tmp_path)
    if moment == "before the others are removed":  # the last checkpoint is there, and says it
        assert resumed.code == 2 and "stopped early after step 8" in resumed.err, resumed
        return
    assert resumed.code == 0 and resumed.out.count("stopped early after step 8: ") == 1, resumed
    assert metrics(tmp_path) == metrics(early) and leftovers(tmp_path) == []
    last = moment == "SIGTERM in the last evaluation"  # its checkpoint has been there before the evaluation
    assert last or same(newest(tmp_path), newest(early))
    assert not weights_differ(newest(tmp_path), newest(early))
    before = contents(tmp_path / "runs" / "small" / "checkpoints")
    again = go_on(tmp_path)
    assert "stopped early after step 8: " in (again.out if last else again.err) and again.code == (0 if last else 2)
    assert contents(tmp_path / "runs" / "small" / "checkpoints") == before and len(metrics(tmp_path)) == 8


@pytest.mark.parametrize("asked", ["training.max_steps=20", "training.stop.least=0", "training.checkpoint_every=3"])
def test_what_stopped_early_says_so_and_does_not_go_on(asked: str, early: Path) -> None:
    before = contents(early / "runs")
    ended = go_on(early, asked)
    said = "error: --resume: runs/small stopped early after step 8: no validation loss of the last 2 "
    one_line(ended, 2, said, "training.stop.patience=4 or training.stop=null")
    assert contents(early / "runs") == before


def test_where_patience_ends_at_the_last_step_the_run_is_done(tmp_path: Path) -> None:
    """And it has no patience for more steps. So it is where a signal stops that evaluation."""
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    ended = begin(straight, STOP, "training.max_steps=8")
    act = happening(prepared(stopped), TERM, *EVALUATION, 4)
    assert begin(stopped, STOP, "training.max_steps=8", *act).code == 143
    for said in (ended, go_on(stopped)):
        assert said.code == 0 and "stopped early" not in said.out and "done: 8 steps" in said.out, said
    assert "has done all its 8 steps" in go_on(straight).err
    assert "stopped early after step 8" in go_on(straight, "training.max_steps=12").err


def test_with_more_patience_it_goes_on_and_counts_on(early: Path, tmp_path: Path) -> None:
    shutil.copytree(early, tmp_path, dirs_exist_ok=True)
    ended = go_on(tmp_path, "training.stop.patience=3")
    assert ended.code == 0 and "stopped early after step 10: no validation loss of the last 3 " in ended.out, ended


def test_with_none_it_is_the_run_that_had_none(early: Path, best: Path, tmp_path: Path) -> None:
    shutil.copytree(early, tmp_path, dirs_exist_ok=True)
    assert go_on(tmp_path, "training.stop=null").code == 0
    assert metrics(tmp_path) == metrics(best)
    assert all(same(saved, kept(best)[step]) for step, saved in kept(tmp_path).items())


def test_a_notebook_that_is_run_again_says_so_too(
    early: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(early, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    run = minigpt.train("small.yaml", *OPTIONS, STOP, resume=True)
    assert run.step == 8 and "runs/small stopped early after step 8: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_decide_alike(parallel: str, early: Path, tmp_path: Path) -> None:
    """Stopped by a signal to one of them in the evaluation that ends patience, too."""
    words = "--plugin", "losses.py", *OPTIONS, STOP, f"training.parallel={parallel}"
    act = happening(prepared(tmp_path), f"if os.environ.get('RANK') == '1': {TERM}", *EVALUATION, 4)
    assert ranks("train.py", "--config", "small.yaml", *words, *act, cwd=tmp_path).code != 0
    assert newest(tmp_path).state["step"] == 8 and len(newest(tmp_path).state["evaluations"]) == 3
    ended = ranks("train.py", "--resume", "small", "--plugin", "losses.py", cwd=tmp_path)
    assert ended.code == 0 and ended.out.count("stopped early after step 8: ") == 1, ended
    assert list(kept(tmp_path)) == [4, 8] and leftovers(tmp_path) == []
    assert [line.get("val/loss") for line in metrics(tmp_path)] == [line.get("val/loss") for line in metrics(early)]


# ---- RUN@best ----

COMMANDS: dict[str, tuple[Any, ...]] = {
    "sample": ("sample.py", "--max-tokens", 3, "--run"),
    "show": ("show_attention.py", "--prompt", "the", "--run"),
    "explore": ("explore.py", "--prompt", "the", "--out", "page.html", "--run"),
    "export": ("export_hf.py", "--out", "exported", "--remote-code", "--run"),
    "swap": ("swap.py", "pieces=4", "length=8", "--only", "window 16", "--run"),
}


def texts(folder: Path, name: str) -> str:
    ended = script("sample.py", "--run", name, "--temperature", 5, "--max-tokens", 60, cwd=folder)
    assert ended.code == 0 and ended.err == "", ended
    return ended.out


def test_a_run_is_named_with_one_of_its_checkpoints(best: Path) -> None:
    """Without one it is the newest still, and a line says that an earlier one is better, and its name."""
    assert texts(best, "small@best") == texts(best, "small@4") == texts(best, "runs/small@best") == texts(best, "@best")
    assert texts(best, "small@last") == texts(best, f"small@{STEPS}") != texts(best, "small@4")
    plain = script("sample.py", "--run", "small", "--temperature", 5, "--max-tokens", 60, cwd=best)
    assert plain.out == texts(best, "small@last")
    said = "the validation loss was 2.0000 at step 4 and 2.8000 at 12: runs/small@best has its weights"
    assert plain.err == f"note: runs/small: {said}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_it_where_it_takes_a_run(command: str, best: Path, tmp_path: Path) -> None:
    shutil.copytree(best, tmp_path, dirs_exist_ok=True)
    name, *words = COMMANDS[command]
    ended = script(name, *words, "small@best", cwd=tmp_path)
    assert ended.code == 0 and "note: runs/small: the validation loss was" not in ended.err, ended
    refused = script(name, *words, "small@7", cwd=tmp_path)
    one_line(refused, 2, "runs/small@7: no checkpoint of step 7 is kept; there are 4 and 12")


def test_a_notebook_too_and_it_shows_the_step_and_its_loss(best: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(best)
    run, newest_one = minigpt.load("runs/small@best", "cpu"), minigpt.load("runs/small", "cpu")
    saved = kept(best)[4].model
    assert all(torch.equal(tensor, saved[name]) for name, tensor in checkpoint.tensors_of(run.model).items())
    assert (run.step, run.name, run.folder) == (4, "small@4", Path("runs/small"))
    assert run.facts()["validation loss"] == "2.0000" and "best" not in run.facts()
    assert newest_one.facts()["validation loss"] == "2.8000" and newest_one.facts()["best"] == "2.0000, at step 4"
    assert "runs/small@4" in run.explore("the", "page.html").html
    assert newest_run("small@best") == Path("runs/small@best") and newest_run("@4") == Path("runs/small@4")


def test_a_folder_that_is_really_called_so_is_itself(
    best: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(best / "runs" / "small", tmp_path / "runs" / "mine@4")
    monkeypatch.chdir(tmp_path)
    assert minigpt.load(newest_run("mine@4"), "cpu").step == STEPS
    assert minigpt.load(newest_run("mine@4@4"), "cpu").step == 4


def test_best_and_another_checkpoint_side_by_side_in_the_playground(best: Path) -> None:
    ended = script("play.py", "--measure", "--run", "small@best", "--run", "small@last", cwd=best)
    assert ended.code == 0, ended


@pytest.mark.parametrize("damage", ["removed", "flipped", "linked", "the newest"])
def test_a_best_one_that_cannot_be_used_is_never_another_in_silence(damage: str, best: Path, tmp_path: Path) -> None:
    shutil.copytree(best, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "runs" / "small" / "checkpoints"
    code, said = 2, "runs/small@best: no checkpoint of step 4 is kept (training.keep.best=1 keeps the best one)"
    if damage == "removed":
        shutil.rmtree(folder / "step-000004")
    elif damage == "linked":
        shutil.move(folder / "step-000004", tmp_path / "away")
        (folder / "step-000004").symlink_to(tmp_path / "away")
        said = "not a plain file"
    else:
        path = folder / ("step-000004" if damage == "flipped" else "step-000012") / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
        code, said = (4, "step-000004/model.safetensors") if damage == "flipped" else (0, "skipped: ")
    ended = script("sample.py", "--run", "small@best", "--max-tokens", 3, cwd=tmp_path)
    assert ended.code == code and said in ended.err and ended.err.count("\n") == 1, ended


def test_a_resume_from_an_earlier_one_loses_nothing(best: Path, tmp_path: Path) -> None:
    """What follows it would be mixed with what is trained anew: a line says what to do."""
    shutil.copytree(best, tmp_path, dirs_exist_ok=True)
    before, own = contents(tmp_path / "runs"), ("--plugin", "losses.py")
    for name in ("small@best", "small@4"):
        ended = script("train.py", "--resume", name, "training.max_steps=14", *own, cwd=tmp_path)
        one_line(ended, 2, f"--from-run runs/{name}", "would lose what follows step 4")
    assert contents(tmp_path / "runs") == before
    tuned = script("train.py", "--from-run", "small@best", "training.max_steps=2", *own, cwd=tmp_path)
    assert tuned.code == 0 and "weights: those of runs/small after step 4" in tuned.out, tuned
    assert before.items() <= contents(tmp_path / "runs").items()
    for name in (f"small@{STEPS}", "small@last"):  # the newest is the newest
        one_line(script("train.py", "--resume", name, *own, cwd=tmp_path), 2, "has done all its 12 steps")


def test_a_best_one_that_a_training_replaces_meanwhile_is_looked_for_again(
    best: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(best, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "runs" / "small"
    away, plain = folder / "checkpoints" / "step-000004", checkpoint.newest

    def replaced(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(checkpoint, "newest", plain)
        found = plain(*arguments, **options)  # type: ignore[arg-type]
        found[0].state["evaluations"][1][2] = 9.0  # what it says: step 6 is the best, which is not there
        return found

    monkeypatch.setattr(checkpoint, "newest", replaced)
    with pytest.raises(UserError, match="step 6 is kept"):
        open_checkpoint(folder, at="best")  # nothing has changed
    calls: list[Callable[..., object]] = [replaced]

    def listed(place: Path, plain: Callable[[Path], list[Path]] = checkpoint.checkpoints) -> list[Path]:
        paths = plain(place)
        return [path for path in paths if path != away] if calls else paths

    monkeypatch.setattr(checkpoint, "checkpoints", listed)

    def saves(*arguments: object, **options: object) -> object:
        calls.clear()
        return replaced(*arguments, **options)

    monkeypatch.setattr(checkpoint, "newest", saves)
    assert open_checkpoint(folder, at="best")[0].state["step"] == 4
