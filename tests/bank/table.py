"""The bank's table: what the checker says of each program.

    python tests/bank/table.py                  every program, about three minutes on one core
    python tests/bank/table.py rotary window    those whose target or name contains a word
    python tests/bank/table.py --show           with each program's verdict, and its seconds of processor time
    python tests/bank/table.py --write          puts the table into README.md, and what went wrong into gaps.txt

How programs are written: tests/bank/README.md.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from minigpt.checks.learners.confined import Confined, Outcome
from minigpt.checks.learners.verdict import Report

LEARNERS = Path(__file__).with_name("learners")
FOUND = "found"  # the target of programs of which nobody says what they are
KEYS = "target|of|right|convention|wrong|words|seen"


@dataclass(frozen=True)
class Program:
    """A learner's file, and what it should be found to be."""

    name: str
    target: str
    truth: str
    """right, convention or wrong."""
    about: str
    words: str
    code: str

    def named_by(self, sentences: list[str]) -> bool:
        """Whether sentences name this program's bug: every group of words has one that they contain."""
        said = " ".join(sentences).lower()
        return all(any(word.strip().lower() in said for word in group.split("|")) for group in self.words.split(","))

    def write(self, folder: Path) -> Path:
        """The file, as a learner would hand it in."""
        path = folder / f"{self.name}.py"
        path.write_text(self.code, encoding="utf-8")
        return path


def read(path: Path) -> list[Program]:
    """The programs of a file, in order. Raises ValueError with the name of a program that is not written properly."""
    top, *parts = re.split(r"^# === ", path.read_text(encoding="utf-8"), flags=re.M)
    (of_file,) = re.findall(r"^# target: (.*)$", top, flags=re.M)
    programs = dict[str, Program]()
    for part in parts:
        name, _, text = part.partition("\n")
        lines = re.match(rf"(?:# (?:{KEYS}): .*\n)*", text)
        assert lines is not None
        header, code = dict(re.findall(r"^# (\w+): (.*)$", lines[0], flags=re.M)), text[lines.end() :]
        truths, of = {"right", "convention", "wrong"} & set(header), header.get("of", "")
        if len(truths) != 1 or name in programs or of not in ("", *programs):
            raise ValueError(f"{name} stands twice, is not said to be right or wrong, or its base is not above it")
        base, truth = programs.get(of), truths.pop()
        target = header.get("target", base.target if base else of_file)
        code = replaced(base.code, code, name) if base else code
        programs[name] = Program(name, target, truth, header[truth], header.get("words", ""), code)
    return list(programs.values())


def replaced(code: str, change: str, name: str) -> str:
    """Another program's code with runs of `#- old` lines replaced by the `#+ new` lines that follow them."""
    runs = r"((?:^#-.*\n)+)((?:^#\+.*(?:\n|\Z))*)"
    if stray := re.sub(runs, "", change, flags=re.M).strip():
        raise ValueError(f"{name}: expected lines that begin with #- or #+, found {stray.splitlines()[0]!r}")
    for old, new in re.findall(runs, change, flags=re.M):
        before, after = re.sub(r"^#-", "", old, flags=re.M), re.sub(r"^#\+", "", new, flags=re.M)
        if code.count(before) != 1:
            raise ValueError(f"{name}: lines that stand {code.count(before)} times in its base, not once:\n{before}")
        code = code.replace(before, after)
    return code


def bank() -> list[Program]:
    """All programs."""
    return [program for path in sorted(LEARNERS.rglob("*.py")) for program in read(path)]


@dataclass(frozen=True)
class Judged:
    """What the checker said of a program."""

    program: Program
    verdict: str
    sentences: list[str]
    seconds: float
    """Of processor time, without importing torch: other programs change it little."""

    @property
    def result(self) -> str:
        """One word for what came of it."""
        said_right, truth = self.verdict.startswith("right"), self.program.truth
        if self.verdict == "cannot tell":
            return "cannot tell"
        if truth != "wrong":
            return "passed" if said_right else "false alarm"
        return "missed" if said_right else "named" if self.program.named_by(self.sentences) else "not named"

    @property
    def well(self) -> bool:
        """Whether a wrong program was named, and a right one passed."""
        return self.result in ("named", "passed")


def judge(program: Program, confined: Confined) -> Judged:
    """Check a program as a user's file is checked, in a process of its own, with its listing."""
    target = "" if program.target == FOUND else program.target
    with tempfile.TemporaryDirectory() as folder:
        outcome = confined.check(program.write(Path(folder)), target, lines=True)
    return judged_by(program, outcome)


