"""The exercises: one file each, in which the learner writes what is marked "write me". No solutions are included.

A template is `exercises/NAME.txt`: the learner's file, and below the line `---- hint` the hint. The learner's file
holds the hint in rot13, so that nobody reads it by accident.
"""

from __future__ import annotations

import ast
import codecs
import os
from pathlib import Path

from minigpt.system.errors import UserError
from minigpt.system.places import as_called

EXERCISES = {  # in order: the name, also of the file, and the target that it is checked as
    "running_mean_loop": "running_mean",
    "running_mean_matrix": "running_mean",
    "running_mean_softmax": "running_mean",
    "dot_product": "dot_product",
    "attention_weights": "attention_weights",
    "single_head": "single_head",
    "multi_head": "multi_head",
    "grouped_query": "grouped_query",
    "rotary": "multi_head,rotary",
    "cache": "multi_head,cache",
    "window": "multi_head,window=4",
    "linear_attention": "linear_attention",
}
TEMPLATES = Path(__file__).with_name("exercises")
FOLD = "\n---- hint\n"
LARGEST = 1_000_000  # bytes of a learner's file


def target_of(exercise: str) -> str:
    """The target that an exercise is checked as. Raises UserError for an unknown exercise."""
    if exercise not in EXERCISES:
        raise UserError(f"{exercise!r} is no exercise; there are: {', '.join(EXERCISES)}")
    return EXERCISES[exercise]


def template(exercise: str) -> str:
    """The learner's file, without the commands and the hint at its end."""
    target_of(exercise)
    return (TEMPLATES / f"{exercise}.txt").read_text(encoding="utf-8").partition(FOLD)[0].rstrip() + "\n"


def hint(exercise: str) -> str:
    """The hint, as plain text."""
    target_of(exercise)
    return (TEMPLATES / f"{exercise}.txt").read_text(encoding="utf-8").partition(FOLD)[2].strip()


def exercise_file(exercise: str) -> str:
    """The file as it is handed out: the template, how to check and train it, and the hint in rot13."""
    kind = f"model.{'position' if exercise == 'rotary' else 'attention'}=my_{exercise}"
    folded = "\n".join(f"#   {line}" for line in codecs.encode(hint(exercise), "rot13").splitlines())
    return as_called(
        f"{template(exercise)}\n\n"
        f"# check:  python scripts/check.py --exercise {exercise} {exercise}.py\n"
        f"# train:  python scripts/train.py --config tiny.yaml --plugin {exercise}.py {kind}\n"
        f"# hint:   python scripts/exercises.py --hint {exercise}, which is this in plain letters (rot13):\n{folded}\n"
    )


def hand_out(folder: Path) -> tuple[list[Path], list[Path]]:
    """Write the exercises into a folder: (those written, those that were there before and stay as they are)."""
    folder.mkdir(parents=True, exist_ok=True)
    written, kept = list[Path](), list[Path]()
    for exercise in EXERCISES:
        path = folder / f"{exercise}.py"
        if os.path.lexists(path):
            kept.append(path)
            continue
        path.write_text(exercise_file(exercise), encoding="utf-8")
        written.append(path)
    return written, kept


def begun(exercise: str, text: str) -> bool:
    """Whether a file differs from the one that was handed out in more than comments and spaces."""
    try:
        return ast.dump(ast.parse(text)) != ast.dump(ast.parse(template(exercise)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
