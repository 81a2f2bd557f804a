"""From logits to text: one next token, and a stream of them.

B batch, V vocabulary, n tokens so far.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Annotated

import torch
from torch import Tensor

from minigpt.attention.position import exact
from minigpt.config.options import Count, Fraction, Natural, NonNegative, Options, Range, Seed
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.system.errors import UserError
from minigpt.system.waiting import heartbeat

OVERFLOW = "the model's scores are NaN or infinite: its weights are so large that they overflow"


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Options):
    """How text is drawn from a model. The filters apply in the order of these options."""

    temperature: NonNegative = 0.8
    """Divides the logits: below 1 likely tokens become likelier, above 1 less; 0 always takes the likeliest."""
    top_k: Count | None = None
    """Draw from the k likeliest tokens only, and from those that are as likely as the last of them."""
    top_p: Annotated[float, Range(0, 1, open_low=True)] = 1.0
    """Draw from the fewest tokens whose probabilities add up to p (nucleus sampling, arXiv 1904.09751)."""
    min_p: Fraction = 0.0
    """Draw from tokens at least this many times as likely as the likeliest (arXiv 2407.01082)."""
    max_tokens: Natural = 200
    """How many tokens to write, at most."""
    stop: str = ""
    """Text before which to end. Empty: a built-in story ends with its line, other text after `max_tokens`, or at the
    vocabulary's end-of-text token."""
    seed: Seed = 1337
    """Equal seeds draw equal text."""


def probabilities(logits: Tensor, config: SamplingConfig) -> Tensor:
    """The distribution that is drawn from: logits (B, V) -> (B, V), for a temperature above 0."""
    p = filtered(logits, config)
    return p / p.sum(-1, keepdim=True)


def filtered(logits: Tensor, config: SamplingConfig) -> Tensor:
    """As `probabilities`, but not normalised again: the probability of each token that passes the filters, else 0."""
    logits = logits.float()  # (B, V)
    if config.temperature != 1:
        logits = (logits - logits.max(-1, keepdim=True).values) / max(config.temperature, 1e-30)  # (B, V): at most 0
    if config.top_k is not None and config.top_k < logits.shape[-1]:
        least = logits.topk(config.top_k).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < least, -torch.inf)
    if config.top_p < 1:
        ordered, order = logits.softmax(-1).sort(descending=True)  # (B, V)
        before = ordered.cumsum(-1) - ordered  # (B, V): the sum over the likelier ones
        cut = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before >= max(config.top_p, 1e-30))  # (B, V)
        logits = logits.masked_fill(cut, -torch.inf)
    p = logits.softmax(-1)  # (B, V)
    return p if config.min_p == 0 else p.masked_fill(p < config.min_p * p.max(-1, keepdim=True).values, 0.0)


def next_token(logits: Tensor, config: SamplingConfig, generator: torch.Generator | None = None) -> Tensor:
    """Choose one token for each row of logits (B, V): (B,).

    Inverse-CDF sampling: take the first token whose cumulative probability exceeds a uniform random number. Temperature
    0 takes the likeliest token.
    """
    if config.temperature == 0:
        return logits.argmax(-1)
    dtype, device = exact(logits.device), logits.device
    upto = filtered(logits, config).cumsum(-1, dtype=dtype)  # (B, V): cumulative probabilities
    point = torch.rand(len(logits), 1, dtype=dtype, device=device, generator=generator)  # (B, 1)
    ids = torch.searchsorted(upto, point * upto[:, -1:], right=True)  # (B, 1): the first above the point
    return ids.squeeze(1).clamp(max=logits.shape[-1] - 1)


def window_start(n: int, block_size: int) -> int:
    """Where the context of n tokens begins: 0 while they fit, then a multiple of half a context.

    It depends on n alone, so text made with a cache and without one sees the same windows; and since it moves once in
    half a context, the cache is refilled once in half a context: two positions are computed for each token.
    """
    hop = max(block_size // 2, 1)
    return 0 if n <= block_size else -(-(n - block_size) // hop) * hop


def reading(model: GPT, ids: Tensor, use_cache: bool = True) -> Generator[Tensor, Tensor, None]:
    """Yields the logits (B, V) of the token after ids (B, n). `send` the chosen token (B,) to get the next logits.

    Use it within `torch.inference_mode()`. Raises UserError where the weights overflow.
    """
    prompt, start, read = ids.shape[1], -1, [ids]
    for n in count(prompt):
        restarts = start != window_start(n, model.config.block_size) or not use_cache
        if restarts:
            start = window_start(n, model.config.block_size)
            cache = model.make_cache() if use_cache else None
            unread = torch.cat(read, dim=1)[:, start:]  # (B, n - start)
        with heartbeat("reading the prompt") if n == prompt else nullcontext():
            logits = model.logits(model.last(unread, cache))  # (B, V): prefill, step and restart are this line
        if restarts and not logits.isfinite().all():
            raise UserError(OVERFLOW)
        unread = (yield logits).unsqueeze(1)  # (B, 1)
        read.append(unread)


@torch.inference_mode()
def generate(
    model: GPT, ids: Tensor, config: SamplingConfig, generator: torch.Generator | None = None, use_cache: bool = True
) -> Iterator[Tensor]:
    """Continue ids (B, n), one token (B,) at a time, for `config.max_tokens` tokens, past `block_size` if need be.

    The same seed gives the same tokens with a cache and without one, up to float32 rounding of the logits. Raises
    ValueError for an empty prompt, and UserError where the weights overflow.
    """
    if ids.shape[1] == 0:
        raise ValueError("there is nothing to continue: give at least one token")
    with eval_mode(model):
        reader, token = reading(model, ids, use_cache), ids[:, -1]  # (B,)
        for number in range(config.max_tokens):
            logits = reader.send(token) if number else next(reader)  # (B, V)
            token = next_token(logits, config, generator)  # (B,)
            yield token


def until(pieces: Iterable[str], stop: str) -> Iterator[str]:
    """Yield pieces of text until `stop` appears, which is left out; only what may be its beginning is delayed."""
    if not stop:
        yield from pieces
        return
    rest = ""
    for piece in pieces:
        rest += piece
        if stop in rest:
            yield rest[: rest.index(stop)]
            return
        maybe = next(n for n in range(min(len(stop) - 1, len(rest)), -1, -1) if rest.endswith(stop[:n]))
        ready, rest = rest[: len(rest) - maybe], rest[len(rest) - maybe :]
        if ready:
            yield ready
    if rest:
        yield rest
