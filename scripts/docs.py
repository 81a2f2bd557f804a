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
import ast
import importlib.util
import inspect
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import minigpt
from minigpt import command
from minigpt.attention import Attention, Past
from minigpt.checks.graph import all_steps, family
from minigpt.config.options import Component, Options, hints, type_in_words
from minigpt.fast.threads import use_threads
from minigpt.learning.as_page import run
from minigpt.learning.course import Lesson, lessons
from minigpt.learning.output import STYLE
from minigpt.model import ModelConfig
from minigpt.seeing.catalogue import facts, idea, sign
from minigpt.seeing.drawing import THEMES
from minigpt.seeing.figures import map_svg
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.training.assemble import RunConfig
from minigpt.training.report import say

ROOT = Path(__file__).parents[1]
TEXT = "Mia was a shy fox."  # what the pictures of the kinds read
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}  # of other files: none
FENCE = "~" * 12
HOW_TO = {
    "Train on your own text": "data/README.md",
    "Write your own kind of attention": "CONTRIBUTING.md",
    "Write your own norm, MLP or block": "CONTRIBUTING.md#a-norm-an-mlp-or-a-block-of-your-own",
    "Put another attention into a run": "scripts/README.md#another-attention-in-a-run",
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
PARTS = "seeing", "learning/playground", "checks/learners", "checks/laws", "comparison", "training", "fast", "hub"
CSS = """
img.only-light, img.only-dark { max-width: 100%; height: auto; }
"""
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
    "highlight_language": "none",
    "smartquotes": False,
    "myst_enable_extensions": ["html_image"],
    "myst_heading_anchors": 6,
}
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
PICTURE = re.compile(r'<picture>\s*<source[^>]*srcset="([^"]+)">\s*<img alt="([^"]+)" src="([^"]+)">\s*</picture>')


class Site:
    """The folder of Markdown that Sphinx reads; the pages that are linked to are made when all others are."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.made, self.listed, self.wanted = set[str](), {"index.md"}, list[Path]()

    def contents(self, title: str, pages: list[str]) -> str:
        """A table of contents, which only the bar at the side shows."""
        self.listed |= set(pages)
        lines = "\n".join(f"/{page}" for page in pages)
        return f"\n\n{FENCE}{{toctree}}\n:hidden:\n:caption: {title}\n\n{lines}\n{FENCE}\n"

    def write(self, page: str, text: str) -> None:
        """Write a page; one that is in no table of contents is found by links and by the search."""
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if page in self.listed else f"---\norphan: true\n---\n{text}", encoding="utf-8")
        self.made.add(page)

    def linked(self, text: str, file: Path) -> str:
        """The Markdown of a file with its links turned to pages, and its pictures copied; code stays as it is."""

        def to_page(match: re.Match[str]) -> str:
            target = Path(os.path.normpath(file.parent / match[1]))
            if (ROOT / target).is_dir():
                target /= "README.md" if (ROOT / target / "README.md").exists() else "__init__.py"
            if not (ROOT / target).is_file():
                return match[0]
            self.wanted.append(target)
            return os.path.relpath(page_of(target), file.parent) + (match[2] or "")

        def both(match: re.Match[str]) -> str:
            for source in (match[1], match[3]):
                target = self.folder / file.parent / source
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file.parent / source, target)
            return themed(match[3], match[1], match[2])

        parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
        parts[::2] = [PICTURE.sub(both, LINK.sub(to_page, part)) for part in parts[::2]]
        return "".join(parts)


def page_of(file: Path) -> str:
    """The page of a file of the repository."""
    if file == Path("README.md"):
        return "index.md"
    return file.as_posix() if file.suffix == ".md" else f"{file.as_posix()}.md"


def themed(light: str, dark: str, alt: str) -> str:
    """A picture for each theme, of which the page shows one."""
    return "\n".join(f'<img alt="{alt}" src="{src}" class="only-{name}">' for name, src in zip(THEMES, (light, dark)))


def code(source: str, language: str) -> str:
    """A block of code in Markdown."""
    return f"{FENCE}{language}\n{source.rstrip()}\n{FENCE}"


def prose(docstring: str) -> str:
    """A docstring as Markdown: its papers become links, cost and users paragraphs of their own, and no `<` is HTML."""
    blocks = re.sub(r"\n(?=(?:Cost|Cache|Used by)\b)", "\n\n", inspect.cleandoc(docstring)).split("\n\n")
    for index, block in enumerate(blocks):
        if not block.startswith("    "):
            block = re.sub(r"(`[^`]*`)|<(?=[\w/!|])", lambda match: match[1] or "\\<", block)
            blocks[index] = re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", block)
    return "\n\n".join(blocks)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown; "" if it has no row."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) * bool(
        rows
    )


# ---- pages of files ----


def file_page(file: Path) -> str:
    """What a file is, what is in it, and its source."""
    source = (ROOT / file).read_text(encoding="utf-8")
    parts = [f"# {file.as_posix()}"]
    if file.suffix == ".py":
        tree = ast.parse(source)
        kinds = [kind for kind in Attention.kinds.values() if source_of(kind) == file]
        parts = [f"# {kinds[0].kind}"] if kinds else parts
        parts += [prose(ast.get_docstring(tree) or "")]
        parts += [part for kind in kinds for part in kind_parts(kind)]
        public = [*outline(tree)] if file.parts[0] == "minigpt" else []
        parts += ["## What is in it", *public] if public else []
        parts += [f"## Source: `{file.as_posix()}`"]
    return "\n\n".join([*parts, code(source, LANGUAGES.get(file.suffix, "none")), ""])


def source_of(thing: Any) -> Path:
    """The file of a class or a function, in this folder."""
    return Path(thing.__module__.replace(".", "/") + ".py")


def outline(tree: ast.Module) -> Iterator[str]:
    """The public classes and functions of a file, with what their docstrings say."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield f"### `{node.name}`"
            yield entry(node)
            methods = node.body if isinstance(node, ast.ClassDef) else []
            yield from (
                entry(method) for method in methods if isinstance(method, ast.FunctionDef) and described(method)
            )


