"""Linear attention that processes the positions in chunks: which keys count for a query, and what goes wrong there.

Keys inside the chunk count by masked products, earlier keys by a state ("Gated Linear Attention", arXiv 2312.06635).

T query positions, S key positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minigpt.grading.target import Bug
from minigpt.grading.targets.scores import allowed

LENGTHS = (4, 2, 3, 5, 8)
SENTENCES = {
    "read late": "the state is updated with the chunk before the chunk's queries read it: the keys of a chunk count "
    "twice, and later ones of it are seen",
    "open chunks": "inside a chunk the mask is missing: later tokens of the chunk are seen",
    "own chunk": "only the tokens of the same chunk are seen: the state of the past is lost or never read",
}


def seen_by(kind: str, T: int) -> Tensor:
    """How often each key counts for each query: (T, S). The kind "read late 4" has chunks of 4 tokens."""
    name, _, size = kind.rpartition(" ")
    if name not in SENTENCES:
        return allowed(kind, T, T, 0).double()
    t, s = torch.arange(T)[:, None] // int(size), torch.arange(T) // int(size)  # the chunks: (T, 1), (S,)
    own = (s == t) * torch.ones(T, T, dtype=torch.float64).tril()  # (T, S)
    return {"read late": own + (s <= t), "open chunks": (s <= t).double(), "own chunk": own}[name]


def chunk_bugs() -> list[Bug]:
    """What goes wrong, for the usual lengths of a chunk; 16 is more than the length of any input."""
    fix = "read the state first, add tril(products) @ value inside the chunk, and update the state then"
    return [
        Bug(
            {"sees": f"{name} {LENGTHS[0]}"},
            sentence,
            fix,
            tuple({"sees": f"{name} {size}"} for size in (*LENGTHS[1:], *((16,) if name == "read late" else ()))),
        )
        for name, sentence in SENTENCES.items()
    ]
