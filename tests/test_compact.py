"""What compact kinds keep, counted by hand; layers that read other layers obey the laws; what does not fit is refused.

B batch, H heads, T positions, D model width, d width of a head, r of a latent, p rotated channels, R rank.
"""

from __future__ import annotations

import copy

import pytest
import torch
from laws import BLOCK, Case, D, V, make_model
from plugin_kinds import PLUGIN_KINDS

from minigpt.attention import Attention, AverageLoop, GroupedQuery, KVCache, MultiHead, Shared
from minigpt.attention.compact.cross_layer import CrossLayer
from minigpt.attention.compact.latent import Latent
from minigpt.attention.compact.tensor_product import TensorProduct
from minigpt.attention.linear.long_convolution import LongConvolution
from minigpt.attention.linear.mamba2 import Mamba2
from minigpt.attention.position import Alibi, NoPosition, Rotary
from minigpt.attention.softmax.token_shift import TokenShift
from minigpt.attention.softmax.value_residual import ValueResidual
from minigpt.attention.sparse.sliding_window import SlidingWindow
from minigpt.checks.laws_of_attention import LAWS, the_order_of_the_past
from minigpt.checks.laws_of_training import LAWS_OF_TRAINING, dropout_acts_in_training_only
from minigpt.checks.laws_of_writing import LAWS_OF_WRITING
from minigpt.checks.shapes import check_shapes
from minigpt.fast import make_fast
from minigpt.fast.decoding import prepare
from minigpt.model import GPT
from minigpt.seeing.cost import bytes_of, cost
from minigpt.system.errors import UserError

H, d = 4, D // 4
LINEAR = PLUGIN_KINDS["plugin_linear"].Config()
SLOW = Rotary.Config(base=500.0, share=0.5)

# ---- how much is kept ----


