"""The bank of learners' programs: every one can be read and run, and the checker is held against them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import checking
import pytest
import yaml
from bank.table import COLUMNS, LEARNERS, Program, bank, judge, read

from minigpt.checks.learners.confined import Confined

forked_servers = pytest.fixture(scope="module")(checking.forked_servers)
confined = pytest.fixture(scope="module")(checking.one_server)
PROGRAMS = bank()
GAPS = dict(line.split(": ")[::-1] for line in LEARNERS.with_name("gaps.txt").read_text("utf-8").splitlines())
NAMED = {program.name: program for program in PROGRAMS}


def of(target: str, wrong: bool) -> list[Program]:
    """The right or the wrong programs of a target."""
    return [program for program in PROGRAMS if program.target == target and (program.truth == "wrong") == wrong]


def test_the_bank_is_large_enough_to_say_something() -> None:
    counts = Counter(program.truth for program in PROGRAMS)
    assert counts["right"] + counts["convention"] >= 40
    assert counts["wrong"] >= 90
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)


def test_a_wrong_program_says_what_a_naming_must_contain_and_every_program_is_python() -> None:
    for program in PROGRAMS:
        assert program.words or program.truth != "wrong", program.name
        compile(program.code, program.name, "exec")


def test_words_are_groups_of_alternatives() -> None:
    program = Program("x", "multi_head", "wrong", "", "sqrt(D)|width of the model, project", "")
    assert program.named_by(["you divide by SQRT(D)", "the projection is not applied"])
    assert not program.named_by(["you divide by sqrt(D)"])
    assert not program.named_by(["the projection is not applied"])


BASE = "# Shows.\n# target: mlp\n\n# === base\n# right: x\na = 1\nb = 2\nc = 3\nb2 = 2\n\n"


def variant(tmp_path: Path, change: str) -> Program:
    """The second program of a file with a base and a variant of it."""
    path = tmp_path / "programs.py"
    path.write_text(f"{BASE}# === other\n# of: base\n# wrong: y\n# words: z\n{change}", encoding="utf-8")
    return read(path)[1]


def test_a_variant_is_its_base_with_lines_replaced_and_removed(tmp_path: Path) -> None:
    other = variant(tmp_path, "#-a = 1\n#+a = 5\n#+a2 = 6\n#-c = 3\n\n")
    assert other.code.strip() == "a = 5\na2 = 6\nb = 2\nb2 = 2"
    assert (other.name, other.target, other.truth, other.about) == ("other", "mlp", "wrong", "y")


@pytest.mark.parametrize("change", ["#-d = 4\n#+d = 5\n", "#-b", "a = 5\n", "#-a = 1\na = 5\n"])
def test_a_variant_that_does_not_fit_its_base_is_refused_by_its_name(tmp_path: Path, change: str) -> None:
    with pytest.raises(ValueError, match="other"):
        variant(tmp_path, change)


def test_each_file_of_the_bank_says_first_what_it_shows_and_for_which_target() -> None:
    for path in LEARNERS.rglob("*.py"):
        shows, target = path.read_text("utf-8").splitlines()[:2]
        assert re.fullmatch(r"# [A-Z].*[.]", shows) and target.startswith("# target: "), path


def test_the_hooks_for_commits_leave_the_programs_as_they_were_written(tmp_path: Path) -> None:
    """They name every file that was changed, in a folder that the formatter leaves alone when it looks for files."""
    root, learners = Path(__file__).parents[1], "tests/bank/learners"
    shutil.copy(root / "pyproject.toml", tmp_path)
    shutil.copytree(root / learners, tmp_path / learners)
    before = {path: path.read_bytes() for path in (tmp_path / learners).rglob("*.py")}
    (config,) = yaml.safe_load((root / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    entries = [hook["entry"] for hook in config["hooks"] if hook.get("pass_filenames", True)]
    assert "ruff format" in entries
    for entry in entries:
        subprocess.run([sys.executable, "-m", *shlex.split(entry), *map(str, before)], cwd=tmp_path, check=True)
    assert {path: path.read_bytes() for path in before} == before


TARGETS = list(dict.fromkeys(program.target for program in PROGRAMS))
QUICK = {of(target, wrong=place % 2 == 0)[0].name for place, target in enumerate(TARGETS) if "," not in target}
REST = [pytest.mark.slow, pytest.mark.sample(3)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=REST * (name not in QUICK)) for name in NAMED])
def test_a_program_is_judged_as_the_table_says(name: str, confined: Confined) -> None:
    """A right one passes, a wrong one is called wrong and its bug is named; known gaps are no worse than they were."""
    judged = judge(NAMED[name], confined)
    assert judged.well or judged.result == GAPS.get(name), judged


def test_the_table_is_of_all_targets_and_programs_and_the_gaps_are_of_the_bank() -> None:
    """Each row begins with the number of right programs, and has the number of wrong ones in its fifth column."""
    text = LEARNERS.with_name("README.md").read_text("utf-8").partition("<!-- table -->")[2]
    rows = {target: figures.split(" | ") for target, figures in re.findall(r"^\| `(.*)` \| (.*) \|$", text, flags=re.M)}
    counted = [[target, *(str(len(of(target, wrong))) for wrong in (False, True))] for target in TARGETS]
    assert [[target, row[0], row[COLUMNS.index("wrong")]] for target, row in rows.items()] == counted
    assert GAPS.keys() <= NAMED.keys()
