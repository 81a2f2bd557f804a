"""A class with hostile files is graded all the same, and nothing outside the files' own copies changes.

Whatever a file does, it is a row that says so: it ends by itself, or is stopped; it changes no other row.
"""

from __future__ import annotations

import csv
import os
import re
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import checking
import pytest
from checking import graded, write
from running import forked, wait_until
from slips import CHEATS, SLIPS, Slip
from solutions import solved

from minigpt.checks.learners import confined as confinement
from minigpt.checks.learners.confined import FORGED, Confined, Limits
from minigpt.checks.learners.confined import grade as grade_one
from minigpt.checks.learners.guard import OUTSIDE
from minigpt.learning.classroom import Grade, Task, grade_all, grade_exercise, table, tasks_of, write_csv
from minigpt.learning.exercises import EXERCISES
from minigpt.system.errors import UserError
from minigpt.system.limits import TimeIsUp, landlock_version, not_limited, stopped_after

forked_servers = pytest.fixture(scope="module", autouse=True)(checking.forked_servers)
confined = pytest.fixture(scope="module")(checking.one_server)
JUDGE = "from minigpt.checks.learners import confined, guard; "
UNLOCKED = JUDGE + "guard.landlock = lambda root: None; confined.serve()"
QUICK = Limits(processor_seconds=2, seconds=6, memory=2**29)
PATIENT = replace(QUICK, seconds=120)  # a busy machine ends nobody before what the row is to say
HURRIED = Limits(processor_seconds=1, seconds=120, memory=2**29)  # for what hangs
AWAKE = Limits(processor_seconds=5, seconds=1, memory=2**29)  # for what waits
LOCKED = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")

