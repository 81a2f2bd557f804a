"""Figures: sizes and shades that are the numbers, text that stays text, and a story that is broken at its spaces."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from running import furnish, script

from minigpt.seeing.drawing import THEMES
from minigpt.seeing.figures import bars_svg, broken, map_svg, readers_svg

LIGHT = THEMES["light"]


def numbers(picture: str, name: str) -> list[float]:
    """An attribute of every rectangle that has it, the ground left out."""
    return [float(n) for n in re.findall(rf'<rect [^>]*\b{name}="([\d.]+)"', picture)]


def test_a_bar_is_as_long_as_its_value() -> None:
    widths = numbers(bars_svg({"a": 1.0, "b": 0.25, "c": 0.5}, "title", ("mark", 0.75), LIGHT), "width")
    assert widths == [widths[0], widths[0] / 4, widths[0] / 2]


def test_a_cell_is_as_dark_as_its_weight() -> None:
    picture = map_svg(torch.tensor([[1.0, 0.0], [0.25, 0.75]]), ["a", " "], "title", LIGHT)
    assert numbers(picture, "opacity") == [1.0, 0.25, 0.75]  # what weighs nothing is not drawn
    assert picture.count(">a</text>") == picture.count(">␣</text>") == 2


def test_a_negative_weight_has_a_colour_of_its_own_and_the_largest_is_opaque() -> None:
    picture = map_svg(torch.tensor([[2.0, -4.0], [-1.0, 0.0]]), ["a", "b"], "title", LIGHT)
    assert numbers(picture, "opacity") == [0.5, 1.0, 0.25]
    assert picture.count(f'fill="{LIGHT["heat"]}"') == 2 and "orange is below zero" in picture
    assert "orange" not in map_svg(torch.eye(2), ["a", "b"], "title", LIGHT)


def test_a_character_is_as_hot_as_it_was_unexpected() -> None:
    picture = readers_svg("ab", {"one": [1.0, 0.0], "two": [0.5, 0.99]}, "title", LIGHT)
    assert numbers(picture, "opacity") == [0.85, 0.42]
    assert picture.count(">ab</text>") == 2


@pytest.mark.parametrize("name", THEMES)
def test_what_looks_like_markup_is_text(name: str) -> None:
    theme, odd = THEMES[name], '<b>&"'
    pictures = [
        bars_svg({odd: 1.0}, odd, (odd, 0.5), theme),
        map_svg(torch.ones(1, 1), [odd], odd, theme),
        readers_svg(odd, {odd: [0.5] * len(odd)}, odd, theme),
    ]
    for picture in pictures:
        texts = ["".join(element.itertext()) for element in xml.etree.ElementTree.fromstring(picture)]
        assert odd in texts and "<b>" not in picture


@given(st.text("ab ", max_size=40), st.integers(1, 9))
def test_lines_are_the_whole_text_and_none_is_too_long(text: str, line: int) -> None:
    lines = [text[start:end] for start, end in broken(text, line)]
    assert "".join(lines) == text
    assert all(1 <= len(one) <= line for one in lines)
    assert all(one.endswith(" ") or " " not in one for one in lines[:-1])


def test_the_command_draws_every_picture_for_both_themes(tmp_path: Path) -> None:
    home = furnish(tmp_path)
    assert script("train.py", "--config", "small.yaml", "--name", "tiny", cwd=home).code == 0
    chosen = ("--run", "tiny", "--prompt", "the cat", "--layer", 1, "--head", 2, "--out", "made")
    missing = script("pictures.py", *chosen, cwd=home)
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "results.json: no such file: python scripts/compare.py --config ladder.yaml" in missing.err
    folder = home / "runs" / "compare" / "ladder"
    folder.mkdir(parents=True)
    look = {"probabilities": [0.5] * 5}
    example = {"text": "\nAda.", "ideal": [0.1] * 5, "forgetful": [0.2] * 5, "variants": {"one": look}}
    results = {"forgetful": 0.15, "variants": [{"variant": "one", "above": 0.01}], "example": example}
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    made = script("pictures.py", *chosen, cwd=home)
    assert (made.code, made.err) == (0, "")
    names = {f"{what}-{theme}.svg" for what in ("ladder", "attention", "readers") for theme in THEMES}
    assert {path.name for path in (home / "made").iterdir()} == names
    shutil.rmtree(home / "made")
    results["example"] = None
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    refused = script("pictures.py", *chosen, cwd=home)
    assert refused.code == 2 and "not the results of a comparison on the built-in stories" in refused.err
    assert not (home / "made").exists()


def test_a_map_of_many_tokens_is_wide_enough_for_all() -> None:
    svg = map_svg(torch.eye(40), ["a"] * 40, "a map", LIGHT)
    last = max(float(x) + float(width) for x, width in re.findall(r'<rect x="([\d.]+)"[^>]*? width="([\d.]+)"', svg))
    assert last < float(re.search(r'viewBox="0 0 (\d+)', svg)[1])  # type: ignore[index]
