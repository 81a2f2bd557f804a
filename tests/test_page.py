"""The page: it loads nothing from outside, its numbers are those of the JSON, and a real browser reports no error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from comparing import SMALL, finished, small

from minigpt.comparison import variants as compare
from minigpt.comparison.page import log_ticks, page, ticks
from minigpt.comparison.summary import COLUMNS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome") or ""
browser = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium here")
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


POINTING = re.compile("src|href|srcset|action|data|xlink:href|poster|background|ping|formaction|cite")


class Tables(HTMLParser):
    """The text of all tables by their id, and every attribute that can point somewhere."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.open: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attributes if POINTING.fullmatch(name)]
        if tag == "table":
            self.open = self.tables.setdefault(dict(attributes).get("id") or "", [])
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
    head, *rows = tables["table"]
    assert head == ["variant", *COLUMNS]
    assert [row[0] for row in rows] == [*(v["variant"] for v in results["variants"]), "the forgetful reader"]
    for row, variant in zip(rows, results["variants"]):
        for shown, (key, form) in zip(row[1:], COLUMNS.values()):
            digits = int(form[-2]) if "." in form else 0
            assert float(shown.replace(",", "")) == pytest.approx(variant[key], abs=0.5000001 * 10**-digits)
            assert shown.replace(",", "").count(".") == (digits > 0)
    assert float(rows[-1][2]) == pytest.approx(results["forgetful"], abs=5.1e-5)
    for name, what in (("names", "accuracy"), ("remembered", "remembered")):
        head, *rows = tables[name]
        for row, variant in zip(rows, results["variants"]):
            assert row[0] == variant["variant"]
            for takes, shown in zip(head[1:], row[1:]):
                assert float(shown) == pytest.approx(variant[what][takes], abs=5.1e-4)
    assert len(tables["runs"]) == 1 + len(results["runs"])


def test_the_tables_hold_the_numbers_of_the_json(folder: Path) -> None:
    check_numbers((folder / "page.html").read_text("utf-8"), json.loads((folder / "results.json").read_text("utf-8")))


def test_a_wrong_number_in_the_page_is_noticed(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text("utf-8"))
    results["variants"][0]["above"] += 2e-4
    with pytest.raises(AssertionError):
        check_numbers((folder / "page.html").read_text("utf-8"), results)


