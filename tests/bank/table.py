"""The bank's table: how the checker does on learners' files that were written without looking at its list of bugs.

    python tests/bank/table.py                  every program, about six minutes on one core
    python tests/bank/table.py rotary window    those whose target or name contains a word
    python tests/bank/table.py --show           with each program's verdict

A program stands in `learners/*.py` between two lines `# === name`, below a header of `# key: value` lines:

    target   what was to be written, as for `check.py --as`
    right, convention or wrong     what it is, and what is unusual or wrong about it
    words    wrong only: what a naming must contain; a comma is "and", a bar is "or"
    seen     where such a bug was reported
    like     another program of the same file, of which lines are replaced: `#- old`, then `#+ new`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

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
