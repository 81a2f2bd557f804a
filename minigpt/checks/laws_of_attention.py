"""The laws of attention: what every kind obeys with every position. Each is a function of a model.

A law takes a model in float64 and evaluation mode, and raises LawError: one line that says which law, where, by how
much, and the likely cause. The model is not changed. The contract suite checks all laws for every kind;
`before_training.py` checks the fast ones for a user's own kind. Others are in `laws_of_training.py`, what is the same
in training as in evaluation, and in `laws_of_writing.py`.

B batch, H query heads, G key heads, T query positions, S key positions, D model width, d and e widths of heads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from minigpt.attention import Attention, SoftmaxAttention
from minigpt.attention.base import repeat_kv
from minigpt.attention.cache import Past
from minigpt.attention.position import NoPosition
from minigpt.checks.causality import WRONG_MASK
from minigpt.checks.layers import AboveOthers, alike
from minigpt.model.gpt import GPT, chain
from minigpt.model.mlp import MLP
from minigpt.model.norm import Norm
from minigpt.system.counting import layer_name, part_name
from minigpt.system.errors import UserError

LONG = 104  # positions of a long text: beyond 64 and 100, where errors in blocks of a mask or a table show
SIZES = (1.0, 1e6)  # of the inputs; the scores grow with their square
EXACT = 1e-10  # allowed rounding error in float64, relative to the largest number

Law = Callable[[GPT], None]


class LawError(UserError):
    """A kind of attention breaks a law."""


class View:
    """One attention of a model, called as the model calls it: after those below it have read the same x."""

    def __init__(self, model: GPT, index: int):
        self.model, self.layer = model, model.attentions()[index]
        self.name = f"{layer_name(index)} ({self.layer.kind or type(self.layer).__name__})"
        self.index = index

    def past(self, x: Tensor, start: int = 0) -> Past:
        """The past of a training pass over x (B, S, D), whose first position is `start`."""

        def read_below() -> Past | None:
            pasts = chain([Past() for _ in range(self.index)])
            for attention, past in zip(self.model.attentions(), pasts):
                past.length = start
                attention(x, past)
            return pasts[-1] if pasts else None

        own = AboveOthers(read_below)
        own.length = start
        return own

    def out(self, x: Tensor) -> Tensor:
        """The output of the layer for x (B, S, D): (B, S, D)."""
        return self.layer(x, self.past(x))

    def written(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """The output for x (B, S, D) in chunks of these sizes, with a cache: (B, S, D)."""
        layers, outputs = self.model.attentions()[: self.index + 1], list[Tensor]()
        pasts = chain([layer.make_cache(x.shape[1]) for layer in layers])
        for chunk in x.split(list(sizes), dim=1):
            outputs.append([layer(chunk, past) for layer, past in zip(layers, pasts)][-1])  # (B, T, D)
        return torch.cat(outputs, dim=1)  # (B, S, D)

    def parts(self, x: Tensor, T: int) -> tuple[Tensor, Tensor, Tensor]:
        """The last T queries, and all keys and values, of x (B, S, D)."""
        query, key, value = self.layer.qkv(x, self.past(x))
        return query[:, :, x.shape[1] - T :], key, value

    def weights(self, x: Tensor, T: int) -> Tensor:
        """The weights of the last T positions of x (B, S, D): (B, H, T, S)."""
        return self.layer.weights(*self.parts(x, T)[:2])

    def broken(self, violation: str, cause: str) -> LawError:
        """The error, in one line."""
        return LawError(f"{self.name}: {violation}. Likely cause: {cause}")


def views(model: GPT, with_weights: bool = False) -> list[View]:
    """The attentions of a model, the first of those that are alike; `with_weights`: only those that have weights."""
    distinct = [View(model, group[0]) for group in alike(model.attentions())]
    return [view for view in distinct if has_weights(view.layer)] if with_weights else distinct


def has_weights(attention: Attention) -> bool:
    """Whether it says what its weights are; a kind with a `forward` of its own need not."""
    return "weights" in vars(attention) or type(attention).weights is not Attention.weights


def tokens(model: GPT, B: int, T: int, seed: int = 0) -> Tensor:
    """Random vectors (B, T, D), equal for equal seeds."""
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, model.config.n_embd, dtype=torch.float64, generator=noise)  # (B, T, D)


def longest(model: GPT) -> int:
    """The number of positions that a law uses: LONG if the context is long enough, else at most 7."""
    return LONG if model.config.block_size >= LONG else min(7, model.config.block_size)


def lengths(model: GPT) -> list[tuple[int, int]]:
    """Pairs (T, S): a training pass, a token, a chunk, the very first token."""
    pairs = [(LONG, LONG), (37, LONG), (1, 6), (3, 7)] if longest(model) == LONG else [(6, 6), (1, 6), (3, 7), (1, 1)]
    return [(T, S) for T, S in pairs if model.config.block_size >= S] or [(1, 1)]


def off(ours: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number expected; infinite if there is a NaN."""
    if not ours.numel():
        return 0.0
    difference = (ours - expected).abs().max() / expected.abs().max().clamp(min=0.01)
    return float(difference.nan_to_num(torch.inf))


