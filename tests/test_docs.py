"""The documentation site: formulas say what their text says, every option has its sentence, and no link is dead.

The site is built once, by the command, with lessons that train for four steps. It needs what the extra `docs` installs.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browser import QUICKLY, Visit, overflow, violations
from running import ROOT, environment

from documentation.formulas import formulas, mathml
from documentation.markdown import page_of, prose, source_of
from documentation.options import options_page, options_table, sentences
from minigpt.attention import Attention
from minigpt.checks.graph import all_steps
from minigpt.config.options import hints
from minigpt.learning.course import lessons
from minigpt.training.optimizer import Muon

NEEDED = "sphinx", "furo", "myst_parser", "ziamath"
BUILD = """
import runpy, sys
from minigpt.learning import small_training
small_training.OWN_STEPS = small_training.SHORT_STEPS = 4
small_training.SMALL = [option.replace("validation: 100", "validation: 20") for option in small_training.SMALL]
sys.argv = ["docs.py", "--out", sys.argv[1]]
sys.path.insert(0, "scripts")
runpy.run_path("scripts/docs.py", run_name="__main__")
"""
ONE_PAGE = """
import sys
from pathlib import Path
sys.path.insert(0, "scripts")
import docs
docs.build(*map(Path, sys.argv[1:]))
"""


# ---- formulas ----


def test_a_formula_has_its_scripts_roots_and_signs() -> None:
    equals, minus, over = (f'<mo stretchy="false">{sign}</mo>' for sign in ("=", "&minus;", "/"))
    weight = "<msub><mi>w</mi><mrow><mi>t</mi><mi>s</mi></mrow></msub>"
    power = f"<msup><mi>a</mi><mrow><mi>t</mi>{minus}<mi>s</mi></mrow></msup>"
    expected = f'{weight}{equals}{power}<mspace width="0.3em"/><mi>q</mi>{over}<msqrt><mi>d</mi></msqrt>'
    assert mathml("w_ts = a^(t - s) q / sqrt(d)") == f"<math>{expected}</math>"


def test_a_wide_gap_divides_two_formulas() -> None:
    assert mathml("a = 1      b <= 2").count("<math>") == 2
    assert "&le;" in mathml("b <= 2")


@pytest.mark.parametrize(
    "line", ["a = (b", "a = b_", "a = b)", "a = §", "a b", "a = the mean of its keys", "{kind: delta_net, gate: true}"]
)
def test_what_is_no_formula_stays_text(line: str) -> None:
    assert mathml(line) == ""
    assert formulas(f"One.\n\n    {line}\n\nTwo.") == f"One.\n\n    {line}\n\nTwo."


# ---- docstrings and options ----


def test_a_docstring_becomes_markdown_with_links() -> None:
    text = "A. Cost is in `fast/windows.py`, `none.py`.\nCost: 1 (arXiv 2004.05150) <b> `<b>`\n\n    x <b> y"
    windows = "[`fast/windows.py`](/minigpt/fast/windows.py.md)"
    expected = f"A. Cost is in {windows}, `none.py`.\n\nCost: 1 ([arXiv 2004.05150](https://arxiv.org/abs/2004.05150)) "
    assert prose(text, Path("minigpt/attention")) == expected + "\\<b> `<b>`\n\n    x <b> y"


def test_every_option_has_its_sentence() -> None:
    """`options_page` reads the sentences of all groups and raises KeyError without one."""
    assert "## training.optimizer, by kind" in options_page()
    for kind in Attention.kinds.values():
        options, table = hints(kind.Config).keys(), options_table(kind.Config)
        assert options <= sentences(kind.Config).keys()
        assert all(f"| `{option}` |" in table for option in options)
    assert hints(Muon.Config).keys() <= sentences(Muon.Config).keys()


# ---- the site ----


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A Python program in the folder of the repository."""
    for package in filter(lambda package: find_spec(package) is None, NEEDED):
        pytest.skip(f'there is no {package}: pip install -e ".[docs]"')
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=1200)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("docs")
    ended = run(BUILD, folder)
    assert ended.returncode == 0, ended.stderr
    return folder / "html"


class Page(HTMLParser):
    """A page: the names that a link can point at, its links, and what it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.names, self.links, self.loads = {""}, set[str](), set[str]()
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.names.add(values.get("id") or "")
        self.loads |= {values.get("src") or ""} - {""}
        if href := values.get("href"):
            (self.links if tag == "a" else self.loads).add(href)


@cache
def page(path: Path) -> Page:
    return Page(path)


@pytest.mark.slow
def test_no_link_is_dead_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    dead = list[str]()
    for path in site.rglob("*.html"):
        assert [load for load in page(path).loads if urlsplit(load).scheme not in ("", "data")] == [], path
        for link in page(path).links | page(path).loads:
            asked = urlsplit(link)
            if asked.scheme:
                continue
            target = (path.parent / unquote(asked.path)).resolve() if asked.path else path
            known = page(target).names if target.suffix == ".html" and target.is_file() else {unquote(asked.fragment)}
            if not target.is_file() or unquote(asked.fragment) not in known:
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", Attention.kinds.values(), ids=Attention.kinds)
def test_every_kind_has_a_page_with_its_code_and_picture(site: Path, kind: type[Attention]) -> None:
    text = page(site / page_of(source_of(kind)).replace(".md", ".html")).text
    assert f'<span class="nc">{kind.__name__}</span>' in text
    assert all(f'class="only-{theme}" src="' in text.replace("\n", " ") for theme in ("light", "dark"))
    assert text.count(f"_images/{kind.kind}-") == 2
    assert all(step.edge.to in text for step in all_steps() if step.kind == kind.kind)


@pytest.mark.slow
def test_every_lesson_and_config_has_a_page(site: Path) -> None:
    for lesson in lessons():
        assert lesson.title in page(site / f"{lesson.path.relative_to(ROOT)}.html").text
    for config in (ROOT / "configs").rglob("*.yaml"):
        assert (site / f"{config.relative_to(ROOT)}.html").is_file()


@pytest.mark.slow
def test_the_search_works_without_a_network(site: Path, visit: Visit) -> None:
    found = visit((site / "search.html").as_uri() + "?q=sliding", offline=True)
    found.wait_for_selector("#search-results li a")
    assert "sliding_window" in found.locator("#search-results li a").first.inner_text()


LOOKED_AT = ["index", "minigpt/attention/linear/mlstm.py", "minigpt/learning/lesson_02_dot_products.py", "options"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "width", "theme"), [(name, *shown) for name, shown in zip(LOOKED_AT, 2 * QUICKLY)])
def test_a_page_fits_and_is_readable(site: Path, visit: Visit, name: str, width: int, theme: str) -> None:
    shown = visit(site / f"{name}.html", width=width, theme=theme, offline=True)
    assert overflow(shown) == 0
    assert violations(shown) == []


@pytest.mark.slow
def test_a_link_that_leads_nowhere_stops_the_build(tmp_path: Path) -> None:
    for number, (text, code) in enumerate({"[a](#one)": 0, "[a](none.py)": 1, "[a](#none)": 1}.items()):
        source, html, notes = (tmp_path / f"{name}-{number}" for name in ("source", "html", "notes"))
        source.mkdir()
        (source / "index.md").write_text(f"# One\n\n{text}\n", encoding="utf-8")
        assert run(ONE_PAGE, source, html, notes).returncode == code, text
