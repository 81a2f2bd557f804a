"""All kinds of attention as a tree: which kind equals which other, with which option; as text, a table and a picture.

The tree is made from the files of the kinds: their module docstrings and their edges (`attention/edge.py`). The first
edge of a kind gives its place in the tree; its other edges are listed beside it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator

import torch

from minigpt.attention import Attention
from minigpt.checks.graph import Step, all_steps, family, gap, path, positions_of
from minigpt.config.options import from_dict, hints
from minigpt.model import GPT, ModelConfig
from minigpt.seeing.drawing import Canvas, Theme, shortened
from minigpt.seeing.figures import WIDTH
from minigpt.seeing.maps import in_words
from minigpt.seeing.trace import sums_of, tracing
from minigpt.system.errors import UserError

PAPER = re.compile(r"\b\d{4}\.\d{5}\b")
FAMILIES = {"averages": "soft", "softmax": "above", "compact": "green", "sparse": "below", "linear": "purple"}


def text_of(kind: type[Attention]) -> str:
    """The module docstring of a kind's file."""
    return inspect.getdoc(sys.modules[kind.__module__]) or ""


def idea(kind: type[Attention]) -> str:
    """The first sentence of the file of a kind, without its papers."""
    first = " ".join(text_of(kind).split("\n\n")[0].split())
    return re.sub(r" \([^()]*arXiv[^()]*\)", "", first).split(". ")[0].rstrip(".")


def papers(kind: type[Attention]) -> list[str]:
    """The arXiv ids in the module docstring of a kind's file, in order."""
    return list(dict.fromkeys(PAPER.findall(text_of(kind))))


def children(steps: list[Step]) -> dict[str, list[Step]]:
    """The tree: for each kind, the edges of its children. Each kind is a child by its first edge."""
    tree: dict[str, list[Step]] = {}
    for step in {step.kind: step for step in reversed(steps)}.values():  # the first edge of each kind
        tree.setdefault(step.edge.to, []).insert(0, step)
    return tree


def walk(tree: dict[str, list[Step]], kind: str, depth: int = 0) -> Iterator[tuple[int, Step]]:
    """Yields the edges below a kind, each with its depth, in the order in which the tree is drawn."""
    for step in tree.get(kind, []):
        yield depth + 1, step
        yield from walk(tree, step.kind, depth + 1)


def rows() -> list[tuple[int, str, str]]:
    """(depth, kind, its first edge and its other edges in words), in the order of the tree."""
    steps = all_steps()
    tree, lines = children(steps), list[tuple[int, str, str]]()
    with_edges = {step.kind for step in steps}
    for root in (name for name in Attention.kinds if name not in with_edges):
        lines.append((0, root, ""))
        for depth, step in walk(tree, root):
            others = [other for other in steps if other.kind == step.kind and other is not step]
            also = "".join(f"; {sign(other)} {other.edge.to}: {other.edge.when}" for other in others)
            lines.append((depth, step.kind, f"{sign(step)} {step.edge.to}: {step.edge.when}{also}"))
    return lines


def sign(step: Step) -> str:
    """ "=" for an identity, "~" for a limit."""
    return "~" if step.is_limit else "="


def as_text() -> str:
    """The tree, a line for each kind."""
    lines = [(f"{'  ' * depth}{name}", edges) for depth, name, edges in rows()]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {edges}".rstrip() for name, edges in lines)


def as_markdown() -> str:
    """A table of all kinds: the idea, the papers, and every edge."""
    steps = all_steps()
    lines = ["| family | kind | idea | arXiv | equals |", "|---|---|---|---|---|"]
    for name, kind in Attention.kinds.items():
        links = ", ".join(f"[{paper}](https://arxiv.org/abs/{paper})" for paper in papers(kind))
        edges = "; ".join(f"{sign(s)} {s.edge.to}: {s.edge.when}" for s in steps if s.kind == name)
        file = f"[{name}]({'/'.join(kind.__module__.split('.')[2:])}.py)"
        lines.append(f"| {family(kind)} | {file} | {idea(kind)} | {links} | {edges} |".replace("||", "\\|\\|"))
    return "\n".join(lines)


