"""The examples that a page shows work when a reader copies them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, furnish, script

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CHECKOUT = ("minigpt", "scripts", "tests", "configs", "data/pictures", "data/README.md", ".ci", "pyproject.toml")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_kind_of_attention_on_a_page_trains_and_samples(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
    code = next(block for block in blocks if 'kind="' in block)
    kind = code.partition('kind="')[2].partition('"')[0]
    (furnish(tmp_path) / "mine.py").write_text(code, encoding="utf-8")
    words = ("--config", "small.yaml", "--plugin", "mine.py", f"model.attention={kind}")
    trained = script("train.py", *words, cwd=tmp_path)
    assert trained.code == 0 and "note:" not in trained.out, trained.err
    sampled = script("sample.py", "--plugin", "mine.py", "--prompt", "the", cwd=tmp_path)
    assert sampled.code == 0 and sampled.out.startswith("the"), sampled.err


@pytest.fixture(scope="module")
def contributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with the kind of CONTRIBUTING.md: its file, and its line in the list of the book."""
    folder = tmp_path_factory.mktemp("contributed")
    for name in (*CHECKOUT, *(path.name for path in ROOT.glob("*.md"))):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    [path] = re.findall(r"^Put it into the folder of its family, `(.*?)`", CONTRIBUTING, flags=re.M)
    (folder / path).write_text(CONTRIBUTING.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    book, (above, line) = folder / "minigpt" / "README.md", ("        multi_head\n", f"        {Path(path).stem}\n")
    text = book.read_text("utf-8")
    assert above in text
    book.write_text(text.replace(above, above + line, 1), encoding="utf-8")
    if (types := ROOT / ".mypy_cache").is_dir():  # those of torch among them, which take longest
        shutil.copytree(types, folder / types.name)
    for command in WRITES:
        follow(command, folder)
    return folder


def follow(command: str, folder: Path) -> None:
    """Run a command of the page in a checkout, the tests in one process."""
    words = shlex.split(command)
    words = words[1:] if words[0] == "python" else ["-m", *words]
    more = ["-q", "-n", "0", "-p", "no:cacheprovider"] if words[1:2] == ["pytest"] else []
    ran, env = [sys.executable, *words, *more], {**os.environ, "PYTHONPATH": str(folder)}
    ended = subprocess.run(ran, cwd=folder, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"


RECIPE = re.findall(r"^ {6}((?:python|pytest) .*)$|`(pytest tests/test_contract.*?)`", CONTRIBUTING, flags=re.M)
COMMANDS = [listed or inline for listed, inline in RECIPE]
WRITES = [command for command in COMMANDS if command.startswith("python ")]
QUICK = [command for command in COMMANDS if "test_contract" in command]
CHECKS = re.findall(r"^    (ruff .*)$", CONTRIBUTING, flags=re.M)


@pytest.mark.slow
def test_the_recipe_for_a_kind_ends_green(contributed: Path) -> None:
    assert WRITES and QUICK and CHECKS
    for command in (*QUICK, *(check for line in CHECKS for check in line.split(" && ") if check != "mypy")):
        follow(command, contributed)


@pytest.mark.slow
@pytest.mark.parametrize("command", [*(each for each in COMMANDS if each not in (*WRITES, *QUICK)), "mypy"])
def test_the_longer_part_of_the_recipe_ends_green(command: str, contributed: Path) -> None:
    assert any("mypy" in line for line in CHECKS)
    follow(command, contributed)


TABLE = [line.split("|")[1:-1] for line in re.findall(r"^\|.*\|$", CONTRIBUTING, flags=re.M)][2:]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0].strip())
def test_what_the_page_names_for_a_change_is_there(row: list[str]) -> None:
    """Files of the package, its pages and its tests, and names that stand in one of these files."""
    folders = (ROOT / "minigpt", ROOT / "tests", ROOT)
    words = [word for cell in row for word in re.findall(r"`([^` ]+)`", cell) if "NAME" not in word]
    paths = [path for word in words for folder in folders if (path := folder / word).exists()]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    code = "\n".join(file.read_text("utf-8") for file in files if file.suffix == ".py")
    missing = [word for word in words if not any((folder / word).exists() for folder in folders)]
    assert [word for word in missing if not re.search(rf"\b{re.escape(word)}\b", code)] == []
