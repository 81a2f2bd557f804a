"""The kinds as a tree: every kind in it once, what hangs where, and one kind looked at closely."""

from __future__ import annotations

import inspect
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from running import ROOT, script

from minigpt.attention import Attention
from minigpt.checks.graph import all_steps
from minigpt.seeing.catalogue import as_markdown, as_svg, as_text, describe, idea, papers, rows
from minigpt.seeing.drawing import THEMES
from minigpt.system.errors import UserError


def test_every_kind_is_in_the_tree_once() -> None:
    assert sorted(name for _, name, _ in rows()) == sorted(Attention.kinds)
    assert len(as_text().splitlines()) == len(Attention.kinds)


def test_a_kind_hangs_below_the_kind_that_its_first_edge_names() -> None:
    above: dict[int, str] = {}
    for depth, name, what in rows():
        if depth:
            assert what[2:].startswith(f"{above[depth - 1]}: ")
        above[depth] = name


@pytest.mark.parametrize("kind", Attention.kinds.values(), ids=Attention.kinds)
def test_the_file_of_a_kind_opens_with_its_idea(kind: type[Attention]) -> None:
    assert 10 < len(idea(kind)) < 150
    assert "arXiv" not in idea(kind)
    opening = inspect.getdoc(inspect.getmodule(kind)) or ""
    assert "\n\n    " in opening and "Cost" in opening  # a formula, and what it costs
    assert "ache:" in opening
    assert kind.kind == "average_loop" or "New against" in opening


def test_the_table_has_each_edge_and_paper() -> None:
    table = as_markdown()
    assert "[multi_head](softmax/multi_head.py)" in table and papers(Attention.kinds["multi_head"]) == ["1706.03762"]
    for step in all_steps():
        assert f"{step.edge.to}: {step.edge.when}".replace("||", "\\|\\|") in table


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_the_picture_has_a_row_for_each_kind(theme: object) -> None:
    texts = [text.text for text in ElementTree.fromstring(as_svg(theme)).iter("{http://www.w3.org/2000/svg}text")]
    assert set(Attention.kinds) <= set(texts)


def test_one_kind_is_described_with_its_edges_measured() -> None:
    text = describe("grouped_query")
    assert "2305.13245" in text and "n_kv_head = None" in text
    assert "grouped_query = multi_head (n_kv_head = n_head): off by" in text
    assert text.splitlines()[-1].strip() == "grouped_query = multi_head (n_kv_head = n_head)"
    steps = "\n".join(["    softmax", "    other softmax", "    weights = softmax - 0."])
    assert steps in describe("differential")
    with pytest.raises(UserError, match="no kind 'multihead'"):
        describe("multihead")


def test_the_command_prints_the_tree(tmp_path: Path) -> None:
    done = script("kinds.py", cwd=tmp_path)
    assert done.code == 0 and "= single_head: n_head = 1" in done.out


def test_the_page_and_the_pictures_are_those_of_the_code() -> None:
    """If not: python scripts/kinds.py --readme."""
    if all(kind.__module__.startswith("minigpt.") for kind in Attention.kinds.values()):  # no test's own kind is left
        assert as_markdown() in (ROOT / "minigpt" / "attention" / "README.md").read_text(encoding="utf-8")
        for name, theme in THEMES.items():
            picture = ROOT / "data" / "pictures" / f"kinds-{name}.svg"
            assert picture.read_text(encoding="utf-8") == as_svg(theme)