@pytest.mark.parametrize(
    ("attention", "numbers"),
    [
        (MultiHead.Config(), [2 * D * BLOCK] * 3),
        (ValueResidual.Config(), [2 * D * BLOCK] * 3),
        (TokenShift.Config(), [2 * D * BLOCK + D] * 3),
        (Latent.Config(latent=5, rotated=2), [(5 + 2) * BLOCK] * 3),
        (Latent.Config(), [(D // 4 + d // 2) * BLOCK] * 3),
        (TensorProduct.Config(rank=1), [2 * (H + d) * BLOCK] * 3),
        (TensorProduct.Config(), [2 * 2 * (H + d) * BLOCK] * 3),
        (CrossLayer.Config(), [2 * D * BLOCK, 0, 2 * D * BLOCK]),
        (CrossLayer.Config(share=3, n_kv_head=1), [2 * d * BLOCK, 0, 0]),
    ],
    ids=lambda value: str(Case(value, NoPosition.Config())) if isinstance(value, Attention.Config) else "",
)
def test_what_is_kept_of_a_context(attention: Attention.Config, numbers: list[int]) -> None:
    model = copy.deepcopy(make_model(Case(attention, Rotary.Config()), n_layer=3)).float()
    cache = model.make_cache()
    model(torch.zeros(1, BLOCK, dtype=torch.long), cache)
    assert [bytes_of(past) for past in cache] == [4 * n for n in numbers]
    assert cost(model).cache_bytes_per_token == sum(4 * n for n in numbers) / BLOCK


# ---- layers that read other layers ----

ABOVE = [
    (MultiHead.Config(), CrossLayer.Config()),
    (GroupedQuery.Config(n_kv_head=2), CrossLayer.Config(qk_norm=True)),
    (TokenShift.Config(), CrossLayer.Config()),
    (CrossLayer.Config(share=4), ValueResidual.Config()),
    (MultiHead.Config(), ValueResidual.Config()),
    (TensorProduct.Config(), ValueResidual.Config()),
    (Mamba2.Config(), ValueResidual.Config()),
    (LongConvolution.Config(waves=3), ValueResidual.Config()),
    (SlidingWindow.Config(window=3), ValueResidual.Config()),
    (ValueResidual.Config(), CrossLayer.Config()),
    (MultiHead.Config(position=SLOW), CrossLayer.Config(position=SLOW)),
    (MultiHead.Config(position=Alibi.Config()), CrossLayer.Config(position=NoPosition.Config())),
    (TokenShift.Config(), TensorProduct.Config(), Latent.Config()),
]


@pytest.mark.parametrize("kinds", ABOVE, ids=lambda kinds: "-".join(kind.component.kind for kind in kinds))
def test_layers_that_read_other_layers_obey_the_laws(kinds: tuple[Attention.Config, ...]) -> None:
    model = make_model(Case(kinds, Rotary.Config()), len(kinds))
    for law in (*LAWS, *LAWS_OF_TRAINING, *LAWS_OF_WRITING):
        if law not in (the_order_of_the_past, dropout_acts_in_training_only):  # these are asked of each kind alone
            law(model)


@torch.no_grad()
@pytest.mark.parametrize("kinds", ABOVE, ids=lambda kinds: "-".join(kind.component.kind for kind in kinds))
def test_layers_that_read_other_layers_write_the_same_in_every_form(kinds: tuple[Attention.Config, ...]) -> None:
    """Plain, fast, and prepared for writing."""
    model = make_model(Case(kinds, Rotary.Config()), len(kinds))
    ids = torch.randint(V, (2, BLOCK))
    plain = make_fast(copy.deepcopy(model), fast=False)
    expected = plain(ids)  # (B, T, V)
    for written in (plain, model, prepare(model)):
        cache = written.make_cache()
        found = torch.cat([written(chunk, cache) for chunk in ids.split([3, 1, 1, 3], dim=1)], dim=1)  # (B, T, V)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_keys_that_are_shared_are_kept_once_and_not_by_the_layers_that_read_them() -> None:
    model = make_model(Case(CrossLayer.Config(), Rotary.Config()), n_layer=4)
    assert [type(past) for past in model.make_cache()] == [KVCache, Shared, KVCache, Shared]
    names = [name for name, _ in model.named_parameters() if ".key." in name or ".value." in name]
    assert {name.split(".")[1] for name in names} == {"0", "2"}


# ---- what does not fit ----


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ((SlidingWindow.Config(), CrossLayer.Config()), "layer below, which keeps a window of them only; put a kind"),
        ((Mamba2.Config(), CrossLayer.Config()), r"keys and values \(2, 4, 5, 6\) and \(2, 4, 5, 4\), of other heads"),
        ((LINEAR, CrossLayer.Config()), "the layer below, which keeps a state of fixed size instead; put a kind"),
        ((TensorProduct.Config(), CrossLayer.Config()), "which keeps them in a form of its own; put a kind that keeps"),
        (
            (Latent.Config(rotated=0, latent_norm=False), CrossLayer.Config()),
            r"of width 4, and the layer below keys and values \(2, 1, 5, 4\) and \(2, 1, 5, 0\), of other heads",
        ),
        (
            (Latent.Config(), CrossLayer.Config()),
            r"cross_layer in layer 2 has 4 query heads of width 4, and the layer below keys and values \(2, 4, 5, 6\)",
        ),
        (
            (CrossLayer.Config(), CrossLayer.Config(position=NoPosition.Config())),
            r"layer 2 has no rotation for its queries, and the layer below rotary for its keys; give both layers the s",
        ),
        (
            (MultiHead.Config(position=Alibi.Config()), CrossLayer.Config()),
            "layer 2 has rotary for its queries, and the layer below no rotation for its keys",
        ),
        (
            (CrossLayer.Config(share=3), CrossLayer.Config(share=3), CrossLayer.Config(share=3, position=SLOW)),
            "layer 3 has rotary of base 500.0, share 0.5 for its queries, and the layer below rotary of base",
        ),
        ((MultiHead.Config(head_dim=8), CrossLayer.Config()), r"\(2, 4, 5, 8\), of other heads; put a kind with heads"),
        ((GroupedQuery.Config(n_head=3, head_dim=4), CrossLayer.Config()), r"\(2, 3, 5, 4\) and \(2, 3, 5, 4\), of"),
        (
            (MultiHead.Config(n_head=2), ValueResidual.Config()),
            r"\(2, 4, 5, 4\), with the first layer's, which makes v",
        ),
        (
            (AverageLoop.Config(), ValueResidual.Config()),
            r"values of the shape \(2, 1, 5, 16\); let the first layer be",
        ),
        ((Latent.Config(), ValueResidual.Config()), r"values of the shape \(2, 1, 5, 0\); let the first layer be of a"),
    ],
    ids=lambda value: "-".join(kind.component.kind for kind in value) if isinstance(value, tuple) else "",
)
def test_layers_that_do_not_fit_are_refused_when_a_model_is_made(
    kinds: tuple[Attention.Config, ...], words: str
) -> None:
    """By what is checked of the shapes; with a cache as without."""
    model: GPT = make_fast(copy.deepcopy(make_model(Case(kinds, Rotary.Config()), len(kinds))))
    with pytest.raises(UserError, match=words) as refused:
        check_shapes(model)
    assert "\n" not in str(refused.value)
