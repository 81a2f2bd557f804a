"""Packs arrays into few bytes: half precision, the high bytes apart from the low ones, gzip, base64.

A page of 4 layers, 4 heads and 118 tokens takes about a megabyte with everything in it. If all of it takes more than
`ROOM`, queries and keys are left out, then the steps; the weights always go in, and the page says what is missing.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.seeing.numbers import Numbers
from minigpt.system.errors import UserError

ROOM = 3 << 20  # bytes of a page's numbers, beyond which only the weights go in
MOST = 1 << 25  # weights that go into a page at all: about 48 MB
SHRINKS = 4  # the largest factor of compression seen so far: arrays that would need more are not packed at all
LARGEST = 60_000.0  # half precision ends at 65,504; larger numbers are divided by a unit

QUERIES, STEPS = "queries and keys", "the steps before the weights"


def fitting(numbers: Numbers, room: int = ROOM) -> tuple[dict[str, Any], list[str]]:
    """The packed arrays of a page, and what was left out of it. Raises UserError for too many weights."""
    heads, T = len(numbers.heads), len(numbers.tokens)
    if heads * T * T > MOST:
        longest = int((MOST / heads) ** 0.5)
        size = f"{T:,} tokens and {heads:,} heads make {heads * T * T:,} weights"
        raise UserError(f"{size}, too many for a page: give a text of at most {longest:,} tokens")
    left_out: list[str] = []
    for leave in (None, QUERIES, STEPS):
        left_out += [leave] if leave and has(numbers, leave) else []
        tensors = arrays(numbers, left_out)
        hopeless = sum(2 * array.numel() for array in tensors.values()) > SHRINKS * room
        if leave != STEPS and hopeless:
            continue
        packed = pack(tensors)
        if len(packed["bytes"]) <= room:
            break
    return packed, left_out


def has(numbers: Numbers, part: str) -> bool:
    """Whether there are queries and keys, or steps, to leave out."""
    return any(layer.steps if part == STEPS else layer.query is not None for layer in numbers.layers)


def arrays(numbers: Numbers, left_out: list[str]) -> dict[str, Tensor]:
    """The arrays of a page by name; those of layer 2 (from 0) begin with `2.`."""
    tensors = {"surprise": numbers.surprise, "without": numbers.without}
    for i, layer in enumerate(numbers.layers):
        tensors |= {f"{i}.weights": layer.weights, f"{i}.lengths": layer.lengths, f"{i}.mixed": layer.mixed}
        if not torch.equal(layer.visible, torch.ones_like(layer.visible).tril()):
            tensors[f"{i}.seen"] = layer.visible
        if layer.head_gates is not None:
            tensors[f"{i}.head_gates"] = layer.head_gates
        tensors |= {f"{i}.gates.{name}": gate for name, gate in layer.gates.items()}
        if STEPS not in left_out:
            tensors |= {f"{i}.steps.{name}": step for name, step in layer.steps.items()}
        if QUERIES not in left_out and layer.query is not None and layer.key is not None:
            tensors |= {f"{i}.query": layer.query, f"{i}.key": layer.key}
    return tensors


def pack(arrays: Mapping[str, Tensor]) -> dict[str, Any]:
    """{"index": {name: [first byte, shape, unit]}, "bytes": base64}.

    The unit of booleans is 0. Three types have a name in its place: "float" are those in float64, stored in single
    precision; "index" those in int32, stored in two bytes; "int8" those in int8. All others are stored in half
    precision. Numbers of two bytes are stored as all high bytes, then all low bytes, which compresses better.
    """
    index, chunks, start = dict[str, list[Any]](), list[bytes](), 0
    for name, tensor in arrays.items():
        unit, raw = STORED[tensor.dtype](tensor) if tensor.dtype in STORED else halves(tensor)
        index[name] = [start, list(tensor.shape), unit]
        chunks.append(raw)
        start += len(raw)
    compressed = gzip.compress(b"".join(chunks), 6, mtime=0)
    return {"index": index, "bytes": base64.b64encode(compressed).decode()}


def halves(tensor: Tensor) -> tuple[float, bytes]:
    """(unit, bytes): finite numbers divided by the unit, in half precision."""
    most = float(tensor.abs().max()) if tensor.numel() else 0.0
    unit = most / LARGEST if most > LARGEST else 1.0
    return unit, _apart((tensor / unit).contiguous().numpy().astype("<f2"))


def _apart(pairs: Any) -> bytes:
    split = pairs.view(np.uint8).reshape(-1, 2)
    return bytes(split[:, 1].tobytes() + split[:, 0].tobytes())


STORED: dict[torch.dtype, Callable[[Tensor], tuple[float | str, bytes]]] = {
    torch.bool: lambda tensor: (0, tensor.numpy().astype(np.uint8).tobytes()),
    torch.float64: lambda tensor: ("float", tensor.numpy().astype("<f4").tobytes()),
    torch.int32: lambda tensor: ("index", _apart(tensor.numpy().astype("<u2"))),
    torch.int8: lambda tensor: ("int8", tensor.numpy().tobytes()),
}
