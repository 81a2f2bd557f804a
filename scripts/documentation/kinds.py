"""What the page of a kind of attention has beside those of other files: a picture, identities, properties, options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from documentation.markdown import link, source_of, themed
from documentation.options import options_table
from minigpt.attention import Attention, Past
from minigpt.checks.graph import all_steps
from minigpt.model import ModelConfig
from minigpt.seeing.catalogue import facts, sign
from minigpt.seeing.drawing import THEMES
from minigpt.seeing.figures import map_svg

TEXT = "Mia was a shy fox."  # what the layers of the pictures read


def kind_parts(kind: type[Attention]) -> Iterator[str]:
    """The parts of the page, in order."""
    alt = f"attention weights of {kind.kind}: a row for each letter as a query, a column for each as a key"
    yield themed(f"pictures/{kind.kind}-light.svg", f"pictures/{kind.kind}-dark.svg", alt)
    yield (
        f"Head 1 of a new layer reads `{TEXT}` without a position. Its weights are random, nothing is learned yet; "
        "equal letters have equal vectors."
    )
    steps = [step for step in all_steps() if kind.kind in (step.kind, step.edge.to)]
    edges = [f"- {_to(step.kind, kind)} {sign(step)} {_to(step.edge.to, kind)}: {step.edge.when}" for step in steps]
    about = link("identity", Path("minigpt/attention/README.md"))
    yield f"## Identities\n\n`=` is an {about}, `~` a limit. Each is tested.\n\n" + "\n".join(edges)
    yield "## What holds\n\n" + "\n".join(f"- {fact}" for fact in facts(kind))
    yield f"## Options\n\n{options_table(kind.Config)}"


def _to(name: str, here: type[Attention]) -> str:
    """The name of a kind, with a link to its page unless it is this one."""
    return f"`{name}`" if name == here.kind else link(f"`{name}`", source_of(Attention.kinds[name]))


@torch.no_grad()
def draw(kind: type[Attention], folder: Path) -> None:
    """Draw the weights of head 1 of a new layer, for each theme."""
    torch.manual_seed(0)
    model = ModelConfig(n_embd=32, block_size=len(TEXT), attention=kind.Config())
    layer = kind(model.layer_attention(0), model)
    letters = 3 * torch.randn(128, 32)  # (128, D): large, so that weights differ
    query, key, _ = layer.qkv(letters[[ord(letter) for letter in TEXT]][None], Past())  # (1, H, T, d), (1, G, T, d)
    weights = layer.weights(query, key)[0, 0]  # (T, T)
    folder.mkdir(parents=True, exist_ok=True)
    for name, theme in THEMES.items():
        picture = map_svg(weights, TEXT, f"{kind.kind}: attention weights of a new layer", theme)
        (folder / f"{kind.kind}-{name}.svg").write_text(picture, encoding="utf-8")
