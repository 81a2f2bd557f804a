"""The order of very many windows: each once an epoch, another one for each epoch and seed, without memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from small_corpora import SHUFFLED, numbered, own_data

from minigpt.text import order
from minigpt.text.dataset import Dataset
from minigpt.text.order import Counted, draws, epoch_order, window_order

data = pytest.fixture(scope="module", autouse=True)(own_data)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 1000, 4096, 70_001])
def test_each_number_comes_once(count: int) -> None:
    for epoch in range(3):
        found = Counted(count, draws(1, epoch, order.ROUNDS))[np.arange(count)]
        assert np.array_equal(np.sort(found), np.arange(count))


def test_any_place_of_a_huge_order_is_found_at_once_and_nothing_is_kept() -> None:
    places = np.array([[0, 1], [10**12 - 1, 7]])
    tracemalloc.start()
    huge, draw = window_order(3, 5, 10**12)
    found = huge[places]
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert found.shape == (2, 2) and len(set(found.ravel().tolist())) == 4 and 0 <= found.min() <= found.max() < 10**12
    assert np.array_equal(window_order(3, 5, 10**12)[0][places], found)
    assert draw == int(draws(3, 5, 1)[0])
    for other in (window_order(4, 5, 10**12), window_order(3, 6, 10**12), window_order(3, 5, 10**12, series=1)):
        assert not (other[0][places] == found).any()


def test_it_looks_random() -> None:
    """Neighbours are far apart, and each tenth of an epoch has numbers from everywhere."""
    count = 100_000
    found = Counted(count, draws(0, 0, order.ROUNDS))[np.arange(count)]
    assert abs(np.abs(np.diff(found)).mean() / count - 1 / 3) < 0.01
    assert abs(np.corrcoef(found, np.arange(count))[0, 1]) < 0.02
    table, _, _ = np.histogram2d(np.arange(count), found, bins=10)
    assert abs(((table - 1000) ** 2 / 1000).sum() - 81) < 50  # chi-squared with 81 degrees of freedom: 81 +- 13


def test_small_epochs_keep_their_order() -> None:
    """That of runs before there was another one."""
    assert np.array_equal(window_order(1, 2, 1000)[0], epoch_order(1, 2, 1000)[0])
    assert order.COUNTED == 4_194_304


def test_windows_in_computed_order_cover_the_text_once_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "COUNTED", 1)
    dataset = Dataset(SHUFFLED, *numbered(1000), 8)
    count = (len(dataset.splits["train"]) - 8) // 8
    seen = [int(dataset.batch("train", n, 1, 5)[0][0, 0]) for n in range(2 * count)]
    for epoch in (seen[:count], seen[count:]):
        assert np.array_equal(np.diff(np.sort(epoch)), np.full(count - 1, 8))
    assert seen[:count] != seen[count:]
