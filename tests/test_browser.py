"""The browser that looks at the pages: it must see what is wrong with one."""

from pathlib import Path

import pytest
from browser import Visit, overflow, violations

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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_right_page_passes(visit: Visit, tmp_path: Path, theme: str) -> None:
    """And the theme is the one that was asked for."""
    (tmp_path / "right.html").write_text(RIGHT)
    page = visit(tmp_path / "right.html", width=390, theme=theme)
    assert violations(page) == [] and overflow(page) == 0
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (theme == "dark")