def hold(name: str, ours: Tensor, expected: Tensor, allowed: float, violation: str, cause: str) -> None:
    """Raises LawError unless two tensors are equal; in `violation`, a sentence, {far} is how far they are apart."""
    if (far := off(ours, expected)) > allowed:
        raise LawError(f"{name}: {violation.replace('{far}', f'{far:.2g}')}. Likely cause: {cause}")


# ---- what a layer is made of ----


@torch.no_grad()
def shapes(model: GPT) -> None:
    """`qkv`, `weights`, `mix`, `output` and `forward` have the shapes that the contract names."""
    for view in views(model):
        layer, B, D = view.layer, 2, model.config.n_embd
        if type(layer).weights is Attention.weights:
            raise view.broken("it has no weights to look at", "define weights(query, key), which returns (B, H, T, S)")
        for T, S in lengths(model):
            x = tokens(model, B, S)
            parts = layer.qkv(x, view.past(x))
            for name, part in zip(("query", "key", "value"), parts):
                must_be(view, f"the {name} of qkv", part, f"(B, H, T, {'e' if name == 'value' else 'd'})", B, 0, S, 0)
            query, key, value = parts[0][:, :, S - T :], parts[1], parts[2]
            weights = layer.weights(query, key)
            must_be(view, f"weights for T = {T} and S = {S}", weights, "(B, H, T, S)", B, 0, T, S)
            H = weights.shape[1]
            if query.shape[1] % key.shape[1] or H % value.shape[1]:
                heads = f"{query.shape[1]}, {key.shape[1]}, {value.shape[1]} and {H} heads"
                violation = f"query, key, value and weights have {heads}, which do not go together"
                raise view.broken(violation, "H is no multiple of G, the heads of keys and values")
            mixed = layer.mix(query, key, value)
            must_be(view, f"mix for T = {T} and S = {S}", mixed, "(B, H, T, e)", B, H, T, value.shape[3])
            must_be(view, "output", layer.output(mixed, x[:, S - T :]), "(B, T, D)", B, T, D)
            output = view.out(x)
            must_be(view, "forward", output, "(B, T, D)", B, S, D)
            if not mixed.dtype == output.dtype == x.dtype:
                cause = "a tensor that is made in a type of its own; make it with dtype=x.dtype, or cast the result"
                raise view.broken(f"x of {x.dtype} becomes {mixed.dtype} in mix, {output.dtype} in forward", cause)


def must_be(view: View, name: str, tensor: Tensor, form: str, *shape: int) -> None:
    """Raises LawError for a tensor of another shape; a 0 in `shape` stands for any number."""
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape) or any(want not in (0, have) for want, have in zip(shape, sizes)):
        wanted = ", ".join(str(want or letter) for want, letter in zip(shape, form[1:-1].split(", ")))
        raise view.broken(f"{name} has the shape {sizes}, expected {form} = ({wanted})", "an axis is lost or exchanged")


@torch.no_grad()
def equal_passes_are_equal(model: GPT) -> None:
    """Two equal passes in evaluation mode give the same numbers, bit for bit."""
    for view in views(model):
        x = tokens(model, 2, longest(model))
        first, second = view.out(x), view.out(x)
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            cause = "it draws random numbers (dropout belongs to `if self.training`), or keeps something between passes"
            raise view.broken(f"two equal passes in evaluation mode differ by {off(second, first):.2g}", cause)