HOSTILE = {  # what a learner's file does, and what its row says
    "eats_memory": ("x = [torch.empty(50_000_000) for _ in range(10_000)]", "GiB of memory"),
    "eats_bytes": ("x = [bytes(10_000_000) * 2 for _ in range(100_000)]", "GiB of memory"),
    "leaves": ("os._exit(0)", "ended Python itself (exit code 0)"),
    "leaves_politely": ("raise SystemExit(0)", "raises SystemExit"),
    "reads_stdin": ("input()", "EOFError"),
    "forks": ("while True: os.fork()", "may not start processes"),
    "starts_a_shell": ("os.system('touch TOUCHED')", "may not start processes"),
    "spawns": ("import multiprocessing as m; m.get_context('spawn').Process(target=print).start()", "start processes"),
    "deletes_its_folder": ("import shutil, pathlib; shutil.rmtree(pathlib.Path(__file__).parent)", "may not write"),
    "deletes_the_class": ("import shutil; shutil.rmtree('CLASS')", "may not write outside"),
    "renames_another": ("os.rename('CLASS/ana', 'CLASS/zoe')", "may not write outside"),
    "links_to_another": ("os.symlink('CLASS/ana', 'ana'); open('ana/x', 'w')", "may not write outside"),
    "kills_its_parent": ("os.kill(os.getppid(), 9)", "may not send signals"),
    "limits_its_parent": ("import resource; resource.prlimit(os.getppid(), 0, (0, 0))", "may not change its limits"),
    "calls_home": ("import socket; socket.create_connection(('localhost', 9))", "use the network"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "crashed Python (SIGSEGV)"),
    "escapes": ("raise ValueError('\\x1b[2J')", "raises ValueError: \x1b[2J"),
    "is_no_python": ("def f(:", "SyntaxError"),
}
WRITES = {  # each writes a file outside its folder
    "open": "open('TOUCHED', 'w').write('x')",
    "os.open": "os.open('TOUCHED', os.O_CREAT | os.O_WRONLY)",
    "the terminal": "open('/dev/tty', 'w').write('\\x1b[2J')",
    "mkdir": "os.mkdir('TOUCHED')",
    "torch.save": "torch.save({}, 'TOUCHED')",
    "an old torch.save": "torch.save({}, 'TOUCHED', _use_new_zipfile_serialization=False)",
    "module.save": "torch.jit._script.script(torch.nn.Linear(1, 1)).save('TOUCHED')",
    "torch.jit.save": "torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), 'TOUCHED')",
    "profiler": "with torch.profiler.profile() as p: torch.ones(1)\np.export_chrome_trace('TOUCHED')",
    "storage": "torch.UntypedStorage.from_file('TOUCHED', True, 8)",
    "from_file": "torch.from_file('TOUCHED', True, 8)",
    "numpy.save": "np.save('TOUCHED', np.ones(1))",
    "numpy.savez": "np.savez('TOUCHED', np.ones(1))",
    "tofile": "np.ones(1).tofile('TOUCHED')",
    "memmap": "np.memmap('TOUCHED', mode='w+', shape=1)",
    "safetensors": "from safetensors.torch import save_file\nsave_file({'x': torch.ones(1)}, 'TOUCHED')",
    "sqlite3": "import sqlite3; sqlite3.connect('TOUCHED').execute('create table a (b)')",
    "mkfifo": "os.mkfifo('TOUCHED')",
    "a relative path": "torch.save({}, os.path.relpath('TOUCHED'))",
}
TRIES = f"""import functools
@functools.cache
def tried(code):
    try: return exec(code, globals())
    except Exception as error: return str(error)
def not_refused(writers): return [name for name in writers if {OUTSIDE!r} not in str(tried(writers[name]))]
"""
BELOW_PYTHON = {  # what no audit event and no wrapper sees; the kernel refuses it
    "creates": "libc.creat(b'TOUCHED', 0o644)",
    "starts": "libc.system(b'touch TOUCHED')",
    "kills": "libc.kill(os.getppid(), 9)",
    "removes": "libc.unlink(b'CLASS/ana/running_mean_loop.py')",
    "truncates": "libc.truncate(b'CLASS/ana/running_mean_loop.py', 0)",
}
HANGS = {  # where a file hangs, from its second line on, and a part of what is said of it
    "loading": ("class A:\n    while True: pass", "(line 3) to load: what trains or reads data belongs under"),
    "in a constructor": (
        """class A:
    def __init__(self):
        while True: pass
attention = A()""",
        "(line 4) to load",
    ),
    "in a tensor's method": (
        """def forever(*_, **__):
    while True: pass
torch.Tensor.mean = torch.Tensor.sum = forever
def running_mean(x): return x.mean(1, keepdim=True)""",
        "(line 3)",
    ),
    "while it is bound": (
        """class F:
    def __getattribute__(self, name):
        while True: pass
    def __call__(self, x): return x
running_mean = F()""",
        "(line 4)",
    ),
    "and catches everything": (
        """def f():
    while True: pass
class A:
    while True:
        try: f()
        except BaseException: pass""",
        "was killed: it took more than 1 s of processor time",
    ),
    "waiting": ("import time\nclass A: time.sleep(10_000)", "took more than 1 s (line 3)"),
    "waiting, and catches everything": (
        """import time
class A:
    while True:
        try: time.sleep(9)
        except BaseException: pass""",
        "took longer than 1 s",
    ),
}
IMPORTS = "import ctypes, os, torch; import numpy as np; libc = ctypes.CDLL(None)\n"  # one line: no line moves
REPORT = '{"verdict": "right", "target": "running_mean"}'
FORGES = {  # each tries to be believed
    "prints": "print('{\"report\": ' + REPORT + '}')",
    "leaves a result": """for file in range(3, 50):
    try: os.write(file, line)
    except OSError: pass
os._exit(0)""",
    "leaves another's": """for file in range(50):
    other = libc.open(b'/proc/%d/fd/%d' % (os.getppid(), file), 1)
    libc.write(other, line, len(line))""",
}


@pytest.fixture(scope="module")
def unlocked(forked_servers: None) -> Iterator[Confined]:
    """One server for all files, on a system without Landlock."""
    with pytest.MonkeyPatch.context() as patch, Confined(Limits(memory=2**29)) as started:
        patch.setattr(confinement, "SERVE", UNLOCKED)
        started.check(Path(__file__), "multi_head")
        yield started


def acts(code: str, text: str = "def running_mean(x):\n    return x\n") -> str:
    """A file whose function runs this code first: what stands at the top level is not run, as no check needs it."""
    body, text = textwrap.indent(code, "    "), re.sub(r"(?m)^(def \w+\(x.*:)$", r"\1\n    act()", text, count=1)
    return f"{IMPORTS}def act():\n{body}\n\n{text}"


