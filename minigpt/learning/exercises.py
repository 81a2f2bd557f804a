"""The exercises: one file each, in which the learner writes what is marked "write me". No solutions are included.

A template is `exercises/NAME.txt`: the learner's file, and below the line `---- hint` the hint. The learner's file
holds the hint in rot13, so that nobody reads it by accident.
"""

from __future__ import annotations

import ast
import codecs
import os
import re
import textwrap
from pathlib import Path

from minigpt.learning.languages import exercise_text, language, spoken, text
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
COLUMNS = 120  # of a learner's file
FOLD = "\n---- hint\n"
LARGEST = 1_000_000  # bytes of a learner's file


def target_of(exercise: str) -> str:
    """The target that an exercise is checked as. Raises UserError for an unknown exercise."""
    if exercise not in EXERCISES:
        raise UserError(f"{exercise!r} is no exercise; there are: {', '.join(EXERCISES)}")
    return EXERCISES[exercise]


def template(exercise: str) -> str:
    """The learner's file, without the commands and the hint at its end; its docstrings are in the language in use."""
    target_of(exercise)
    source = (TEMPLATES / f"{exercise}.txt").read_text(encoding="utf-8").partition(FOLD)[0].rstrip() + "\n"
    if language() == "en":
        return source
    lines = source.splitlines()
    for node in sorted(docstrings(ast.parse(source)), key=lambda node: -node.lineno):
        lines[node.lineno - 1 : node.end_lineno] = [translated_docstring(str(node.value), " " * node.col_offset)]
    return "\n".join(lines) + "\n"


def translated_docstring(docstring: str, indent: str) -> str:
    """The lines of a docstring in the language in use."""
    texts = [exercise_text(paragraph) for paragraph in re.split(r"\n\s*\n", docstring.strip())]
    texts[0] = f'"""{texts[0]}'
    filled = [textwrap.fill(each, COLUMNS - 3, initial_indent=indent, subsequent_indent=indent) for each in texts]
    return "\n\n".join(filled) + ('"""' if len(texts) == 1 else f'\n{indent}"""')


def docstrings(tree: ast.AST) -> list[ast.Constant]:
    """The strings of a program that stand alone, and so do nothing."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return [node for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def hint(exercise: str) -> str:
    """The hint, as plain text in the language in use."""
    target_of(exercise)
    english = (TEMPLATES / f"{exercise}.txt").read_text(encoding="utf-8").partition(FOLD)[2].strip()
    return english if language() == "en" else textwrap.fill(exercise_text(english), COLUMNS - 10)


def exercise_file(exercise: str) -> str:
    """The file as it is handed out: the template, how to check and train it, and the hint in rot13."""
    kind = f"model.{'position' if exercise == 'rotary' else 'attention'}=my_{exercise}"
    folded = "\n".join(f"#   {line}" for line in codecs.encode(hint(exercise), "rot13").splitlines())
    plain = text(
        "{command}, which is this in plain letters (rot13):",
        command=as_called(f"python scripts/exercises.py --hint {exercise}{spoken()}"),
    )
    return as_called(
        f"{template(exercise)}\n\n"
        f"# {text('check')}:  python scripts/check.py --exercise {exercise} {exercise}.py\n"
        f"# {text('train')}:  python scripts/train.py --config tiny.yaml --plugin {exercise}.py {kind}\n"
        f"# {text('hint')}:   {plain}\n{folded}\n"
    )


def hand_out(folder: Path) -> tuple[list[Path], list[Path]]:
    """Write the exercises into a folder: (those written, those that were there before and stay as they are)."""
    folder.mkdir(parents=True, exist_ok=True)
    written, existing = list[Path](), list[Path]()
    for exercise in EXERCISES:
        path = folder / f"{exercise}.py"
        if os.path.lexists(path):
            existing.append(path)
            continue
        path.write_text(exercise_file(exercise), encoding="utf-8")
        written.append(path)
    return written, existing


def begun(exercise: str, text: str) -> bool:
    """Whether a file differs from the one that was handed out in more than comments, docstrings and spaces."""
    try:
        return code_of(text) != code_of(template(exercise))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


def code_of(source: str) -> str:
    """A program without its docstrings, as text. Raises what `ast.parse` raises."""
    tree = ast.parse(source)
    for node in docstrings(tree):
        node.value = ""
    return ast.dump(tree)
