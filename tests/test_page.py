"""The page: it loads nothing from outside, its numbers are those of the JSON, and a real browser reports no error."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import THEMES as LOOKS
from browser import Visit, cut, overflow, violations
from comparing import SMALL, finished, small

from minigpt.comparison import variants as compare
from minigpt.comparison.charts import curves_of, curves_svg
from minigpt.comparison.figures import tabular, write_figures
from minigpt.comparison.page import page_of_variants as page
from minigpt.comparison.summary import COLUMNS
from minigpt.seeing.drawing import THEMES

TEXT = SMALL.replace("  mean:", '  "<b>&amp;": {model.norm: rmsnorm}\n  mean:')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished comparison."""
    place = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIGPT_DATA", str(place / "data"))
        patch.setattr("minigpt.text.corpus.DATA", place / "data")
        patch.setattr(compare, "RUNS", place / "runs")
        comparison = small(place, TEXT)
        finished(comparison)
        return comparison.folder


NAMES = "accuracy by what must be remembered"
POINTING = re.compile("src|href|srcset|action|data|xlink:href|poster|background|ping|formaction|cite")


class Tables(HTMLParser):
    """The text of all tables by the names of their regions, and every attribute that can point somewhere."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.region = ""
        self.open: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attributes if POINTING.fullmatch(name)]
        if ("role", "region") in attributes:
            self.region = dict(attributes).get("aria-label") or ""
        if tag == "table":
            self.open = self.tables.setdefault(self.region, [])
        elif tag == "tr":
            self.open.append([])
        elif tag in ("td", "th"):
            self.open[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.open = []

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1]:
            self.open[-1][-1] += data.strip("\n")


def check_numbers(dom: str, results: dict[str, Any]) -> None:
    """The tables of a page have the numbers of the JSON, to the printed digit."""
    tables = Tables(dom).tables
    head, *rows = tables["all variants"]
    assert head == ["variant", *COLUMNS]
    assert [row[0] for row in rows] == [*(v["variant"] for v in results["variants"]), "the forgetful reader"]
    for row, variant in zip(rows, results["variants"]):
        for cell, (key, form) in zip(row[1:], COLUMNS.values()):
            digits = int(form[-2]) if "." in form else 0
            assert float(cell.replace(",", "")) == pytest.approx(variant[key], abs=0.5000001 * 10**-digits)
            assert cell.replace(",", "").count(".") == (digits > 0)
    assert float(rows[-1][2]) == pytest.approx(results["forgetful"], abs=5.1e-5)
    for name, score in ((NAMES, "accuracy"), ("how much of it is remembered", "remembered")):
        head, *rows = tables[name]
        for row, variant in zip(rows, results["variants"]):
            assert row[0] == variant["variant"]
            for takes, cell in zip(head[1:], row[1:]):
                assert float(cell) == pytest.approx(variant[score][takes], abs=5.1e-4)
    assert len(tables["all runs"]) == 1 + len(results["runs"])


def test_the_tables_hold_the_numbers_of_the_json(folder: Path) -> None:
    check_numbers((folder / "page.html").read_text("utf-8"), json.loads((folder / "results.json").read_text("utf-8")))


def test_no_address_points_outside_and_there_is_no_script(folder: Path) -> None:
    text = (folder / "page.html").read_text("utf-8")
    tables = Tables(text)
    assert len(tables.addresses) > 3
    assert all(address.startswith("data:") for address in tables.addresses)
    assert tables.tags & {"script", "iframe", "object", "embed", "form", "base"} == set()
    rest = re.sub(r'"data:image/png;base64,[A-Za-z0-9+/=]+"', "", text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", rest)


def test_no_text_of_the_results_is_markup(folder: Path) -> None:
    """Markup in any text of a result.json from someone else adds no tag to the page."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    plain, evil = (Tables(page(spoiled(results, text))) for text in ("x", '"><script>1</script><img src=//x>'))
    assert evil.tags == plain.tags and "script" not in evil.tags
    assert all(address.startswith("data:") for address in evil.addresses)
    assert len(evil.addresses) == len(plain.addresses)


DECIDING = ("metric", "baseline", "variant", "names", "status", "match")  # they choose what is shown


def spoiled(value: Any, text: str, key: str = "") -> Any:
    """A copy in which every text is replaced, but for those that decide what is shown."""
    if isinstance(value, dict):
        return {name: spoiled(child, text, name) for name, child in value.items()}
    if isinstance(value, list):
        return [spoiled(child, text, key) for child in value]
    return text if isinstance(value, str) and key not in DECIDING else value


