"""The bank of learners' programs: every one can be read and run, and the checker is held against them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from bank.table import COLUMNS, LEARNERS, Program, bank, figures, judge, read

from minigpt.checks.learners.confined import Confined, Limits

PROGRAMS = bank()
GAPS = {line.split(": ")[1] for line in Path(__file__).with_name("bank").joinpath("gaps.txt").read_text().splitlines()}
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


@pytest.fixture(scope="module")
def confined() -> Iterator[Confined]:
    """One server for all programs, with time enough on any machine."""
    with Confined(Limits(processor_seconds=100, seconds=600)) as one:
        yield one


def listed(programs: Sequence[Program]) -> list[str]:
    """A sample: the name of the middle one of those that are not known to be judged wrongly."""
    names = [program.name for program in programs if program.name not in GAPS]
    return names[len(names) // 2 :][:1]


TARGETS = list(dict.fromkeys(program.target for program in PROGRAMS))
RIGHT = [name for target in TARGETS for name in listed(of(target, wrong=False))]
WRONG = [name for target in TARGETS for name in listed(of(target, wrong=True))]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_of_each_target_passes(name: str, confined: Confined) -> None:
    judged = judge(NAMED[name], confined)
    assert judged.result == "passed", judged


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_of_each_target_is_called_wrong_and_its_bug_is_named(name: str, confined: Confined) -> None:
    judged = judge(NAMED[name], confined)
    assert judged.result == "named", judged


ONCE_WRONG = {  # each for a reason of its own
    "einsum_of_a_triangle": "a mask made by `.float()` meets float64, which torch refuses; in a model it is right",
    "rotation_of_one_by_halves": "a rotation alone, where an attention with rotary is wanted",
    "one_sequence_and_softmax_in_float32": "float32 inside: texts of other lengths differ by its rounding",
    "targets_shifted_again": "a law that is broken in a way that other targets allow",
    "additive_buffer_hides_the_token_itself": "its listing: a row in which all is hidden has no head",
    "scores_alone": "its listing: scores are no weights, and have queries all the same",
    "bilinear_form_and_logsumexp": "its listing: a line of which nothing is left to say",
}


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_what_was_judged_wrongly_at_first_is_judged_well(name: str, confined: Confined) -> None:
    judged = judge(NAMED[name], confined)
    assert judged.well, judged


def floors() -> dict[str, dict[str, int]]:
    """For each target the figures of the bank's table, by their columns."""
    text = LEARNERS.with_name("README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(.*)` \| (.*) \|$", text[text.index("<!-- table -->") :], flags=re.M)
    return {target: {name: int(figure) for name, figure in zip(COLUMNS[:-1], figures.split(" | "))}
            for target, figures in lines}  # fmt: skip


def test_the_table_is_of_all_targets_and_programs() -> None:
    told = floors()
    assert list(told) == TARGETS
    for target, floor in told.items():
        assert floor["right"] == len(of(target, wrong=False)), target
        assert floor["wrong"] == len(of(target, wrong=True)), target


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_checker_does_no_worse_than_the_table_says(target: str, confined: Confined) -> None:
    judged = [judge(program, confined) for program in PROGRAMS if program.target == target]
    now, before = figures(judged), floors()[target]
    badly = [f"{one.result}: {one.program.name}: {one.sentences}" for one in judged if not one.well]
    for column in ("passed", "called wrong", "named"):
        assert now[column] >= before[column], (column, badly)
    for column in ("false alarm", "missed"):
        assert now[column] <= before[column], (column, badly)


def test_the_gaps_are_of_the_bank() -> None:
    assert GAPS - NAMED.keys() == set()
