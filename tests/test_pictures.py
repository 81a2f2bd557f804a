"""Pictures: curves inside their frame, heat maps compared with hand-made ones, and PNG with the right labels."""

from __future__ import annotations

import base64
import io
import re
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minigpt.attention.averages.average_loop import AverageLoop
from minigpt.attention.linear.linear import Linear
from minigpt.attention.softmax.differential import Differential
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.softmax.sigmoid import Sigmoid
from minigpt.inspection.pictures import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    attention_png,
    can_plot,
    curve_svg,
    heat_map,
    scales,
    small_png,
    smooth,
    ticks,
    visible,
)
from minigpt.system.errors import UserError

FINITE = st.integers(-(10**9), 10**9).map(lambda n: n / 1e6)


def lines_of(picture: str) -> list[list[tuple[float, float]]]:
    """The points of every curve in a picture."""
    found = re.findall(r'<polyline points="([^"]*)"', picture)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in found]


# ---- curves ----


def test_a_curve_by_hand() -> None:
    """The axes go from 0 to 100 and from 1 to 3; the picture's y grows downwards."""
    (line,) = lines_of(curve_svg({"loss": [(0, 3.0), (50, 2.0), (100, 1.0)]}, "a run", "step"))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    assert line == [(LEFT, TOP), ((LEFT + right) / 2, (TOP + bottom) / 2), (right, bottom)]


@given(st.lists(st.tuples(st.integers(1, 10**6), FINITE), min_size=1, max_size=20))
def test_every_curve_stays_inside_the_frame(points: list[tuple[int, float]]) -> None:
    picture = curve_svg({"a": points}, "title", "step")
    xml.etree.ElementTree.fromstring(picture)
    for x, y in lines_of(picture)[0]:
        assert LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1
        assert TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1


def test_what_looks_like_markup_in_a_name_is_text() -> None:
    picture = curve_svg({"<b>&": [(1, 1.0)]}, "<script>alert(1)</script>", "a < b")
    texts = [(element.text or "").strip() for element in xml.etree.ElementTree.fromstring(picture).iter()]
    assert "<script>alert(1)</script>" in texts and "a < b" in texts and "<b>&: 1.0000" in texts
    assert "<script>" not in picture


def test_without_points_there_is_no_picture() -> None:
    assert curve_svg({}, "title", "step") == curve_svg({"a": []}, "title", "step") == ""


def test_ticks_by_hand() -> None:
    assert ticks(0, 100) == [0, 50, 100]
    assert ticks(1.2, 4.7) == [1, 2, 3, 4, 5]
    assert ticks(2.0, 2.0) == [2.0, 2.5]
    assert ticks(0, 0) == [0, 0.5]


@given(FINITE, FINITE)
def test_ticks_enclose_their_range_and_are_few(a: float, b: float) -> None:
    low, high = sorted((a, b))
    found = ticks(low, high)
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    assert found[0] <= low + slack and found[-1] >= high - slack
    assert 2 <= len(found) <= 7
    assert found == sorted(set(found))


def test_a_smooth_curve_has_means_of_neighbours_and_ends_where_the_curve_ends() -> None:
    assert smooth([(1, 1.0), (2, 3.0), (3, 5.0), (4, 7.0), (5, 9.0)], most=3) == [(2, 2.0), (4, 6.0), (5, 9.0)]
    points = [(float(x), float(x)) for x in range(1, 1001)]
    assert smooth(points[:200]) == points[:200]
    assert len(smooth(points)) == 200
    assert smooth(points)[-1] == (1000, 998.0)
    assert smooth([]) == []


# ---- heat maps ----


def test_a_heat_map_by_hand() -> None:
    """Each row is drawn against its largest weight, or a row over many tokens would be blank."""
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.05, 0.15, 0.8]])
    assert heat_map(weights, ["a", " b", "\n"]).splitlines() == [
        "    a␣↵",
        " a |@  |",
        "␣b |@@ |",
        " ↵ | .@|",
    ]


def test_negative_weights_are_digits() -> None:
    weights = torch.tensor([[0.5, -1.0, 0.0], [-0.31, 0.0, 1.0]])
    assert heat_map(weights, ["a", "b", "c"]).splitlines()[1:] == ["a |+9 |", "b |3 @|"]


def test_darker_is_more_attention() -> None:
    shades = heat_map(torch.linspace(0, 1, 101)[None], ["x"]).splitlines()[1][3:-1]
    assert shades[0] == " " and shades[-1] == "@"
    assert list(dict.fromkeys(shades)) == list(" .:-=+*#%@")


@pytest.mark.parametrize(
    ("token", "shown"),
    [(" ", "␣"), ("a\tb", "a⇥b"), ("\n\n", "↵↵"), ("", "∅"), ("\ufffd", "\ufffd"), ("é", "é"), ("\x1b[", "\\x1b[")],
)
def test_a_token_is_shown_with_what_one_would_not_see(token: str, shown: str) -> None:
    assert visible(token) == shown