def test_the_story_is_shown_as_every_reader_reads_it(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text("utf-8"))
    example = results["example"]
    tables = Tables((folder / "page.html").read_text("utf-8")).tables
    rows = [row for name, table in tables.items() if name.startswith("the story from character") for row in table]
    readers = ["ideal reader", "forgetful reader", "<b>&amp;", "mean", "one head"]
    for reader in readers:
        story = "".join("".join(row[1:]) for row in rows if row[0] == reader)
        assert story.replace("\xa0", " ") == example["text"]
    assert set(example["variants"]) == set(readers[2:])
    for look in example["variants"].values():
        assert len(look["probabilities"]) == len(example["text"]) == len(example["ideal"])
        assert len(look["attention"]) == 1  # one layer
    assert [len(look["attention"][0]) for look in example["variants"].values()] == [4, 1, 1]  # heads


# ---- a real browser ----


@pytest.mark.quick("390-dark")
@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_a_real_browser_finds_nothing_wrong(folder: Path, visit: Visit, width: int, theme: str) -> None:
    """No script error, no request, nothing beyond the edge of a phone, and what WCAG 2.2 A and AA ask for."""
    opened = visit(folder / "page.html", width, theme)
    assert overflow(opened) == 0
    assert opened.locator(".narrow:visible").count() == 2 * (width == 390)  # the two charts, drawn for it
    assert opened.locator(".broad:visible").count() == 2 * (width == 1280)
    check_numbers(opened.content(), json.loads((folder / "results.json").read_text("utf-8")))
    sizes = "[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect()).filter(r => r.width)"
    heights = opened.evaluate(f"{sizes}.map(r => Math.min(r.width, r.height))")
    assert len(heights) > 50 and min(heights) > 5  # a letter is higher than wide: 5 pixels are those of an i
    assert violations(visit(folder / "page.html", width, theme, bypass_csp=True)) == []  # the policy would stop axe


def test_printed_tables_are_whole(folder: Path, visit: Visit) -> None:
    """With margins, in the dark theme too: nothing is cut off, and what was folded is there."""
    opened = visit(folder / "page.html", 700, "dark")
    assert cut(opened) == []
    opened.emulate_media(media="print")
    box = "t => [t.getBoundingClientRect().right, t.offsetHeight]"
    boxes = opened.evaluate(f"[...document.querySelectorAll('table')].map({box})")
    assert len(boxes) > 5 and all(0 < right <= 700 and height > 30 for right, height in boxes)
    assert opened.evaluate("[...document.querySelectorAll('.wide')].every(w => w.scrollWidth <= w.clientWidth)")
    assert opened.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_map_has_its_words_and_opens_to_its_letters(folder: Path, visit: Visit) -> None:
    """By keyboard, with the letters of the story, a line end in front, along both sides."""
    opened = visit(folder / "page.html")
    story = json.loads((folder / "results.json").read_text("utf-8"))["example"]["text"]
    small = opened.locator("details[open] details.map").first
    assert small.locator(".words").is_visible() and not small.locator(".letters").is_visible()
    small.locator("summary").focus()
    opened.keyboard.press("Enter")
    assert not small.locator(".words").is_visible()
    assert (
        small.locator(".letters text").all_text_contents()
        == ["\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}" + story.replace(" ", "\N{OPEN BOX}")] * 2
    )


@pytest.mark.parametrize("html", ["<script>throw Error('x')</script>", '<img src="http://127.0.0.1:9/x.png">'])
def test_the_policy_lets_nothing_in(folder: Path, tmp_path: Path, visit: Visit, html: str) -> None:
    """The tests above would notice a script or an external address; the policy in the page's head blocks both."""
    text = (folder / "page.html").read_text("utf-8").replace("</body>", f"{html}</body>")
    (tmp_path / "page.html").write_text(text, "utf-8")
    opened = visit(tmp_path / "page.html")
    assert any("violates" in line for line in opened.complaints)
    opened.complaints.clear()