def described(method: ast.FunctionDef) -> bool:
    """Whether a method is public and says what it does."""
    return not method.name.startswith("_") and ast.get_docstring(method) is not None


def entry(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The first line of a class or of a function, and its docstring."""
    if isinstance(node, ast.ClassDef):
        first = f"class {node.name}({', '.join(map(ast.unparse, [*node.bases, *node.keywords]))})".replace("()", "")
    else:
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        first = f"def {node.name}({ast.unparse(node.args)}){returns}"
    return f"{code(first, 'python')}\n\n{prose(ast.get_docstring(node) or '')}"


def lesson_page(lesson: Lesson) -> str:
    """A lesson with its outputs, as they are now; answers, and the code that computes them, are folded."""
    names, parts = {"__name__": lesson.path.stem}, [f"# {lesson.number}. {lesson.title}", lesson.about]
    for cell in lesson.cells:
        outputs = "\n".join(output.html for output in run(cell, names, lesson.path))
        shown = code(outputs, "{raw} html") if outputs else ""
        if cell.kind == "markdown":
            parts.append(cell.source)
        elif cell.waits:
            parts.append("*Make your guess, then open the answer.*")
        elif cell.computes:
            source = code(cell.computes, "python")
            how = "<details><summary>How it is computed</summary>"
            parts += [shown, how, source, "</details>"] if cell.answers else [source, shown]
        else:
            parts.append(shown)
    return "\n\n".join(parts)


# ---- kinds and options ----


def kind_parts(kind: type[Attention]) -> Iterator[str]:
    """What the page of a kind has besides those of other files: picture, identities, properties, options."""
    picture = f"pictures/{kind.kind}"
    alt = f"a map of weights: a row for each letter that reads, a column for each that is read, by {kind.kind}"
    yield themed(f"{picture}-light.svg", f"{picture}-dark.svg", alt)
    yield (
        f"Head 1 of a layer that has learned nothing yet reads `{TEXT}` without a position: its weights are random, "
        "and a letter has the same vector wherever it stands."
    )
    steps = [step for step in all_steps() if kind.kind in (step.kind, step.edge.to)]
    yield "## Where it equals another kind"
    yield "\n".join(
        f"- {to_kind(step.kind, kind)} {sign(step)} {to_kind(step.edge.to, kind)}: {step.edge.when}" for step in steps
    )
    yield "An edge `=` is an identity, and `~` a limit: each is [tested](/minigpt/attention/README.md)."
    yield "## What holds"
    yield "\n".join(f"- {fact}" for fact in facts(kind))
    yield "## Options"
    yield options_table(kind.Config, kind.Config()) or "None."


def to_kind(name: str, here: type[Attention]) -> str:
    """The name of a kind with a link to its page, unless it is this one."""
    return f"`{name}`" if name == here.kind else f"[{name}](/{page_of(source_of(Attention.kinds[name]))})"


@torch.no_grad()
def draw(kind: type[Attention], folder: Path) -> None:
    """Draw the weights of head 1 of a new layer, for each theme."""
    torch.manual_seed(0)
    model = ModelConfig(n_embd=32, block_size=len(TEXT), attention=kind.Config())
    layer = model.layer_attention(0).component(model.layer_attention(0), model)
    vectors = 3 * torch.randn(128, 32)  # (128, D): large, so that scores are not all near zero
    query, key, _ = layer.qkv(vectors[[ord(letter) for letter in TEXT]][None], Past())  # (1, H, T, d), (1, G, T, d)
    weights = layer.weights(query, key)[0, 0]  # (T, T)
    folder.mkdir(parents=True, exist_ok=True)
    for name, theme in THEMES.items():
        title = f"{kind.kind}: attention weights of a new layer"
        (folder / f"{kind.kind}-{name}.svg").write_text(map_svg(weights, TEXT, title, theme), encoding="utf-8")


def sentences(schema: type[Options]) -> dict[str, str]:
    """{option: the text that stands below it in the source}."""
    texts = dict[str, str]()
    for group in reversed(schema.__mro__):
        try:
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
        except (OSError, TypeError):  # a class that was not written, but made by `Component`
            continue
        assert isinstance(node, ast.ClassDef)
        for option, text in zip(node.body, node.body[1:]):
            if (
                isinstance(option, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                texts[ast.unparse(option.target)] = " ".join(str(text.value.value).split())
    return texts


def options_table(schema: type[Options], defaults: Options) -> str:
    """A row for each option of a group: its name, its default, what values it has, its sentence."""
    rows, texts = list[list[str]](), sentences(schema)
    for name, hint in hints(schema).items():
        value = getattr(defaults, name)
        default = value.component.kind if isinstance(value, Component.Config) else value
        written = "its group" if isinstance(default, Options) else f"`{json.dumps(default)}`"
        rows.append([f"`{name}`", written, type_in_words(hint), texts[name]])
    return table(["option", "default", "value", "what it is"], rows)


def groups_of(schema: type[Options], path: str) -> Iterator[tuple[str, type[Options]]]:
    """A group of options and those within it, each with its path: training, training.optimizer, ..."""
    yield path, schema
    for name, default in vars(schema()).items():
        if name in hints(schema) and isinstance(default, Options):
            yield from groups_of(type(default), f"{path}.{name}".lstrip("."))


def options_page() -> str:
    """Every option of a config: by group, and for each kind that can stand there."""
    parts = ["# Options", "Every option of a config. On the command line they are `group.option=value`."]
    for path, schema in groups_of(RunConfig, ""):
        if not issubclass(schema, Component.Config):
            parts += [f"## {path or 'a config'}", prose(schema.__doc__ or ""), options_table(schema, schema())]
            continue
        parts.append(f"## {path}, by kind")
        for name, kind in schema.component.kinds.items():
            if issubclass(kind, Attention):
                parts.append(f"- [{name}](/{page_of(source_of(kind))}): {idea(kind)}")
            else:
                parts += [
                    f"### {name}",
                    prose(kind.__doc__ or ""),
                    options_table(kind.Config, kind.Config()) or "No options.",
                ]
    return "\n\n".join(parts)


# ---- pages of lists ----


def api_page() -> str:
    """What `import minigpt` gives, and every file of the package with its first sentence."""
    parts = ["# API", "What `import minigpt` gives; each name links to its file."]
    for name in minigpt.__all__:
        thing = getattr(minigpt, name)
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
        assert isinstance(node, (ast.ClassDef, ast.FunctionDef))
        parts += [f"## `{name}`", entry(node), f"In [{source_of(thing)}](/{page_of(source_of(thing))})."]
    parts += ["## Every file"]
    for file in sorted((ROOT / "minigpt").rglob("*.py")):
        text = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
        place = file.relative_to(ROOT)
        parts.append(f"- [{place.as_posix()}](/{page_of(place)}): {prose(text)}")
    return "\n\n".join(parts)


def stage(site: Site) -> None:
    """Write all pages."""
    kinds = sorted(Attention.kinds.values(), key=family)
    configs = sorted(path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml"))
    below = {
        "README.md": site.contents(
            "Learn", ["lessons.md", "minigpt/attention/ladder.py.md", "minigpt/attention/README.md"]
        )
        + site.contents("Use", ["how_to.md", "scripts/README.md", "configs/README.md", "options.md", "data/README.md"])
        + site.contents("Understand", ["minigpt/README.md", *(f"minigpt/{part}/README.md" for part in PARTS)])
        + site.contents("Reference", ["api.md", "CONTRIBUTING.md", "tests/README.md", "scripts/benchmarks/README.md"]),
        "minigpt/attention/README.md": site.contents("Kinds", [page_of(source_of(kind)) for kind in kinds]),
        "configs/README.md": site.contents("Configs", [*map(page_of, configs)]),
    }
    write_lessons(site)
    site.write("options.md", options_page())
    site.write("api.md", api_page())
    links = "\n".join(f"- [{title}]({target})" for title, target in HOW_TO.items())
    site.write("how_to.md", site.linked(f"# How to\n\n{links}\n", Path("how_to.md")))
    for kind in kinds:
        draw(kind, site.folder / source_of(kind).parent / "pictures")
    sources = [path.relative_to(ROOT) for part in ("minigpt", "scripts") for path in (ROOT / part).rglob("*.py")]
    site.wanted += [
        Path("README.md"),
        *sources,
        *configs,
        *(Path(page) for page in site.listed if page.endswith("README.md")),
    ]
    while site.wanted:
        file = site.wanted.pop()
        if page_of(file) not in site.made:
            text = (ROOT / file).read_text(encoding="utf-8") if file.suffix == ".md" else file_page(file)
            site.write(page_of(file), site.linked(text, file) + below.get(file.as_posix(), ""))


def write_lessons(site: Site) -> None:
    """Write a page for each lesson, and their list. It takes as long as all lessons take to run."""
    everything = lessons()
    pages = [page_of(lesson.path.relative_to(ROOT)) for lesson in everything]
    lines = [f"{lesson.number}. [{lesson.title}]({page})" for lesson, page in zip(everything, pages)]
    site.write("lessons.md", "\n".join(["# Lessons\n", *lines]) + site.contents("Lessons", pages))
    for lesson, page in zip(progress(everything, "running the lessons", len(everything), "lessons"), pages):
        site.write(page, lesson_page(lesson))


def main(arguments: argparse.Namespace) -> None:
    """Write the Markdown, and have Sphinx make HTML of it."""
    if importlib.util.find_spec("furo") is None or importlib.util.find_spec("myst_parser") is None:
        raise UserError('the site needs Sphinx, furo and MyST: pip install -e ".[docs]"')
    from sphinx.application import Sphinx

    use_threads(1)  # the models of the lessons are tiny
    source, html = arguments.out / "source", arguments.out / "html"
    for folder in (source, html, arguments.out / "doctrees"):
        shutil.rmtree(folder, ignore_errors=True)
    stage(Site(source))
    (source / "_static").mkdir()
    (source / "_static" / "site.css").write_text(STYLE + CSS, encoding="utf-8")
    app = Sphinx(source, None, html, arguments.out / "doctrees", "html", SETTINGS, status=None, warningiserror=True)
    app.build()
    if app.statuscode:
        raise UserError("the site has mistakes: they stand above")
    say(f"wrote {html / 'index.html'}")


if __name__ == "__main__":
    parser = command.parser("Make the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", metavar="DIR", help="default: build/docs")
    sys.exit(command.execute(main, parser.parse_args()))