# ---- PNG ----


@pytest.mark.parametrize("labels", [["$$", "$x^"], ["\\frac$", "$"], ["<b>", "&"], ["_", " "]], ids=str)
def test_a_png_is_written_whatever_the_tokens(tmp_path: Path, labels: list[str]) -> None:
    """matplotlib reads what stands between two dollars as a formula, and fails on most."""
    pytest.importorskip("matplotlib")
    maps = [torch.eye(2)[None], torch.eye(2).expand(3, 2, 2)]  # layers may have different numbers of heads
    attention_png(maps, labels, [AverageLoop, MultiHead], tmp_path / "maps.any ending")
    raw = (tmp_path / "maps.any ending").read_bytes()
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    assert (
        int.from_bytes(raw[16:20], "big") > int.from_bytes(raw[20:24], "big") > 300
    )  # three heads wide, two layers high
    assert [path.name for path in tmp_path.iterdir()] == ["maps.any ending"]


def test_the_scale_of_a_map_is_that_of_its_kind() -> None:
    """Weights below zero need colours that diverge from it; that rows sum to one is said where all of them do."""
    kinds = [MultiHead, Sigmoid, Differential, Linear]
    maps = [torch.eye(2)[None], torch.full((1, 2, 2), 0.9), torch.tensor([[[3.0, -4.0]]]), torch.full((1, 2, 2), 0.5)]
    assert scales(maps[:1], kinds[:1]) == [Scale(0, 1, "magma_r", "weight (each row sums to 1)")]
    positive = Scale(0, 1, "magma_r", "weight (each row need not sum to 1)")
    assert scales(maps[:3], kinds[:3]) == [positive, positive, Scale(-4, 4, "RdBu", positive.label)]
    assert scales([5 * maps[0]], [Sigmoid])[0].high == 5


def test_a_png_of_negative_weights_has_two_colours(tmp_path: Path) -> None:
    """Red below zero and blue above it, both as large as a cell."""
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    attention_png([torch.tensor([[[-1.0, 0.0], [1.0, 0.0]]])], ["a", "b"], [Differential], tmp_path / "maps.png")
    with image.open(tmp_path / "maps.png") as picture:
        pixels = torch.frombuffer(bytearray(picture.convert("RGB").tobytes()), dtype=torch.uint8).view(-1, 3).int()
    red, _, blue = pixels.unbind(1)
    assert (red > blue + 60).sum() > 1000 and (blue > red + 60).sum() > 1000


def test_without_matplotlib_one_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r'PNG pictures need matplotlib: pip install -e "\.\[plot\]"'):
        attention_png([torch.eye(2)[None]], ["a", "b"], [MultiHead], tmp_path / "maps.png")
    assert list(tmp_path.iterdir()) == []


def test_whether_pictures_can_be_made_is_whether_the_extra_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not can_plot()


def test_the_pixels_of_a_small_png_are_the_weights() -> None:
    """Read by pillow, which matplotlib brings along: blue, the opacity is the square root of the weight."""
    image = pytest.importorskip("PIL.Image")
    raw = base64.b64decode(small_png(torch.tensor([[1.0, 0.0], [0.25, 0.75]])))
    with image.open(io.BytesIO(raw)) as picture:
        pixels = [picture.getpixel((x, y)) for y in (0, 1) for x in (0, 1)]
    assert pixels == [(37, 99, 235, opacity) for opacity in (255, 0, 127, 220)]


def test_the_pixels_of_a_small_png_tell_the_sign_and_are_scaled_to_one() -> None:
    image = pytest.importorskip("PIL.Image")
    raw = base64.b64decode(small_png(torch.tensor([[4.0, -1.0], [0.0, -4.0]])))
    with image.open(io.BytesIO(raw)) as picture:
        pixels = [picture.getpixel((x, y)) for y in (0, 1) for x in (0, 1)]
    blue, orange = (37, 99, 235), (234, 88, 12)
    assert pixels == [(*blue, 255), (*orange, 127), (*blue, 0), (*orange, 255)]


@pytest.mark.parametrize(("layers", "heads", "tokens"), [(1000, 2, 2), (2, 300, 2), (17, 16, 8), (2, 2, 1000)])
def test_a_picture_that_would_take_minutes_is_refused(layers: int, heads: int, tokens: int, tmp_path: Path) -> None:
    maps = [torch.zeros(heads, tokens, tokens)] * layers
    with pytest.raises(UserError, match=f"{layers} layers of {heads} heads, {tokens} tokens each: too much"):
        attention_png(maps, ["a"] * tokens, [MultiHead] * layers, tmp_path / "maps.png")
    assert not list(tmp_path.iterdir())
