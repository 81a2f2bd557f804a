"""Sampling: the distribution, the context window, and the end of a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_trainings import noisy_model
from torch import Tensor

from minigpt.attention import Position
from minigpt.model import GPT
from minigpt.model.sampling import SamplingConfig, generate, next_token, probabilities, until, window_start
from minigpt.system.errors import ConfigError

BLOCK, V = 8, 11


def make_model(kind: str = "multi_head", position: str = "learned", dropout: float = 0.0) -> GPT:
    return noisy_model(kind, position, dropout, BLOCK, V)


def write(model: GPT, ids: Tensor, use_cache: bool = True, seed: int = 5, **options: Any) -> Tensor:
    """The tokens (B, max_tokens) that follow ids (B, n)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(list(generate(model, ids, SamplingConfig(**options), generator, use_cache)), dim=1)


# ---- one token ----

HALF, ROOT = [0.5, 0.3, 0.15, 0.05], [p**0.5 for p in (0.5, 0.3, 0.15, 0.05)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, HALF),
        ({"temperature": 2.0}, [p / sum(ROOT) for p in ROOT]),
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        ({"top_k": 1}, [1, 0, 0, 0]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_k": 4}, HALF),
        ({"top_k": 99}, HALF),
        ({"top_p": 0.4}, [1, 0, 0, 0]),
        ({"top_p": 0.7}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.9}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"top_p": 1e-9}, [1, 0, 0, 0]),
        ({"min_p": 0.5}, [0.625, 0.375, 0, 0]),
        ({"min_p": 0.2}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"min_p": 1.0}, [1, 0, 0, 0]),
        ({"top_k": 2, "top_p": 0.6}, [1, 0, 0, 0]),  # 0.625 of what top_k has left: the order of the filters
        ({"top_k": 3, "min_p": 0.5}, [0.625, 0.375, 0, 0]),
    ],
    ids=str,
)
def test_the_filters_by_hand(options: dict[str, Any], expected: list[float]) -> None:
    order = torch.tensor([2, 0, 3, 1])  # the likeliest need not stand first, nor at one place in all rows
    logits = torch.tensor([HALF, HALF]).log() + 3.0
    logits[1] = logits[1, order]
    p = probabilities(logits, SamplingConfig(**{"temperature": 1.0, **options}))
    torch.testing.assert_close(p[0], torch.tensor(expected, dtype=torch.float32), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(p[1], p[0, order], rtol=1e-5, atol=1e-7)


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=12),
    st.floats(5e-324, 1e300),
    st.none() | st.integers(1, 20),
    st.floats(0, 1, exclude_min=True),
    st.floats(0, 1),
)
def test_whatever_the_options_it_is_a_distribution_that_favours_the_likeliest(
    row: list[float], temperature: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    p = probabilities(torch.tensor([row]), config)
    assert (p >= 0).all()
    assert abs(p.sum().item() - 1) < 1e-5
    assert row[int(p.argmax())] >= max(row) - 1e-3 * max(1, temperature)


def test_the_fewest_that_reach_p_are_just_enough() -> None:
    p = probabilities(torch.zeros(1, 2), SamplingConfig(top_p=0.5))
    assert sorted(p[0].tolist()) == [0, 1]


def test_temperature_zero_is_the_likeliest_and_never_a_matter_of_luck() -> None:
    logits = torch.randn(50, V)
    assert torch.equal(next_token(logits, SamplingConfig(temperature=0)), logits.argmax(-1))
    tied = torch.zeros(50, V)
    assert len(set(next_token(tied, SamplingConfig(temperature=0)).tolist())) == 1


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([HALF]).log().expand(20_000, -1)
    drawn = next_token(logits, SamplingConfig(temperature=1), torch.Generator().manual_seed(0))
    shares = drawn.bincount(minlength=4) / len(drawn)
    torch.testing.assert_close(shares, torch.tensor(HALF), rtol=0, atol=0.015)  # four standard deviations


WRONG = {"temperature": (-0.1, math.nan, math.inf), "top_k": (0, 2.5), "top_p": (0.0, 1.1), "min_p": (-0.1, 1.1)}
WRONG |= {"max_tokens": (-1,), "stop": (3,), "seed": (-1, 2**63)}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_options_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^SamplingConfig\.{name}: expected "):
        SamplingConfig(**{name: value})


# ---- a stream of tokens ----


def test_where_a_window_begins_by_hand() -> None:
    starts = [window_start(n, 8) for n in range(1, 25)]
    assert starts == 8 * [0] + 4 * [4] + 4 * [8] + 4 * [12] + 4 * [16]
    assert [window_start(n, 5) for n in range(1, 16)] == 5 * [0] + [2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    assert [window_start(n, 1) for n in range(1, 5)] == [0, 1, 2, 3]


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_a_window_fits_and_is_at_least_half_full(n: int, block_size: int) -> None:
    length = n - window_start(n, block_size)
    assert length <= block_size
    assert length >= min(n, (block_size + 1) // 2)


@pytest.mark.parametrize(
    ("kind", "position"),  # every kind is asked by its law: written past the context
    [
        *(("multi_head", position) for position in Position.kinds),
        *((kind, "rotary") for kind in ("sliding_window", "latent", "gated_delta_net")),
        ("linear", "learned"),
    ],
)
def test_with_a_cache_the_text_is_the_same_far_beyond_the_context(kind: str, position: str) -> None:
    model, ids = make_model(kind, position), torch.randint(V, (2, 3))
    cached, uncached = (write(model, ids, cache, temperature=1.0, max_tokens=BLOCK + 3) for cache in (True, False))
    assert torch.equal(cached, uncached)
    assert len(set(cached.flatten().tolist())) > 2  # not the same letter again and again, which would prove nothing


def test_each_token_is_drawn_from_the_window_that_its_number_gives() -> None:
    model, ids = make_model(), torch.randint(V, (2, 3))
    written = torch.cat((ids, write(model, ids, temperature=0, max_tokens=3 * BLOCK)), dim=1)
    for n in range(3, written.shape[1]):
        logits = model(written[:, window_start(n, BLOCK) : n])[:, -1]
        assert torch.equal(logits.argmax(-1), written[:, n])


def test_a_prompt_longer_than_the_context_is_continued_from_its_end() -> None:
    model, ids = make_model(), torch.randint(V, (1, 21))
    tail = ids[:, window_start(21, BLOCK) :]
    assert torch.equal(write(model, ids, temperature=0, max_tokens=1), model(tail)[:, -1:].argmax(-1))


def test_a_cache_computes_about_two_positions_a_token() -> None:
    def positions(use_cache: bool) -> int:
        counted: list[int] = []
        handle = model.tokens.register_forward_hook(lambda module, inputs, output: counted.append(output.shape[1]))
        write(model, ids, use_cache, max_tokens=200)
        handle.remove()
        return sum(counted)

    model, ids = make_model("average_matrix"), torch.zeros(1, 1, dtype=torch.long)
    assert positions(use_cache=True) <= 2 * 200
    assert positions(use_cache=False) > 5 * 200


def test_equal_seeds_write_equal_text_and_others_do_not() -> None:
    model, ids = make_model(), torch.zeros(1, 1, dtype=torch.long)
    first, again, other = (write(model, ids, seed=seed, temperature=1.0, max_tokens=30) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def to_the_end(stream: Iterator[Tensor]) -> None:
    assert len(list(stream)) == 5


def abandoned(stream: Iterator[Tensor]) -> None:
    next(stream)
    stream.close()  # type: ignore[attr-defined]


def interrupted(stream: Iterator[Tensor]) -> None:
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        stream.throw(KeyboardInterrupt)  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", [to_the_end, abandoned, interrupted])
@pytest.mark.parametrize("training", [True, False])
def test_generation_is_without_dropout_and_leaves_the_mode_as_it_was(
    end: Callable[[Iterator[Tensor]], None], training: bool
) -> None:
    model, modes = make_model(dropout=0.5).train(training), set[bool]()
    model.tokens.register_forward_hook(lambda module, inputs, output: modes.add(module.training))
    end(generate(model, torch.zeros(1, 1, dtype=torch.long), SamplingConfig(max_tokens=5, temperature=0)))
    assert modes == {False}
    assert all(module.training is training for module in model.modules())


def test_generation_has_no_gradients_and_between_two_tokens_the_caller_has() -> None:
    model, logits = make_model(), list[Tensor]()
    model.head.register_forward_hook(lambda module, inputs, output: logits.append(output))
    stream = generate(model, torch.zeros(1, 1, dtype=torch.long), SamplingConfig())
    next(stream)
    assert torch.is_grad_enabled()
    next(stream)
    assert [output.requires_grad for output in logits] == [False, False]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to continue"):
        next(generate(make_model(), torch.zeros(1, 0, dtype=torch.long), SamplingConfig()))


def test_no_tokens_is_a_number_of_tokens() -> None:
    assert list(generate(make_model(), torch.zeros(1, 1, dtype=torch.long), SamplingConfig(max_tokens=0))) == []


# ---- the end of a text ----


@given(st.text("ab", max_size=30), st.text("ab", max_size=4), st.lists(st.integers(0, 30), max_size=8))
def test_until_ends_before_the_stop_text_and_loses_nothing_however_it_is_cut(
    text: str, stop: str, cuts: list[int]
) -> None:
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert "".join(until(pieces, stop)) == (text.partition(stop)[0] if stop else text)


def test_until_holds_back_only_what_may_be_the_beginning_of_the_stop_text() -> None:
    assert list(until(["one", " t", "hem", " th", "e ", "EN"], " the END")) == ["one", " them", " the EN"]
    assert list(until(["a\n", "b\n\nc"], "\n\n")) == ["a", "\nb"]


def test_until_asks_for_no_more_once_it_has_seen_the_stop_text() -> None:
    pieces = iter(["a", "STOP", "b"])
    assert "".join(until(pieces, "STOP")) == "a"
    assert list(pieces) == ["b"]
