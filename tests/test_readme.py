"""The README: its commands come first and are those of CI, its code prints what it says, what it points at is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.text.languages.reader import read
from minigpt.text.languages.stories import MEN, WOMEN

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(path for path in ROOT.rglob("*.md") if not {".venv", "runs", "build"} & set(path.parts))


def blocks(language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The names by which a link can point at a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_first_screen_says_what_to_type() -> None:
    first_screen = "\n".join(README.splitlines()[:24])
    assert blocks("bash")[0] in first_screen + "\n"


def test_ci_runs_the_two_commands_as_they_stand() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace(" -q", "")
    both = [line.split("  ")[0] for line in blocks("bash")[0].splitlines()]
    assert len(both) == 2
    for command in (part for line in both for part in line.split(" && ")):
        assert f"\n{command}" in ci or f"&& {command}" in ci, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for link in (link for link in links if "://" not in link):
        name, _, anchor = link.partition("#")
        assert (page.parent / name).exists(), link
        assert not anchor or anchor in anchors(page.parent / name if name else page), link


def test_every_picture_is_small_and_drawn_for_both_themes() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    dark, light = (set(re.findall(rf"data/pictures/(\w+)-{theme}\.(svg|webp)", pages)) for theme in ("dark", "light"))
    assert light and dark == light
    files = sorted((ROOT / "data" / "pictures").iterdir())
    assert [path.name for path in files] == sorted(
        f"{name}-{theme}.{form}" for name, form in light for theme in ("dark", "light")
    )
    assert all(path.stat().st_size <= 100_000 for path in files)


QUOTED = r"""(["'])((?:(?!\1)[^\\`])+)\1"""
CALLS = rf"\.(?:generate|stream|explore|attention|show_attention|maps)\({QUOTED}"
HEROES = "|".join(MEN + WOMEN)


def texts_of(path: Path) -> list[str]:
    """The text of a file with its continued lines joined; of a program its strings and, as one text, its comments."""
    text = path.read_text(encoding="utf-8").replace("\\\n", "")
    if path.suffix != ".py":
        return [text]
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    comments = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    return [*(f'"{one.strip()}"' if "\n\n" not in one else one for one in strings if isinstance(one, str)), comments]


def prompts_of(path: Path) -> set[str]:
    """The texts that a file gives a model to read: those of commands and calls, and quoted ones that begin a story."""
    found = set()
    for text in texts_of(path):
        commands = (line for line in re.split(r"\n(?=.)|&&|\|\|", text) if "shakespeare" not in line)
        found |= {said for command in commands for _, said in re.findall(rf"--prompt[ =]{QUOTED}", command)}
        found |= {said for _, said in re.findall(CALLS, text)}
        found |= {said for _, said in re.findall(QUOTED, text) if re.match(rf"(?:{HEROES}) was a ", said)}
    return found


def test_a_model_can_read_every_text_that_it_is_given() -> None:
    """Each prompt, but for those to weights from elsewhere, begins a story that the grammar tells."""
    endings = {".md", ".py", ".yaml", ".js", ".html"}
    paths = [path for part in ("minigpt", "scripts", "configs") for path in (ROOT / part).rglob("*.*")]
    paths = [path for path in paths if path.suffix in endings and path.parent.name != "hub"]
    paths += [*ROOT.glob("*.md"), *(ROOT / "data").glob("*.md"), ROOT / ".ci" / "run"]
    prompts = {path.relative_to(ROOT).as_posix(): prompts_of(path) for path in paths}
    assert sum(map(len, prompts.values())) > 20
    for name, told in prompts.items():
        for prompt in told:
            story = "\n" + prompt.lstrip("\n")
            reading = read(story)
            assert all(reading.ideal) and len(reading.ideal) == len(story), f"{name}: {prompt}"


def test_the_first_numbers_are_what_the_comments_say() -> None:
    """And they show it: every token's largest weight is its own."""
    (code,) = (block for block in blocks("python") if "attention_weights" in block)
    known: dict[str, Any] = {}
    exec(code, known)
    lines = re.findall(r"^print\((.*)\)  # (\[\[.*\]\])", code, flags=re.M)
    assert len(lines) == 2
    for expression, printed in lines:
        said = torch.tensor([[float(n) for n in row.split(",")] for row in re.findall(r"\[([^\[\]]+)\]", printed)])
        torch.testing.assert_close(eval(expression, known), said, rtol=0, atol=0.006)
    weights = eval("attention_weights(x, x)", known)
    assert weights.argmax(dim=-1).tolist() == [0, 1, 2]
