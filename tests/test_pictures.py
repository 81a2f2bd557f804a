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

from minigpt.attention import Attention
from minigpt.attention.averages.average_loop import AverageLoop
from minigpt.attention.softmax.differential import Differential
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.config.options import from_dict
from minigpt.model import GPT, ModelConfig
from minigpt.seeing.drawing import COLOURS, PAGE, THEMES, Axis, Canvas, Chart, Theme, log_ticks, stroke_of, ticks
from minigpt.seeing.maps import Map, axis_labels, maps_svg, read_maps, rows_of, write_maps
from minigpt.seeing.pictures import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    can_plot,
    curve_svg,
    heat_map,
    small_png,
    smooth,
    visible,
)
from minigpt.system.counting import layer_name, selected_heads
from minigpt.system.errors import UserError

BLUE, ORANGE = (37, 99, 235), (234, 88, 12)  # weights above and below zero
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


@pytest.mark.parametrize(
    ("low", "high", "numbers"),
    [
        (0, 100, [0, 50, 100]),
        (0, 400, [0, 100, 200, 300, 400]),
        (1.2, 4.7, [1, 2, 3, 4, 5]),
        (-0.013, 0.021, [-0.02, -0.01, 0, 0.01, 0.02, 0.03]),
        (2.0, 2.0, [2.0, 2.5]),
        (0, 0, [0, 0.5]),
    ],
)
def test_ticks_by_hand(low: float, high: float, numbers: list[float]) -> None:
    assert ticks(low, high) == numbers


def test_axes_by_hand() -> None:
    """Half way between 1 and 100 is 50.5, or 10 if equal ratios are equally long."""
    assert [Axis(1, 100, 40, 20)(number) for number in (1, 50.5, 100)] == [40, 30, 20]
    assert [Axis(1, 100, 40, 20, logs=True)(number) for number in (1, 10, 100)] == [40, 30, 20]
    assert log_ticks(0.013, 0.41) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    assert log_ticks(1, 1)[0] <= 1 <= log_ticks(1, 1)[-1]


def test_a_colour_is_a_role_and_a_picture_of_a_page_leaves_it_to_the_page() -> None:
    def drawn(theme: Theme) -> str:
        canvas = Canvas(theme)
        canvas.text(1.0, 2.25, '<"', "above", font_size=None, class_="a")
        return canvas.svg(10, 10, "one")

    assert '<text x="1" y="2.25" fill="var(--above)" class="a">&lt;&quot;</text>' in drawn(PAGE)
    assert 'aria-label="one"' in drawn(PAGE) and "http" not in drawn(PAGE)  # it has no ground and no address
    for name, theme in THEMES.items():
        ground = COLOURS["picture"][name == "dark"]
        assert f'fill="{theme["above"]}"' in drawn(theme) and f'rx="8" fill="{ground}"' in drawn(theme)
    assert stroke_of(9) == {"stroke": stroke_of(1)["stroke"], "stroke_dasharray": "6 3"}


def test_names_beside_curves_do_not_overlap() -> None:
    chart = Chart(PAGE, Axis(0, 1, 0, 100), Axis(0, 100, 100, 0))
    chart.names([("a", 50, "ink"), ("b", 90, "ink"), ("c", 55, "ink")])
    heights = {name: float(y) for y, name in re.findall(r'y="(\d+)" .*>(\w)</text>', "\n".join(chart.parts))}
    assert heights == {"b": 14, "c": 49, "a": 64}


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
    assert heat_map(weights, ["a", " b", "\n"]).splitlines() == ["    ab↵", " a |@  |", "␣b |@@ |", " ↵ | .@|"]


def test_negative_weights_are_digits() -> None:
    weights = torch.tensor([[0.5, -1.0, 0.0], [-0.31, 0.0, 1.0]])
    assert heat_map(weights, ["a", "b", "c"]).splitlines()[1:] == ["a |+9 | -0.5", "b |3 @| 0.69"]


def test_keys_beyond_the_terminal_follow_below_where_they_have_weight() -> None:
    """The room is at least eight keys; rows are causal, so only the last ones reach the second block."""
    drawn = heat_map(torch.eye(10), list("abcdefghij"), 20).splitlines()
    assert drawn[0] == "   abcdefgh" and drawn[11:] == ["   ij", "i |@ |", "j | @|"]
    assert all(len(line) <= 20 for line in drawn)


