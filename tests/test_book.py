"""The book: a file imports only files above it in the list, and begins with what it is."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import script

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "minigpt" / "README.md"


def reading_order(text: str) -> list[str]:
    """The modules in the order of the book's list; a folder itself comes after all that is in it."""
    lines = re.findall(r"^( *)(\w+)(?: .*)?$", text.split("```")[1], flags=re.M)
    order, above = list[str](), list[str]()
    for indent, name in lines:
        depth = len(indent) // 4
        while len(above) > depth:
            order.append(".".join(above))
            above.pop()
        above.append(name)
    while above:
        order.append(".".join(above))
        above.pop()
    return [*order, ""]  # the package itself: its list of contents is read first and imported last


ORDER = reading_order(BOOK.read_text(encoding="utf-8"))
READABLE = {".py", ".md", ".yaml", ".yml", ".toml", ".cfg", ".txt", ".sh", ""}


def module_name(path: Path) -> str:
    """minigpt/attention/base.py -> attention.base; minigpt/attention/__init__.py -> attention."""
    parts = path.relative_to(ROOT / "minigpt").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "minigpt").rglob("*.py"))}
SOURCES = sorted(p for folder in ("minigpt", "scripts", "tests") for p in (ROOT / folder).rglob("*.py")
                 if not p.is_relative_to(ROOT / "tests" / "bank" / "learners"))  # fmt: skip


def imported(source: str, modules: set[str]) -> Iterator[str]:
    """The modules of the package that a source imports, anywhere in it; importing one of its names is importing it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the order"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("minigpt.") in modules else str(node.module) for name in inside]
        else:
            continue
        for name in names:
            if name == "minigpt" or name.startswith("minigpt."):
                yield name.removeprefix("minigpt").removeprefix(".")


def imports_from_below(name: str, source: str) -> list[str]:
    """What a module imports that does not come before it in the book."""
    before = set(ORDER[: ORDER.index(name)])
    return [module for module in imported(source, set(ORDER)) if module not in before]


def test_every_file_has_its_place_in_the_book() -> None:
    assert set(MODULES) - set(ORDER) == set()


def test_a_file_imports_only_files_above_it() -> None:
    here = [name for name in MODULES if name in ORDER]
    found = {name: imports_from_below(name, MODULES[name].read_text(encoding="utf-8")) for name in here}
    assert {name: below for name, below in found.items() if below} == {}


def test_the_list_is_read_as_it_stands() -> None:
    book = "x\n```\nsystem      first\n    errors   one\nmodel\n    heads\n        one\n    gpt\ncommand\n```\n"
    expected = "system.errors system model.heads.one model.heads model.gpt model command"
    assert reading_order(book) == [*expected.split(), ""]


def test_every_line_of_the_list_is_a_file() -> None:
    assert set(ORDER) - set(MODULES) == set()
    assert len(ORDER) == len(set(ORDER))


def imports_of_commands(source: str) -> set[str]:
    """The names of scripts/ that a source imports: from outside the package."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    commands = {path.stem for path in (ROOT / "scripts").iterdir() if path.suffix == ".py" or path.is_dir()}
    return {name for name in names if name.partition(".")[0] in {"scripts", *commands}}


