"""How layers and heads are counted: from 0 in Python, where they are indices; from 1 wherever people read or type them.

`run.attention(text)[2][3]` is "layer 3, head 4" in every message, title, label and option (`--layer 3 --head 4`), and
these words are made here.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigpt.system.errors import UserError


def layer_name(layer: int, head: int | None = None) -> str:
    """The name of a layer, or of a head in it, from their indices: (2, 3) -> "layer 3, head 4"."""
    return f"layer {layer + 1}" + ("" if head is None else f", head {head + 1}")


def layer_names(layers: Sequence[int]) -> str:
    """The name of one or more layers, from their indices: [0, 2] -> "layers 1, 3"."""
    return layer_name(layers[0]) if len(layers) == 1 else f"layers {', '.join(str(n + 1) for n in layers)}"


def part_name(name: str, kind: str = "") -> str:
    """The name of a part of a model, from its module's: "blocks.0.mlp", "gelu" -> "layer 1 (mlp gelu)"."""
    words = name.split(".")
    if words[0] != "blocks":
        return f"{words[0]} {kind}".strip()
    return f"{layer_name(int(words[1]))} ({' '.join([*(words[2:3] or ['block']), kind]).strip()})"


def selected_heads(heads: Sequence[int], layer: int | None, head: int | None) -> list[tuple[int, int]]:
    """The (layer, head) that `--layer` and `--head` choose, as indices; None chooses all.

    `heads` has the number of heads of each layer. Raises UserError for what does not exist.
    """
    if layer is not None and not 1 <= layer <= len(heads):
        raise UserError(f"--layer {layer}: the model has the layers 1 to {len(heads)}")
    layers = range(len(heads)) if layer is None else [layer - 1]
    selected = [(i, j) for i in layers for j in range(heads[i]) if head in (None, j + 1)]
    if not selected:
        where = "a layer has" if layer is None else f"layer {layer} has"
        raise UserError(f"--head {head}: {where} the heads 1 to {max(heads[i] for i in layers)}")
    return selected