def judged_by(program: Program, outcome: Outcome) -> Judged:
    """A program with the outcome of its check."""
    if outcome.report is None:
        return Judged(program, "cannot tell", [outcome.reason], outcome.processor_seconds)
    return Judged(program, outcome.report.verdict, said(outcome.report), outcome.processor_seconds)


def said(report: Report) -> list[str]:
    """What a report says about a program in its own words: not the program's lines, and not how it was called."""
    return [*report.names, *(law.law for law in report.laws), *report.fixes, *report.notes]


def judge_all(programs: Iterable[Program]) -> Iterator[Judged]:
    """Yields each, one after the other."""
    with Confined() as confined:
        confined.check(next(LEARNERS.rglob("*.py")), "running_mean")  # the server imports torch
        for program in programs:
            yield judge(program, confined)


COLUMNS = (
    "right",
    "passed",
    "false alarm",
    "not told",
    "wrong",
    "called wrong",
    "named",
    "missed",
    "left open",
    "seconds",
)


def figures(judged: list[Judged]) -> dict[str, int]:
    """How many programs there are of each column but the last."""
    rights = [one.result for one in judged if one.program.truth != "wrong"]
    bugs = [one.result for one in judged if one.program.truth == "wrong"]
    of_rights = [len(rights), *(rights.count(result) for result in ("passed", "false alarm", "cannot tell"))]
    of_bugs = [bugs.count(result) for result in ("named", "missed", "cannot tell")]
    return dict(zip(COLUMNS, [*of_rights, len(bugs), bugs.count("named") + bugs.count("not named"), *of_bugs]))


def row(name: str, judged: list[Judged]) -> str:
    """A line of the table."""
    listed = " | ".join(map(str, figures(judged).values()))
    return f"| {name} | {listed} | {median(one.seconds for one in judged):.2f} |"


def table(judged: list[Judged]) -> str:
    """Markdown: a line for each target, then all of them, then the slowest."""
    lines = [f"| target | {' | '.join(COLUMNS)} |", f"|---{'|---:' * len(COLUMNS)}|"]
    for target in dict.fromkeys(one.program.target for one in judged):
        lines.append(row(f"`{target}`", [one for one in judged if one.program.target == target]))
    slowest = max(judged, key=lambda one: one.seconds)
    lines.append(row("all", judged))
    return "\n".join([*lines, "", f"The slowest check took {slowest.seconds:.1f} s: `{slowest.program.name}`."])


def write(judged: list[Judged]) -> None:
    """Put how many there are and the table into the README, and the programs that were judged wrongly into gaps.txt."""
    readme, gaps = LEARNERS.with_name("README.md"), LEARNERS.with_name("gaps.txt")
    counts = figures(judged)
    count = f"{len(judged)} programs as learners write them, {counts['right']} right and {counts['wrong']} wrong,"
    before, mark, rest = readme.read_text(encoding="utf-8").partition("<!-- table -->\n")
    before = re.sub(r"^\d+ programs as learners write them, \d+ right and \d+ wrong,", count, before, flags=re.M)
    _, end, after = rest.partition("<!-- end -->")
    readme.write_text(f"{before}{mark}{table(judged)}\n{end}{after}", encoding="utf-8")
    gaps.write_text(
        "".join(sorted(f"{one.result}: {one.program.name}\n" for one in judged if not one.well)), encoding="utf-8"
    )


def main() -> None:
    """Judge, and print."""
    parser = argparse.ArgumentParser(description="How the checker does on the bank of learners' programs.")
    parser.add_argument("words", nargs="*", help="only targets or names that contain one of these")
    parser.add_argument("--show", action="store_true", help="show what is said of each program")
    parser.add_argument("--write", action="store_true", help="put the table into README.md, the gaps into gaps.txt")
    arguments = parser.parse_args()
    if arguments.write and arguments.words:
        parser.error("--write: is for the whole table; leave the words out")
    chosen = [p for p in bank() if not arguments.words or any(w in (p.target + " " + p.name) for w in arguments.words)]
    judged = list[Judged]()
    for one in judge_all(chosen):
        judged.append(one)
        if arguments.show or not one.well:
            what = f"{one.program.target}; {one.program.truth}: {one.program.about}; {one.seconds:.1f} s"
            said_of_it = "".join(f"\n    said: {sentence}" for sentence in one.sentences or [one.verdict])
            print(f"{one.result}: {one.program.name} ({what}){said_of_it}", flush=True)
    print()
    print(table(judged))
    if arguments.write:
        write(judged)


if __name__ == "__main__":
    main()
