"""The numbers on a page about one text: the steps to the attention weights, the predictions, what each head is worth.

All of it is computed here, by the model itself; a page's script computes the softmax of one row and nothing else.

H heads, G key heads, T positions of the text, d width of a query and a key, e width of a value, L layers, V vocabulary.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.base import SoftmaxAttention, repeat_kv
from minigpt.attention.linear.recurrent import Recurrent
from minigpt.model import GPT
from minigpt.model.eval_mode import eval_mode
from minigpt.model.sampling import OVERFLOW
from minigpt.seeing.edits import Edits, edited
from minigpt.seeing.trace import MixCall, Trace, sums_of, tracing
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.text.languages.language import Language
from minigpt.text.languages.reader import Reading
from minigpt.text.tokenizer import Tokenizer

TOP = 8  # tokens of which the probability is shown at each position
CHANCE, MORE = 1e-3, 1.5  # see `far_outside`
NEAR = 1e-4  # tolerance when weights are compared with the softmax of the last step, or with its share of a row

Law = Literal["softmax", "sink", "share", "sum", "product", ""]


@dataclass(frozen=True)
class Layer:
    """The attention of one layer on the text, all in float32."""

    kind: str
    summary: str  # the kind's own description
    weights: Tensor  # (H, T, T)
    visible: Tensor  # (1 or H, T, T): true where a query may see a key
    steps: dict[str, Tensor]  # (1 or H, T, T) each: from the first map to the last one before the weights
    gates: dict[str, Tensor]  # (1 or H, T) each: one number a token
    sums: dict[str, dict[str, Tensor]]  # {a step, or "weights": {each step of which it is the sum: its factor (H,)}}
    law: Law  # what the weights are: the softmax of the last step, its share of the row's sum, a sum in `sums`, ...
    sink: Tensor | None  # ... the softmax of the last step and of one score more, the sink, which takes its share (H,)
    product: list[str]  # ... the product of these steps, or made in another way
    notes: list[str]  # what each head is, where its number does not say it; H
    head_gates: Tensor | None  # (H, T): what the output of each head is multiplied by
    query: Tensor | None  # (H, T, d); None unless `scale` times query . key is the first step
    key: Tensor | None  # (G, T, d); None if `query` is
    scale: float
    lengths: Tensor  # (G, T): the norm of each value vector
    mixed: Tensor  # (H, T): the norm of each head's output, the mixed values

    @property
    def sums_to_one(self) -> bool:
        """Whether each row of weights sums to one, on this text."""
        return bool((self.weights.sum(dim=-1) - 1).abs().max() < 1e-3)

    @property
    def signed(self) -> bool:
        """Whether there are weights below zero, on this text."""
        return bool(self.weights.min() < -1e-6)


@dataclass(frozen=True)
class Numbers:
    """All numbers of a page. Heads are numbered through all layers; losses are in nats."""

    tokens: list[str]  # T
    layers: list[Layer]
    surprise: Tensor  # (T - 1,): of each token after the first, -ln of its probability
    without: Tensor  # (heads, T - 1): the surprise without each head
    top: Tensor  # (T, k): the likeliest next tokens at each position
    chance: Tensor  # (T, k): the probabilities of `top`
    lens_top: Tensor  # (L + 1, T): the likeliest next token if a layer were the last (first the embedding)
    lens_chance: Tensor  # (L + 1, T): the probability of `lens_top`
    reading: Reading | None  # how the ideal reader of a built-in language reads the text; it may be shorter
    outside: str  # a sentence where the text is far outside what the model was trained on

    @property
    def unit(self) -> str:
        """The word for a token: character, if every token is one."""
        return "character" if all(len(token) == 1 for token in self.tokens) else "token"

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(layer, head) of each head, from 0."""
        return [(i, head) for i, layer in enumerate(self.layers) for head in range(len(layer.weights))]

    @property
    def worth(self) -> Tensor:
        """(heads,): how much larger the mean loss is without each head; zeros where the text is one token."""
        if not len(self.surprise):
            return torch.zeros(len(self.heads))  # (heads,)
        return (self.without - self.surprise).mean(dim=1)  # (heads,)

    def telling(self) -> tuple[int, int]:
        """(head, position): the row of weights that shows best what a head does.

        It has the largest product of two numbers: by how much the head raises the probability of the next token, and
        the largest share of its weight on one other token. Many heads put their weight on the first token when they
        have nothing to do (Xiao et al., 2023, arXiv 2309.17453), so such a row is chosen only if no other row gains.
        """
        if not len(self.surprise):
            return 0, 0
        gained = (-self.surprise).exp() - (-self.without).exp()  # (heads, T - 1)
        sizes = torch.cat([layer.weights.abs() for layer in self.layers])[:, :-1]  # (heads, T - 1, T)
        others = sizes * (1 - torch.eye(*sizes.shape[1:]))  # (heads, T - 1, T)
        largest, key = others.max(dim=-1)  # (heads, T - 1) each
        product = gained * largest / sizes.sum(dim=-1).clamp(min=1e-30)  # (heads, T - 1)
        elsewhere = product.masked_fill(key == 0, 0.0)  # (heads, T - 1)
        best = elsewhere if elsewhere.max() > 0 else product
        head, position = divmod(int(best.argmax()), best.shape[1])
        return head, position