# ---- labels ----


def test_an_axis_names_tokens_or_words_or_every_second_word() -> None:
    letters = list("\nMia was.")
    assert axis_labels(letters, 9) == [(place, visible(token)) for place, token in enumerate(letters)]
    assert axis_labels(letters, 8) == [(2, "Mia"), (6.5, "was.")]
    assert axis_labels(letters, 1) == [(2, "Mia")]
    pieces = ["Mi", "a", " was", " a", "\n", "x" * 20]
    assert axis_labels(pieces, 5) == [(0.5, "Mia"), (2, "was"), (3, "a"), (5, "x" * 11 + "…")]
    assert axis_labels([" ", "\n"], 1) == []


def test_darker_is_more_attention() -> None:
    shades = heat_map(torch.linspace(0, 1, 101)[None], ["x"] * 101).splitlines()[1][3:104]
    assert shades[0] == " " and shades[-1] == "@"
    assert list(dict.fromkeys(shades)) == list(" .:-=+*#%@")


@pytest.mark.parametrize(
    ("token", "shown"),
    [(" ", "␣"), ("a\tb", "a⇥b"), ("\n\n", "↵↵"), ("", "∅"), ("\ufffd", "\ufffd"), ("é", "é"), ("\x1b[", "\\x1b[")],
)
def test_a_token_is_shown_with_what_one_would_not_see(token: str, shown: str) -> None:
    assert visible(token) == shown


# ---- PNG ----


def maps_of(*layers: tuple[torch.Tensor, type[Attention]]) -> list[Map]:
    """The maps of layers, each (H, T, S) with its kind."""
    return [Map(head, i, j, kind) for i, (heads, kind) in enumerate(layers) for j, head in enumerate(heads)]


@pytest.mark.parametrize("labels", [["$$", "$x^"], ["\\frac$", "$"], ["<b>", "&"], ["_", " "]], ids=str)
def test_a_png_is_written_whatever_the_tokens(tmp_path: Path, labels: list[str]) -> None:
    """matplotlib reads what stands between two dollars as a formula, and fails on most."""
    pytest.importorskip("matplotlib")
    maps = maps_of((torch.eye(2)[None], AverageLoop), (torch.eye(2).expand(3, 2, 2), MultiHead))
    write_maps(maps, labels, tmp_path / "maps.PNG")
    raw = (tmp_path / "maps.PNG").read_bytes()
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")
    assert width > height > 300  # three heads wide, two layers high
    picture = maps_svg(maps, labels)
    texts = "".join(xml.etree.ElementTree.fromstring(picture).itertext())
    assert all(visible(label) in texts for label in labels) and picture.count("<image") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["maps.PNG"]


def test_a_map_says_what_its_rows_sum_to_unless_that_is_one() -> None:
    ones, others = maps_of((torch.eye(2)[None], MultiHead), (torch.tensor([[[3.0, -4.0], [0.5, 0.0]]]), Differential))
    assert "rows sum" not in maps_svg([ones], ["a", "b"]) and "below zero" not in maps_svg([ones], ["a", "b"])
    drawn = maps_svg([ones, others], ["a", "b"])
    assert "differential; rows sum to -1 to 0.5" in drawn and "orange is below zero" in drawn
    assert re.findall(r">(-?[\d.]+)</text>", drawn) == ["-4", "-1", "0", "1", "4"]  # the scale reaches the largest


@torch.no_grad()
def test_the_maps_of_a_head_come_with_those_of_which_it_is_made() -> None:
    """A difference of two softmaxes with its lambda; mixed softmaxes, which all heads share; views with their gates."""
    found = {}
    for kind in ("multi_head", "differential", "talking_heads", "native_sparse"):
        attention = {"kind": kind, "n_head": 2}
        config = from_dict(ModelConfig, {"n_layer": 2, "n_embd": 16, "block_size": 8, "attention": attention})
        model = GPT(config, 5).double()
        found[kind] = [one for one in read_maps(model, torch.arange(5)[None]) if one.layer == 1]
        if kind == "differential":
            taken = float(model.attentions()[1].taken())  # type: ignore[operator]
    assert [(one.head, one.part, one.note) for one in found["multi_head"]] == [(0, "", ""), (1, "", "")]
    ours, others, weights, *second = found["differential"]
    assert [one.head for one in second] == [1, 1, 1] and len(rows_of(found["differential"])) == 2
    torch.testing.assert_close(weights.weights, ours.weights - taken * others.weights)
    assert weights.note == f"weights = softmax - {taken:.3g} x other softmax"
    shared = [one for one in found["talking_heads"] if one.part]
    assert [(one.head, one.part) for one in shared] == [(None, "softmax 1"), (None, "softmax 2")]
    assert "x softmax 2" in found["talking_heads"][-1].note and "scores = " in found["talking_heads"][-1].note
    view = found["native_sparse"][5]
    assert view.note == "window view of head 2" and view.gate is not None and 0 < view.gate.min() < view.gate.max() < 1
    assert heat_map(view.weights, list("abcde"), gate=view.gate).endswith(f" x {float(view.gate[-1]):.2f}")
    drawn = maps_svg(found["native_sparse"], list("abcde"))
    assert "window view of" in drawn and "output x 0." in drawn


