"""The exercises: handed out without a solution, graded right when they are solved, and what passes can be trained.

A class with hostile files is graded all the same, and nothing outside the files' own copies changes.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from running import ForkedProcess, command_line, environment, furnish, script, wait_until
from solutions import SOLUTIONS, solved

from minigpt.grading import confined as confinement
from minigpt.grading.classroom import Grade, Task, grade_all, grade_exercise, table, tasks_of, write_csv
from minigpt.grading.confined import Confined, Limits
from minigpt.grading.confined import grade as grade_one
from minigpt.grading.exercises import EXERCISES, begun, exercise_file, hand_out, hint, template
from minigpt.system.errors import UserError

QUICK = Limits(processor_seconds=2, seconds=6, memory=2**29)
PATIENT = replace(QUICK, seconds=120)  # a busy machine ends nobody before what the row is to say

HOSTILE = {  # what a learner's file does, and what its row says
    "never_ends": ("while True: pass", "took "),
    "sleeps": ("import time; time.sleep(10_000)", "took longer than"),
    "eats_memory": ("import torch; x = [torch.ones(50_000_000) for _ in range(10_000)]", "GiB of memory"),
    "eats_bytes": ("x = [bytes(10_000_000) * 2 for _ in range(100_000)]", "GiB of memory"),
    "leaves": ("import os; os._exit(0)", "ended Python itself (exit code 0)"),
    "leaves_politely": ("raise SystemExit(0)", "raises SystemExit"),
    "reads_stdin": ("input()", "EOFError"),
    "forks": ("import os\nwhile True: os.fork()", "may not start processes"),
    "starts_a_shell": ("import os; os.system('touch TOUCHED')", "may not start processes"),
    "deletes_its_folder": ("import shutil, pathlib; shutil.rmtree(pathlib.Path(__file__).parent)", "may not remove"),
    "deletes_the_class": ("import shutil; shutil.rmtree('CLASS')", "may not remove"),
    "writes_elsewhere": ("open('TOUCHED', 'w').write('x')", "may not write outside"),
    "writes_to_the_terminal": ("open('/dev/tty', 'w').write('\\x1b[2J')", "may not write outside"),
    "kills_its_parent": ("import os; os.kill(os.getppid(), 9)", "may not send signals"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "crashed Python (SIGSEGV)"),
    "escapes": ("raise ValueError('\\x1b[2J')", "raises ValueError: \x1b[2J"),
    "is_no_python": ("def f(:", "SyntaxError"),
}


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


SLIPS = {  # exercise: a piece of the right solution, what a learner writes instead, and words of the sentence
    "running_mean_loop": (".mean(dim=1)", ".sum(dim=1)", "sum"),
    "dot_product": (".tril(S - T)", ".tril()", "with fewer queries than keys"),
    "attention_weights": ("** 0.5", "** 1", "sqrt"),
    "linear_attention": ("total = total + key[:, :, t]", "total = key[:, :, t]", "with a cache"),
    "multi_head": ("/ d**0.5", "/ (query.shape[1] * d) ** 0.5", "width of the model"),
    "window": ("behind < self", "behind <= self", "window"),
    "cache": (".tril(S - T)", ".tril()", "upper left"),
    "single_head": ("mixed.squeeze(1)", "mixed.view(1)", "it raises"),
}


@pytest.mark.parametrize("exercise", SLIPS)
def test_a_usual_slip_is_named(exercise: str, confined: Confined, tmp_path: Path) -> None:
    old, new, words = SLIPS[exercise]
    assert old in solved(exercise)
    path = write(tmp_path / f"{exercise}.py", solved(exercise).replace(old, new))
    grade = grade_exercise(Task(path, exercise, "ana"), confined)
    assert (grade.verdict, words in grade.sentence) == ("wrong", True), grade


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


# a class


@pytest.fixture(scope="module")
def hostile_class(forked_servers: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Grade]]:
    """A class of one good learner and one for each hostile file, graded."""
    root = tmp_path_factory.mktemp("hostile")
    classroom, touched = root / "class", root / "touched"
    write(classroom / "ana" / "running_mean_loop.py", solved("running_mean_loop"))
    prints = "print('\\x1b[2J' * 10_000_000)\n"
    write(classroom / "prints" / "running_mean_loop.py", prints + solved("running_mean_loop"))
    for learner, (code, _) in HOSTILE.items():
        code = code.replace("TOUCHED", str(touched)).replace("CLASS", str(classroom))
        write(classroom / learner / "running_mean_loop.py", code)
    before = {path: path.read_bytes() for path in classroom.rglob("*.py")}
    tasks = [task for task in tasks_of(classroom) if task[1] == "running_mean_loop"]
    asleep = [task for task in tasks if task[2] == "sleeps"]
    grades = grade_all([task for task in tasks if task not in asleep], PATIENT) + grade_all(asleep, QUICK)
    assert {path: path.read_bytes() for path in classroom.rglob("*.py")} == before
    assert not touched.exists()
    return classroom, grades


@pytest.mark.parametrize("learner", HOSTILE)
def test_a_hostile_file_is_a_row_that_says_so(learner: str, hostile_class: tuple[Path, list[Grade]]) -> None:
    (grade,) = (grade for grade in hostile_class[1] if grade.learner == learner)
    assert HOSTILE[learner][1] in grade.sentence
    assert grade.verdict in ("stopped", "wrong")


def test_it_harms_no_other_row_and_what_is_printed_goes_nowhere(
    hostile_class: tuple[Path, list[Grade]],
) -> None:
    assert [grade.learner for grade in hostile_class[1] if grade.right] == ["ana", "prints"]


def test_what_is_printed_cannot_act_on_a_terminal(hostile_class: tuple[Path, list[Grade]], tmp_path: Path) -> None:
    (grade,) = (grade for grade in hostile_class[1] if grade.learner == "escapes")
    grades = [Grade("\x1b[31mred", "cache", "wrong", grade.sentence), Grade("=1+1", "cache", "right")]
    write_csv(grades, tmp_path / "class.csv")
    for text in (table(grades), (tmp_path / "class.csv").read_text(encoding="utf-8")):
        assert "\x1b" not in text
        assert "\\x1b[31mred" in text
    rows = list(csv.reader((tmp_path / "class.csv").read_text(encoding="utf-8").splitlines()))
    assert [row[0] for row in rows] == ["learner", "\\x1b[31mred", "'=1+1"]
    assert dict(zip(rows[0], rows[2]))["cache"] == "right"


def test_a_file_that_cannot_be_read_is_a_row_too(tmp_path: Path, confined: Confined) -> None:
    write(tmp_path / "cache.py", "").write_bytes(b"\xff\xfe")
    (tmp_path / "window.py").mkdir()
    write(tmp_path / "rotary.py", "#" * 1_100_000)
    (tmp_path / "multi_head.py").symlink_to(tmp_path / "nowhere.py")
    said = {
        name: grade_exercise(Task(tmp_path / f"{name}.py", name, "ana"), confined)
        for name in ("cache", "window", "rotary", "multi_head")
    }
    assert {grade.verdict for grade in said.values()} == {"cannot tell"}
    assert "UTF-8" in said["cache"].sentence
    assert said["window"].sentence == "a folder, not a plain file"
    assert "larger than 1,000,000 bytes" in said["rotary"].sentence


def test_learners_whose_folders_link_to_one_another_are_told_apart(tmp_path: Path) -> None:
    """A link may lead elsewhere; what it takes from another learner is named, and graded once, for whoever has it."""
    place, home = tmp_path / "class", tmp_path / "home of dora"
    for folder in (place / "ana", home):
        write(folder / "running_mean_loop.py", solved("running_mean_loop"))
    write(place / "bob" / "dot_product.py", solved("running_mean_loop"))
    (place / "bob" / "running_mean_loop.py").symlink_to("../ana/running_mean_loop.py")
    (place / "bob" / "cache.py").symlink_to("dot_product.py")  # their own file
    links = {"aaa": "ana", "carl": "nowhere", "dora": home, "eve": home, "fay": "..", "gus": "ana/running_mean_loop.py"}
    for name, target in links.items():
        (place / name).symlink_to(target)
    grades = grade_all(tasks_of(place))
    rows = {grade.learner: grade for grade in grades if grade.exercise == "running_mean_loop"}
    assert {name: grade.verdict for name, grade in rows.items() if grade.right} == {"ana": "right", "dora": "right"}
    assert {name: grade.sentence for name, grade in rows.items() if not grade.right} == {
        "aaa": "a link to the folder of ana",
        "bob": "a link to ../ana/running_mean_loop.py, and not a file of bob",
        "carl": "a broken link to nowhere",
        "eve": "a link to the folder of dora",
        "fay": "a link to the folder of the class",
    }
    assert len(grades) == len(EXERCISES) * len(rows)
    assert next(grade for grade in grades if (grade.learner, grade.exercise) == ("bob", "cache")).report is not None
    every = "running_mean_loop, running_mean_matrix, running_mean_softmax and 9 more"
    assert f"\n   1  {every}: a link to the folder of ana\n      aaa" in table(grades)


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/kmsg", "pipe"])
def test_a_file_that_never_ends_stops_no_class(target: str, tmp_path: Path) -> None:
    """Neither as an answer, nor beside one, also without a link."""
    if target.startswith("/proc") and not os.path.exists(target):
        pytest.skip(f"there is no {target} here")
    place = tmp_path / "class"
    endless = ["ana/helper.py", "ana/cache.py", "bob/running_mean_loop.py"]
    for name in endless:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(place / name) if target == "pipe" else (place / name).symlink_to(target)
    write(place / "ana" / "running_mean_loop.py", solved("running_mean_loop"))
    grades = {(grade.learner, grade.exercise): grade for grade in grade_all(tasks_of(place))}
    assert grades["ana", "running_mean_loop"].right
    for learner, exercise in (("ana", "cache"), ("bob", "running_mean_loop")):
        found = grades[learner, exercise]
        assert found.verdict == "cannot tell"
        assert found.sentence in (f"a link to {target}, and not a file of {learner}", "a pipe, not a plain file")
    if target != "pipe":
        target = "a device" if target.startswith("/dev") else "a file of the system"
    with pytest.raises(UserError, match=rf"cache\.py: (a )?{target}, not a plain file"):
        grade_one(place / "ana" / "cache.py", "multi_head")


def test_without_fork_each_file_has_a_server_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, which has no fork."""
    monkeypatch.setattr(confinement, "FORKS", False)
    without = "import os; del os.fork; from minigpt.grading import confined; confined.FORKS = False; confined.serve()"
    monkeypatch.setattr(confinement, "SERVE", without)
    files = {"right": "", "leaves": "import os; os._exit(0)", "reads": "input()", "says": "print('{}' * 10)"}
    said = {}
    with Confined(QUICK) as confined:
        for name, first in files.items():
            path = write(tmp_path / f"{name}.py", f"{first}\n{solved('running_mean_loop')}")
            said[name] = grade_exercise(Task(path, "running_mean_loop", "ana"), confined)
    assert {name: grade.verdict for name, grade in said.items()} == {
        "right": "right",
        "leaves": "stopped",
        "reads": "wrong",
        "says": "right",
    }


def test_a_folder_without_exercises_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no exercise"):
        tasks_of(tmp_path)


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


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_ctrl_c_ends_the_command_and_all_that_it_started(tmp_path: Path) -> None:
    for learner in ("ana", "ben", "cem"):
        write(tmp_path / "class" / learner / "cache.py", f"MARK = {str(tmp_path)!r}\nimport time\ntime.sleep(10_000)")
    command, one = command_line("check.py", "class"), {min(os.sched_getaffinity(0))}
    started = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, one),  # on one processor: one server, and two files that wait for it
    )  # fmt: skip
    wait_until(lambda: len(descendants(started.pid)) >= 2, started)  # a server, and its fork
    family = descendants(started.pid)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert (started.returncode, said.decode().splitlines()[-1]) == (130, "stopped")
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in family))


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    with suppress(OSError):
        threads = Path("/proc", str(pid), "task").iterdir()
        own = [int(word) for thread in threads for word in (thread / "children").read_text().split()]
        return own + [further for each in own for further in descendants(each)]
    return []
