"""The bank's table: how the checker does on learners' files that were written without looking at its list of bugs.

    python tests/bank/table.py                  every program, about five minutes on one core
    python tests/bank/table.py rotary window    those whose target or name contains a word
    python tests/bank/table.py --show           with each program's verdict, and its seconds of processor time
    python tests/bank/table.py --write          puts the table into README.md, and what went wrong into gaps.txt

A program stands in `learners/*.py` between two lines `# === name`, below a header of `# key: value` lines:

    target   what was to be written, as for `check.py --as`
    right, convention or wrong     what it is, and what is unusual or wrong about it
    words    wrong only: what a naming must contain; a comma is "and", a bar is "or"
    seen     where such a bug was reported
    like     another program of the same file, of which lines are replaced: `#- old`, then `#+ new`
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from minigpt.grading.confined import LIMITS, Confined, Limits, Outcome

LEARNERS = Path(__file__).with_name("learners")


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
    """The programs of a file, in order."""
    programs = dict[str, Program]()
    for part in re.split(r"^# === ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        name, _, rest = part.partition("\n")
        header = dict(re.findall(r"^# (\w+): (.*)$", rest, flags=re.M))
        (truth,) = {"right", "convention", "wrong"} & set(header)
        if "like" in header:
            code = replaced(programs[header["like"]].code, rest)
        else:
            code = re.sub(r"^# (target|right|convention|wrong|words|seen): .*\n", "", rest, flags=re.M)
        programs[name] = Program(name, header["target"], truth, header[truth], header.get("words", ""), code)
    return list(programs.values())


def replaced(code: str, change: str) -> str:
    """Another program's code with runs of `#- old` lines replaced by the `#+ new` lines that follow them."""
    for old, new in re.findall(r"((?:^#-.*\n)+)((?:^#\+.*(?:\n|\Z))*)", change, flags=re.M):
        before, after = re.sub(r"^#-", "", old, flags=re.M), re.sub(r"^#\+", "", new, flags=re.M)
        assert code.count(before) == 1, f"stands {code.count(before)} times: {before}"
        code = code.replace(before, after)
    return code


def bank() -> list[Program]:
    """All programs."""
    return [program for path in sorted(LEARNERS.glob("*.py")) for program in read(path)]


@dataclass(frozen=True)
class Judged:
    """What the checker said of a program."""

    program: Program
    verdict: str
    sentences: list[str]
    measured: bool
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
        if said_right:
            return "missed"
        if self.program.named_by(self.sentences):
            return "measured" if self.measured else "named"
        return "caught, not named" if self.measured or not self.sentences else "misnamed"

    @property
    def well(self) -> bool:
        """Whether a wrong program was named, and a right one passed."""
        return self.result in ("named", "measured", "passed")


def judge(program: Program, confined: Confined) -> Judged:
    """Check a program as a user's file is checked, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = confined.check(program.write(Path(folder)), program.target)
    return Judged(program, *said(outcome), outcome.processor_seconds)


def said(outcome: Outcome) -> tuple[str, list[str], bool]:
    """Verdict, sentences, and whether they are measurements."""
    if outcome.answer is None:
        return "cannot tell", [outcome.reason], False
    return outcome.answer["verdict"], outcome.answer["names"], outcome.answer["measured"]


def judge_all(programs: Iterable[Program], limits: Limits = LIMITS) -> list[Judged]:
    """All of them, one after the other."""
    with Confined(limits) as confined:
        confined.check(LEARNERS / "means.py", "running_mean")  # the server imports torch
        return [judge(program, confined) for program in programs]


COLUMNS = ("bugs", "caught", "named", "measured", "misnamed", "not named", "missed", "cannot tell", "", "right",
           "passed", "false alarms", "cannot tell")  # fmt: skip


def row(name: str, judged: list[Judged]) -> str:
    """A line of the table."""
    bugs = [one.result for one in judged if one.program.truth == "wrong"]
    rights = [one.result for one in judged if one.program.truth != "wrong"]
    caught = sum(result not in ("missed", "cannot tell") for result in bugs)
    kinds = [
        bugs.count(kind) for kind in ("named", "measured", "misnamed", "caught, not named", "missed", "cannot tell")
    ]
    others = [rights.count(kind) for kind in ("passed", "false alarm", "cannot tell")]
    return " | ".join(["", name, *map(str, [len(bugs), caught, *kinds, len(rights), *others]), ""]).strip()


def table(judged: list[Judged]) -> str:
    """Markdown: a line for each target, then all of them, then the seconds."""
    head = [column for column in COLUMNS if column]
    lines = [f"| target | {' | '.join(head)} |", f"|---{'|---:' * len(head)}|"]
    for target in dict.fromkeys(one.program.target for one in judged):
        lines.append(row(f"`{target}`", [one for one in judged if one.program.target == target]))
    seconds = sorted(one.seconds for one in judged)
    lines.append(row("all", judged))
    took = f"{median(seconds):.2f} in the median, {seconds[-1]:.1f} for the slowest"
    return "\n".join([*lines, "", f"seconds of processor time a check, without importing torch: {took}"])


def write(judged: list[Judged]) -> None:
    """Put the table between the README's marks, and the programs that were judged wrongly into gaps.txt."""
    readme, gaps = LEARNERS.with_name("README.md"), LEARNERS.with_name("gaps.txt")
    before, mark, rest = readme.read_text(encoding="utf-8").partition("<!-- table -->\n")
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
    chosen = [p for p in bank() if not arguments.words or any(w in (p.target + " " + p.name) for w in arguments.words)]
    judged = judge_all(chosen)
    for one in judged:
        if arguments.show or not one.well:
            what = f"{one.program.target}; {one.program.truth}: {one.program.about}; {one.seconds:.1f} s"
            print(f"{one.result}: {one.program.name} ({what})")
            print(
                "".join(f"    said: {sentence}\n" for sentence in one.sentences) or f"    said: {one.verdict}\n", end=""
            )
    print()
    print(table(judged))
    if arguments.write and not arguments.words:
        write(judged)


if __name__ == "__main__":
    main()
