"""How often is at least one of nine variants called better or worse than the baseline, if all ten are equal?

    python tests/equal_variants.py       # the table of minigpt/comparison/README.md, in a few seconds

Each run has a normal noise of its own. "alone": by the intervals; "together": with Holm's correction. "found": one
variant is really better, by 4 standard deviations of a run.
"""

from __future__ import annotations

import random

from minigpt.comparison.statistics import holm, paired

VARIANTS = 9  # besides the baseline


def differences(seeds: int, draw: random.Random, gain: float = 0.0) -> tuple[list[bool], list[bool]]:
    """Which variants are called different, alone and together; the first is better by `gain`."""
    base, *others = ([draw.gauss(0, 1) for _ in range(seeds)] for _ in range(VARIANTS + 1))
    others[0] = [loss - gain for loss in others[0]]
    every = [paired(losses, base) for losses in others]
    return [d.excludes_zero for d in every], [shown for _, shown in holm(every)]


def any_word(seeds: int, families: int, seed: int) -> tuple[float, float]:
    """The share of families of equal variants in which at least one is called different: alone and together."""
    draw = random.Random(f"{seed} {seeds}")
    every = [differences(seeds, draw) for _ in range(families)]
    alone, together = (sum(map(any, words)) / families for words in zip(*every))
    return alone, together


def found(seeds: int, families: int, gain: float) -> tuple[float, float]:
    """The share of families in which the one that is better is found: alone and together."""
    draw = random.Random(f"{gain} {seeds}")
    every = [differences(seeds, draw, gain) for _ in range(families)]
    alone, together = (sum(words[0] for words in of_each) / families for of_each in zip(*every))
    return alone, together


if __name__ == "__main__":
    print("| seeds | any word, alone | any word, together | found, alone | found, together |\n|---|---|---|---|---|")
    for seeds in (3, 4, 5, 6, 8):
        numbers = [*any_word(seeds, 4000, 0), *found(seeds, 4000, 4)]
        print(f"| {seeds} | " + " | ".join(f"{number:.2f}" for number in numbers) + " |")