def as_svg(theme: Theme) -> str:
    """The tree as a picture: a row for each kind, in the colour of its family, with its first edge."""
    top, row, indent, canvas = 70, 22, 18, Canvas(theme)
    title, kinds = "Kinds of attention: what each one is, with which option", rows()
    canvas.heading(title)
    for index, (name, colour) in enumerate(FAMILIES.items()):
        canvas.dot(26 + 110 * index, 46, 5, colour)
        canvas.text(36 + 110 * index, 50, name, "soft")
    last: dict[int, float] = {}  # depth -> y of the last kind there
    for index, (depth, name, edges) in enumerate(kinds):
        x, y = 26 + indent * depth, top + row * index + 10
        if depth:
            canvas.lines([(x - indent, last[depth - 1] + 6), (x - indent, y), (x - 6, y)], "line")
        canvas.dot(x, y, 5, FAMILIES.get(family(Attention.kinds[name]), "ink"))
        canvas.text(x + 12, y + 4, name, font_weight=600)
        canvas.text(360, y + 4, shortened(edges.split("; ")[0], 56), "soft", font_size=12)
        last[depth] = y
    return canvas.svg(WIDTH, top + row * len(kinds) + 16, title, font_size=13)


def steps_of(kind: type[Attention]) -> list[str]:
    """The steps to the weights that pages and terminals show, a line each, with the factors of a new model's head 1."""
    attention = {"kind": kind.kind} | dict.fromkeys(hints(kind.Config).keys() & {"n_head"}, 2)
    config = from_dict(ModelConfig, {"n_layer": 1, "n_embd": 16, "block_size": 8, "attention": attention})
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = GPT(config, vocab_size=5)
        with tracing(model) as trace:
            model(torch.zeros(1, 8, dtype=torch.long))
        (layer,), ((call,),) = model.attentions(), trace.calls
        stages = layer.stages(call.query, call.key)
    made_of = {step: {n: float(f[0, 0]) for n, f in parts.items()} for step, parts in sums_of(stages).items()}
    maps = [step for step, stage in stages.items() if stage.ndim == 4]
    lines = [in_words(step, made_of[step]) if step in made_of else step for step in maps]
    gates = [f"{step}, of each token" for step, stage in stages.items() if stage.ndim == 3]
    heads = range(call.weights.shape[1])
    notes = [f"head {i + 1}: {layer.head_note(i)}" for i in heads if layer.head_note(i)]
    gated = ["a gate for the output of each head, at each token"] if call.head_gates is not None else []
    return [*gates, *lines, *notes, *gated]


def facts(kind: type[Attention]) -> Iterator[str]:
    """What holds for the weights of a kind, a sentence each."""
    yield f"its rows of weights {'sum' if kind.rows_sum_to_one else 'need not sum'} to one"
    yield f"its weights are {'never' if kind.weights_nonnegative else 'sometimes'} negative"
    yield f"without positions, the order of the past {'does not matter' if kind.order_blind else 'matters'}"
    for method, why in kind.unsuited.items():
        yield f"a position that acts by `{method}` is left out: {why}"


def describe(name: str) -> str:
    """One kind: its module docstring, options, laws, steps, edges as measured now, and the path from the running mean.

    Raises UserError for an unknown kind.
    """
    if name not in Attention.kinds:
        raise UserError(f"no kind {name!r} (known: {', '.join(Attention.kinds)})")
    kind, steps = Attention.kinds[name], all_steps()
    lines = [f"{name} ({kind.__module__.replace('.', '/')}.py)", "", text_of(kind).rstrip(), "", "options:"]
    default = kind.Config()
    lines += [f"    {option} = {getattr(default, option)}" for option in hints(kind.Config)] or ["    none"]
    lines += ["", "what holds:", *(f"    {fact}" for fact in facts(kind))]
    lines += ["", "its steps, as the explorer shows them; numbers are those of head 1 of a new model:"]
    lines += [f"    {line}" for line in steps_of(kind)]
    lines += ["", "edges, as measured now in float64 over every position:"]
    for step in (step for step in steps if name in (step.kind, step.edge.to)):
        error = max(gap(step, position) for position in positions_of(step))
        lines.append(f"    {step}: off by {error:.1g}" + (f", allowed {step.edge.error:g}" if step.is_limit else ""))
    lines += ["", "from the running mean:", *(f"    {step}" for step in path(steps, "average_loop", name))]
    return "\n".join(lines)