def test_no_address_points_outside_and_there_is_no_script(folder: Path) -> None:
    text = (folder / "page.html").read_text("utf-8")
    found = Tables(text)
    assert len(found.addresses) > 3
    assert all(address.startswith("data:") for address in found.addresses)
    assert found.tags & {"script", "iframe", "object", "embed", "form", "base"} == set()
    rest = re.sub(r'"data:image/png;base64,[A-Za-z0-9+/=]+"', "", text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", rest)


def test_names_are_text_and_never_markup(folder: Path) -> None:
    text = (folder / "page.html").read_text("utf-8")
    assert "<b>&amp;" not in text
    assert "&lt;b&gt;&amp;amp;" in text


def test_no_text_of_the_results_is_markup(folder: Path) -> None:
    """Markup in any text of a result.json from someone else adds no tag to the page."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    plain, evil = (
        Tables(page(spoiled(results, "x"))),
        Tables(page(spoiled(results, '"><script>1</script><img src=//x>'))),
    )
    assert evil.tags == plain.tags and "script" not in evil.tags
    assert all(address.startswith("data:") for address in evil.addresses)
    assert len(evil.addresses) == len(plain.addresses)


KEPT = ("metric", "baseline", "variant", "names", "status", "match")  # they choose what is shown


def spoiled(value: Any, text: str, key: str = "") -> Any:
    """A copy in which every text is replaced, but for those that decide what is shown."""
    if isinstance(value, dict):
        return {name: spoiled(child, text, name) for name, child in value.items()}
    if isinstance(value, list):
        return [spoiled(child, text, key) for child in value]
    return text if isinstance(value, str) and key not in KEPT else value


def test_the_story_is_shown_as_every_reader_reads_it(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text("utf-8"))
    example = results["example"]
    rows = Tables((folder / "page.html").read_text("utf-8")).tables[""]
    readers = ["ideal reader", "forgetful reader", "<b>&amp;", "mean", "one head"]
    for reader in readers:
        told = "".join("".join(row[1:]) for row in rows if row[0] == reader)
        assert told.replace("\xa0", " ") == example["text"]
    assert set(example["variants"]) == set(readers[2:])
    for look in example["variants"].values():
        assert len(look["probabilities"]) == len(example["text"]) == len(example["ideal"])
        assert len(look["attention"]) == 1  # one layer
    assert [len(look["attention"][0]) for look in example["variants"].values()] == [4, 1, 1]  # heads


def test_a_comparison_without_a_floor_has_a_page_too(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text("utf-8"))
    bare = results | {"metric": "loss", "floor": None, "forgetful": None, "names": [], "example": None}
    bare["variants"] = [v | {"above": None, "accuracy": {}, "remembered": {}} for v in results["variants"]]
    found = Tables(page(bare)).tables
    assert len(found["table"]) == 4
    assert [row[2] for row in found["table"][1:]] == ["-"] * 3
    assert "names" not in found


def test_ticks_are_round_and_enclose() -> None:
    assert ticks(0, 400) == [0, 100, 200, 300, 400]
    assert ticks(-0.013, 0.021) == [-0.02, -0.01, 0, 0.01, 0.02, 0.03]
    assert ticks(3, 3)[0] <= 3 <= ticks(3, 3)[-1]
    assert log_ticks(0.013, 0.41) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
    assert log_ticks(1, 1)[0] <= 1 <= log_ticks(1, 1)[-1]


# ---- a real browser ----


def visit(path: Path, net_log: Path, *options: str) -> tuple[str, list[str], list[str]]:
    """Open a page in chromium: its DOM, what the console said, and every address that was asked for."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--disable-component-update", "--no-first-run", f"--user-data-dir={net_log.parent / 'profile'}"]
    command += ["--enable-logging=stderr", f"--log-net-log={net_log}", *options, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    raw = net_log.read_text("utf-8", "replace")
    addresses = re.findall(r'"url":\s*"([^"]+)"', raw)
    return done.stdout, console, [a for a in addresses if not a.startswith(("data:", "chrome:", "file:"))]


@browser
@pytest.mark.parametrize("options", [(), ("--blink-settings=preferredColorScheme=0",)], ids=["light", "dark"])
def test_a_real_browser_reports_no_error(folder: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    dom, console, addresses = visit(folder / "page.html", tmp_path / "net.json", *options)
    assert console == []
    assert [a for a in addresses if not background(a)] == []
    check_numbers(dom, json.loads((folder / "results.json").read_text("utf-8")))


def background(address: str) -> bool:
    """Whether chromium itself requests this address, for any page."""
    return re.match(r"https?://([\w.-]*\.)?(google\.com|googleapis\.com|gvt1\.com)/", address) is not None


BREAKS: dict[str, Callable[[str], str]] = {
    "a script with a mistake": lambda text: text.replace("</body>", "<script>throw Error('x')</script></body>"),
    "a picture from outside": lambda text: text.replace("</body>", '<img src="http://127.0.0.1:9/x.png"></body>'),
}


@browser
@pytest.mark.parametrize("policy", [True, False], ids=["with the policy", "without it"])
@pytest.mark.parametrize("what", BREAKS)
def test_the_browser_would_report_it(folder: Path, tmp_path: Path, what: str, policy: bool) -> None:
    """The test above would notice a script or an external address; and the policy in the page's head blocks both."""
    text = BREAKS[what]((folder / "page.html").read_text("utf-8"))
    if not policy:
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    (tmp_path / "page.html").write_text(text, "utf-8")
    _, console, addresses = visit(tmp_path / "page.html", tmp_path / "net.json")
    assert bool(console) == (policy or what == "a script with a mistake")  # a missing picture is no error
    assert ("http://127.0.0.1:9/x.png" in addresses) == (what == "a picture from outside" and not policy)


def test_a_curve_has_the_spread_of_its_seeds(folder: Path) -> None:
    results = json.loads((folder / "results.json").read_text("utf-8"))
    for row in results["variants"]:
        mine = [run["curve"] for run in results["runs"] if run["variant"] == row["variant"]]
        for number, (step, low, high) in enumerate(row["spread"]):
            above = [curve[number][-1] for curve in mine]
            assert (step, low, high) == (mine[0][number][0], min(above), max(above))
            assert low < row["curve"][number][2] < high
    text = (folder / "page.html").read_text("utf-8")
    assert text.count("<polygon") == text.count("<polyline") == len(results["variants"])