# ---- its weights ----


@torch.no_grad()
def rows_sum_to_one(model: GPT, allowed: float = 1e-12, needed: bool = True) -> None:
    """Every row of weights sums to one. If a kind declares `rows_sum_to_one = False`, some row does not (if `needed`:
    a kind may declare it for other weights than those of the moment)."""
    for view in views(model, with_weights=True):
        sums = torch.cat([view.weights(tokens(model, 2, S), T).sum(dim=-1).flatten() for T, S in lengths(model)])
        far = sums[(sums - 1).abs().nan_to_num(torch.inf).argmax()].item()  # the sum that is farthest from one
        if view.layer.rows_sum_to_one and not abs(far - 1) <= allowed:
            cause = "a missing normalisation, or one over another axis than the keys'; if it is meant, declare it: "
            raise view.broken(f"a row of its weights sums to {far:.4g}, not to 1", f"{cause}rows_sum_to_one = False")
        if needed and not view.layer.rows_sum_to_one and abs(far - 1) <= allowed:
            violation = "it declares rows_sum_to_one = False, and every row sums to 1"
            raise view.broken(violation, "a declaration that is not needed")


@torch.no_grad()
def weights_are_not_negative(model: GPT, allowed: float = 0.0, needed: bool = True) -> None:
    """No weight is negative. If a kind declares `weights_nonnegative = False`, some weight is (if `needed`)."""
    for view in views(model, with_weights=True):
        lowest = min(view.weights(tokens(model, 2, S), T).min().item() for T, S in lengths(model))
        if view.layer.weights_nonnegative and lowest < -allowed:
            cause = "no softmax or other positive function makes them; if it is meant, declare weights_nonnegative = "
            raise view.broken(f"a weight is negative, {lowest:.2g}", f"{cause}False")
        if needed and not view.layer.weights_nonnegative and lowest >= -allowed:
            cause = "a declaration that is not needed"
            raise view.broken("it declares weights_nonnegative = False, and no weight is negative", cause)


@torch.no_grad()
def weights_do_not_see_the_future(model: GPT) -> None:
    """No position gives weight to a later one, even with scores so large that a mask of -1e4 hides nothing."""
    for view in views(model, with_weights=True):
        for T, S in lengths(model):
            for size in SIZES:
                weights = view.weights(size * tokens(model, 2, S), T)  # (B, H, T, S)
                later = weights.abs().amax(dim=(0, 1)).nan_to_num(torch.inf).triu(S - T + 1)  # (T, S)
                if (later > 0).any():
                    t, s = divmod(int(later.argmax()), S)
                    finite = "its mask is a finite number such as -1e4, which large scores outweigh; fill with -inf"
                    cause = finite if size > 1 else WRONG_MASK
                    where = f"at position {S - T + t} there is a weight of {float(later[t, s]):.2g} on position {s}"
                    scores = "very large scores" if size > 1 else "ordinary scores"
                    raise view.broken(f"it sees the future: {where}, which comes later, with {scores}", cause)


@torch.no_grad()
def queries_may_come_alone(model: GPT, allowed: float = EXACT) -> None:
    """If only the last T queries are given (as with a cache), their weights are the last T rows of all weights."""
    for view in views(model, with_weights=True):
        for T, S in [(T, S) for T, S in lengths(model) if T < S]:
            x = tokens(model, 2, S)
            alone, among = view.weights(x, T), view.weights(x, S)[:, :, S - T :]  # (B, H, T, S) each
            violation = f"where {T} of {S} positions are new, as with a cache, the new ones have other weights than in"
            cause = "its mask is aligned to the upper left corner, as torch.ones(T, S).tril() is; make it from "
            hold(view.name, alone, among, allowed, f"{violation} a pass over all {S}: off by {{far}}",
                 f"{cause}distance(T, S, device)")  # fmt: skip


