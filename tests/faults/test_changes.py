"""Changes between a checkpoint and the command that resumes it: listed, recorded, allowed or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import one_line, small_text
from stopping import STEP, STEPS, equal, furnished, metrics, newest, resume, train, train_until

from minigpt.training.run import load

OTHER = small_text(50).replace("cat", "dog")


def test_another_text_is_refused_unless_it_is_meant(home: Path) -> None:
    before = metrics(home)
    (home / "text.txt").write_text(OTHER, encoding="utf-8")
    refused = resume(home, f"training.max_steps={STEPS}")
    assert refused.code == 2 and "--allow-data-change" in refused.err and refused.err.count("\n") == 1, refused
    assert metrics(home) == before and not (home / "runs" / "small" / "changes.jsonl").exists()
    meant = resume(home, f"training.max_steps={STEPS}", "--allow-data-change")
    assert meant.code == 0 and "changed: training.max_steps: 8 -> 12" in meant.out and "changed: the text" in meant.out
    (line,) = (home / "runs" / "small" / "changes.jsonl").read_text("utf-8").splitlines()
    recorded = json.loads(line)
    assert recorded["step"] == 8
    assert [key for key, _, _ in recorded["changes"]] == ["training.max_steps", "data"]
    assert newest(home).state["data"] == recorded["changes"][1][2] != recorded["changes"][1][1]


def test_a_resume_without_a_step_left_says_how_many_are_done_and_changes_nothing(home: Path) -> None:
    before = (home / "runs" / "small" / "config.yaml").read_bytes()
    done = "has done all its 8 steps; give it more, as in training.max_steps=16"
    less = "has done 8 steps, and training.max_steps=4 leaves none to do; give it more, as in"
    for overrides, what in (((), done), (("training.seed=3",), done), (("training.max_steps=4",), less)):
        refused = resume(home, *overrides)
        assert refused.code == 2 and refused.out == "" and what in refused.err, refused
        assert (home / "runs" / "small" / "config.yaml").read_bytes() == before
    assert train_until(furnished(home / "other"), "os.kill(os.getpid(), 2)", *STEP, 5).code == 130
    refused = resume(home / "other", "training.max_steps=3")
    assert refused.code == 2 and refused.out == "" and "has done 5 steps, and training.max_steps=3" in refused.err
    assert resume(home / "other", "training.max_steps=7").out.count("changed: ") == 1


@pytest.mark.parametrize(
    "change", ["model.n_embd=32", "model.attention=average_softmax", "data.tokenizer=byte", "training.optimizer=muon"]
)
def test_another_model_tokenizer_or_optimizer_is_refused(change: str, home: Path) -> None:
    for allow in ((), ("--allow-data-change",)):
        refused = resume(home, f"training.max_steps={STEPS}", change, *allow)
        assert refused.code == 2 and "cannot change" in refused.err and refused.err.count("\n") == 1, refused
        assert refused.out == ""  # nothing is changed
    assert len(metrics(home)) == 8


def test_a_text_that_changes_while_training_changes_nothing(trained: Path, tmp_path: Path) -> None:
    """What was tokenized at the start is what is learned; the change is met when the run is resumed."""
    furnished(tmp_path)
    rewrite = "Path('text.txt').write_text('something else altogether')"
    assert train_until(tmp_path, rewrite, *STEP, 3, "training.max_steps=8").code == 0
    assert equal(tmp_path, trained)
    refused = resume(tmp_path, f"training.max_steps={STEPS}")
    one_line(refused, 2)


@pytest.mark.parametrize("left", [0, 100], ids=["empty", "cut short"])
def test_ids_cut_short_while_training(left: int, tmp_path: Path) -> None:
    """Reading a mapped file beyond its end kills a process without a word; here it is one line, and they are made anew.

    The ids of a whole text are more than a page, so that there is something beyond the end.
    """
    furnished(tmp_path)
    (tmp_path / "text.txt").write_text(small_text(400), encoding="utf-8")
    cut = f"[os.truncate(path, {left}) for path in Path(os.environ['MINIGPT_DATA']).glob('cache/*/ids.bin')]"
    stopped = train_until(tmp_path, cut, *STEP, 6)
    one_line(stopped, 5, f"ids.bin: cut short to {left} of", "--resume")
    assert newest(tmp_path).state["step"] == 4
    assert resume(tmp_path).code == 0 and metrics(tmp_path)[-1]["step"] == STEPS


def test_plain_forms_alone_are_an_option_of_the_run_like_any_other(home: Path, tmp_path: Path) -> None:
    """`--plain` is kept in the config and recorded on resuming; the losses are those of the faster forms."""
    plain = furnished(tmp_path / "plain")
    assert train(plain, "--plain", "training.max_steps=8").code == 0
    assert not any(vars(module).get("faster") for module in load(plain / "runs" / "small", "cpu").model.modules())
    assert any(vars(module).get("faster") for module in load(home / "runs" / "small", "cpu").model.modules())
    for ours, theirs in zip(metrics(plain), metrics(home), strict=True):
        assert ours["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-4)
    resumed = resume(home, "--plain", f"training.max_steps={STEPS}")
    assert resumed.code == 0 and "changed: training.fast: True -> False" in resumed.out, resumed
    assert resume(plain, f"training.max_steps={STEPS}").code == 0
    assert not load(plain / "runs" / "small").config.training.fast
