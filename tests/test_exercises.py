"""The exercises: handed out without a solution, graded right when they are solved, and what passes can be trained."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from running import ForkedProcess, furnish, script
from solutions import SOLUTIONS, solved

from minigpt.checks.learners import confined as confinement
from minigpt.checks.learners.confined import Confined, Limits
from minigpt.learning.classroom import Task, grade_all, grade_exercise, tasks_of
from minigpt.learning.exercises import EXERCISES, begun, exercise_file, hand_out, hint, template

QUICK = Limits(processor_seconds=2, seconds=6, memory=2**29)
PATIENT = replace(QUICK, seconds=120)  # a busy machine ends nobody before what the row is to say


@pytest.fixture(scope="module", autouse=True)
def forked_servers() -> Iterator[None]:
    """Servers that are forked, since to import torch takes longer than most files; one command starts real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confinement, "JsonProcess", ForkedProcess)
        yield


@pytest.fixture(scope="module")
def confined(forked_servers: None) -> Iterator[Confined]:
    """One server for all files, with time for a busy machine."""
    with Confined(Limits(memory=2**29)) as made:
        yield made


def write(path: Path, text: str) -> Path:
    """A file, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


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
def test_a_solved_exercise_is_right(exercise: str, confined: Confined, tmp_path: Path) -> None:
    grade = grade_exercise(Task(write(tmp_path / f"{exercise}.py", solved(exercise)), exercise, "ana"), confined)
    assert (grade.verdict, grade.sentence) == ("right", "")


@pytest.mark.parametrize("exercise", [name for name in EXERCISES if len(SOLUTIONS[name]) > 1])
def test_half_an_exercise_is_not_finished(exercise: str, confined: Confined, tmp_path: Path) -> None:
    bodies = [*SOLUTIONS[exercise][:-1], 'raise NotImplementedError("write me")']
    path = write(tmp_path / f"{exercise}.py", solved(exercise, bodies))
    assert grade_exercise(Task(path, exercise, "ana"), confined).verdict == "not finished"


def train(exercise: str, folder: Path) -> str:
    """Train a solved exercise for two steps of tiny.yaml, on a small text; what was printed."""
    furnish(folder)
    (folder / f"{exercise}.py").write_text(solved(exercise), encoding="utf-8")
    where = "position" if exercise == "rotary" else "attention"
    ended = script(
        "train.py",
        *("--config", "tiny.yaml", "--plugin", f"{exercise}.py", f"model.{where}=my_{exercise}"),
        *("data.source=text.txt", "data.windows=random", "training.max_steps=2", "training.eval_every=2"),
        *("training.batch_size=4", "training.sample_every=2", "sampling.max_tokens=20"),
        cwd=folder,
    )
    assert ended.code == 0, ended.err
    return ended.out


def test_what_passes_can_be_trained(tmp_path: Path) -> None:
    assert "sample at step 2" in train("multi_head", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_exercise_can_be_trained(exercise: str, tmp_path: Path) -> None:
    assert "sample at step 2" in train(exercise, tmp_path)


# the command


def test_the_command_grades_one_exercise_and_ends_with_2_unless_it_is_right(tmp_path: Path) -> None:
    write(tmp_path / "window.py", solved("window"))
    write(tmp_path / "rotary.py", exercise_file("rotary"))
    right = script("check.py", "--exercise", "window", "window.py", cwd=tmp_path)
    assert (right.code, right.out.splitlines()[0]) == (0, "RIGHT: multi_head,window=4")
    untouched = script("check.py", "--exercise", "rotary", "rotary.py", cwd=tmp_path)
    assert (untouched.code, untouched.out) == (2, "NOT BEGUN: rotary\n")


def test_the_command_grades_a_folder_and_a_class(tmp_path: Path) -> None:
    for learner, solved_ones in {"ana": EXERCISES, "ben": ["window"]}.items():
        hand_out(tmp_path / "class" / learner)
        for exercise in solved_ones:
            write(tmp_path / "class" / learner / f"{exercise}.py", solved(exercise))
    ana = script("check.py", "class/ana", cwd=tmp_path)
    assert (ana.code, ana.out.splitlines()[-1]) == (0, f"{len(EXERCISES)} of {len(EXERCISES)} right")
    both = script("check.py", "class", "--csv", "class.csv", cwd=tmp_path)
    assert both.code == 2
    assert both.out.splitlines()[1].split() == ["ana", *"+" * len(EXERCISES), str(len(EXERCISES))]
    assert both.out.splitlines()[2].split() == ["ben", *(".+"[name == "window"] for name in EXERCISES), "1"]
    rows = list(csv.DictReader((tmp_path / "class.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["learner"], row["cache"], row["window"]) for row in rows] == [
        ("ana", "right", "right"),
        ("ben", "not begun", "right"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--exercise", "no_such", "x.py"], "'no_such' is no exercise; there are: running_mean_loop"),
        (["--exercise", "cache", "x.py"], "x.py: no such file"),
        (["."], "holds no exercise"),
        (["x.py", "--csv", "x.csv"], "--csv: is for a folder of exercises; x.py is none"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    ended = script("check.py", *arguments, cwd=tmp_path)
    assert ended.code == 2
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


def test_exercises_are_written_and_hints_are_printed(tmp_path: Path) -> None:
    wrote = script("exercises.py", "--out", "my", cwd=tmp_path)
    assert (wrote.code, {path.stem for path in (tmp_path / "my").glob("*.py")}) == (0, EXERCISES.keys())
    assert script("exercises.py", "--hint", "cache", cwd=tmp_path).out.strip() == hint("cache")
    assert script("exercises.py", cwd=tmp_path).code == 2
    write(tmp_path / "taken", "")
    assert "is no folder" in script("exercises.py", "--out", "taken", cwd=tmp_path).err
