"""What a layer of attention holds besides queries, keys and weights: a state, latents, and numbers of its own.

All of it is found from outside, by asking the layer on one text, and given to a page only where the sums that the page
writes out equal what the layer computed.

H heads, T positions of the text, d width of a query and a key, e width of a value, n writes of a token, r width of a
latent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.compact.latent import Latent
from minigpt.attention.compact.tensor_product import Product, TensorProduct
from minigpt.attention.linear.recurrent import Recurrent
from minigpt.attention.softmax.differential import Differential
from minigpt.seeing.trace import MixCall, Trace

Found = tuple[dict[str, Any], dict[str, Tensor]]  # JSON values, and arrays by name


def equal(value: Tensor, expected: Tensor) -> bool:
    """Whether a page may write one where the model computed the other."""
    return torch.allclose(value, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()) + 1e-30)


# ---- the state of a recurrent kind ----


def state_of(attention: Attention, call: MixCall) -> Found:
    """A state and its writes, token by token: state = kept x state + the sum of n outer products, row x column.

    Arrays: the `state`'s size and that of its `change`, (H, T) each; then, where the states follow from them,
    `state.kept` (H, T, d), `state.rows` (H, T, n, d), `state.columns` (H, T, n, e or more), and `state.divisor` (H, T),
    by which a query's reading of the state is divided to be what the head mixed, where that is so.
    JSON values: `heads`, the state of each head of the weights; and `note`.
    """
    if not isinstance(attention, Recurrent):
        return {}, {}
    try:
        states, faded = states_of(attention, call)  # (H, T, d, e) each
    except (TypeError, ValueError, RuntimeError):  # it does not say what a token does: nothing is shown
        return {}, {}
    before = torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), dim=1)  # (H, T, d, e)
    arrays = {"state": states.flatten(2).norm(dim=-1), "change": (states - before).flatten(2).norm(dim=-1)}  # (H, T)
    H, heads = len(states), call.weights.shape[1]
    writes = call.key.shape[1] // H
    data = {"heads": [h % H if writes > 1 or h < H else None for h in range(heads)], "note": ""}
    if states.shape[2] != attention.d:
        size = f"{states.shape[2]:,} \N{MULTIPLICATION SIGN} {states.shape[3]:,} numbers"
        return data | {"note": f"The state of a head has {size}, too many to draw."}, arrays
    all_keys, query, mixed = (each[0].float().cpu() for each in (call.key, call.query, call.mixed))
    keys = all_keys[..., : attention.d].unflatten(0, (writes, H)).movedim(0, 2)  # (H, T, n, d)
    e = call.value.shape[-1]
    decay = (faded * before)[..., :e].sum(dim=-1) / before[..., :e].square().sum(dim=-1).clamp(min=1e-30)  # (H, T, d)
    columns = torch.linalg.pinv(keys.mT) @ (states - faded)  # (H, T, n, e)
    again = decay[..., None] * before + keys.mT @ columns  # (H, T, d, e)
    columns_used = [j for j in range(states.shape[3]) if j < e or states[..., j].any()]
    holds = [j for j in columns_used if equal(again[..., j], states[..., j])]
    if holds[:e] != [*range(e)]:
        return data, arrays
    if len(holds) > e:
        data["note"] = "The last column is the sum of the keys as they were written, by which a reading is divided."
    arrays |= {"state.kept": decay.double(), "state.rows": keys, "state.columns": columns[..., holds]}
    mixed = mixed.unflatten(0, (writes, H)).sum(dim=0) if writes > 1 else mixed[:H]  # (H, T, e)
    read = (query[:H, :, None, : attention.d] @ states)[:, :, 0, :e]  # (H, T, e)
    divisor = (read * read).sum(dim=-1) / (read * mixed).sum(dim=-1)  # (H, T)
    if equal(read / divisor[..., None], mixed):
        arrays["state.divisor"] = divisor.double()
    return data, arrays


def states_of(attention: Recurrent, call: MixCall) -> tuple[Tensor, Tensor]:
    """The state after each token, and what the token kept of the state before it: (H, T, d, e) each.

    A token whose key is zero writes nothing, so what it leaves is what it keeps. States of several levels are added up.
    """
    query, key, value = (each[:1] for each in (call.query, call.key, call.value))  # (1, heads, T, ...)
    nothing = torch.cat((torch.zeros_like(key[..., : attention.d]), key[..., attention.d :]), dim=-1)
    state, states, faded = attention.empty(key, value), list[Tensor](), list[Tensor]()
    for t in range(key.shape[2]):
        faded.append(attention.advance(state, query[:, :, t], nothing[:, :, t], value[:, :, t])[0][0])
        state = attention.advance(state, query[:, :, t], key[:, :, t], value[:, :, t])[0]
        states.append(state[0])
    both = torch.stack(states, dim=1), torch.stack(faded, dim=1)  # (H, T, d, e) or (H, T, L, d, e) each
    first, second = (each.float().sum(dim=2) if each.ndim == 5 else each.float() for each in both)
    return first.cpu(), second.cpu()


# ---- what keys and values are made from ----


def latents_of(attention: Attention, call: MixCall, trace: Trace, name: str) -> dict[str, Tensor]:
    """What a token's keys and values are made from, by "key" and "value", where the kind keeps less than these.

    Of `latent`: the latent (T, r), and the matrix of each head, (H, d, r). Of `tensor_product`: the vectors of a token,
    (T, R, d), and how much each head takes of each, (H, T, R). Only what equals the keys and values is returned.
    """
    parts = {"key": call.key[0], "value": call.value[0]}  # (H, T, d or more) each
    arrays = dict[str, Tensor]()
    if isinstance(attention, Latent):
        arrays["latent"] = trace.outputs[f"{name}.latent_norm"][0, 0]  # (T, r)
        for role, up in (("key", attention.key), ("value", attention.value)):
            matrix = attention.by_head(up)  # (H, d, r)
            if equal(arrays["latent"] @ matrix.mT, parts[role][..., : attention.d]):
                arrays[f"latent.{role}"] = matrix
    elif isinstance(attention, TensorProduct):
        for role, product in (("key", attention.key), ("value", attention.value)):
            assert isinstance(product, Product)
            heads, vectors = trace.outputs[f"{name}.{role}"]  # (1, R, T, H), (1, R, T, d)
            vectors = attention.position.rotate(vectors, 0) if role == "key" else vectors  # (1, R, T, d)
            takes = heads[0].permute(2, 1, 0) / product.rank  # (H, T, R)
            if equal(torch.einsum("htr, rtd -> htd", takes, vectors[0]), parts[role]):
                arrays |= {f"takes.{role}": takes, f"vectors.{role}": vectors[0].movedim(0, 1)}
    return {key: array.detach().float().cpu() for key, array in arrays.items()}


# ---- numbers of its own ----


def own_numbers(attention: Attention, heads: int) -> dict[str, list[float]]:
    """What a layer has learned as one number, or one for each head, by name: a sink, a share, a rate; and lambda."""
    own = attention.named_parameters(recurse=False)
    numbers: dict[str, Tensor] = {name: values for name, values in own if values.shape in ((), (1,), (heads,))}
    if isinstance(attention, Differential):
        numbers["lambda"] = attention.taken()
    return {name: values.detach().float().expand(heads).tolist() for name, values in numbers.items()}


def handed_on(call: MixCall, trace: Trace, name: str) -> Tensor | None:
    """What the layer's projection reads of each head, (H, T, e): what was mixed, behind its gate and its norm.

    None where the projection does not read one vector of each head.
    """
    read: Tensor | None = trace.inputs.get(f"{name}.project")  # (1, T, H e)
    H, e = call.mixed.shape[1], call.mixed.shape[3]
    return None if read is None or read.shape[-1] != H * e else read[0].unflatten(1, (H, e)).movedim(1, 0)


def gates_of(attention: Attention, x: Tensor) -> Tensor | None:
    """What a gate multiplies each number that is handed on by, for x (1, T, D): (H, T, e); None without such a gate."""
    gates = getattr(attention, "gates_of_output", None)
    return gates(x)[0] if gates and hasattr(attention, "gate") else None