def said_of(code: str, confined: Confined, folder: Path, before: str = "") -> Grade:
    """The grade of a file that runs this code, and then holds the solution. TOUCHED lies outside its folder."""
    code = code.replace("TOUCHED", str(folder / "touched")).replace("CLASS", str(folder / "class"))
    write(folder / "class" / "ana" / "running_mean_loop.py", solved("running_mean_loop"))
    text = before + acts(code, solved("running_mean_loop"))
    return graded(folder / "class" / "bob", "running_mean_loop", text, confined)


# what is refused


@pytest.mark.parametrize("lock", [pytest.param("confined", marks=LOCKED), "unlocked"])
def test_a_file_outside_its_folder_is_refused_whatever_writes_it(
    lock: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    grade = said_of(f"raise ValueError(not_refused({WRITES}))", request.getfixturevalue(lock), tmp_path, TRIES)
    assert not list(tmp_path.glob("touched*"))
    assert grade.sentence.endswith("ValueError: []"), grade.sentence


def test_inside_its_folder_a_file_may_write(confined: Confined, tmp_path: Path) -> None:
    """Also by the writers that are watched outside; and what it has made it may rename and remove."""
    code = "torch.save({}, 'a.pt'); np.save('b', np.ones(1)); os.makedirs('d/e'); os.rename('a.pt', 'd/e/a.pt')\n"
    code += "import sqlite3, tempfile; sqlite3.connect(':memory:')\n"
    code += "sqlite3.connect('c.db').execute('create table if not exists a (b)')\n"
    code += "with tempfile.TemporaryDirectory() as t: open(t + '/x', 'w').write('x')\n"
    code += "import shutil; shutil.rmtree('d'); open(os.devnull, 'w').write('x'); os.remove('c.db')"
    assert said_of(code, confined, tmp_path).verdict == "right"


@LOCKED
@pytest.mark.parametrize("call", BELOW_PYTHON)
def test_what_goes_round_python_is_refused_by_the_kernel(call: str, confined: Confined, tmp_path: Path) -> None:
    grade = said_of(f"{BELOW_PYTHON[call]}\n", confined, tmp_path)
    assert not (tmp_path / "touched").exists()
    assert (tmp_path / "class" / "ana" / "running_mean_loop.py").stat().st_size > 0
    assert grade.verdict == "right", grade  # nothing happened
    assert said_of("pass", confined, tmp_path).verdict == "right"  # the server lives


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such list of processes")
def test_what_a_file_leaves_running_is_killed(confined: Confined, tmp_path: Path) -> None:
    """In a session of its own, too, which the process group does not hold."""
    mark = f"sleeper{os.getpid()}"
    code = "if not libc.fork():\n    libc.setsid(); libc.prctl(15, b'MARK'); libc.sleep(1000)".replace("MARK",
                             mark[:15])  # fmt: skip
    assert said_of(code, confined, tmp_path).verdict == "right"
    names = [path.read_text() for path in Path("/proc").glob("[0-9]*/comm") if path.exists()]
    assert mark[:15] + "\n" not in names


@pytest.mark.parametrize(
    "place", [pytest.param(one, marks=[pytest.mark.slow] * (one not in ("loading", "waiting"))) for one in HANGS]
)
def test_what_hangs_is_stopped_and_its_line_is_told(place: str, tmp_path: Path) -> None:
    code, words = HANGS[place]
    with Confined(AWAKE if place.startswith("waiting") else HURRIED) as confined:
        grade = graded(tmp_path, "running_mean_loop", IMPORTS + code, confined)
    assert (grade.verdict, words in grade.sentence) == ("stopped", True), grade


def test_the_time_of_a_check_is_over_in_the_midst_of_it_and_what_was_set_is_set_back() -> None:
    before = signal.getsignal(signal.SIGPROF), signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeIsUp, match=r"more than 0\.05 s of processor time"), stopped_after(0.05, 600):
        while True:
            pass
    with pytest.raises(TimeIsUp, match=r"more than 0\.05 s$"), stopped_after(600, 0.05):
        signal.pause()
    assert (signal.getsignal(signal.SIGPROF), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


# whose result counts


@pytest.mark.parametrize("way", FORGES)
def test_a_forged_result_is_not_believed(way: str, confined: Confined, tmp_path: Path) -> None:
    """Not one's own, nor one that is written for the next learner."""
    line = f"line = b'{{\"report\": {REPORT}}}\\n'; REPORT = {REPORT!r}\n"
    forged = graded(tmp_path / "bob", "running_mean_loop", line + acts(FORGES[way]), confined)
    assert forged.verdict == ("stopped" if way == "leaves a result" else "wrong"), forged
    if forged.verdict == "stopped":
        assert forged.sentence == FORGED
    wrong = "def running_mean(x):\n    return x\n"
    assert graded(tmp_path / "cem", "running_mean_loop", wrong, confined).verdict == "wrong"


def test_a_file_has_nothing_open_that_leads_to_another(confined: Confined, tmp_path: Path) -> None:
    """But the pipe for its own result."""
    code = "import stat\ndef kind(file):\n    try: return stat.filemode(os.fstat(file).st_mode)[0]\n"
    code += "    except OSError: return ''\nraise ValueError(''.join(map(kind, range(256))))"
    assert "ValueError: cccp" in said_of(code, confined, tmp_path).sentence  # the null device thrice, and the pipe


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
        write(classroom / learner / "running_mean_loop.py", code if learner == "is_no_python" else acts(code))
    before = {path: path.read_bytes() for path in classroom.rglob("*.py")}
    tasks = [task for task in tasks_of(classroom) if task.exercise == "running_mean_loop"]
    grades = grade_all(tasks, PATIENT)
    assert {path: path.read_bytes() for path in classroom.rglob("*.py")} == before
    assert not touched.exists()
    return classroom, grades


@pytest.mark.parametrize("learner", HOSTILE)
def test_a_hostile_file_is_a_row_that_says_so(learner: str, hostile_class: tuple[Path, list[Grade]]) -> None:
    (grade,) = (grade for grade in hostile_class[1] if grade.learner == learner)
    assert HOSTILE[learner][1] in grade.sentence
    assert grade.verdict in ("stopped", "wrong")


def test_it_harms_no_other_row_and_what_is_printed_goes_nowhere(hostile_class: tuple[Path, list[Grade]]) -> None:
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


def test_a_table_says_what_a_system_does_not_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    grades = [Grade("ana", "cache", "right"), Grade("ben", "cache", "wrong", "no mask")]
    monkeypatch.setattr("minigpt.system.limits.landlock_version", lambda: 0)
    assert not_limited() in table(grades) and "no Landlock" in not_limited()
    monkeypatch.setattr("minigpt.system.limits.landlock_version", lambda: 6)
    assert "Landlock" not in table(grades)


def test_a_file_that_cannot_be_read_is_a_row_too(tmp_path: Path, confined: Confined) -> None:
    write(tmp_path / "cache.py", "").write_bytes(b"\xff\xfe")
    (tmp_path / "window.py").mkdir()
    write(tmp_path / "rotary.py", "#" * 1_100_000)
    (tmp_path / "multi_head.py").symlink_to(tmp_path / "nowhere.py")
    said = {name: grade_exercise(Task(tmp_path / f"{name}.py", name, "ana"), confined)
            for name in ("cache", "window", "rotary", "multi_head")}  # fmt: skip
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
    links: dict[str, str | Path] = {
        "aaa": "ana",
        "carl": "nowhere",
        "dora": home,
        "eve": home,
        "fay": "..",
        "gus": "ana/running_mean_loop.py",
    }
    for name, target in links.items():
        (place / name).symlink_to(target)
    grades = grade_all(tasks_of(place))
    rows = {grade.learner: grade for grade in grades if grade.exercise == "running_mean_loop"}
    assert {name: grade.verdict for name, grade in rows.items() if grade.right} == {"ana": "right", "dora": "right"}
    assert {name: grade.sentence for name, grade in rows.items()
            if not grade.right} == {"aaa": "a link to the folder of ana",
            "bob": "a link to ../ana/running_mean_loop.py, and not a file of bob", "carl": "a broken link to nowhere",
            "eve": "a link to the folder of dora", "fay": "a link to the folder of the class"}  # fmt: skip
    assert len(grades) == len(EXERCISES) * len(rows)
    assert next(grade for grade in grades if (grade.learner, grade.exercise) == ("bob", "cache")).report is not None
    every = f"running_mean_loop, running_mean_matrix, running_mean_softmax and {len(EXERCISES) - 3} more"
    assert f"\n   1  {every}: a link to the folder of ana\n      aaa" in table(grades)


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/kmsg", "pipe"])
def test_a_file_that_never_ends_stops_no_class(target: str, tmp_path: Path) -> None:
    """Neither as an answer, nor beside one, also without a link."""
    if target.startswith("/proc") and not os.path.exists(target):
        pytest.skip(f"there is no {target} here")
    place = tmp_path / "class"
    for name in ("ana/helper.py", "ana/cache.py", "bob/running_mean_loop.py"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(place / name) if target == "pipe" else (place / name).symlink_to(target)
    write(place / "ana" / "running_mean_loop.py", solved("running_mean_loop"))
    grades = {(grade.learner, grade.exercise): grade for grade in grade_all(tasks_of(place))}
    assert grades["ana", "running_mean_loop"].right
    for learner, exercise in (("ana", "cache"), ("bob", "running_mean_loop")):
        grade = grades[learner, exercise]
        assert grade.verdict == "cannot tell"
        assert grade.sentence in (f"a link to {target}, and not a file of {learner}", "a pipe, not a plain file")
    if target != "pipe":
        target = "a device" if target.startswith("/dev") else "a file of the system"
    with pytest.raises(UserError, match=rf"cache\.py: (a )?{target}, not a plain file"):
        grade_one(place / "ana" / "cache.py", "multi_head")


def test_without_fork_each_file_has_a_server_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, which has no fork."""
    monkeypatch.setattr(confinement, "FORKS", False)
    monkeypatch.setattr(confinement, "SERVE",
                        f"import os; del os.fork; {JUDGE}confined.FORKS = False; confined.serve()")  # fmt: skip
    line = f"import os; line = b'{{\"report\": {REPORT}}}\\n'\n"
    files = {"right": "", "leaves": "import os; os._exit(0)", "reads": "input()", "prints": "print('{}' * 10)",
             "forges": line + FORGES["leaves a result"]}  # fmt: skip
    said = {}
    with Confined(QUICK) as confined:
        for name, first in files.items():
            text = acts(first or "pass", solved("running_mean_loop"))
            said[name] = graded(tmp_path / name, "running_mean_loop", text, confined)
    assert {name: grade.verdict for name, grade in said.items()} == {"right": "right", "leaves": "stopped",
            "reads": "wrong", "prints": "right", "forges": "stopped"}  # fmt: skip


def test_a_folder_without_exercises_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no exercise"):
        tasks_of(tmp_path)


EACH = [*SLIPS, *CHEATS]


@pytest.mark.quick(4)
@pytest.mark.parametrize("slip", EACH, ids=lambda slip: f"{slip.exercise}: {slip.new[:40]}")
def test_a_usual_slip_of_an_exercise_is_told(slip: Slip, confined: Confined, tmp_path: Path) -> None:
    grade = graded(tmp_path, slip.exercise, slip.code, confined)
    assert grade.report is not None and slip.is_told(grade.report), grade


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_ctrl_c_ends_a_class_and_all_that_it_started(tmp_path: Path) -> None:
    for learner in ("ana", "ben", "cem"):
        write(tmp_path / "class" / learner / "cache.py", f"MARK = {str(tmp_path)!r}\nimport time\ntime.sleep(10_000)")
    grades = "import os; from pathlib import Path; from minigpt.learning.classroom import grade_all, tasks_of\n"
    grades += f"os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"  # on one processor: one server, and two
    grades += "grade_all(tasks_of(Path('class')))"  # files that wait for it
    started = forked([], code=grades, argv=["-c"], cwd=str(tmp_path), env={})
    try:
        wait_until(lambda: len(descendants(started.pid)) >= 2, started)  # a server, and its fork
        family = descendants(started.pid)
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=60)
        wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in family))
    finally:
        started.kill()


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    with suppress(OSError):
        threads = Path("/proc", str(pid), "task").iterdir()
        own = [int(word) for thread in threads for word in (thread / "children").read_text().split()]
        return own + [further for each in own for further in descendants(each)]
    return []
