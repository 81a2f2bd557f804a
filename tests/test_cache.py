"""The cache for decoding: keys and values in buffers of a fixed address, or a state of a fixed size.

B batch, G key heads, T new positions, S positions so far, d width of a key, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from laws import KINDS
from torch import Tensor

from minigpt.attention import Attention, AverageLoop, GroupedQuery, MultiHead, Shape
from minigpt.attention.cache import ChunkCache, KVCache, Past, Shared, State, WindowCache
from minigpt.attention.sparse.chunked import Chunked
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.attention.sparse.streaming import Streaming
from minigpt.config.options import hints
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig, chain
from minigpt.seeing.cost import bytes_of
from minigpt.system.errors import UserError


def keys(B: int, T: int, G: int = 2, d: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(B, G, T, d, dtype=dtype)


# ---- nothing ----


def test_a_training_pass_keeps_nothing() -> None:
    past, key, value = Past(), keys(1, 4), keys(1, 4)
    assert past.append(key, value) == (key, value)
    assert past.length == 0
    assert not past.keeps
    assert KVCache.keeps
    assert State.keeps


def test_what_was_seen_can_be_read_from_above() -> None:
    below, past = chain([Past(), KVCache(8)])
    assert past.below is below
    assert below.below is None
    config = ModelConfig(n_layer=1, n_embd=16, attention=MultiHead.Config())
    layer, x = MultiHead(MultiHead.Config(), config), torch.randn(1, 4, 16)
    layer(x, below)
    assert below.seen is not None and all(
        torch.equal(seen, made) for seen, made in zip(below.seen, layer.qkv(x, Past())[1:])
    )
    layer(x, past)
    layer(x, past)
    assert past.seen is not None and past.seen[0].shape[2] == 4  # with a cache: the new ones too
    assert [made.shape[2] for made in past.kept()] == [8, 8]  # and all that came so far


@torch.no_grad()
@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if "causal" in hints(kind.Config)])
def test_a_prompt_that_sees_its_future_sees_it_with_a_cache(kind: type[Attention]) -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_embd=16, block_size=12, attention=kind.Config(causal=False)), 30)
    model, ids = model.double().eval(), torch.randint(30, (2, 9))
    torch.testing.assert_close(model(ids, model.make_cache()), model(ids), rtol=1e-12, atol=1e-12)


# ---- what came before ----


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("make", [lambda: KVCache(9), State, Shared])
def test_what_came_before_is_kept_by_what_keeps(make: Callable[[], Past], n: int) -> None:
    x, past = torch.randn(2, 9, 3), make()
    padded = torch.cat((torch.zeros(2, n, 3), x), dim=1)  # (B, n + T, D)
    for start, end in ((0, 1), (1, 4), (4, 5), (5, 9)):
        assert torch.equal(past.before(x[:, start:end], n), padded[:, start : start + n])
        last = x[:, start - 1 : start] if start else torch.zeros(2, 1, 3)  # (B, 1, D)
        assert torch.equal(past.before(x[:, start:end], 1, of="another"), last)
    assert bytes_of(past) == 2 * (n + 1) * 3 * 4


def test_before_a_training_pass_there_is_nothing() -> None:
    x, past = torch.randn(2, 4, 3), Past()
    for _ in range(2):
        assert torch.equal(past.before(x, 3), torch.zeros(2, 3, 3))
    assert bytes_of(past) == 0


def test_a_copy_of_what_came_before_is_a_snapshot() -> None:
    past = State()
    past.before(torch.ones(1, 2, 3), 2)
    copied = dict(past.tails)
    past.before(torch.zeros(1, 2, 3), 2)
    assert copied[""].eq(1).all() and past.tails[""].eq(0).all()


def test_before_another_batch_size_is_refused() -> None:
    past = KVCache(4)
    past.before(torch.ones(2, 1, 3), 2)
    with pytest.raises(ValueError, match="a batch of 2, now 1 came"):
        past.before(torch.ones(1, 1, 3), 2)


# ---- keys and values of another layer ----


def test_shared_keys_are_those_of_the_layer_that_keeps_them() -> None:
    """Through any number of layers, with nothing of their own."""
    below, past, above = chain([KVCache(4), Shared(), Shared()])
    for T in (3, 1):
        key, value = keys(1, T), keys(1, T)
        kept = below.append(key, value)
        for shared in (past, above):
            assert all(map(torch.equal, shared.append(key, value), kept))
            assert shared.length == below.length
    assert bytes_of(past) == bytes_of(above) == 0


@pytest.mark.parametrize(
    ("below", "message"),
    [
        ([State()], "keeps a state of fixed size instead; put a kind that keeps them all below it"),
        ([WindowCache(3)], "keeps a window of them only; put a kind that keeps them all below it"),
        ([], "the first layer has no layer below"),
    ],
)
def test_not_every_layer_has_keys_to_share(below: list[Past], message: str) -> None:
    with pytest.raises(UserError, match=message):
        chain([*below, Shared()])[-1].append(keys(1, 2), keys(1, 2))


def test_before_the_first_pass_there_are_no_keys() -> None:
    for past in (Past(), KVCache(4)):
        with pytest.raises(UserError, match="there are no keys and values yet"):
            past.kept()


# ---- keys and values ----


def test_it_returns_all_that_came_so_far() -> None:
    cache, key, value = KVCache(6), keys(2, 6, G=4, d=3), keys(2, 6, d=5)
    for start, end in ((0, 3), (3, 4), (4, 6)):
        all_keys, all_values = cache.append(key[:, :, start:end], value[:, :, start:end])
        assert torch.equal(all_keys, key[:, :, :end])
        assert torch.equal(all_values, value[:, :, :end])
        assert cache.length == end
        assert all(map(torch.equal, cache.kept(), (all_keys, all_values)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_buffers_are_of_the_type_that_arrives(dtype: torch.dtype) -> None:
    all_keys, all_values = KVCache(4).append(keys(1, 2, dtype=dtype), keys(1, 2, dtype=dtype))
    assert all_keys.dtype == all_values.dtype == dtype


def test_nothing_is_reserved_before_the_first_append_and_nothing_moves_after() -> None:
    cache = KVCache(100)
    assert cache.buffers is None
    cache.append(keys(2, 5), keys(2, 5))
    assert cache.buffers is not None
    places = [buffer.data_ptr() for buffer in cache.buffers]
    cache.append(keys(2, 90), keys(2, 90))
    assert [buffer.data_ptr() for buffer in cache.buffers] == places
    assert cache.buffers[0].shape == (2, 2, 100, 3)


def test_a_full_cache_refuses_more() -> None:
    cache = KVCache(4)
    cache.append(keys(1, 3), keys(1, 3))
    with pytest.raises(ValueError, match="the cache holds 4 positions, and 5 have come"):
        cache.append(keys(1, 2), keys(1, 2))
    assert cache.length == 3
    cache.append(keys(1, 1), keys(1, 1))
    with pytest.raises(ValueError, match="the cache holds 4 positions, and 5 have come"):
        cache.append(keys(1, 1), keys(1, 1))


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2), (2, 3)])
def test_another_batch_size_is_refused(first: int, then: int) -> None:
    """A batch of one would be broadcast over the others in silence."""
    for cache in (KVCache(4), WindowCache(4)):
        cache.append(keys(first, 1), keys(first, 1))
        with pytest.raises(ValueError, match=f"a batch of {first}, now {then} came"):
            cache.append(keys(then, 1), keys(then, 1))


# ---- a window ----


@pytest.mark.parametrize("sinks", [0, 1, 3])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_window_returns_what_new_positions_may_see(window: int, sinks: int) -> None:
    """The first ones, and the last ones in order, before what is new; of no more than it promises."""
    key, value = keys(2, 23, d=3), keys(2, 23, d=5)
    past, start = WindowCache(window, sinks), 0
    for T in (1, 2, 1, 1, 1, 5, 1, 7, 1, 1, 1, 1):
        before = sorted({*range(min(sinks, start)), *range(max(0, start - window), start)})
        places = [*before, *range(start, start + T)]
        found = past.append(key[:, :, start : start + T], value[:, :, start : start + T])
        assert all(torch.equal(ours, x[:, :, places]) for ours, x in zip(found, (key, value)))
        start += T
        assert past.length == start
        assert bytes_of(past) == 2 * 2 * (sinks + window) * (3 + 5) * 4
    assert start == 23


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_a_chunk_begins_anew(chunk: int) -> None:
    key, past, start = keys(2, 23), ChunkCache(chunk), 0
    for T in (1, 2, 1, 1, 1, 5, 1, 7, 1, 1, 1, 1):
        found, _ = past.append(key[:, :, start : start + T], key[:, :, start : start + T])
        assert torch.equal(found, key[:, :, start - start % chunk : start + T])
        start += T
        assert bytes_of(past) == 2 * 2 * 2 * chunk * 3 * 4


def test_a_window_as_it_lies_holds_the_same_in_another_order() -> None:
    past, key = WindowCache(3, sinks=1), torch.arange(6.0)[None, None, :, None]  # (1, 1, 6, 1)
    for p in range(6):
        kept, _ = past.write(key[:, :, p : p + 1], key[:, :, p : p + 1])
    assert kept.flatten().tolist() == [0, 4, 5, 3]
    assert past.append(key[:, :, :1], key[:, :, :1])[0].flatten().tolist() == [0, 3, 4, 5, 0]


# ---- a state ----


def test_a_state_is_replaced_and_counts() -> None:
    state = State()
    first, second = torch.zeros(2, 1, 1, 4), torch.ones(2, 1, 1, 4)
    state.replace((first,), 3)
    snapshot = state.tensors
    state.replace((second,), 1)
    assert snapshot == (first,)
    assert state.tensors == (second,)
    assert state.length == 4


def test_a_state_of_another_batch_size_is_refused() -> None:
    state = State()
    state.replace((torch.zeros(2, 1, 1, 4),), 1)
    with pytest.raises(ValueError, match=r"the state was of shapes \[\(2, 1, 1, 4\)\], now \[\(3, 1, 1, 4\)\] came"):
        state.replace((torch.zeros(3, 1, 1, 4),), 1)
    assert state.length == 1


@torch.no_grad()
@pytest.mark.parametrize("kind", [AverageLoop, MultiHead])
def test_decoding_refuses_another_batch_size(kind: type) -> None:
    model = GPT(ModelConfig(n_layer=1, n_embd=16, block_size=8, attention=kind.Config()), 5)
    for before, after in ((2, 1), (2, 3)):
        cache = model.make_cache()
        model(torch.zeros(before, 2, dtype=torch.long), cache)
        with pytest.raises(ValueError, match="batch"):
            model(torch.zeros(after, 1, dtype=torch.long), cache)


# ---- how much is kept ----


@torch.no_grad()
def kept(attention: object, tokens: int, block_size: int = 32) -> int:
    """How many numbers a layer remembers after some tokens."""
    model = make_fast(GPT(ModelConfig(n_layer=1, n_embd=16, block_size=block_size, attention=attention), 5))
    cache = model.make_cache()
    model(torch.zeros(3, tokens, dtype=torch.long), cache)
    (past,) = cache
    if isinstance(past, State):
        return sum(tensor.numel() for tensor in past.tensors)
    assert isinstance(past, (KVCache, WindowCache))
    assert past.buffers is not None
    return sum(buffer.numel() for buffer in past.buffers)


@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
def test_grouped_heads_shrink_the_cache_by_their_ratio(n_kv_head: int) -> None:
    many, grouped = MultiHead.Config(n_head=4), GroupedQuery.Config(n_head=4, n_kv_head=n_kv_head)
    assert kept(many, 7) == 2 * 3 * 32 * 16  # keys and values, batch, context, width
    assert kept(grouped, 7) * 4 == kept(many, 7) * n_kv_head


def test_an_average_keeps_one_sum_however_long_the_past() -> None:
    assert kept(AverageLoop.Config(), 1) == kept(AverageLoop.Config(), 32) == 3 * 16


def test_a_window_keeps_as_many_positions_as_it_sees() -> None:
    for tokens in (1, 32):
        assert kept(Chunked.Config(chunk=5), tokens) == 2 * 3 * 5 * 16
        assert kept(SlidingWindow.Config(window=5, n_kv_head=2), tokens) == 2 * 3 * 5 * 8
        assert kept(Streaming.Config(window=5, sinks=3), tokens) == 2 * 3 * 8 * 16
        assert kept(Streaming.Config(window=30, sinks=3), tokens) == 2 * 3 * 32 * 16  # no more than the context


@torch.no_grad()
def test_a_sum_in_bfloat16_does_not_stand_still() -> None:
    """The state is kept in float32: in bfloat16, 256 + 1 is 256, and the mean of a thousand ones would be a quarter."""
    layer = AverageLoop(AverageLoop.Config(), Shape(n_embd=2)).bfloat16()
    past, one = layer.make_cache(1000), torch.ones(1, 1, 2).bfloat16()
    for _ in range(1000):
        mean = layer(one, past)
    assert mean.tolist() == [[[1.0, 1.0]]]
    assert mean.dtype == torch.bfloat16
