"""Make the screenshots of the README, for a light and a dark page: data/pictures/NAME-THEME.webp.

python scripts/train.py --config tiny.yaml
python scripts/screenshots.py

It needs Playwright (pip install -e ".[browser]") and a Chromium.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import base64
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from minigpt import command
from minigpt.seeing.drawing import THEMES
from minigpt.system import places
from minigpt.system.errors import UserError
from minigpt.system.folder import write_whole
from minigpt.system.machine import is_root
from minigpt.training.report import say
from minigpt.training.run import load, newest_run

STORY = (
    "Ivan was a wild fox. He met Jack. He found two pale limes. "
    "Jack ate one, so Ivan had one pale lime. So Jack fed him."
)
WIDTH, HEIGHT, SHARE, QUALITY = 1280, 1080, 0.75, 0.6  # pixels of the window; scale and quality of its picture
NAMES = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
AS_WEBP = """async ([png, share, quality]) => {
    const image = new Image();
    image.src = png;
    await image.decode();
    const canvas = new OffscreenCanvas(share * image.width, share * image.height);
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await canvas.convertToBlob({type: "image/webp", quality});
    return Array.from(new Uint8Array(await blob.arrayBuffer()));
}"""


def main(arguments: argparse.Namespace) -> None:
    """Take a picture of the explorer in each theme."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = load(newest_run(arguments.run), "cpu")
    with tempfile.TemporaryDirectory() as folder:
        page = run.explore(arguments.prompt, Path(folder) / "page.html").path.absolute().as_uri()
        for theme in THEMES:
            path = arguments.out / f"explorer-{theme}.webp"
            picture = photograph(page, theme)
            write_whole(path, picture)
            say(f"wrote {path}: {len(picture):,} bytes")


def photograph(address: str, theme: str) -> bytes:
    """A screenshot of a page in WebP. Raises UserError if there is no browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise UserError(f"screenshots need Playwright: {places.with_extra('browser')}") from None
    with sync_playwright() as playwright:
        found = os.environ.get("MINIGPT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
        executable = found or playwright.chromium.executable_path
        if not Path(executable).exists():
            raise UserError("there is no Chromium: playwright install chromium, or set MINIGPT_CHROMIUM")
        arguments = ["--no-sandbox"] if is_root() else []
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        scheme: Literal["dark", "light"] = "dark" if theme == "dark" else "light"
        window = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
        window.goto(address)
        window.wait_for_selector("body[data-ready]")
        png = base64.b64encode(window.screenshot()).decode()
        window.goto("about:blank")
        webp = bytes(window.evaluate(AS_WEBP, [f"data:image/png;base64,{png}", SHARE, QUALITY]))
        browser.close()
    return webp


if __name__ == "__main__":
    parser = command.parser("Make the screenshots of the README.")
    parser.add_argument("--run", default="tiny", metavar="RUN", help="the run that is shown (default: tiny)")
    parser.add_argument("--prompt", default=STORY, metavar="TEXT", help="the text that it reads")
    parser.add_argument("--out", type=Path, default=places.PICTURES, metavar="DIR", help="default: data/pictures")
    sys.exit(command.execute(main, parser.parse_args()))