def test_a_png_of_negative_weights_has_two_colours(tmp_path: Path) -> None:
    """Orange below zero and blue above it, both as large as a cell."""
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    weights = torch.tensor([[[-1.0, 0.0], [1.0, 0.0]]])
    write_maps(maps_of((weights, Differential)), ["a", "b"], tmp_path / "maps.png")
    with image.open(tmp_path / "maps.png") as picture:
        pixels = torch.frombuffer(bytearray(picture.convert("RGB").tobytes()), dtype=torch.uint8).view(-1, 3).int()
    red, _, blue = pixels.unbind(1)
    assert (red > blue + 60).sum() > 1000 and (blue > red + 60).sum() > 1000


def test_without_matplotlib_one_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    maps = maps_of((torch.eye(2)[None], MultiHead))
    with pytest.raises(UserError, match=r'maps.png: PNG and PDF need matplotlib: pip install -e "\.\[plot\]"; .svg '):
        write_maps(maps, ["a", "b"], tmp_path / "maps.png")
    write_maps(maps, ["a", "b"], tmp_path / "maps.svg")  # needs nothing
    assert [path.name for path in tmp_path.iterdir()] == ["maps.svg"]


def test_whether_pictures_can_be_made_is_whether_the_extra_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not can_plot()


@pytest.mark.parametrize(
    ("weights", "pixels"),
    [
        ([[1.0, 0.0], [0.25, 0.75]], [(*BLUE, 255), (*BLUE, 0), (*BLUE, 127), (*BLUE, 220)]),
        ([[4.0, -1.0], [0.0, -4.0]], [(*BLUE, 255), (*ORANGE, 127), (*BLUE, 0), (*ORANGE, 255)]),
    ],
)
def test_the_pixels_of_a_small_png_are_the_weights(weights: list[list[float]], pixels: list[tuple[int, ...]]) -> None:
    """Read by pillow, which matplotlib brings along: the opacity is the square root of a weight, scaled to one."""
    image = pytest.importorskip("PIL.Image")
    with image.open(io.BytesIO(base64.b64decode(small_png(torch.tensor(weights))))) as picture:
        assert [picture.getpixel((x, y)) for y in (0, 1) for x in (0, 1)] == pixels


@pytest.mark.parametrize(("layers", "heads"), [(1000, 2), (2, 300), (30, 9)])
def test_a_picture_that_would_take_minutes_is_refused(layers: int, heads: int, tmp_path: Path) -> None:
    maps = maps_of(*[(torch.zeros(heads, 2, 2), MultiHead)] * layers)
    for ending in ("png", "svg"):
        many = rf"{layers * heads} maps: too many for one picture \(at most 256\): choose by --layer"
        with pytest.raises(UserError, match=many):
            write_maps(maps, ["a", "b"], tmp_path / f"maps.{ending}")
    assert not list(tmp_path.iterdir())


# ---- counting ----


def test_layers_and_heads_are_chosen_by_the_numbers_that_people_read() -> None:
    assert (layer_name(2), layer_name(2, 3)) == ("layer 3", "layer 3, head 4")
    assert selected_heads([1, 2], None, None) == [(0, 0), (1, 0), (1, 1)]
    assert selected_heads([1, 2], None, 2) == selected_heads([1, 2], 2, 2) == [(1, 1)]
    with pytest.raises(UserError, match="--head 2: layer 1 has the heads 1 to 1"):
        selected_heads([1, 2], 1, 2)
