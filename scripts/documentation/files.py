"""The page of a file: what it is, what is in it, its source. Of a lesson: its cells with their outputs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import minigpt
from documentation.formulas import formulas
from documentation.kinds import kind_parts
from documentation.markdown import ROOT, code, link, prose, source_of
from minigpt.attention import Attention
from minigpt.learning.as_page import run
from minigpt.learning.course import Lesson

LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}  # others are shown as they are


def file_page(file: Path) -> str:
    """A file of the repository that is not Markdown."""
    source = (ROOT / file).read_text(encoding="utf-8")
    title, parts = file.as_posix().replace("_", "\\_"), list[str]()
    if file.suffix == ".py":
        tree = ast.parse(source)
        kind = next((kind for kind in Attention.kinds.values() if source_of(kind) == file), None)
        about = prose(ast.get_docstring(tree) or "", file.parent)
        title = kind.kind if kind else file.parent.name if file.name == "__init__.py" else title
        parts += [formulas(about), *kind_parts(kind)] if kind else [about]
        public = list(outline(tree, file.parent)) if file.parts[0] == "minigpt" else []
        parts += ["## What is in it", *public] if public else []
        parts.append(f"## Source\n\n`{file.as_posix()}`")
    return "\n\n".join([f"# {title}", *parts, code(source, LANGUAGES.get(file.suffix, "none")), ""])


def outline(tree: ast.Module, folder: Path) -> Iterator[str]:
    """The public classes and functions of a file, with what their docstrings say."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            methods = node.body if isinstance(node, ast.ClassDef) else []
            described = [method for method in methods if isinstance(method, ast.FunctionDef) and says(method)]
            yield "\n\n".join([f"### `{node.name}`", *(entry(each, folder) for each in (node, *described))])


def says(method: ast.FunctionDef) -> bool:
    """Whether a method is public and has a docstring."""
    return not method.name.startswith("_") and ast.get_docstring(method) is not None


def entry(node: ast.ClassDef | ast.FunctionDef, folder: Path) -> str:
    """The first line of a class or of a function, and its docstring."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, [*node.bases, *node.keywords]))
        first = f"class {node.name}({bases})" if bases else f"class {node.name}"
    else:
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        first = f"def {node.name}({ast.unparse(node.args)}){returns}"
    return f"{code(first, 'python')}\n\n{prose(ast.get_docstring(node) or '', folder)}"


def api_page() -> str:
    """What `import minigpt` gives, and every file of the package with its first sentences."""
    parts = ["# API", "What `import minigpt` gives:"]
    for name in minigpt.__all__:
        thing = getattr(minigpt, name)
        if not hasattr(thing, "__module__"):  # a constant
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
        assert isinstance(node, (ast.ClassDef, ast.FunctionDef))
        file = source_of(thing)
        parts += [f"## `{name}`", entry(node, file.parent), f"Its file: {link(f'`{file.as_posix()}`', file)}."]
    parts += ["## Every file"]
    for file in sorted(path.relative_to(ROOT) for path in (ROOT / "minigpt").rglob("*.py")):
        docstring = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8"))) or ""
        first = " ".join(docstring.split("\n\n")[0].split())
        parts.append(f"- {link(f'`{file.as_posix()}`', file)}: {prose(first, file.parent)}")
    return "\n\n".join(parts)


def lesson_page(lesson: Lesson) -> str:
    """A lesson with its outputs, as they are now; answers, and the code that computes them, are folded."""
    names, parts = {"__name__": lesson.path.stem}, [f"# {lesson.number}. {lesson.title}", lesson.about]
    for cell in lesson.cells:
        outputs = "\n".join(output.html for output in run(cell, names, lesson.path))
        shown = code(outputs, "{raw} html") if outputs else ""
        if cell.kind == "markdown":
            parts.append(cell.source)
        elif cell.waits:
            parts.append("*Make your guess, then open the answer.*")
        elif cell.answers and cell.computes:
            how = "<details><summary>How it was computed</summary>"
            parts += [shown, how, code(cell.computes, "python"), "</details>"]
        else:
            parts += [code(cell.computes, "python"), shown] if cell.computes else [shown]
    return "\n\n".join(parts)
