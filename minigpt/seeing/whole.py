"""The whole model on one page: the flow from a text to its next token, and every part of it down to one number.

    whole([Side(model, tokenizer, ids, {"run": "tiny"})]).save("page.html")
    whole([...], live=True)        # with the weights in the page: it reads any text that is typed into it

The page's script (`whole-pass.js`) makes one forward pass, whatever the page holds. What attention and MLPs read from
the stream comes from the weights where they are in the page (`live`), and else from what the model computed here: the
queries, keys and values, or the weights of a kind whose steps the page does not know. All sums after them are the
page's own: scores, weights, mixtures, what each head writes, the residual stream, the logits.

T positions, D model width, H heads, G key heads, d width of a query and a key, e width of a value, V vocabulary,
S stations of the residual stream: the embedding, and the sum after each addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.base import SoftmaxAttention
from minigpt.model import GPT
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import make_norm
from minigpt.model.mlp import MLP
from minigpt.model.norm import LayerNorm, RMSNorm
from minigpt.seeing.document import asset, document
from minigpt.seeing.edits import Edits, edited
from minigpt.seeing.explorer import Page, facts_of, layer_data
from minigpt.seeing.insides import equal, gates_of, handed_on, latents_of, own_numbers, state_of
from minigpt.seeing.numbers import Layer, Numbers, look, surprise, token_text
from minigpt.seeing.pack import ROOM, STEPS, pack
from minigpt.seeing.trace import MixCall, Trace, tracing
from minigpt.seeing.weights import cutter, position_data, unable, weights_of
from minigpt.system.errors import UserError
from minigpt.system.waiting import heartbeat, progress
from minigpt.text.languages.language import Language
from minigpt.text.tokenizer import Tokenizer

SCRIPTS = (
    *("unpack", "explorer-numbers", "explorer-maps", "explorer-words", "explorer-steps", "explorer-parts"),
    *("whole-pass", "whole-draw", "whole-flow", "whole-text", "whole-inside", "whole-parts", "whole-play", "whole"),
)
ROWS = 600  # the largest vocabulary whose rows of the head all go into a page
CANDIDATES = 5  # of a larger vocabulary: the likeliest next tokens at each position
UNITS, HIDDEN, HEADS, KEYS = "the votes of hidden units", "hidden units", "what each head writes", "queries and keys"
BLOCKS = {  # kind of a block: each part, the norm before it, the norm behind it, whether it reads what the block reads
    "pre_norm": (("attention", "attention_norm", "", False), ("mlp", "mlp_norm", "", False)),
    "post_norm": (("attention", "", "attention_norm", False), ("mlp", "", "mlp_norm", False)),
    "sandwich": (
        ("attention", "attention_norm", "attention_post_norm", False),
        ("mlp", "mlp_norm", "mlp_post_norm", False),
    ),
    "parallel": (("attention", "attention_norm", "", True), ("mlp", "mlp_norm", "", True)),
    "parallel_one_norm": (("attention", "attention_norm", "", True), ("mlp", "attention_norm", "", True)),
    "attention_only": (("attention", "", "", False),),
}


@dataclass(frozen=True)
class Side:
    """A run on the page: its model and the ids (1, T) that it reads; the rest is as for `explore`."""

    model: GPT
    tokenizer: Tokenizer
    ids: Tensor
    facts: Mapping[str, str] = field(default_factory=dict)
    language: Language | None = None
    usual: float | None = None


def whole(sides: Sequence[Side], live: bool = False, command: str = "") -> Page:
    """The page for one run, or for two beside each other, which must read the same tokens.

    Raises UserError as `explore` does, for two runs that cut the text differently, and with `live` for a model of which
    the page cannot compute a part.
    """
    runs, packs = list[dict[str, Any]](), dict[str, Any]()
    for number, side in enumerate(sides):
        length, context = side.ids.shape[1], side.model.config.block_size
        if not 0 < length <= context:
            raise UserError(f"the text has {length:,} tokens: give at least one, and at most {context:,}, the context")
        if live and (reason := unable(side.model)):
            raise UserError(f"--live: {reason}; without it, the page shows the text that it was made with")
        run, packed = side_data(side, live)
        runs.append(run)
        packs[f"arrays{number}"] = packed
    if any(run["tokens"] != runs[0]["tokens"] for run in runs):
        raise UserError("the two runs cut this text into different tokens: nothing can be shown beside each other")
    scripts = [asset(f"{name}.js") for name in SCRIPTS]
    style = asset("explorer.css") + asset("whole.css")
    data = {"runs": runs, "command": command}
    html = document("The whole model", asset("whole.html"), style, scripts, {"data": data} | packs)
    return Page(html, outside=runs[0]["outside"])


@torch.no_grad()
def side_data(side: Side, live: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data of a run as JSON values, and its packed arrays."""
    model, tokenizer, ids = side.model, side.tokenizer, side.ids
    with eval_mode(model), tracing(model) as trace:
        logits = model(ids)[0].float()  # (T, V)
    parts, streams = stations(model, trace)
    switches = [] if live else list(switched(model, ids, parts, [calls[-1] for calls in trace.calls]))
    without = torch.stack([s.surprise for s in switches if s.key.startswith("h")]) if switches else None
    numbers = look(model, tokenizer, ids, side.language, side.usual, without)
    if live:
        run = run_data(side, numbers, parts, list(range(model.vocab_size))) | {"live": True, "why": "", "missing": ""}
        run |= {"cutter": cutter(tokenizer), "text": tokenizer.decode(ids[0].tolist()).removeprefix("\n")}
        layers = [shape_of(*each) for each in zip(model.attentions(), numbers.layers, trace.calls)]
        return run | {"layers": layers}, pack(weights_of(model, ids))
    tables = Tables.of(model, streams, ids)
    known = vocabulary(model, logits, ids, [tables, *(switch.tables for switch in switches)])
    run = run_data(side, numbers, parts, known) | {"live": False, "why": unable(model)}
    arrays = tables.arrays("base") | {"base.top": ranks(tables.top, known)}
    arrays |= {"head": model.head.weight[known].float().cpu()}  # (C, D)
    arrays |= {f"off.{switch.key}.{name}": a for switch in switches for name, a in switch.arrays(known).items()}
    arrays |= {name: a for name, a in norms_of(model) if a is not None} | embedded(model, trace, ids)
    if model.head.bias is not None:
        arrays["head.bias"] = model.head.bias[known].double().cpu()
    arrays |= {"hidden-token": hidden_tokens(model, ids)}
    arrays["replaced-token"], run["instead"] = replaced_tokens(model, tokenizer, ids, logits)
    run["switches"] = [{"key": switch.key, "from": switch.station} for switch in switches]
    return fitted(run, arrays, model, trace, numbers, parts, known)