def scores_have_the_declared_scale(model: GPT, allowed: float = 1e-6) -> None:
    """Where the scores are products of queries and keys times one number, that is what `scale` returns, or minus that.

    Asked of kinds whose weights are a softmax of such scores and do not depend on a parameter, such as a temperature.
    """
    for view in views(model, with_weights=True):
        x = tokens(model, 2, min(7, longest(model)))
        query, key = (part.detach() for part in view.parts(x, x.shape[1])[:2])  # (B, H, T, d), (B, G, T, d)
        weights = view.layer.weights(query, key)  # (B, H, T, T)
        if not isinstance(view.layer, SoftmaxAttention) or weights.requires_grad:
            continue
        with torch.no_grad():
            factor = factor_of_products(weights, view.layer.bias(query, key), query, key)
            declared = abs(float(view.layer.scale(query)))
        if factor is not None and abs(factor - declared) > allowed * declared:
            scores = f"its scores are products of queries and keys times {factor:.4g}"
            cause = "a scale that is left out, or comes twice; if it is meant, let scale(query) return it"
            raise view.broken(f"{scores}, and its scale is {declared:.4g}", cause)


def factor_of_products(weights: Tensor, bias: Tensor, query: Tensor, key: Tensor) -> float | None:
    """The absolute value of c in weights = softmax(c query . key + bias), as far as keys are seen; None if no c fits.

    weights (B, H, T, S), bias (H, T, S), query (B, H, T, d), key (B, G, S, d).
    """
    if query.shape[3] != key.shape[3] or query.shape[1] != weights.shape[1] or query.shape[1] % key.shape[1]:
        return None
    seen = weights > 0  # (B, H, T, S)
    logs, products = (  # (B, H, T, S) each, without the mean of each row: a softmax ignores what it adds to a row
        (part - (part * seen).sum(dim=-1, keepdim=True) / seen.sum(dim=-1, keepdim=True).clamp(min=1)) * seen
        for part in (weights.where(seen, 1.0).log() - bias, query @ repeat_kv(key, query.shape[1]).mT)
    )
    factor = (logs * products).sum() / products.square().sum().clamp(min=1e-30)  # ()
    fits = logs.abs().max() > 1e-6 and off(factor * products, logs) < 1e-8
    return abs(float(factor)) if fits else None


@torch.no_grad()
def the_order_of_the_past(model: GPT, allowed: float = EXACT) -> None:
    """Without positions, the last row depends on the order of the past only where `order_blind` is false."""
    blind = copy.deepcopy(model)
    for attention in blind.attentions():
        attention.position = NoPosition(NoPosition.Config(), model.config)
    for view in views(blind):
        T = longest(model)
        x, noise = tokens(model, 2, T), torch.Generator().manual_seed(1)
        orders = [torch.cat((torch.randperm(T - 1, generator=noise), torch.tensor([T - 1]))) for _ in range(3)]  # (T,)
        far = max(off(view.out(x[:, order])[:, -1], view.out(x)[:, -1]) for order in orders)
        if view.layer.order_blind and far > allowed:
            violation = f"without positions, another order of the past moved its last row by {far:.2g}"
            cause = "it treats near and far keys differently; if meant, declare order_blind = False"
            raise view.broken(violation, cause)
        if not view.layer.order_blind and far <= allowed:
            violation = "it declares order_blind = False, and the order of the past moves nothing"
            raise view.broken(violation, "a declaration that is not needed")


@torch.no_grad()
def only_distances_matter(model: GPT, allowed: float = 1e-9) -> None:
    """No weight changes when all positions move by the same number."""
    for view in views(model):
        x = tokens(model, 2, min(6, longest(model)))
        here = view.layer.weights(*view.layer.qkv(x, view.past(x))[:2])
        there = view.layer.weights(*view.layer.qkv(x, view.past(x, start=100))[:2])
        hold(view.name, there, here, allowed, "its weights change by {far} when all positions move by 100",
             "queries and keys are not rotated by the same rule, or not both")  # fmt: skip


# ---- what it mixes ----


def gradients(layer: Attention, x: Tensor, output: Tensor, direction: Tensor) -> list[Tensor]:
    """The gradients of x and of every parameter, zeros where there is none."""
    wanted = [x, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
    slopes = torch.autograd.grad((output * direction).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, slopes)]


