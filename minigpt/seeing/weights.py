"""The weights of a model for a page that computes by itself: int8 by rows, and tables of its positions.

    reason = unable(model)             # "" if the page's script (whole-pass.js) can compute this model
    arrays = weights_of(model, ids)

The script then computes what the model computes with these weights; `check` holds some of the latter's logits, with
which the page compares itself before it shows a number.

V vocabulary, D model width, H heads, d width of a head, n = d // 2 pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.attention import Attention, Past
from minigpt.attention.position import Alibi, Convolution, Learned, NoPosition, Rotary, Sinusoidal, waves
from minigpt.model import GPT
from minigpt.model.eval_mode import eval_mode
from minigpt.model.norm import LayerNorm, RMSNorm
from minigpt.text.tokenizer import BPE, PIECES, Byte, Char, Tokenizer

KINDS = {  # those whose steps the page computes
    *("average_loop", "average_matrix", "average_softmax"),
    *("dot_product", "query_key", "single_head", "multi_head", "grouped_query"),
}
MLPS = {"gelu", "gelu_tanh", "relu2", "swiglu", "geglu", "geglu_tanh"}
BLOCKS = {"pre_norm", "post_norm", "sandwich", "parallel", "parallel_one_norm", "attention_only"}
POSITIONS = NoPosition, Learned, Sinusoidal, Convolution, Rotary, Alibi
CHECKED = 8  # the last positions whose logits the page compares


def unable(model: GPT) -> str:
    """Why a page cannot compute this model by itself; "" if it can."""
    for part, allowed in (("attention", KINDS), ("mlp", MLPS)):
        for layer, block in enumerate(model.blocks):
            module = getattr(block, part, None)
            computable = module is None or (type(module).__module__.startswith("minigpt.") and module.kind in allowed)
            if not computable:
                return f"the page cannot compute {getattr(module, 'kind', '') or part}, the {part} of layer {layer + 1}"
    if not all(type(block).__module__.startswith("minigpt.") and block.kind in BLOCKS for block in model.blocks):
        return "the page cannot compute blocks of your own"
    if type(model.norm) not in (LayerNorm, RMSNorm):
        return "the page cannot compute a norm of your own"
    positions = [model.position, *(attention.position for attention in model.attentions())]
    if not all(type(position) in POSITIONS for position in positions):
        return "the page cannot compute a position of your own"
    if not all(getattr(attention.config, "causal", True) for attention in model.attentions()):
        return "the page computes attention to the past only"
    return ""


def cutter(tokenizer: Tokenizer) -> dict[str, Any]:
    """How a page cuts a text as the tokenizer does: {"kind": ..., "pieces": ...}; if it cannot, {"why": a sentence}."""
    if type(tokenizer) is BPE:
        pattern = PIECES.replace("++", "+").replace(r"\s", r"\p{White_Space}").replace(r"\S", r"\P{White_Space}")
        return {"kind": "bpe", "pieces": tokenizer.pieces, "pattern": pattern}
    if type(tokenizer) in (Char, Byte):
        return {"kind": tokenizer.kind} | ({"pieces": [*tokenizer.alphabet]} if isinstance(tokenizer, Char) else {})
    size = f"the {tokenizer.vocab_size:,} pieces of the tokenizer {tokenizer.kind}"
    return {"why": f"It reads no text of your own: how {size} are cut is not in this page."}


def position_data(model: GPT) -> dict[str, Any]:
    """How the page adds positions to the embeddings: from a table, by a convolution, or not."""
    forms = {Learned: "table", Sinusoidal: "table", Convolution: "convolution"}
    return {"position": forms.get(type(model.position), "")}


def matrices(model: GPT) -> dict[str, Tensor]:
    """The weights that are stored in int8, by the page's names; each row has a scale of its own."""
    matrices = {"tokens": model.tokens.weight, "head": model.head.weight}
    if isinstance(model.position, Learned):
        matrices["position"] = model.position.table.weight
    for i, block in enumerate(model.blocks):
        for part in ("attention", "mlp"):
            for name, module in getattr(block, part, nn.Module()).named_children():
                if isinstance(module, nn.Linear):
                    matrices[f"{i}.{part}.{name}"] = module.weight
    return matrices


def vectors(model: GPT) -> dict[str, Tensor]:
    """What is stored in single precision: constants, norms, and tables of positions."""
    vectors = dict[str, Tensor]()
    for i, block in enumerate(model.blocks):
        for name, values in block.named_parameters():
            if values.ndim == 1:
                vectors[f"{i}.{name}"] = values
        attention: Attention = block.attention  # type: ignore[assignment]
        if isinstance(attention.position, Rotary):
            queries = getattr(attention, "query", None)
            features = model.config.n_embd if queries is None else queries.out_features
            d = features // getattr(attention, "n_head", 1)
            cos, sin = waves(attention.position.config, 0, model.config.block_size, d, torch.device("cpu"))
            vectors |= {f"{i}.cos": cos, f"{i}.sin": sin}  # (block_size, n) each
        if isinstance(attention.position, Alibi):
            zeros = torch.zeros(1, getattr(attention, "n_head", 1), 2, 1)  # (1, H, 2, 1)
            vectors[f"{i}.slopes"] = -attention.position.bias(zeros, zeros)[:, 1, 0]  # (H,)
    for name, values in model.named_parameters():
        if values.ndim == 1 and not name.startswith("blocks."):
            vectors[name] = values
    if isinstance(model.position, Sinusoidal):
        nothing = torch.zeros(1, model.config.block_size, model.config.n_embd)  # (1, block_size, D)
        vectors["position"] = model.position.embed(nothing, Past())[0]  # (block_size, D)
    if isinstance(model.position, Convolution):
        vectors["shares"] = model.position.shares
    return vectors


def rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix in int8, and the scale of each row: (n, m), (n,)."""
    precise = weight.detach().double().cpu()  # (n, m)
    scale = (precise.abs().amax(dim=1) / 127).clamp(min=1e-30).float()  # (n,)
    return (precise / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


@contextmanager
def in_int8(model: GPT) -> Iterator[None]:
    """The model with the weights that the page has, inside the `with`."""
    named = {id(weight): weight for weight in matrices(model).values()}  # a tied head is there twice
    before = {key: weight.detach().clone() for key, weight in named.items()}
    try:
        for weight in named.values():
            whole_numbers, scale = rows(weight)
            weight.data.copy_(whole_numbers.float() * scale[:, None])
        yield
    finally:
        for key, weight in named.items():
            weight.data.copy_(before[key])


@torch.no_grad()
def weights_of(model: GPT, ids: Tensor) -> dict[str, Tensor]:
    """The arrays of a page that computes by itself, and the logits for the last of ids (1, T) with these weights."""
    arrays = {name: values.detach().double().cpu() for name, values in vectors(model).items()}
    for name, weight in matrices(model).items():
        if name == "head" and model.config.tied_head:
            continue
        arrays[name], scale = rows(weight)
        arrays[f"{name}.scale"] = scale.double()
    with in_int8(model), eval_mode(model):
        arrays["check"] = model(ids)[0, -CHECKED:].double().cpu()  # (at most CHECKED, V)
    return arrays
