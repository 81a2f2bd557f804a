"""The laws of writing (generation): a model computes the same with a cache as without, for chunks of any size.

As in `laws.py`, a law takes a model in float64 and evaluation mode, and raises LawError.

B batch, T positions, D model width, V vocabulary, N tokens in all.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from minigpt.attention.cache import State
from minigpt.checks.laws_of_attention import EXACT, LONG, Law, LawError, View, hold, longest, off, tokens, views
from minigpt.model.gpt import GPT, Block
from minigpt.model.sampling import window_start

OTHERWISE = "with its cache it computes something else than without"
KEEPS = "the layer keeps what belongs to the cache, so that a new text begins with the one before"
MIXED = "; or a kind reads from the layer below what the kind there does not keep for it (past.seen, past.kept())"


def kinds(model: GPT) -> str:
    """The names of the kinds of attention in a model, and of the kind of block if it is not the usual one."""
    names = ", ".join(dict.fromkeys(attention.kind or type(attention).__name__ for attention in model.attentions()))
    block = model.config.block.component.kind
    return names if block == Block.kind else f"{names} (block {block})"


def ids_of(model: GPT, B: int, N: int, seed: int = 0) -> Tensor:
    """Random ids (B, N), equal for equal seeds."""
    return torch.randint(model.vocab_size, (B, N), generator=torch.Generator().manual_seed(seed))  # (B, N)


def decode(model: GPT, ids: Tensor, sizes: Sequence[int]) -> Tensor:
    """The logits (B, T, V) of every position of ids (B, T), made chunk by chunk with a cache."""
    cache = model.make_cache()
    return torch.cat([model(chunk, cache) for chunk in ids.split(list(sizes), dim=1)], dim=1)


def chunks(n: int, seed: int) -> Iterator[int]:
    """Random lengths that add up to n."""
    lengths = random.Random(seed)
    while n:
        size = lengths.randint(1, min(n, 5))
        yield size
        n -= size


def hold_against(model: GPT, ways: Sequence[Sequence[int]], allowed: float, how: str, cause: str) -> None:
    """Raises LawError unless decoding in chunks gives the logits of one pass; each of `ways` lists chunk sizes."""
    ids = ids_of(model, 2, max(map(sum, ways)))  # (B, T)
    together = model(ids)  # (B, T, V)
    for sizes in ways:
        t = sum(sizes)
        expected, cached = together[:, :t], decode(model, ids[:, :t], sizes)  # (B, t, V) each
        if (far := off(cached, expected)) > allowed:
            first = next(i for i in range(t) if off(cached[:, i], expected[:, i]) > allowed)
            how = how.format(", ".join(map(str, sizes)))
            violation = f"{OTHERWISE}: {how}, the logits are off by {far:.2g}"
            why = (cause if first else KEEPS) + (MIXED if ", " in kinds(model) else "")
            raise LawError(f"{kinds(model)}: {violation}, from position {first} on. Likely cause: {why}")


@torch.no_grad()
def caches_begin_empty(model: GPT) -> None:
    """Every call of `make_cache` returns a new, empty cache; no two layers share one."""
    caches = model.make_cache(), model.make_cache()
    pasts = [past for cache in caches for past in cache]
    cause = "make_cache returns one that is kept somewhere; let it return a new one, such as KVCache(length)"
    for place, past in enumerate(pasts):
        view = View(model, place % len(caches[0]))
        if any(past is other for other in pasts[:place]):
            raise view.broken("make_cache returned the same cache twice", cause)
        if past.length:
            raise view.broken(f"a new cache begins at position {past.length}, expected 0", cause)


@torch.no_grad()
def the_length_does_not_matter(model: GPT, allowed: float = EXACT) -> None:
    """The output of a position does not depend on how many positions come after it."""
    T = min(longest(model), model.config.block_size)
    ids = ids_of(model, 2, T)  # (B, T)
    together = model(ids)  # (B, T, V)
    for t in sorted({1, -(-T // 3), T - 1} - {0}):
        alone = model(ids[:, :t])  # (B, t, V)
        first = "position 0 gets" if t == 1 else f"positions 0 to {t - 1} get"
        violation = f"{first} other logits in a text of {t} than in one of {T}: off by {{far}}"
        cause = "something counts from the end of the text or divides by its length; count from past.length"
        hold(kinds(model), together[:, :t], alone, allowed, violation, cause)


@torch.no_grad()
def two_texts_in_turns(model: GPT, allowed: float = EXACT) -> None:
    """Two texts, each with its own cache, are written in turns: neither changes the logits of the other."""
    T = min(4, model.config.block_size)
    texts = ids_of(model, 1, T), ids_of(model, 1, T, seed=1)  # (1, T) each
    alone, caches = [model(ids) for ids in texts], (model.make_cache(), model.make_cache())  # alone: (1, T, V) each
    for t in range(T):
        for ids, expected, cache in zip(texts, alone, caches):
            written = model(ids[:, t : t + 1], cache)  # (1, 1, V)
            hold(kinds(model), written, expected[:, t : t + 1], allowed,
                 "two texts that are written in turns, each with its own cache, mix: off by {far}",
                 "the layer keeps what belongs to the cache (self.key = ...); keep it in past")  # fmt: skip


@torch.no_grad()
def written_token_by_token(model: GPT, allowed: float = EXACT) -> None:
    """One token at a time, the logits with a cache equal those without; after a prompt, beyond 64 and 100 too."""
    T = min(model.config.block_size, LONG)
    ways = [[62, *[1] * 4], [98, *[1] * 4]] if T == LONG else [[1] * T]
    cause = "each new token is taken for the first (its position is past.length), or what the past holds is not used"
    hold_against(model, ways, allowed, "token by token", cause)


@torch.no_grad()
def written_in_chunks(model: GPT, allowed: float = EXACT) -> None:
    """Several tokens at a time, the logits with a cache equal those without."""
    T = min(model.config.block_size, LONG)
    ways = [[5, 60, 3, T - 68]] if T == LONG else [[*chunks(T, seed)] for seed in range(2)]
    cause = "the mask of a chunk is aligned to the upper left corner, as is_causal=True is; make it from distance(T, S)"
    hold_against(model, ways, allowed, "in chunks of {} tokens", cause)


@torch.no_grad()
def written_past_the_context(model: GPT, allowed: float = EXACT) -> None:
    """Beyond the context length, the window restarts with a new, empty cache."""
    block = model.config.block_size
    N = 2 * block + 3
    counts = sorted({block - 1, block, block + 1, block + 2, N} - {0})
    ids = ids_of(model, 1, N)  # (1, N)
    for start, window in groupby(counts, partial(window_start, block_size=block)):
        ends = [*window]  # how many tokens there are, each time that something is written
        expected, cache, known = model(ids[:, start : ends[-1]]), model.make_cache(), start  # (1, T, V)
        for n in ends:
            cached, known = model(ids[:, known:n], cache)[:, -1], n  # (1, V)
            violation = f"{OTHERWISE}: at token {n} of a context of {block}"
            hold(
                kinds(model),
                cached,
                expected[:, n - 1 - start],
                allowed,
                f"{violation}, the logits are off by {{far}}",
                KEEPS,
            )


@torch.no_grad()
def texts_do_not_mix_in_the_cache(model: GPT, allowed: float = EXACT) -> None:
    """With a cache, token by token, a change of one text of the batch changes nothing in the others."""
    T = min(4, model.config.block_size)
    ids = ids_of(model, 3, T)  # (B, T)
    changed = torch.cat((ids[:1], (ids[1:2] + 1) % model.vocab_size, ids[2:]))  # (B, T)
    ours, others = decode(model, ids, [1] * T), decode(model, changed, [1] * T)  # (B, T, V) each
    hold(kinds(model), others[[0, 2]], ours[[0, 2]], allowed,
         "with its cache, a change of one text of the batch moved the others by {far}",
         "a mean, norm, softmax or reshape over dimension 0")  # fmt: skip


@torch.no_grad()
def a_state_is_replaced(model: GPT) -> None:
    """A step replaces the tensors of a state and does not write into them: a reference to them is a snapshot."""
    cache, ids = model.make_cache(), ids_of(model, 2, min(4, model.config.block_size))  # ids (B, T)
    model(ids[:, :-1], cache)
    held = [past.tensors if isinstance(past, State) else () for past in cache]
    before = [[tensor.clone() for tensor in tensors] for tensors in held]
    model(ids[:, -1:], cache)
    for layer, (now, then) in enumerate(zip(held, before)):
        if not all(torch.equal(*pair) for pair in zip(now, then)):
            cause = "an operation in place in recall; give past.replace new tensors instead"
            raise View(model, layer).broken("a state was written in place", cause)


@torch.no_grad()
def bfloat16_stays_near(model: GPT) -> None:
    """Three hundred positions in bfloat16, chunk by chunk with a cache, give about what one pass in float32 gives."""
    for view in views(copy.deepcopy(model).float()):
        x = tokens(model, 1, 300).float()  # (1, 300, D)
        exact = view.out(x)  # (1, 300, D)
        rounded = View(copy.deepcopy(view.model).bfloat16(), view.index)
        for written, cast in ((rounded, False), (view, True)):
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                rough = written.written(x if cast else x.bfloat16(), [150, 1, 140, 1, 8])  # (1, 300, D)
            if not cast and rough.dtype != torch.bfloat16:
                raise view.broken(f"x of bfloat16 becomes {rough.dtype}", "cast the result back to the type of x")
            if not view.layer.chooses and (far := float((rough.float() - exact).norm() / exact.norm())) > 0.03:
                cause = "angles, gates or sums in bfloat16; make them in float32"
                raise view.broken(f"in bfloat16, 300 positions are off by {far:.2g} of their length", cause)


LAWS_OF_WRITING: tuple[Law, ...] = (
    caches_begin_empty,
    the_length_does_not_matter,
    written_token_by_token,
    written_in_chunks,
    written_past_the_context,
    two_texts_in_turns,
    texts_do_not_mix_in_the_cache,
    a_state_is_replaced,
    bfloat16_stays_near,
)
