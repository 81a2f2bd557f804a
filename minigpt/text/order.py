"""The order in which training reads a text: random numbers, shuffled windows and packed documents, all of them pure
functions of a seed and the number of a batch or an epoch.

B windows of a batch   T ids of a window   D documents of a split   W windows of an epoch
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from minigpt.text.ids import Numbers

COUNTED = 1 << 22  # windows of an epoch from which on the order is not stored: 10 s and 0.8 GB for 50 million
ROUNDS = 6


def draws(seed: int, n: int, count: int, series: int = 0) -> npt.NDArray[np.uint64]:
    """Random numbers (count,) that depend only on (seed, n, series).

    Philox is a counter-based generator without a state ("Parallel Random Numbers: As Easy as 1, 2, 3", Salmon et al.
    2011): the seed is its key and n is part of its counter, so that any batch can be computed directly.
    """
    numbers: npt.NDArray[np.uint64] = np.random.Philox(key=seed, counter=[0, n, series, 0]).random_raw(count)
    return numbers


@lru_cache(maxsize=4)  # two epochs of a batch; packed documents take two orders each
def epoch_order(seed: int, epoch: int, count: int, series: int = 0) -> tuple[Numbers, int]:
    """A random order of range(count), and one more random number; both depend only on (seed, epoch) and the series."""
    numbers = draws(seed, epoch, count + 1, series)
    return np.argsort(numbers[1:], kind="stable"), int(numbers[0])


def window_order(seed: int, epoch: int, count: int, series: int = 0) -> tuple[Numbers | Counted, int]:
    """As `epoch_order`, but from COUNTED on, the order is a `Counted`, which is another order and takes no memory.

    Both forms are indexed by arrays.
    """
    if count < COUNTED:
        return epoch_order(seed, epoch, count, series)
    return Counted(count, draws(seed, epoch, 1 + ROUNDS, series)[1:]), int(draws(seed, epoch, 1, series)[0])


class Counted:
    """A random order of range(count), of which each number is computed when it is indexed.

    It is a Feistel network on the bits of a number: in each round, one half is scrambled and XORed to the other half
    (M. Luby, C. Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions", 1988). Each round
    can be undone, so that no number comes twice. A result outside the range goes through all rounds again until it is
    inside (J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
    """

    def __init__(self, count: int, keys: npt.NDArray[np.uint64]):
        """`keys` (ROUNDS,): random numbers, which choose the order."""
        self.count, self.keys = count, keys
        self.bits = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))  # of half a number

    def __getitem__(self, numbers: Numbers) -> Numbers:
        """The numbers of the order at these indices; the result has the same shape."""
        permuted = np.asarray(numbers).astype(np.uint64)
        outside = np.ones(permuted.shape, np.bool_)
        while outside.any():
            permuted[outside] = self._rounds(permuted[outside])
            outside = permuted >= self.count
        return permuted.astype(np.int64)

    def _rounds(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """One pass through all rounds, for numbers of 2 * `bits` bits."""
        mask = (np.uint64(1) << self.bits) - np.uint64(1)
        left, right = numbers >> self.bits, numbers & mask
        for key in self.keys:
            left, right = right, left ^ (_scramble(right ^ key) & mask)
        return (left << self.bits) | right


def _scramble(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of each number, by SplitMix64 ("Fast Splittable Pseudorandom Number Generators", 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class Packed:
    """The documents of a split, one after another, cut into full windows: no padding.

    In each epoch the documents are in another order, and so are the windows: otherwise the parts of a long document
    would come one after another. A document that does not end with its window continues in the next one. Every id is an
    input once an epoch, except the last ones of the order, at most T, which do not fill a window.

    This is simple, and every window is full. Best-fit packing ("Fewer Truncations Improve Language Modeling", arXiv
    2404.10830) cuts fewer documents, and leaves a little padding.
    """

    def __init__(self, split: range, document_starts: Numbers, T: int):
        inside = document_starts[(document_starts > split.start) & (document_starts < split.stop)]
        self.starts = np.concatenate([[split.start], inside]).astype(np.int64)  # (D,)
        self.lengths = np.diff(self.starts, append=split.stop)  # (D,)
        self.T, self.count = T, (len(split) - 1) // T  # W
        self.document_ends: dict[tuple[int, int], Numbers] = {}

    def indices(self, numbers: Numbers, seed: int) -> Numbers:
        """The indices in the corpus of windows' ids: (B,) -> (B, T+1). Windows are counted from the first epoch on."""
        epochs, nth = np.divmod(numbers, self.count)  # (B,) each
        indices = np.empty((len(numbers), self.T + 1), np.int64)  # (B, T+1)
        for epoch in np.unique(epochs):
            rows = epochs == epoch
            windows, _ = window_order(seed, int(epoch), self.count, series=1)  # (W,)
            indices[rows] = self.in_order(
                seed, int(epoch), windows[nth[rows]][:, None] * self.T + np.arange(self.T + 1)
            )
        return indices

    def in_order(self, seed: int, epoch: int, positions: Numbers) -> Numbers:
        """The indices in the corpus of the ids at `positions` of an epoch's joined documents; the shape is kept."""
        order, _ = epoch_order(seed, epoch, len(self.starts))  # (D,)
        if (seed, epoch) not in self.document_ends:
            self.document_ends = dict([*self.document_ends.items()][-1:]) | {
                (seed, epoch): np.cumsum(self.lengths[order])
            }
        ends = self.document_ends[seed, epoch]  # (D,): where each document ends, in that order
        nth = np.searchsorted(ends, positions, side="right")
        document = order[nth]
        return self.starts[document] + self.lengths[document] - (ends[nth] - positions)


class PackedWhole:
    """Documents side by side, as many as fit into a window whole: none is cut, and the rest of a window is padding.

    The windows are in another order in every epoch; a window has the same documents in all of them.
    """

    def __init__(self, starts: Numbers, ends: Numbers, T: int):
        """Where each document starts and ends, (D,) each: 1 to T + 1 ids."""
        self.starts, self.T = starts, T
        self.joined = np.cumsum(np.append(0, ends - starts))  # (D + 1,): where each starts when they are joined
        firsts = [0]  # the first document of each window
        while firsts[-1] < len(starts):
            fit = np.searchsorted(self.joined, self.joined[firsts[-1]] + T + 1, side="right")
            firsts.append(int(fit) - 1)
        self.edges = self.joined[firsts]  # (W + 1,): where each window starts
        self.count = len(firsts) - 1  # W

    def indices(self, numbers: Numbers, seed: int) -> Numbers:
        """As `Packed.indices`; padding repeats the last index of a window's documents."""
        epochs, nth = np.divmod(numbers, self.count)  # (B,) each
        windows = np.empty_like(numbers)  # (B,)
        for epoch in np.unique(epochs):
            order, _ = window_order(seed, int(epoch), self.count, series=1)  # (W,)
            windows[epochs == epoch] = order[nth[epochs == epoch]]
        last = self.edges[windows + 1, None] - 1  # (B, 1)
        positions = np.minimum(self.edges[windows, None] + np.arange(self.T + 1), last)  # (B, T+1)
        document = np.searchsorted(self.joined, positions, side="right") - 1
        return self.starts[document] + positions - self.joined[document]
