"""The exercises: handed out without a solution, graded right when they are solved, and what passes can be trained."""

from __future__ import annotations

import codecs
import csv
import re
from pathlib import Path

import checking
import pytest
from checking import graded, write
from running import furnish, script
from solutions import SOLUTIONS, solved

from minigpt.checks.learners.confined import Confined
from minigpt.learning.classroom import grade_all, tasks_of
from minigpt.learning.exercises import EXERCISES, begun, exercise_file, hand_out, hint, template

forked_servers = pytest.fixture(scope="module", autouse=True)(checking.forked_servers)
confined = pytest.fixture(scope="module")(checking.one_server)


# what is handed out


@pytest.mark.parametrize("exercise", EXERCISES)
def test_an_exercise_holds_no_solution_and_folds_its_hint(exercise: str) -> None:
    text = exercise_file(exercise)
    assert len(re.findall("write me", text)) == len(SOLUTIONS[exercise])
    assert hint(exercise).split()[:8] != [] and hint(exercise) not in text
    folded = re.findall("^#   (.*)$", text, flags=re.M)
    assert codecs.decode("\n".join(folded), "rot13") == hint(exercise)
    assert max(len(line) for line in text.splitlines() if not line.startswith("# train:")) <= 120


def test_handing_out_again_keeps_what_was_written(tmp_path: Path) -> None:
    written, kept = hand_out(tmp_path)
    assert (len(written), kept) == (len(EXERCISES), [])
    (tmp_path / "rotary.py").write_text("mine", encoding="utf-8")
    (tmp_path / "cache.py").unlink()
    written, kept = hand_out(tmp_path)
    assert [path.name for path in written] == ["cache.py"]
    assert len(kept) == len(EXERCISES) - 1
    assert (tmp_path / "rotary.py").read_text(encoding="utf-8") == "mine"


def test_untouched_exercises_are_not_begun_and_start_no_process(tmp_path: Path) -> None:
    hand_out(tmp_path)
    (tmp_path / "cache.py").unlink()
    grades = grade_all(tasks_of(tmp_path))
    assert [grade.verdict for grade in grades if grade.exercise != "cache"] == ["not begun"] * (len(EXERCISES) - 1)
    assert next(grade.verdict for grade in grades if grade.exercise == "cache") == "missing"


def test_a_comment_is_no_beginning_and_a_statement_is_one() -> None:
    text = exercise_file("window")
    assert not begun("window", text + "\n# I do not know how\n\n")
    assert begun("window", text.replace("raise NotImplementedError", "raise ValueError"))
    assert begun("window", "def (")
    assert not begun("window", template("window"))


# solved


@pytest.mark.parametrize("exercise", EXERCISES)
def test_a_solved_exercise_is_right_and_half_of_it_is_not_finished(
    exercise: str, confined: Confined, tmp_path: Path
) -> None:
    grade = graded(tmp_path, exercise, solved(exercise), confined)
    assert (grade.verdict, grade.sentence) == ("right", "")
    if half := SOLUTIONS[exercise][:-1]:
        text = solved(exercise, [*half, 'raise NotImplementedError("write me")'])
        assert graded(tmp_path, exercise, text, confined).verdict == "not finished"


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_exercise_can_be_trained(exercise: str, tmp_path: Path) -> None:
    """For two steps of tiny.yaml, on a small text."""
    write(furnish(tmp_path) / f"{exercise}.py", solved(exercise))
    where = "position" if exercise == "rotary" else "attention"
    ended = script(
        "train.py",
        *("--config", "tiny.yaml", "--plugin", f"{exercise}.py", f"model.{where}=my_{exercise}"),
        *("data.source=text.txt", "data.windows=random", "training.max_steps=2", "training.eval_every=2"),
        *("training.batch_size=4", "training.sample_every=2", "sampling.max_tokens=20"),
        cwd=tmp_path,
    )
    assert ended.code == 0, ended.err
    assert "sample at step 2" in ended.out


# the command


def test_the_command_grades_one_exercise_and_ends_with_2_unless_it_is_right(tmp_path: Path) -> None:
    write(tmp_path / "window.py", solved("window"))
    write(tmp_path / "rotary.py", exercise_file("rotary"))
    right = script("check.py", "--exercise", "window", "window.py", cwd=tmp_path)
    assert (right.code, right.out.splitlines()[0]) == (0, "RIGHT: multi_head,window=4")
    untouched = script("check.py", "--exercise", "rotary", "rotary.py", cwd=tmp_path)
    assert (untouched.code, untouched.out) == (2, "NOT BEGUN: rotary\n")


def test_the_command_grades_a_folder_and_a_class(tmp_path: Path) -> None:
    marks = {"ana": {"window": "+", "cache": "+"}, "ben": {"window": "+", "dot_product": "x", "cache": "."}}
    for learner, of_learner in marks.items():
        folder = tmp_path / "class" / learner
        hand_out(folder)
        for exercise in of_learner:
            write(folder / f"{exercise}.py", solved(exercise))
    (folder / "cache.py").unlink()
    write(folder / "dot_product.py", solved("dot_product").replace("softmax(dim=-1)", "softmax(dim=-2)"))
    ben = script("check.py", "class/ben", cwd=tmp_path)
    assert (ben.code, ben.out.splitlines()[-1]) == (2, f"1 of {len(EXERCISES)} right")
    both = script("check.py", "class", "--csv", "class.csv", cwd=tmp_path)
    assert both.code == 2
    for row, (learner, of_learner), right in zip(both.out.splitlines()[1:], marks.items(), "21"):
        assert row.split() == [learner, *(of_learner.get(name, ".") for name in EXERCISES), right]
    ana, ben = csv.DictReader((tmp_path / "class.csv").read_text(encoding="utf-8").splitlines())
    assert (ana["learner"], ana["cache"], ana["dot_product"]) == ("ana", "right", "not begun")
    assert (ben["learner"], ben["cache"], ben["dot_product"][:5]) == ("ben", "missing", "wrong")


def test_exercises_are_written_and_hints_are_printed(tmp_path: Path) -> None:
    wrote = script("exercises.py", "--out", "my", cwd=tmp_path)
    assert (wrote.code, {path.stem for path in (tmp_path / "my").glob("*.py")}) == (0, EXERCISES.keys())
    assert script("exercises.py", "--hint", "cache", cwd=tmp_path).out.strip() == hint("cache")
    assert script("exercises.py", cwd=tmp_path).code == 2
    write(tmp_path / "taken", "")
    assert "is no folder" in script("exercises.py", "--out", "taken", cwd=tmp_path).err