def test_a_curve_has_the_spread_of_its_seeds(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text("utf-8"))
    for row in results["variants"]:
        curves = [run["curve"] for run in results["runs"] if run["variant"] == row["variant"]]
        for number, (step, low, high) in enumerate(row["spread"]):
            above = [curve[number][-1] for curve in curves]
            assert (step, low, high) == (curves[0][number][0], min(above), max(above))
            assert low < row["curve"][number][2] < high
    text = (folder / "page.html").read_text("utf-8")
    assert text.count("<polygon") == text.count("<polyline") == 2 * len(results["variants"])  # in two widths


def test_a_single_evaluation_has_a_spread_too(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text("utf-8"))
    for row in results["variants"]:
        row["curve"], row["spread"] = [[6, 3.0, 2.0]], [[6, 1.0, 3.0]]
    curves = curves_of(results)
    assert curves is not None
    root = xml.etree.ElementTree.fromstring(curves_svg(curves, 820, THEMES["light"]))
    bars, dots = ([element for element in root if element.tag.endswith(name)] for name in ("polyline", "circle"))
    assert len(bars) == len(dots) == len(results["variants"])
    for bar, dot in zip(bars, dots):
        heights = [float(point.split(",")[1]) for point in str(bar.get("points")).split()]
        assert min(heights) < float(str(dot.get("cy"))) < max(heights)


# ---- files for papers ----


def test_figures_are_the_numbers_of_the_json(folder: Path, tmp_path: Path) -> None:
    """SVG that is XML, PDF, and LaTeX whose cells are, once read back, those of the results."""
    pytest.importorskip("matplotlib")
    results, said = json.loads((folder / "results.json").read_text("utf-8")), list[str]()
    write_figures(results, tmp_path / "paper", said.append)
    names = ["accuracy.tex", "curves.pdf", "curves.svg", "differences.pdf", "differences.svg", "table.tex"]
    assert sorted(path.name for path in (tmp_path / "paper").iterdir()) == names and len(said) == 1
    for path in (tmp_path / "paper").glob("*.svg"):
        text = path.read_text("utf-8")
        assert "var(" not in text and xml.etree.ElementTree.fromstring(text).tag.endswith("}svg")
    assert all(path.read_bytes().startswith(b"%PDF") for path in (tmp_path / "paper").glob("*.pdf"))
    rows = read_tabular((tmp_path / "paper" / "table.tex").read_text("utf-8"))
    for row, variant in zip(rows[1:], results["variants"]):
        assert row[0] == variant["variant"] and float(row[1]) == pytest.approx(variant["above"], abs=5.1e-5)
        difference = variant["difference"]
        assert float(row[2].split()[0]) == pytest.approx(difference["mean"], abs=5.1e-5) if difference else row[2]


def test_without_matplotlib_the_other_figures_are_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = list[str]()
    write_figures(json.loads((folder / "results.json").read_text("utf-8")), tmp_path, said.append)
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".tex"}
    assert said[-1] == 'note: no PDF was written, it needs matplotlib: pip install -e ".[plot]"'


def read_tabular(text: str) -> list[list[str]]:
    """The cells of a tabular, read as TeX reads them. Fails on any other command or special character."""
    body = re.fullmatch(r"\\begin{tabular}{lr*}\n(.*)\\end{tabular}\n", text, re.S)
    assert body
    lines = [line for line in body[1].splitlines() if line != r"\hline"]
    assert all(line.endswith(r" \\") for line in lines)
    rows = [[read_cell(cell) for cell in re.split(r"(?<!\\)&", line[:-3])] for line in lines]
    assert len({len(row) for row in rows}) == 1
    return rows


WORDS = {"backslash": "\\", "asciitilde": "~", "asciicircum": "^", "bar": "|", "less": "<", "greater": ">"}
WORDS |= {"quotedbl": '"', "asciigrave": "`"}


def read_cell(cell: str) -> str:
    """The text of a cell."""
    form = r"\\text(\w+)\{\}|\\([{}$&#%_])|\$([+-])\$|\{\}|([^\\{}$&#%_~^])"
    pieces = list(re.finditer(form, cell))
    assert "".join(piece[0] for piece in pieces) == cell
    return "".join(WORDS.get(piece[1], "") or piece[2] or piece[3] or piece[4] or "" for piece in pieces).strip()


def test_no_character_of_a_name_is_a_command_of_tex() -> None:
    odd = "a\\b{c}$d$&#%_~^|<>\"`'' -- -1 ?` \x1b"
    (row,) = read_tabular(tabular(iter([[odd, "-0.5"]])))
    assert row == [odd.replace("\x1b", "\\x1b"), "-0.5"]
