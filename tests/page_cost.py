"""What a browser spends on a page until it can be used: processor seconds of its main thread, and seconds on the clock.

    python tests/page_cost.py runs/tiny/explorer.html

It needs the extra `test` and a Chromium. Seconds on the clock depend on what else the machine does.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from browser import NAMES
from playwright.sync_api import sync_playwright


def cost(path: Path) -> tuple[float, float]:
    """(processor seconds, seconds on the clock) from the request to `body[data-ready]`."""
    found = os.environ.get("MINIGPT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page()
        asked = page.context.new_cdp_session(page)
        asked.send("Performance.enable")
        page.goto(path.absolute().as_uri())
        page.wait_for_selector("body[data-ready]")
        metrics = {one["name"]: one["value"] for one in asked.send("Performance.getMetrics")["metrics"]}
        clock = page.evaluate("Number(document.body.dataset.ready) / 1000")
        browser.close()
    return metrics["TaskDuration"], clock


if __name__ == "__main__":
    costs = sorted(cost(Path(sys.argv[1])) for _ in range(5))
    print("usable after {:.2f} s of processor time, {:.2f} s on the clock (the median of five)".format(*costs[2]))
