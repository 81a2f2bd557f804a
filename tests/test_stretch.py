"""Rotary positions of a part of the features and for longer texts, and ALiBi's published slopes, against transformers.

T positions, d width of a head, n pairs that are rotated.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from minigpt.attention.position import Alibi, NoStretch, Rotary, Shape, Stretch, angles
from minigpt.attention.stretch import Linear, Llama3, Yarn
from minigpt.config.options import from_dict
from minigpt.fast import make_fast
from minigpt.model import ModelConfig
from minigpt.system.errors import ConfigError

CPU, D = torch.device("cpu"), 64
STRETCHES = [
    NoStretch.Config(),
    Linear.Config(factor=3.0),
    Llama3.Config(factor=8.0, low=1.0, high=4.0, original=256),
    Yarn.Config(factor=4.0, original=512),
    Yarn.Config(factor=16.0, original=300, beta_fast=20.0, beta_slow=2.0, attention_factor=1.25),
]


def rotary(**options: object) -> Rotary:
    return Rotary(Rotary.Config(**options), Shape(), layer=0)  # type: ignore[arg-type]


def speeds(config: Rotary.Config, d: int) -> tuple[Tensor, float]:
    """The angle by which each pair turns from a position to the next (n,), and what the lengths are multiplied by."""
    x = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(d // 2)  # (d,)
    pairs = Rotary(config, Shape(), layer=0).rotate(x[None, None, None], 1).view(-1, 2)  # (d / 2, 2)
    n = int(config.share * d) // 2
    assert torch.equal(pairs[n:].flatten(), x[2 * n :])
    length = pairs[:n].norm(dim=1)  # (n,)
    torch.testing.assert_close(length, length[:1].expand(n))
    return torch.atan2(pairs[:n, 1], pairs[:n, 0]), length[0].item()


def theirs(config: Rotary.Config, d: int) -> tuple[Tensor, float]:
    """The same by transformers, in float32."""
    given = {"rope_theta": config.base, "partial_rotary_factor": config.share}
    match config.stretch:
        case Llama3.Config(factor=factor, low=low, high=high, original=original):
            given |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
            given |= {"original_max_position_embeddings": original}
        case Yarn.Config(factor=factor, original=original, beta_fast=fast, beta_slow=slow, attention_factor=length):
            given |= {"rope_type": "yarn", "factor": factor, "beta_fast": fast, "beta_slow": slow}
            given |= {"original_max_position_embeddings": original, "attention_factor": length}
        case Linear.Config(factor=factor):
            given |= {"rope_type": "linear", "factor": factor}
        case _:
            given |= {"rope_type": "linear", "factor": 1.0}
    shape = LlamaConfig(hidden_size=4 * d, num_attention_heads=4, head_dim=d, rope_parameters=given)
    frequencies, length = ROPE_INIT_FUNCTIONS[given["rope_type"]](shape, CPU)
    return frequencies.double(), length


@pytest.mark.parametrize("share", [1.0, 0.5, 0.4])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("stretch", STRETCHES, ids=str)
def test_angles_are_those_of_transformers(stretch: Stretch.Config, base: float, share: float) -> None:
    config = Rotary.Config(base=base, share=share, stretch=stretch)
    ours, length = speeds(config, 80)
    expected, their_length = theirs(config, 80)
    torch.testing.assert_close(ours, expected, rtol=3e-6, atol=0)  # they compute in float32
    assert length == pytest.approx(their_length, abs=1e-12)


# ---- by hand ----


def test_a_share_rotates_the_first_features_and_leaves_the_others() -> None:
    x = torch.randn(2, 3, 5, 10, dtype=torch.float64)
    turned = rotary(share=0.45).rotate(x, 7)  # 4.5 features: two pairs
    assert torch.equal(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(turned[..., :4], rotary().rotate(x[..., :4], 7), rtol=0, atol=1e-12)


def test_a_stretched_position_is_one_that_lies_closer() -> None:
    x = torch.randn(1, 1, 1, 8, dtype=torch.float64)
    stretched = rotary(stretch=Linear.Config(factor=4.0)).rotate(x, 12)
    torch.testing.assert_close(stretched, rotary().rotate(x, 3), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [Llama3, Yarn])
def test_fast_pairs_keep_their_speed_and_slow_ones_are_slowed(kind: type[Llama3] | type[Yarn]) -> None:
    stretch = kind.Config(factor=8.0, original=200)
    kept = stretch.share(angles(1, 1, 2 * 32, 10_000.0, CPU)[0], 10_000.0)  # (n,)
    assert kept[0] == 1 and kept[-1] == 0 and ((kept > 0) & (kept < 1)).any()
    assert (kept.diff() <= 0).all()


def test_llama_3_counts_the_turns_in_the_texts_of_the_training() -> None:
    """One pair that makes 2.5 turns in 100 positions is half way between 1 and 4."""
    frequency = torch.tensor([2.5 * 2 * math.pi / 100], dtype=torch.float64)
    assert Llama3.Config(original=100).share(frequency, 10_000.0).item() == pytest.approx(0.5, abs=1e-12)


def test_yarns_line_runs_over_the_pairs() -> None:
    """base 16, 4 pairs: frequencies 1, 1/2, 1/4, 1/8. In 32 pi positions they make 16, 8, 4, 2 turns."""
    stretch = Yarn.Config(original=101, beta_fast=16.0, beta_slow=2.01)
    frequencies = angles(1, 1, 8, 16.0, CPU)[0]  # (n,)
    torch.testing.assert_close(stretch.share(frequencies, 16.0), torch.tensor([1, 2 / 3, 1 / 3, 0]).double())
    assert Yarn.Config(factor=10.0).length() == pytest.approx(1 + 0.1 * math.log(10))
    assert Yarn.Config(factor=1.0).length() == 1.0


def test_numbers_at_their_limits_are_numbers() -> None:
    """What an untrusted config may hold: no rule divides by zero or overflows."""
    frequencies = angles(1, 1, 8, 16.0, CPU)[0]  # (n,)
    for stretch in (
        Yarn.Config(factor=1e308, original=10**9, beta_fast=1e308, beta_slow=1e-308),
        Yarn.Config(original=1, beta_fast=1e-300, beta_slow=1e-308),
        Llama3.Config(factor=1e308, original=1, low=1e-308, high=1e308),
    ):
        for base in (1.0000000000000002, 1e308):
            cos, sin = stretch.waves(frequencies[None], base)
            assert cos.isfinite().all() and sin.isfinite().all()


# ---- faster ----


@pytest.mark.parametrize("rounding", [1e-14, 1e-6, 2e-2])
@pytest.mark.parametrize(("d", "share"), [(1, 1.0), (2, 1.0), (7, 1.0), (7, 0.2), (7, 0.6), (10, 0.6), (10, 1.0)])
@pytest.mark.parametrize("stretch", STRETCHES, ids=str)
def test_the_complex_form_is_equal(stretch: Stretch.Config, d: int, share: float, rounding: float) -> None:
    plain = rotary(share=share, stretch=stretch)
    dtype = {1e-14: torch.float64, 1e-6: torch.float32, 2e-2: torch.bfloat16}[rounding]
    fast, wide = make_fast(copy.deepcopy(plain)), torch.randn(2, 3, 6, 3 * d).to(dtype)
    assert vars(fast)["faster"] == ("rotate",)
    for x in (wide[..., :d], wide[..., d : 2 * d], wide.transpose(1, 2)[..., 2 * d :]):
        ours, grown = (x.detach().clone().requires_grad_() for _ in range(2))
        for start in (0, 301):
            torch.testing.assert_close(fast.rotate(x, start), plain.rotate(x, start), rtol=rounding, atol=rounding)
        torch.autograd.backward([fast.rotate(ours, 5).square().sum(), plain.rotate(grown, 5).square().sum()])
        torch.testing.assert_close(ours.grad, grown.grad, rtol=rounding, atol=2 * rounding)


def test_two_rotaries_of_one_width_have_tables_of_their_own() -> None:
    x = torch.randn(1, 1, 4, 8)
    for options in ({"base": 50.0}, {"base": 60.0}, {"base": 60.0, "share": 0.5}, {"stretch": Linear.Config()}):
        position = rotary(**options)
        torch.testing.assert_close(make_fast(copy.deepcopy(position)).rotate(x, 3), position.rotate(x, 3))


# ---- slopes ----


@pytest.mark.parametrize("H", range(1, 18))
def test_the_slopes_are_those_of_bloom_and_of_mpt(H: int) -> None:
    T, nothing = 5, torch.zeros(1, H, 5, 0, dtype=torch.float64)
    ours = Alibi(Alibi.Config(slopes="bloom"), Shape(), layer=0).bias(nothing, nothing)  # (H, T, T)
    bloom = build_alibi_tensor(torch.ones(1, T), H, torch.float32)  # (H, 1, T): it grows with the place of the key
    mpt = build_mpt_alibi_tensor(H, T)  # (H, 1, T): it falls with the distance of the last query
    last = ours[:, -1:].float()  # (H, 1, T)
    torch.testing.assert_close(last, bloom - bloom[:, :, -1:], rtol=1e-6, atol=0)
    torch.testing.assert_close(last, mpt, rtol=1e-6, atol=0)
    geometric = Alibi(Alibi.Config(), Shape(), layer=0).bias(nothing, nothing)  # (H, T, T)
    assert torch.equal(geometric, ours) == (H & (H - 1) == 0)


def test_bloom_slopes_by_hand() -> None:
    """Of 3 heads: those of 2, and the first of 4. Of 6: those of 4, and the first and third of 8."""
    for H, powers in {3: [4, 8, 2], 6: [2, 4, 6, 8, 1, 3]}.items():
        nothing = torch.zeros(1, H, 2, 0, dtype=torch.float64)
        bias = Alibi(Alibi.Config(slopes="bloom"), Shape(), layer=0).bias(nothing, nothing)  # (H, 2, 2)
        assert (-bias[:, 1, 0]).tolist() == [2.0**-power for power in powers]


# ---- mistakes ----


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"base": 1.0}, "base: expected a number above 1, found 1.0"),
        ({"share": 0.0}, "share: expected a number above 0 and at most 1, found 0.0"),
        ({"stretch": {"kind": "linear", "factor": 0.5}}, "factor: expected a number of at least 1, found 0.5"),
        ({"stretch": {"kind": "llama3", "low": 4.0}}, "high: 4 turns are not more than `low`, 4: make it larger"),
        ({"stretch": {"kind": "yarn", "beta_fast": 1.0}}, "beta_fast: 1 turns are not more than `beta_slow`, 1"),
        ({"stretch": "yarm"}, "unknown kind 'yarm'; did you mean 'yarn'?"),
    ],
)
def test_a_mistake_is_told(options: dict[str, object], found: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict(ModelConfig, {"position": {"kind": "rotary", **options}})
    assert found in str(error.value)
