"""Make the documentation site of the READMEs, the docstrings, the configs and the lessons.

pip install -e ".[docs]"
python scripts/docs.py          # writes build/docs/html/index.html; it opens from a disk and needs no network

A file has one page, at the same place: `minigpt/attention/ladder.py` has `minigpt/attention/ladder.py.html`. So a link
between files is a link between pages, and no text is written for the site alone. The pages are Markdown, and Sphinx
makes HTML of them. Each of its warnings, such as of a link that leads nowhere, is an error.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import importlib.resources
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from documentation.files import api_page, file_page, lesson_page
from documentation.kinds import draw
from documentation.markdown import ROOT, code, page_of, source_of, themed
from documentation.options import options_page
from minigpt import command
from minigpt.attention import Attention
from minigpt.fast.threads import use_threads
from minigpt.learning.course import lessons
from minigpt.learning.output import STYLE
from minigpt.seeing.catalogue import FAMILIES
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.training.report import say

HOW_TO = {
    "Train on your own text": "data/README.md",
    "Write your own kind of attention": "CONTRIBUTING.md",
    "Write your own norm, MLP or block": "CONTRIBUTING.md#a-norm-an-mlp-or-a-block-of-your-own",
    "Put another attention into a run": "scripts/README.md#another-attention-in-a-run",
    "Train a model to talk": "minigpt/text/README.md",
    "Fine-tune a run": "scripts/README.md#a-new-run-with-the-weights-of-another",
    "Make a comparison of your own": "minigpt/comparison/README.md#your-own-comparison",
    "Work in a notebook": "scripts/README.md#in-a-notebook",
    "Use many GPUs or machines": "scripts/README.md#several-processes",
    "Import real weights, and export yours": "minigpt/hub/README.md",
    "Teach a class": "minigpt/checks/learners/README.md#a-class",
    "Set up a server for a class": "scripts/README.md#a-class-on-one-server",
    "Work without a network": "scripts/README.md#without-a-network",
    "Use Windows or macOS": "scripts/README.md#windows-and-macos",
}
CONTENTS = {  # of the front page, at the side of every page
    "Learn": ["lessons.md", "minigpt/attention/ladder.py.md", "minigpt/attention/README.md"],
    "Use": ["how_to.md", "scripts/README.md", "configs/README.md", "options.md", "data/README.md"],
    "Understand": ["minigpt/README.md"]
    + [
        f"minigpt/{part}/README.md"
        for part in ("text", "seeing", "learning/playground", "comparison", "training", "hub")
    ]
    + [f"minigpt/{part}/README.md" for part in ("checks/learners", "checks/laws", "checks/reading", "fast")],
    "Reference": ["api.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md", "scripts/benchmarks/README.md"],
}
SETTINGS: dict[str, Any] = {
    "project": "minigpt",
    "html_title": "minigpt",
    "extensions": ["myst_parser"],
    "root_doc": "index",
    "html_theme": "furo",
    "html_static_path": ["_static"],
    "html_css_files": ["site.css"],
    "html_copy_source": False,
    "html_show_copyright": False,
    "html_show_search_summary": False,  # it asks for each page found, which a browser refuses on a disk
    "html_use_index": False,
    "highlight_language": "none",
    "smartquotes": False,
    "myst_enable_extensions": ["html_image"],
    "myst_heading_anchors": 6,
}
FONT = "STIXTwoMath-Regular.ttf"  # a browser has no font for formulas of its own; SIL Open Font License
LOOK = """
@font-face { font-family: "STIX Two Math"; src: url("STIXTwoMath-Regular.ttf"); }
math { font-family: "STIX Two Math", math; }
img.only-light, img.only-dark { max-width: 100%; height: auto; }
.formula { overflow-x: auto; margin: .8rem 0 .8rem 1rem; }
.formula math { margin-right: 2rem; font-size: 1.15rem; line-height: 2.2; }
.highlight span { text-decoration: none; }
summary { cursor: pointer; }
@media (max-width: 46em) { h1 { font-size: 1.7rem; } h2 { font-size: 1.4rem; } }
"""
ACCESSIBLE = {  # what scrolls has to be reached by the keyboard, and a heading to have its level
    "<pre><span></span>": '<pre tabindex="0"><span></span>',
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
}
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
PICTURE = re.compile(r'<picture>\s*<source[^>]*srcset="([^"]+)">\s*<img alt="([^"]+)" src="([^"]+)">\s*</picture>')


class Site:
    """The folder of Markdown that Sphinx reads. A file that a page links to gets a page too."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.listed = {"index.md"}  # pages in a table of contents
        self.linked_to = list[Path]()

    def contents(self, pages: list[str], title: str = "") -> str:
        """A table of contents; one with a title stands at the side only."""
        self.listed |= set(pages)
        options = f":caption: {title}\n:hidden:\n" if title else ":maxdepth: 1\n"
        return "\n\n" + code(options + "\n" + "\n".join(f"/{page}" for page in pages), "{toctree}") + "\n"

    def write(self, page: str, text: str) -> None:
        """Write a page. One in no table of contents is found by links and by the search."""
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if page in self.listed else f"---\norphan: true\n---\n{text}", encoding="utf-8")

    def with_links(self, text: str, file: Path) -> str:
        """The Markdown of a file, with links to pages in place of those to files; code stays as it is."""

        def to_page(match: re.Match[str]) -> str:
            target = Path(os.path.normpath(file.parent / match[1]))
            if (ROOT / target).is_dir():
                target /= "README.md" if (ROOT / target / "README.md").exists() else "__init__.py"
            if not (ROOT / target).is_file():
                return match[0]
            self.linked_to.append(target)
            return "/" + page_of(target) + (match[2] or "")

        def to_pictures(match: re.Match[str]) -> str:
            for picture in (match[1], match[3]):
                place = self.folder / file.parent / picture
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file.parent / picture, place)
            return themed(match[3], match[1], match[2])

        parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
        parts[::2] = [PICTURE.sub(to_pictures, LINK.sub(to_page, part)) for part in parts[::2]]
        return "".join(parts)


