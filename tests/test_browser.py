"""The browser that looks at the pages: it must see what is wrong with one."""

from pathlib import Path

import pytest
from browser import Visit, cut, overflow, violations

WRONG = """<!doctype html><title>x</title>
<meta http-equiv="Content-Security-Policy" content="script-src 'unsafe-inline'">
<p style="width: 3000px; color: #eee; background: #fff">pale</p><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">
<script>console.error("oh"); fetch("https://example.invalid/x").catch(() => 0); nothing()</script>"""
RIGHT = '<!doctype html><html lang="en"><title>x</title><main><h1>right</h1></main></html>'


def test_a_wrong_page_is_seen_to_be_wrong(visit: Visit, tmp_path: Path) -> None:
    """Its console, its request, its contrast, its picture without words, its width."""
    (tmp_path / "wrong.html").write_text(WRONG)
    page = visit(tmp_path / "wrong.html", width=390)
    found = " ".join(violations(page))
    assert "image-alt" in found and "color-contrast" in found and "html-has-lang" in found
    assert overflow(page) > 2000
    said = " ".join(page.complaints)
    assert "oh" in said and "asked https://example.invalid/x" in said and "nothing is not defined" in said
    page.complaints.clear()


CUT = """<!doctype html><style>@media (prefers-color-scheme: dark) { p { color: #eee } }</style>
<div style="width: 500px; overflow-x: auto"><div style="width: 600px; height: 1px"></div></div>
<div style="height: 50px; overflow-y: auto"><div style="height: 60px"></div></div><p>ink</p>
<b style="margin-left: 650px">wide</b>"""


def test_what_paper_and_a_phone_cannot_show_is_seen(visit: Visit, tmp_path: Path) -> None:
    """What is wider than they are, what would have to be scrolled, and pale ink; and the page is as before after it."""
    (tmp_path / "cut.html").write_text(CUT)
    page = visit(tmp_path / "cut.html")
    found = " ".join(cut(page))
    assert "390 pixels, light: the page is" in found and "703 pixels, light: div#. is cut off" in found
    assert "703 pixels, dark: p#. is pale" in found and "703 pixels, light: p#. is pale" not in found
    assert found.count("is cut off") == 8  # two boxes, two papers, two schemes
    assert page.viewport_size["width"] == 1280 and not page.evaluate("matchMedia('print').matches")
    (tmp_path / "right.html").write_text(RIGHT)
    assert cut(visit(tmp_path / "right.html")) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_right_page_passes(visit: Visit, tmp_path: Path, theme: str) -> None:
    """And the theme is the one that was asked for."""
    (tmp_path / "right.html").write_text(RIGHT)
    page = visit(tmp_path / "right.html", width=390, theme=theme)
    assert violations(page) == [] and overflow(page) == 0
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (theme == "dark")
