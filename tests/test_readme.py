"""The README: short, its commands are those of CI, its code prints what it says, and what it points at is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

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


def test_the_front_door_is_short() -> None:
    assert len(README.splitlines()) <= 180


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
    parts = (ROOT / "minigpt" / part / "README.md" for part in ("attention", "seeing", "comparison"))
    pages = README + "".join(part.read_text(encoding="utf-8") for part in parts)
    dark, light = (set(re.findall(rf"data/pictures/(\w+)-{theme}\.(svg|webp)", pages)) for theme in ("dark", "light"))
    assert len(light) == 6 and dark == light
    files = sorted((ROOT / "data" / "pictures").iterdir())
    assert [path.name for path in files] == sorted(
        f"{name}-{theme}.{form}" for name, form in light for theme in ("dark", "light")
    )
    assert all(path.stat().st_size <= 100_000 for path in files)


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


def test_the_example_of_your_own_attention_works() -> None:
    (code,) = (block for block in blocks("python") if "class Bounded" in block)
    known: dict[str, Any] = {}
    exec(code.replace('kind="bounded"', 'kind="bounded_of_the_readme"'), known)
    from minigpt import GPT, ModelConfig
    from minigpt.attention import Attention
    from minigpt.config.options import from_dict

    options = {"n_layer": 1, "n_embd": 8, "block_size": 4, "attention": {"kind": "bounded_of_the_readme", "n_head": 2}}
    try:
        (attention,) = GPT(from_dict(ModelConfig, options), 5).attentions()
        query, key = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4)
        assert attention.scores(100 * query, key).abs().max() <= 1
    finally:
        del Attention.kinds["bounded_of_the_readme"]