def tables_of_contents(site: Site) -> dict[Path, str]:
    """What stands below the text of a file: the table of contents of its pages."""
    families: dict[Path, list[str]] = {Path(f"minigpt/attention/{name}/__init__.py"): [] for name in FAMILIES}
    for kind in Attention.kinds.values():
        families[source_of(kind).with_name("__init__.py")].append(page_of(source_of(kind)))
    configs = sorted(path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml"))
    return {
        Path("README.md"): "".join(site.contents(pages, title) for title, pages in CONTENTS.items()),
        Path("minigpt/attention/README.md"): site.contents([*map(page_of, families)]),
        Path("configs/README.md"): site.contents([*map(page_of, configs)]),
        **{family: site.contents(pages) for family, pages in families.items()},
    }


def write_pages(site: Site) -> None:
    """Write all pages. All lessons are run, which takes minutes."""
    below = tables_of_contents(site)
    by_file = {lesson.path.relative_to(ROOT): lesson for lesson in lessons()}
    links = "\n".join(f"- [{title}]({target})" for title, target in HOW_TO.items())
    site.write("lessons.md", "# Lessons" + site.contents([*map(page_of, by_file)]))
    site.write("how_to.md", site.with_links(f"# How to\n\n{links}\n", Path("how_to.md")))
    site.write("options.md", options_page())
    site.write("api.md", api_page())
    for kind in Attention.kinds.values():
        draw(kind, site.folder / source_of(kind).parent / "pictures")
    patterns = "minigpt/**/*.py", "scripts/**/*.py", "configs/**/*.yaml", "README.md"
    site.linked_to += [path.relative_to(ROOT) for pattern in patterns for path in ROOT.glob(pattern)]
    written = set(by_file)
    while site.linked_to:
        file = site.linked_to.pop()
        if file not in written:
            written.add(file)
            text = (ROOT / file).read_text(encoding="utf-8") if file.suffix == ".md" else file_page(file)
            about, heading, source = site.with_links(text, file).partition("## Source\n")
            site.write(page_of(file), about + below.get(file, "") + heading + source)
    for file, lesson in progress(by_file.items(), "running the lessons", len(by_file), "lessons"):
        site.write(page_of(file), lesson_page(lesson))  # last: some define kinds


def build(source: Path, html: Path, notes: Path) -> None:
    """Make HTML of the Markdown in a folder; `notes` is what Sphinx remembers. Raises UserError if it warns."""
    from sphinx.application import Sphinx

    (source / "_static").mkdir(parents=True, exist_ok=True)
    (source / "_static" / "site.css").write_text(STYLE + LOOK, encoding="utf-8")
    shutil.copy(str(importlib.resources.files("ziamath") / "fonts" / FONT), source / "_static" / FONT)
    site = Sphinx(source, None, html, notes, "html", SETTINGS, status=None, warningiserror=True)
    site.build()
    if site.statuscode:
        raise UserError("the site has mistakes, which the lines above name")
    for path in html.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for made, accessible in ACCESSIBLE.items():
            text = text.replace(made, accessible)
        path.write_text(text, encoding="utf-8")


def main(arguments: argparse.Namespace) -> None:
    """Write the Markdown, and have Sphinx make HTML of it. Raises UserError without Sphinx, and for mistakes."""
    if not all(map(importlib.util.find_spec, ("sphinx", "furo", "myst_parser", "ziamath"))):
        raise UserError('the site needs Sphinx, furo, MyST and ziamath: pip install -e ".[docs]"')
    use_threads(1)  # the models of the lessons are tiny
    source, html, notes = (arguments.out.absolute() / name for name in ("source", "html", "notes"))
    for folder in (source, html, notes):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    os.chdir(source)  # the lessons look into runs of the current folder: here is none
    write_pages(Site(source))
    build(source, html, notes)
    say(f"wrote {html / 'index.html'}")


if __name__ == "__main__":
    parser = command.parser("Make the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", metavar="DIR", help="default: build/docs")
    sys.exit(command.execute(main, parser.parse_args()))