@torch.no_grad()
def look(
    model: GPT,
    tokenizer: Tokenizer,
    ids: Tensor,
    language: Language | None = None,
    usual: float | None = None,
    without: Tensor | None = None,
) -> Numbers:
    """All numbers for ids (1, T), T at most `block_size`. One pass, and one more for each head, unless the surprises
    `without` each are known.

    `language` is the language that the text may be from; `usual` is as for `far_outside`. Raises UserError if the
    weights overflow.
    """
    with eval_mode(model), tracing(model) as trace:
        logits = model(ids)[0].float()  # (T, V)
    if not logits.isfinite().all():
        raise UserError(OVERFLOW)
    tokens = [token_text(tokenizer, id) for id in ids[0].tolist()]
    layers = [layer_of(attention, calls[-1]) for attention, calls in zip(model.attentions(), trace.calls)]
    if not all(layer.weights.isfinite().all() for layer in layers):
        raise UserError(OVERFLOW)
    chance, top = logits.softmax(dim=-1).topk(min(TOP, logits.shape[-1]))  # (T, k) each
    lens_chance, lens_top = lens(model, trace)  # (L + 1, T) each
    reading = read(language, tokens) if language else None
    return Numbers(
        tokens=tokens,
        layers=layers,
        surprise=surprise(logits, ids),
        without=torch.stack(list(losses_without(model, ids, layers))) if without is None else without,
        top=top.cpu(),
        chance=chance.cpu(),
        lens_top=lens_top,
        lens_chance=lens_chance,
        reading=reading,
        outside=far_outside(costs(logits[:-1], ids[0, 1:]), usual, tokenizer),
    )


def surprise(logits: Tensor, ids: Tensor) -> Tensor:
    """-ln of the probability of each token after the first, from logits (T, V) and ids (1, T): (T - 1,)."""
    return costs(logits[:-1], ids[0, 1:])[0]


def costs(logits: Tensor, targets: Tensor) -> Tensor:
    """-ln of the probability of each target (n,) by logits (n, V), and the same at temperature 2: (2, n)."""
    scaled = (logits.float() / temperature for temperature in (1, 2))  # (n, V) each
    return torch.stack([-each.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0] for each in scaled]).cpu()


def far_outside(costs: Tensor, usual: float | None, tokenizer: Tokenizer) -> str:
    """A sentence where a text with these `costs` (2, n) is far outside what the model was trained on; "" elsewhere.

    `usual` is the loss on validation text in nats a token; where it is not known, None, there is no sentence. A text is
    far outside if both are true:

    - It is 1 / CHANCE times likelier to the same model at temperature 2. On average over the texts that the model
      writes itself this ratio is 1, so by Markov's inequality it is that large for a share of CHANCE of them at most,
      however short they are. A text that the model does not know has tokens that the model held for nearly impossible,
      and these cost far less at temperature 2.
    - It costs MORE times the usual loss: a model that knows its training text by heart is too certain of any other
      text, validation text as well.
    """
    paid, warmer = costs  # (n,) each
    if usual is None or float((paid - warmer).sum()) <= -math.log(CHANCE) or float(paid.mean()) <= MORE * usual:
        return ""
    unit = "character" if tokenizer.kind == "char" else "token"
    cost = f"This text costs the model {float(paid.mean()):.2f} nats a {unit}, its validation text {usual:.2f}"
    return f"{cost}: what you see here is how it reads what it does not know."


def losses_without(model: GPT, ids: Tensor, layers: list[Layer]) -> Iterable[Tensor]:
    """For each head of each layer: the surprises (T - 1,) with only that head switched off."""
    heads = [(i, head) for i, layer in enumerate(layers) for head in range(len(layer.weights))]
    with eval_mode(model):
        for off in progress(heads, "switching off one head after the other", len(heads), "heads"):
            with edited(model, Edits(heads_off=frozenset({off}))):
                yield surprise(model(ids)[0], ids)  # (T - 1,)


