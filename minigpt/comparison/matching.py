"""`match: parameters`: gives every variant the MLP width with which it has as many parameters as the baseline."""

from __future__ import annotations

from dataclasses import replace

from minigpt.comparison.data import text_and_tokenizer
from minigpt.comparison.variants import Comparison
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.training.assemble import RunConfig
from minigpt.training.memory import parameter_count

LARGEST_WIDTH = 2**20  # of an MLP: the upper bound of config's `Size`
TOLERANCE = 0.01  # of the baseline's number of parameters


def parameters(config: RunConfig) -> int:
    """The number of parameters of a config's model, without allocating them."""
    return parameter_count(config.model, text_and_tokenizer(config.data)[1].vocab_size)


def match_parameters(comparison: Comparison) -> Comparison:
    """Set each variant's `model.mlp.width` so that its number of parameters is within 1 % of the baseline's.

    Raises UserError if no width does that.
    """
    wanted = parameters(comparison.variants[comparison.settings.baseline])
    matched = {}
    variants = comparison.variants.items()
    for name, config in progress(variants, "matching the parameters", len(variants), "variants"):
        if "width" in config.model.mlp.without:
            kind = config.model.mlp.component.kind
            raise UserError(f"match: parameters: {name}: the MLP {kind} has no width: compare with match: steps")
        matched[name] = config if name == comparison.settings.baseline else widened(config, wanted)
        count = parameters(matched[name])
        if abs(count - wanted) > TOLERANCE * wanted:
            hint = "give it fewer or narrower layers, or compare with match: steps"
            raise UserError(f"match: parameters: {name} has {count:,} at best, the baseline {wanted:,}: {hint}")
    return replace(comparison, variants=matched)


def widened(config: RunConfig, wanted: int) -> RunConfig:
    """The config with the MLP width whose number of parameters is nearest to `wanted`."""

    def at(units: int) -> RunConfig:
        return replace(config, model=replace(config.model, mlp=replace(config.model.mlp, width=units)))

    low, high = 1, 2
    while parameters(at(high)) < wanted and 2 * high <= LARGEST_WIDTH:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameters(at(middle)) < wanted else (low, middle)
    return min(at(low), at(high), key=lambda candidate: abs(parameters(candidate) - wanted))