def run_data(side: Side, numbers: Numbers, parts: list[Part], known: list[int]) -> dict[str, Any]:
    """The data of a run but for its layers, as JSON values; the page knows the tokens whose ids are `known`."""
    model, config = side.model, side.model.config
    head, token = numbers.telling()
    return {
        "name": side.facts.get("run", "model"),
        "facts": [*side.facts.items(), *facts_of(model, numbers)],
        "outside": numbers.outside,
        "unit": numbers.unit,
        "tokens": numbers.tokens,
        "ids": [known.index(id) for id in side.ids[0].tolist()],
        "vocabulary": [token_text(side.tokenizer, id) for id in known],
        "all": len(known) == model.vocab_size,
        "context": config.block_size,
        "D": config.n_embd,
        "norm": norm_data(model),
        "embedding": {"scale": config.embedding_scale, "norm": config.embedding_norm} | position_data(model),
        "cap": config.head_cap,
        "mlp": config.mlp.component.kind,
        "parts": [vars(part) for part in parts],
        "start": {"head": head, "token": token},
    }


# ---- the stream ----


@dataclass(frozen=True)
class Part:
    """What adds to the residual stream: "attention", "mlp", or "block" where a user's block does not say its parts."""

    key: str  # a1, m1 or b1: the layer counts from 1
    layer: int  # from 0
    kind: str
    norm: str  # the norm before it, "" without one
    post: str  # the norm behind it
    start: bool  # whether it reads the stream as it was before its block