def lens(model: GPT, trace: Trace) -> tuple[Tensor, Tensor]:
    """The logit lens (nostalgebraist, 2020): the final norm and the head, applied after each layer.

    The probability of the likeliest next token after the embedding and after each layer, and its id: (L + 1, T) each.
    """
    streams = [trace.outputs["dropout"], *(trace.outputs[f"blocks.{i}"] for i in range(len(model.blocks)))]
    likeliest = [model.logits(model.norm(x))[0].float().softmax(dim=-1).max(dim=-1) for x in streams]  # (T,), (T,) each
    chance, top = (torch.stack([pair[i] for pair in likeliest]).cpu() for i in (0, 1))  # (L + 1, T) each
    return chance, top


def read(language: Language, tokens: list[str]) -> Reading | None:
    """How the ideal reader reads the text line by line, up to the first character that it does not expect.

    None where a token is not one character, or the text does not begin with the line end that opens a text.
    """
    if tokens[0] != "\n" or any(len(token) != 1 for token in tokens):
        return None
    reading = Reading()
    for line in "".join(tokens).split("\n")[1:]:
        part = language.read("\n" + line)
        for name in ("takes", "ideal", "forgetful", "support"):
            getattr(reading, name).extend(getattr(part, name))
        if len(part.ideal) <= len(line) or not part.ideal[-1]:
            break
    return reading


# ---- one layer ----


def layer_of(attention: Attention, call: MixCall) -> Layer:
    """What a layer did, from the call of its `mix`."""
    weights = call.weights[0].float().cpu()  # (H, T, T)
    stages = attention.stages(call.query, call.key)
    maps, gates = of_form(stages, weights)
    visible = visible_keys(maps.pop("masked", None), weights)  # (1 or H, T, T)
    sums = sums_in(stages, maps | {"weights": weights}, visible)
    steps = distinct(maps, visible, {name for step, parts in sums.items() for name in (step, *parts)})
    first, last = (next(iter(values), None) for values in (steps.values(), reversed(steps.values())))
    query, key, scale = product_of(attention, call, first, visible)
    law, factors = law_of(last, weights, visible), factors_of(steps, gates, weights)
    sink = None if law or last is None else sink_of(last, weights, visible)  # (H,)
    return Layer(
        kind=attention.kind,
        summary=summary(type(attention)),
        weights=weights,
        visible=visible,
        steps=steps,
        gates=gates,
        sums=sums,
        law="sum" if "weights" in sums else law or ("sink" if sink is not None else "product" if factors else ""),
        sink=sink,
        product=factors,
        notes=[attention.head_note(head) for head in range(len(weights))],
        head_gates=None if call.head_gates is None else call.head_gates[0].float().cpu(),
        query=query,
        key=key,
        scale=scale,
        lengths=call.value[0].float().norm(dim=-1).cpu(),  # (G, T)
        mixed=call.mixed[0].float().norm(dim=-1).cpu(),  # (H, T)
    )


def summary(kind: type[Attention]) -> str:
    """A kind in a sentence or two: the first paragraph of its module, or, for a kind of your own, of its class."""
    built_in = kind.__module__.startswith("minigpt.")
    text = (sys.modules[kind.__module__].__doc__ if built_in else kind.__doc__) or ""
    return " ".join(text.strip().split("\n\n")[0].split()).replace("`", "")


