"""The pages in a real browser: Chromium, driven by Playwright. A test asks for the fixture `visit`.

Whatever a test looks at, the page must not complain: no error in its console, no request that leaves the page. Where
Playwright or Chromium is absent, the test is skipped and says which.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

NAMES = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
THEMES = [(width, theme) for theme in ("light", "dark") for width in (1280, 390)]  # 390 px: a phone
QUICKLY = (1280, "light"), (390, "dark")  # each width and each theme once; axe takes seconds
PAPER = 703, 725  # pixels between the margins of 12 mm on A4 and on letter paper
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
Visit = Callable[..., Any]
UNUSED = (  # most are those that Playwright turns off, whose list this one replaces; the first costs a process a window
    "PreloadTopChromeWebUI,DestroyProfileOnBrowserClose,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,LensOverlay,"
    "MediaRouter,PaintHolding,ThirdPartyStoragePartitioning,OptimizationHints,NetworkTimeServiceQuerying,Translate"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for the tests of a file. Chromium is $MINIGPT_CHROMIUM, the system's, or Playwright's own."""
    api = pytest.importorskip("playwright.sync_api", reason='there is no Playwright: pip install -e ".[test]"')
    with api.sync_playwright() as playwright:
        found = os.environ.get("MINIGPT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
        executable = found or playwright.chromium.executable_path
        if not Path(executable).exists():
            pytest.skip("there is no Chromium: playwright install chromium")
        arguments = [f"--disable-features={UNUSED}"]
        arguments += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        try:
            browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        except api.Error as error:  # libraries of the system that it needs may be missing
            pytest.skip(f"{executable} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visit]:
    """`visit(address or path, width=1280, theme="light")` -> Playwright's page, with all that it complained of.

    `page.complaints` is a list; it must be empty when the test ends.
    """
    contexts, complaints = [], []

    def open_page(where: str | Path, width: int = 1280, theme: str = "light", **options: Any) -> Any:
        address = where.absolute().as_uri() if isinstance(where, Path) else where
        size = {"width": width, "height": 900}
        context = chromium.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        page.complaints = complaints
        page.set_default_timeout(20_000)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.extend(_outside(request.url, address)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def _outside(url: str, home: str) -> list[str]:
    """A complaint about a request, unless it asks the page's own file or server."""
    asked, own = urlsplit(url), urlsplit(home)
    inside = asked.scheme in ("data", "blob") or (asked.scheme, asked.netloc) == (own.scheme, own.netloc)
    return [] if inside else [f"asked {url}"]


def violations(page: Any) -> list[str]:
    """What axe-core finds against WCAG 2.2 A and AA: a line for each element."""
    axe = pytest.importorskip("axe_playwright_python", reason='there is no axe: pip install -e ".[test]"')
    page.evaluate((Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    # it loads no style sheet, and asks no page in a frame, which is tested by itself
    once = "rules => axe.run({runOnly: rules, resultTypes: ['violations'], preload: false, iframes: false})"
    found = page.evaluate(once, RULES)["violations"]
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]


def overflow(page: Any) -> int:
    """How many pixels of the page lie beyond its right edge."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


CUT = """paper => {
    const [found, root] = [[], document.documentElement];
    if (root.scrollWidth > root.clientWidth) found.push(`the page is ${root.scrollWidth} wide`);
    const named = (e) => `${e.tagName.toLowerCase()}#${e.id}.${e.className.baseVal ?? e.className}`;
    for (const e of paper ? document.querySelectorAll("body *") : []) {
        const [style, box] = [getComputedStyle(e), e.getBoundingClientRect()];
        if (!box.width || !box.height || style.visibility === "hidden") continue;
        const scrolls = (how, inside, outside) => /auto|scroll/.test(how) && inside > outside + 1;
        const across = scrolls(style.overflowX, e.scrollWidth, e.clientWidth);
        const down = scrolls(style.overflowY, e.scrollHeight, e.clientHeight);
        if (box.right > root.clientWidth + 1) found.push(`${named(e)} ends at ${box.right}`);
        else if (across || down) found.push(`${named(e)} is cut off`);
        const light = style.color.match(/[\\d.]+/g).slice(0, 3).every((x) => Number(x) > 170);
        const written = [...e.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
        if (light && written) found.push(`${named(e)} is pale`);
    }
    return found;
}"""


def cut(page: Any) -> list[str]:
    """What lies beyond the edge of a phone or of paper, is cut off on paper, or is pale there; in both schemes."""
    found, size = list[str](), page.viewport_size
    for width in (390, *PAPER):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(media="screen" if width == 390 else "print", color_scheme=scheme)
            if width != 390:
                page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
            found += [f"{width} pixels, {scheme}: {what}" for what in page.evaluate(CUT, width != 390)]
            if width != 390:
                page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen", color_scheme=None)
    page.set_viewport_size(size)
    told(page)
    return found


def told(page: Any) -> None:
    """Waits until the page knows its colours: it is told of them before the next frame."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