def stations(model: GPT, trace: Trace) -> tuple[list[Part], list[Tensor]]:
    """The parts in the order in which they add, and the stream (T, D) at each station, one more than parts."""
    parts, streams = list[Part](), [trace.outputs["dropout"][0].float()]  # (T, D)
    for layer, (block, added) in enumerate(zip(model.blocks, trace.added)):
        end, start = trace.outputs[f"blocks.{layer}"][0].float(), streams[-1]  # (T, D) each
        named = (
            BLOCKS.get(getattr(type(block), "kind", ""), ()) if type(block).__module__.startswith("minigpt.") else ()
        )
        after = [start]
        for addition in added:
            after.append(after[-1] + addition[0].float())
        equal = torch.allclose(after[-1], end, rtol=1e-3, atol=1e-3 * float(end.abs().max()))
        known = len(named) == len(added) and equal
        for kind, norm, post, reads in named if known else (("block", "", "", False),):
            parts.append(Part(f"{kind[0]}{layer + 1}", layer, kind, norm, post, reads))
        streams += after[1:] if known else [end]
    return parts, streams


def norm_data(model: GPT) -> dict[str, Any] | None:
    """How the norms of the stream compute, {"kind": ..., "epsilon": ...}; None for a user's own."""
    kinds = {LayerNorm: "layernorm", RMSNorm: "rmsnorm"}
    kind = kinds.get(type(model.norm))
    return {"kind": kind, "epsilon": model.config.norm.epsilon} if kind else None  # type: ignore[attr-defined]


def norms_of(model: GPT) -> Iterable[tuple[str, Tensor | None]]:
    """The weights and biases (D,) of the norms of the stream, by name: "norm.weight", "2.mlp_norm.bias"."""
    kind = type(make_norm(model.config))
    for name, module in model.named_modules():
        if isinstance(module, kind):
            short = name.removeprefix("blocks.")
            for parameter in ("weight", "bias"):
                values = getattr(module, parameter, None)
                yield f"{short}.{parameter}", None if values is None else values.double().cpu()


def embedded(model: GPT, trace: Trace, ids: Tensor) -> dict[str, Tensor]:
    """The vectors of the tokens, what their positions add, and the two together, normed where they are: (T, D) each."""
    tokens = model.tokens(ids)[0] * model.config.embedding_scale  # (T, D)
    placed = trace.inputs["embedding_norm"][0]  # (T, D)
    arrays = {"embedded.token": tokens, "embedded": trace.outputs["dropout"][0]}
    if model.position.acts_by("embed"):
        arrays["embedded.position"] = placed - tokens  # (T, D)
    return {name: vectors.float().cpu() for name, vectors in arrays.items()}


# ---- what the model would say ----


@dataclass(frozen=True)
class Tables:
    """The logit lens at each station: (S, T) each; surprises are -ln of probabilities."""

    top: Tensor  # the id of the likeliest next token
    top_surprise: Tensor
    came_surprise: Tensor  # of the token that came; zeros at the last position

    @classmethod
    def of(cls, model: GPT, streams: Sequence[Tensor], ids: Tensor) -> Tables:
        """The tables of these stations, (T, D) each."""
        rows = [lens(model, stream, ids) for stream in streams]
        return cls(*(torch.stack(column).cpu() for column in zip(*rows)))

    def arrays(self, name: str) -> dict[str, Tensor]:
        """As arrays of a page, but for `top`."""
        return {f"{name}.top_surprise": self.top_surprise, f"{name}.came_surprise": self.came_surprise}