def of_form(stages: Mapping[str, Tensor], weights: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A kind's `stages` without its weights (H, T, T): maps (1 or H, T, T), and gates (1 or H, T).

    A stage of another shape, such as one row for each half of a head, is left out, and so is a stage with NaN.
    """
    H, T = weights.shape[:2]
    maps, gates = dict[str, Tensor](), dict[str, Tensor]()
    for name, stage in stages.items():
        if name == "weights" or stage.ndim < 3 or stage.shape[:2] not in [(1, 1), (1, H)] or stage.isnan().any():
            continue
        if stage.shape[2:] == (T, T):
            maps[name] = stage[0].float().cpu()
        elif stage.shape[2:] == (T,):
            gates[name] = stage[0].float().cpu()
    return maps, gates


def sums_in(stages: Mapping[str, Tensor], maps: Mapping[str, Tensor], visible: Tensor) -> dict[str, dict[str, Tensor]]:
    """The sums that a kind's stages declare, {step: {map: its factor (H,)}}, of those of `maps` (1 or H, T, T)."""
    sums = dict[str, dict[str, Tensor]]()
    for step, parts in sums_of(stages).items():
        factors = {name: factor[0].float().cpu() for name, factor in parts.items() if name in maps}  # (H,) each
        if len(factors) == len(parts) and step in maps:
            total = torch.stack([f[:, None, None] * maps[name] for name, f in factors.items()]).sum(dim=0)  # (H, T, T)
            if torch.allclose(total * visible, maps[step] * visible, rtol=1e-3, atol=NEAR):
                sums[step] = factors
    return sums


def visible_keys(masked: Tensor | None, weights: Tensor) -> Tensor:
    """Which keys a query may see, (1 or H, T, T): those whose masked scores are not -inf.

    Without masked scores: the past, or every key if a weight of a later key is not zero.
    """
    past = torch.ones_like(weights[:1], dtype=torch.bool).tril()  # (1, T, T)
    if masked is None:
        return past if not weights.triu(1).any() else torch.ones_like(past)
    visible = masked > -torch.inf  # (1 or H, T, T)
    return visible[:1] if bool((visible == visible[:1]).all()) else visible


def distinct(maps: dict[str, Tensor], visible: Tensor, needed: set[str]) -> dict[str, Tensor]:
    """The maps, with zeros where a query sees nothing, without those that equal the map before them, if not needed."""
    steps, before = dict[str, Tensor](), torch.full((), torch.nan)
    for name, stage in maps.items():
        step = stage.masked_fill(~visible, 0.0)  # (1 or H, T, T)
        if name in needed or not (step.shape == before.shape and torch.equal(step, before)):
            steps[name] = before = step
    return steps


def law_of(last: Tensor | None, weights: Tensor, visible: Tensor) -> Law:
    """How the last step (1 or H, T, T) becomes the weights (H, T, T)."""
    if last is None:
        return ""
    if torch.allclose(last.masked_fill(~visible, -torch.inf).softmax(dim=-1).expand_as(weights), weights, atol=NEAR):
        return "softmax"
    share = last / last.sum(dim=-1, keepdim=True)  # (1 or H, T, T)
    return "share" if torch.allclose(share.expand_as(weights), weights, atol=NEAR) else ""


def sink_of(last: Tensor, weights: Tensor, visible: Tensor) -> Tensor | None:
    """The score of each head (H,) that stands in each softmax beside those of the last step (1 or H, T, T), or None."""
    total = last.masked_fill(~visible, -torch.inf).logsumexp(dim=-1).expand(weights.shape[:2])  # (H, T)
    taken = (1 - weights.sum(dim=-1)).clamp(min=1e-30)  # (H, T)
    share, at = taken.max(dim=1)  # (H,), (H,): where it takes most it is known best
    sink = total.gather(1, at[:, None])[:, 0] + share.log() - (1 - share).log()  # (H,)
    again = (last - torch.logaddexp(total, sink[:, None])[..., None]).exp() * visible  # (H, T, T)
    return sink if sink.isfinite().all() and torch.allclose(again, weights, atol=NEAR) else None


def factors_of(steps: Mapping[str, Tensor], gates: Mapping[str, Tensor], weights: Tensor) -> list[str]:
    """Which of the last steps, with or without a gate of the key, have the weights (H, T, T) as their product."""
    names = [*steps]
    for start in range(len(names) - 2, -1, -1):
        total = torch.stack([steps[name].expand_as(weights) for name in names[start:]]).prod(dim=0)  # (H, T, T)
        for gate in ("", *gates):
            product = total * gates[gate][:, None] if gate else total  # (H, T, T)
            if torch.allclose(product, weights, rtol=1e-3, atol=NEAR * float(weights.abs().max())):
                return [*names[start:], *filter(None, [gate])]
    return []


def product_of(
    attention: Attention, call: MixCall, first: Tensor | None, visible: Tensor
) -> tuple[Tensor | None, Tensor | None, float]:
    """Query (H, T, d), key (G, T, d) and scale, where `scale * query . key` is the first step; else None, None, 1."""
    query, key, H = call.query[0].float().cpu(), call.key[0].float().cpu(), call.weights.shape[1]
    d = attention.d if isinstance(attention, Recurrent) else query.shape[-1]
    scale = attention.scale(call.query) if isinstance(attention, SoftmaxAttention) and d else 1.0
    query, key = query[..., :d], key[..., :d]  # (H, T, d), (G, T, d): without the gates after them
    if first is None or not d or len(query) != H or key.shape[-1] != d or H % len(key):
        return None, None, 1.0
    product = (query @ repeat_kv(key[None], H)[0].mT * scale).masked_fill(~visible, 0.0)  # (H, T, T)
    close = torch.allclose(product, first.expand_as(product), rtol=1e-3, atol=1e-3 * float(product.abs().max()) + 1e-6)
    return (query, key, scale) if close else (None, None, 1.0)


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """A token as text. If its bytes are not whole characters, they are shown in hexadecimal: ⟨e280⟩; a mark by name."""
    if id >= tokenizer.text_ids:
        return tokenizer.label(id)
    raw = tokenizer.token_bytes(id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{raw.hex()}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