def mix_is_weights_times_values(model: GPT, allowed: float = EXACT) -> None:
    """`mix` is the weights times the values, gradients included."""
    for view in views(model, with_weights=True):
        for T, S in lengths(model):
            x, direction = tokens(model, 2, S).requires_grad_(), tokens(model, 2, T, seed=1)
            results = []
            for mix in (view.layer.mix, partial(Attention.mix, view.layer)):
                output = view.layer.output(mix(*view.parts(x, T)), x[:, S - T :])  # (B, T, D)
                results.append([output.detach(), *gradients(view.layer, x, output, direction)])
            own, expected = results
            corner = "is_causal=True, whose mask is aligned to the upper left corner, or " * (T < S)
            violation = f"mix is not weights @ value for T = {T} and S = {S}: off by {{far}}"
            cause = f"{corner}a mix that was written for other weights than these"
            hold(view.name, own[0], expected[0], allowed, violation, cause)
            if (far := max(map(off, own[1:], expected[1:]))) > allowed:
                cause = "something in mix is detached, or computed under torch.no_grad()"
                raise view.broken(f"the gradients of mix are not those of weights @ value: off by {far:.2g}", cause)


@torch.no_grad()
def output_does_not_see_the_future(model: GPT, allowed: float = EXACT) -> None:
    """A change of the tokens from t on changes no output before t."""
    for view in views(model):
        T = longest(model)
        changes = [*range(1, T)] or [1] if T < LONG else [1, 17, 63, 64, 65, 100, 103]
        for size in SIZES:
            x, others = (size * tokens(model, 1, T, seed) for seed in (0, 1))  # (1, T, D) each
            early = torch.arange(T) < torch.tensor(changes)[:, None]  # (B, T): each text has another change
            before, changed = view.out(x)[0], view.out(torch.where(early[..., None], x, others))  # (T, D), (B, T, D)
            for t, after in zip(changes, changed):
                if (far := off(after[:t], before[:t])) > allowed:
                    moved = f"other tokens from position {t} on moved an earlier output by {far:.2g}"
                    raise view.broken(f"it sees the future: {moved}", "a mask, or a mean or norm over all positions")


@torch.no_grad()
def batch_elements_do_not_mix(model: GPT, allowed: float = EXACT) -> None:
    """A change of one text of the batch changes nothing in the others."""
    for view in views(model):
        T = longest(model)
        x = tokens(model, 3, T)
        changed = torch.cat((x[:1], tokens(model, 1, T, seed=1), x[2:]))  # (B, T, D)
        ours, others = (view.out(batch)[[0, 2]].nan_to_num() for batch in (x, changed))  # (2, T, D) each
        hold(view.name, others, ours, allowed, "a change of one text of the batch moved the others by {far}",
             "a mean, norm, softmax or reshape over the batch, dimension 0")  # fmt: skip


@torch.no_grad()
def positions_do_not_mix(model: GPT, allowed: float = EXACT) -> None:
    """A norm and an MLP return the same for a token alone as among other tokens, of its text and of other texts.

    A part that reads other tokens must be an attention, which has a cache for them.
    """
    x = tokens(model, 2, min(longest(model), 7))  # (B, T, D)
    for name, part in model.named_modules():
        if isinstance(part, (Norm, MLP)):
            alone = torch.cat([part(x[:1, t : t + 1]) for t in range(x.shape[1])], dim=1)  # (1, T, D)
            hold(part_name(name, part.kind), part(x)[:1], alone, allowed,
                 "a token alone becomes something else than among others: off by {far}",
                 "a mean, norm or shift over dimension 0 or 1; what reads other tokens is an attention")  # fmt: skip


@torch.no_grad()
def huge_scores_leave_numbers(model: GPT) -> None:
    """Very large scores give finite weights and outputs. A mask that multiplies would turn infinity into NaN."""
    for view in views(model):
        for T, S in lengths(model):
            query, key, value = view.parts(1e9 * tokens(model, 2, S), T)
            results = view.layer.weights(query, key), view.layer.mix(query, key, value)
            if not all(tensor.isfinite().all() for tensor in results):
                cause = "a mask that multiplies, an exp without subtracting the largest score, or a division by zero"
                raise view.broken("very large scores make NaN or infinity", cause)


LAWS: tuple[Law, ...] = (
    shapes,
    equal_passes_are_equal,
    rows_sum_to_one,
    weights_are_not_negative,
    weights_do_not_see_the_future,
    queries_may_come_alone,
    scores_have_the_declared_scale,
    the_order_of_the_past,
    only_distances_matter,
    mix_is_weights_times_values,
    output_does_not_see_the_future,
    batch_elements_do_not_mix,
    huge_scores_leave_numbers,
)