def test_the_package_imports_nothing_of_the_commands() -> None:
    assert imports_of_commands("import begin\ndef f():\n    from benchmarks.report import Spread, scripts") == {
        "begin",
        "benchmarks.report",
    }
    assert imports_of_commands("from minigpt import command\nfrom minigpt.hub import check\nimport trains") == set()
    found = {name: imports_of_commands(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
    assert {name: commands for name, commands in found.items() if commands} == {}


def test_the_walk_finds_an_import_from_below() -> None:
    assert imports_from_below("attention.cache", "from minigpt import model") == ["model"]
    assert imports_from_below("attention.cache", "from minigpt.attention import Attention") == ["attention"]
    assert imports_from_below("attention.cache", "from minigpt.attention import base") == ["attention.base"]
    assert imports_from_below("attention.cache", "import minigpt.model") == ["model"]
    assert imports_from_below("attention.cache", "from minigpt import load") == [""]
    assert imports_from_below("attention.cache", "def late():\n    from minigpt.training.run import load") == [
        "training.run"
    ]
    assert imports_from_below("model", "import torch\nfrom minigpt.attention import Attention, base") == []
    assert imports_from_below("model.gpt", "from minigpt.fast import make_fast") == ["fast"]


DOORS = [name for name in ORDER if name in {path.name for path in (ROOT / "minigpt").iterdir() if path.is_dir()}]


def said_imports(words: str, door: str) -> set[str]:
    """The parts that a part says it imports: "no other part", "the parts up to checks", "system, config"."""
    above = DOORS[: DOORS.index(door)]
    if words in ("no other part", "all other parts"):
        return set(above) if words.startswith("all") else set()
    last = words.removeprefix("the parts up to ")
    return set(above[: above.index(last) + 1] if last != words else words.split(", "))


@pytest.mark.parametrize("door", DOORS)
def test_a_part_says_what_comes_in_what_goes_out_and_what_it_imports(door: str) -> None:
    words = " ".join((ast.get_docstring(ast.parse(MODULES[door].read_text(encoding="utf-8"))) or "").split())
    match = re.search(r"\bIn: .+\. Out: .+\. Imports: ([\w, ]+)\.", words)
    assert match is not None, words
    files = [path for name, path in MODULES.items() if name.partition(".")[0] == door]
    modules = {name for path in files for name in imported(path.read_text(encoding="utf-8"), set(ORDER))}
    used = {name.partition(".")[0] for name in modules} - {door}
    said = said_imports(match[1], door)
    assert used <= said and (used == said or "parts" in match[1])


WALK = """
import sys
from pathlib import Path

import minigpt
from minigpt.config.options import load
from minigpt.training import start
from minigpt.training.assemble import RunConfig
from minigpt.training.run import load as load_run

package, visits = str(Path(minigpt.__file__).parent), []


def visit(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package) and code.co_name != "<module>":
        visits.append((code.co_filename, code.co_firstlineno))


options = ["data.source=text.txt", "data.validation=0.3", "training.max_steps=2", "training.sample_every=2"]
options += ["training.batch_size=2", "training.fast=false", "model.block_size=8", "model.n_layer=1"]
options += ["sampling.max_tokens=4"]
sys.setprofile(visit)
start.start(load(RunConfig, "tiny.yaml", options), "life", [], allow_leak=False, skip_checks=True).fit()
load_run("runs/life", fast=False).generate("t", max_tokens=2)
sys.setprofile(None)
lines = (f"{Path(file).relative_to(package).as_posix()} {line}" for file, line in visits)
Path("visits.txt").write_text("\\n".join(lines), encoding="utf-8")
"""


def first_line(path: Path, name: str) -> int:
    """The line at which a function, or a method such as `GPT.forward`, begins, with its decorators."""
    nodes: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.split("."):
        node = next(one for one in nodes if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == part)
        nodes = node.body
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def test_the_life_of_a_token_is_walked(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 20, encoding="utf-8")
    (tmp_path / "walk.py").write_text(WALK, encoding="utf-8")
    assert script(tmp_path / "walk.py", cwd=tmp_path).code == 0
    visits = [tuple(line.split()) for line in (tmp_path / "visits.txt").read_text("utf-8").splitlines()]
    page = BOOK.read_text(encoding="utf-8").split("## The life of a token")[1]
    rows = re.findall(r"^\| \d+ \| \[`([\w.]+)`\]\(([\w/.]+)\) \| .+ \| (.*)\|$", page, flags=re.M)
    remaining = iter(visits)
    for name, file, _ in rows:  # in this order
        place = (file, str(first_line(BOOK.parent / file, name)))
        assert place in visits, f"{name} is not passed"
        assert place in remaining, f"{name} is passed before what stands above it"
    files = {file for file, _ in visits if not file.startswith("system/")}
    beside = {word for _, _, words in rows for word in re.findall(r"`([\w/]+)`", words)}
    unnamed = [file for file in sorted(files - {file for _, file, _ in rows})
               if not any(f"/{file}".endswith(f"/{word}.py") for word in beside)]  # fmt: skip
    assert len(rows) == 20 and unnamed == []


def renames_and_removals(source: str) -> list[int]:
    """The lines in which files are renamed or removed by the functions of Python, which do not try again."""
    moves = {"rename", "renames", "unlink", "rmdir", "rmtree", "removedirs"}
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        of_os = ast.unparse(call.func) in ("os.remove", "os.replace", "shutil.move")
        of_path = name == "replace" and len(call.args) == 1 and not call.keywords  # not a text's
        found += [call.lineno] * (name in moves or of_os or of_path)
    return found


def test_files_are_renamed_and_removed_in_one_place() -> None:
    assert renames_and_removals("a.unlink()\nshutil.rmtree(a)\nos.replace(a, b)\na.replace(b)\nos.remove(a)") == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert (
        renames_and_removals('a.replace("b", "c")\na.remove(1)\nreplace(a, b=1)\nsignature.replace(parameters=[])')
        == []
    )
    found = {name: renames_and_removals(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
    assert {name for name, lines in found.items() if lines} == {"system.moving"}


def test_every_file_opens_with_what_it_is() -> None:
    opening = re.compile(r'(#.*\n|\s*\n)*r?"""\s*[^\s"]')
    assert opening.match('#!/bin/x\n\n"""What it is."""\n') and not opening.match('x = 1\n"""What it is."""\n')
    assert [str(path) for path in SOURCES if not opening.match(path.read_text(encoding="utf-8"))] == []


def test_no_script_hides_a_standard_module() -> None:
    """`python scripts/x.py` puts scripts/ first on the path."""
    names = {path.stem for path in (ROOT / "scripts").iterdir()}
    assert names & set(sys.stdlib_module_names) == set()
    assert names & {"minigpt", "torch", "numpy", "yaml", "tqdm", "tiktoken", "safetensors"} == set()


def texts() -> Iterator[Path]:
    """The texts of the project: all but what is generated, and what git does not keep."""
    folders = ("minigpt", "scripts", "tests", "configs", "docs", ".ci", ".github")
    yield from (path for path in ROOT.glob("*") if path.is_file() and path.name != ".git")  # a worktree's
    for folder in folders:
        yield from (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    yield from (ROOT / "data").glob("*.md")


def test_no_text_names_a_place_on_one_machine() -> None:
    places = ["/" + place + "/" for place in ("work", "home", "Users", "root")]
    for path in texts():
        if path.suffix in READABLE:
            text = path.read_text(encoding="utf-8")
            assert not [place for place in places if place in text], path