def lens(model: GPT, stream: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The final norm and the head on a stream (T, D): the likeliest token, its surprise, and that of the token that
    came, (T,) each.
    """
    logs = -model.logits(model.norm(stream.to(model.head.weight.dtype))).float().log_softmax(dim=-1)  # (T, V)
    top = logs.argmin(dim=-1)  # (T,)
    came = torch.cat((ids[0, 1:], ids[0, :1]))  # (T,)
    paid = logs.gather(1, came[:, None])[:, 0]  # (T,)
    paid[-1] = 0.0
    return top, logs.gather(1, top[:, None])[:, 0], paid


@dataclass(frozen=True)
class Switch:
    """The text read with one part switched off."""

    key: str  # as of a part, or h1.2: head 2 of layer 1
    station: int  # the first one that can differ
    tables: Tables  # from that station on
    surprise: Tensor  # (T - 1,)

    def arrays(self, known: list[int]) -> dict[str, Tensor]:
        """As arrays of a page."""
        top = {"top": ranks(self.tables.top, known)}
        return top | {name[1:]: array for name, array in self.tables.arrays("").items()}


def switched(model: GPT, ids: Tensor, parts: list[Part], calls: list[MixCall]) -> Iterable[Switch]:
    """The text read without each head, without each attention, and without each MLP."""
    edits = list[tuple[str, int, Edits]]()
    for station, part in enumerate(parts, start=1):
        layer = frozenset({part.layer})
        if part.kind == "mlp":
            edits.append((part.key, station, Edits(mlps_off=layer)))
        else:
            heads = range(calls[part.layer].mixed.shape[1])
            each = [
                (f"h{part.layer + 1}.{head + 1}", Edits(heads_off=frozenset({(part.layer, head)}))) for head in heads
            ]
            edits += [(key, station, edit) for key, edit in each]
            edits += [(part.key, station, Edits(attentions_off=layer))] if part.kind == "attention" else []
    with eval_mode(model):
        for key, station, edit in progress(edits, "switching off one part after the other", len(edits), "parts"):
            with edited(model, edit), tracing(model) as trace:
                logits = model(ids)[0]  # (T, V)
            tables = Tables.of(model, stations(model, trace)[1][station:], ids)
            yield Switch(key, station, tables, surprise(logits, ids))


def hidden_tokens(model: GPT, ids: Tensor) -> Tensor:
    """The surprises with one token hidden from all later ones, in all layers: (T, T), at [s, t] that of token t + 1
    without token s.
    """
    T, layers = ids.shape[1], range(len(model.blocks))
    rows = []
    with eval_mode(model):
        for s in progress(range(T), "hiding one token after the other", T, "tokens"):
            with edited(model, Edits(cut=frozenset((layer, t, s) for layer in layers for t in range(s + 1, T)))):
                rows.append(surprise(model(ids)[0], ids))  # (T - 1,)
    return torch.cat((torch.stack(rows), torch.zeros(T, 1)), dim=1)  # (T, T)


def replaced_tokens(model: GPT, tokenizer: Tokenizer, ids: Tensor, logits: Tensor) -> tuple[Tensor, list[str]]:
    """The surprises with one token replaced by the likeliest other one, (T, T) as above, and these others.

    The first token, before which nothing stands, is left.
    """
    two = logits[:-1].topk(min(2, logits.shape[1]), dim=-1).indices  # (T - 1, 2)
    other = torch.where(two[:, 0] == ids[0, 1:], two[:, -1], two[:, 0])  # (T - 1,)
    others = torch.cat((ids[0, :1], other))  # (T,)
    rows = []
    with eval_mode(model):
        for s, id in enumerate(others):
            text = ids.clone()  # (1, T)
            text[0, s] = id
            rows.append(surprise(model(text)[0], ids))  # (T - 1,)
    table = torch.cat((torch.stack(rows), torch.zeros(len(rows), 1)), dim=1)  # (T, T)
    return table, [token_text(tokenizer, int(id)) for id in others]


def vocabulary(model: GPT, logits: Tensor, ids: Tensor, tables: Sequence[Tables]) -> list[int]:
    """The ids that a page knows: all of a small vocabulary; of a large one those that are seen and expected."""
    if model.vocab_size <= ROWS:
        return list(range(model.vocab_size))
    likely = logits.topk(CANDIDATES, dim=-1).indices.flatten()  # (T k,)
    return torch.cat([ids[0].cpu(), likely.cpu(), *(table.top.flatten() for table in tables)]).unique().tolist()


def ranks(ids: Tensor, known: list[int]) -> Tensor:
    """Where ids stand among those that the page knows, which are in order: the same shape, int32."""
    return torch.searchsorted(torch.tensor(known), ids.contiguous()).to(torch.int32)


# ---- one layer ----


def shape_of(attention: Attention, layer: Layer, calls: list[MixCall], left_out: Sequence[str] = ()) -> dict[str, Any]:
    """The data of an attention: what the explorer shows of it, and its widths."""
    query, key, value = calls[-1].query, calls[-1].key, calls[-1].value
    scaled = isinstance(attention, SoftmaxAttention) and query.shape[-1]
    scale = attention.scale(query) if scaled else layer.scale  # type: ignore[operator]
    widths = {"groups": value.shape[1], "d": query.shape[-1], "e": value.shape[-1], "key_heads": key.shape[1]}
    include_self, epsilon = (
        getattr(attention.config, *option) for option in (("include_self", True), ("qk_norm_epsilon", 0.0))
    )
    own = {"own": own_numbers(attention, len(layer.weights))}
    options = {"scale": scale, "itself": include_self, "epsilon": epsilon}
    return layer_data(layer, list(left_out)) | widths | options | own


def recomputed(attention: Attention, layer: Layer) -> bool:
    """Whether the page computes the weights itself: the softmax of scaled products, plus the slopes of ALiBi."""
    biased = set(layer.steps) == {"scores", "with bias"} and attention.position.kind == "alibi"
    plain = set(layer.steps) == {"scores"} and attention.position.kind != "alibi"
    return layer.law == "softmax" and layer.query is not None and (plain or biased)


def attention_arrays(
    model: GPT, part: Part, call: MixCall, layer: Layer, trace: Trace, left_out: Sequence[str]
) -> tuple[dict[str, Tensor], str]:
    """The arrays of one attention, and how its output splits by heads: "project", "writes", or "" where it does not."""
    attention, i = model.attentions()[part.layer], part.layer
    arrays = {f"{i}.value": call.value[0].float().cpu()}
    if layer.query is not None and layer.key is not None and KEYS not in left_out:
        arrays |= {f"{i}.query": layer.query, f"{i}.key": layer.key}
    if attention.position.kind == "alibi":
        zeros = call.query.new_zeros(1, call.weights.shape[1], 2, 1)  # (1, H, 2, 1)
        arrays[f"{i}.slopes"] = -attention.position.bias(zeros, zeros)[:, 1, 0].double().cpu()  # (H,)
    if not recomputed(attention, layer) or KEYS in left_out:
        arrays[f"{i}.weights"] = layer.weights
        if STEPS not in left_out:
            arrays |= {f"{i}.steps.{name}": step for name, step in layer.steps.items()}
    if not torch.equal(layer.visible, torch.ones_like(layer.visible).tril()):
        arrays[f"{i}.seen"] = layer.visible
    arrays |= {f"{i}.gates.{name}": gate for name, gate in layer.gates.items()}
    if layer.head_gates is not None:
        arrays[f"{i}.head_gates"] = layer.head_gates
    form, written = split(model, part, call, trace)
    if HEADS in left_out and form:
        form, written = "", {}
    if not form:
        written = {"add": trace.added[i][0][0].float().cpu()}
    return arrays | {f"{i}.{name}": array for name, array in written.items()}, form


def split(model: GPT, part: Part, call: MixCall, trace: Trace) -> tuple[str, dict[str, Tensor]]:
    """What each head writes into the stream, if that adds up: through one matrix, or as vectors (H, T, D).

    Through a matrix go the mixtures, or what the layer makes of them (`handed`, and the `gate` in it).
    """
    attention, i = model.attentions()[part.layer], part.layer
    x, added = trace.inputs[f"blocks.{i}.attention"], trace.added[i][0][0].float()  # (1, T, D), (T, D)
    H = call.mixed.shape[1]
    none = attention.output(torch.zeros_like(call.mixed), x).float()  # (1, T, D)
    handed, project = handed_on(call, trace, f"blocks.{i}.attention"), getattr(attention, "project", None)
    if handed is not None and not part.post and isinstance(project, torch.nn.Linear):
        by_head = project.weight.float().unflatten(1, (H, -1))  # (D, H, e)
        if equal(torch.einsum("hte, dhe -> td", handed.float(), by_head) + none[0], added):
            arrays = {"project": project.weight.float()} | ({"project.bias": none[0, 0].double()} if none.any() else {})
            if not torch.equal(handed, call.mixed[0]):
                gate = gates_of(attention, x)  # (H, T, e)
                arrays |= {"handed": handed.float()} | ({} if gate is None else {"gate": gate.float()})
            return "project", {name: array.cpu() for name, array in arrays.items()}
    alone = call.mixed * torch.eye(H, device=x.device)[:, :, None, None]  # (H, H, T, e)
    writes = attention.output(alone, x.expand(H, -1, -1)).float() - none  # (H, T, D)
    rest = none[0]  # (T, D)
    if part.post:
        writes, rest = behind_norm(getattr(model.blocks[i], part.post), writes, rest)
    if not equal(writes.sum(dim=0) + rest, added):
        return "", {}
    return "writes", {"writes": writes.cpu(), "rest": rest.cpu()}


def behind_norm(norm: torch.nn.Module, writes: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    """Writes (H, T, D) and the rest (T, D) behind the norm of their sum, its deviation held fixed."""
    total = writes.sum(dim=0) + rest  # (T, D)
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    centred = isinstance(norm, LayerNorm)
    less = total - total.mean(dim=-1, keepdim=True) if centred else total  # (T, D)
    size = (less.square().mean(dim=-1, keepdim=True) + getattr(norm, "eps", getattr(norm, "epsilon", 0.0))).sqrt()

    def scaled(x: Tensor) -> Tensor:
        x = (x - x.mean(dim=-1, keepdim=True) if centred else x) / size
        return x if weight is None else x * weight

    return scaled(writes), scaled(rest) + (0.0 if bias is None else bias)


def mlp_arrays(
    model: GPT, part: Part, trace: Trace, added: Tensor, known: list[int], left_out: Sequence[str]
) -> dict[str, Tensor]:
    """The arrays of one MLP: what it adds, its hidden units, and the vote of each unit for each token of the page."""
    i = part.layer
    arrays = {f"{i}.mlp": added.float().cpu()}  # (T, D)
    mlp = model.blocks[i].mlp
    if HIDDEN not in left_out and isinstance(mlp, MLP) and isinstance(mlp.project, torch.nn.Linear):
        arrays[f"{i}.hidden"] = trace.inputs[f"blocks.{i}.mlp.project"][0].float().cpu()  # (T, width)
        if UNITS not in left_out and not part.post and len(known) == model.vocab_size and norm_data(model):
            arrays[f"{i}.units"] = units(model, mlp).cpu()
    return arrays


def units(model: GPT, mlp: MLP) -> Tensor:
    """What a hidden unit of one adds to each logit, before the division by the deviation of the stream: (V, width)."""
    columns, weight = mlp.project.weight.float(), getattr(model.norm, "weight", None)  # (D, width), (D,)
    if isinstance(model.norm, LayerNorm):
        columns = columns - columns.mean(dim=0)  # (D, width)
    return model.head.weight.float() @ (columns if weight is None else columns * weight[:, None])


def fitted(
    run: dict[str, Any],
    arrays: dict[str, Tensor],
    model: GPT,
    trace: Trace,
    numbers: Numbers,
    parts: list[Part],
    known: list[int],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data and the packed arrays; where they are too large, without what can be missed most easily."""
    left_out = list[str]()
    for leave in ("", UNITS, HIDDEN, HEADS, KEYS, STEPS):
        left_out += [leave] if leave else []
        layers, of_layers = layer_arrays(model, trace, numbers, parts, known, left_out)
        with heartbeat("packing the page"):
            packed = pack(arrays | of_layers)
        if len(packed["bytes"]) <= ROOM:
            break
    run["layers"] = layers
    run["missing"] = f"To keep this page small, it was made without {', '.join(left_out)}." if left_out else ""
    return run, packed


def layer_arrays(
    model: GPT, trace: Trace, numbers: Numbers, parts: list[Part], known: list[int], left_out: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The data and the arrays of all layers, without what is `left_out`."""
    layers, arrays = list[dict[str, Any]](), dict[str, Tensor]()
    additions = [iter(added) for added in trace.added]
    for part in parts:
        i, name = part.layer, f"blocks.{part.layer}"
        if part.kind == "mlp":
            arrays |= mlp_arrays(model, part, trace, next(additions[i])[0], known, left_out)
            continue
        attention, call, layer = model.attentions()[i], trace.calls[i][-1], numbers.layers[i]
        data = shape_of(attention, layer, trace.calls[i], left_out)
        if part.kind == "attention":
            next(additions[i])
            own, data["split"] = attention_arrays(model, part, call, layer, trace, left_out)
            data["state"], state = state_of(attention, call)
            own |= {f"{i}.{key}": array for key, array in state.items() if KEYS not in left_out or "." not in key}
            latents = latents_of(attention, call, trace, f"{name}.attention") if KEYS not in left_out else {}
            arrays |= own | {f"{i}.{key}": array for key, array in latents.items()}
        else:
            arrays[f"{i}.block"] = (trace.outputs[name] - trace.inputs[name])[0].float().cpu()  # (T, D)
        data["query"] = data["query"] and KEYS not in left_out
        layers.append(data)
    return layers, arrays
