"""Results and speeds that no run wrote, with valid checksums: they are made again, or they can be shown."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comparing import finished, small

from minigpt.comparison.experiment import SPEEDS, _read_speeds
from minigpt.comparison.page import page_of_variants as page
from minigpt.comparison.results import RESULT, jobs, load_result, save_result
from minigpt.comparison.summary import csv_rows, in_words, summarise, to_csv
from minigpt.comparison.variants import Comparison
from minigpt.system.errors import UserError


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparison]:
    folder = tmp_path_factory.mktemp("held")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIGPT_DATA", str(folder / "data"))
        patch.setattr("minigpt.text.corpus.DATA", folder / "data")
        patch.setattr("minigpt.comparison.variants.RUNS", folder / "runs")
        found = small(folder, overrides=("compare.seeds=[1]", "training.max_steps=3"))
        finished(found)
        yield found


VALUES: list[Any] = [None, True, "a", "", "1", [], {}, [[]], [["a"]], {"a": 1}]
VALUES += [-1, 0, 1e308, -1e308, 2**62, 10**30, 1e-300]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where everything in nested groups and lists stands."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(min(len(value), 3)):
            yield from places(value[key], (*path, key))


def spoiled(values: Any, draw: random.Random) -> Any:
    """The same with one value changed, or left out."""
    values, (*way, last) = copy.deepcopy(values), draw.choice(list(places(values)))
    place = values
    for key in way:
        place = place[key]
    if isinstance(place, dict) and draw.random() < 0.2:
        del place[last]
    else:
        place[last] = draw.choice(VALUES)
    return values


def test_a_spoiled_result_is_made_again_or_can_be_shown(comparison: Comparison) -> None:
    every, draw, refused = jobs(comparison, ()), random.Random(0), 0
    good = [load_result(job.folder, job.key)[0] for job in every]
    for _ in range(150):
        save_result(every[0].folder, spoiled(good[0], draw))
        try:
            result, why = load_result(every[0].folder, every[0].key)
        except UserError as later:
            assert "written by minigpt" in str(later)
            continue
        refused += result is None
        assert (result is None) == bool(why)
        if result is not None:
            summary = summarise(comparison, [(every[0], result), (every[1], good[1] or {})], "a test")
            assert in_words(summary) and page(summary) and to_csv(csv_rows(summary))
    assert refused > 50
    save_result(every[0].folder, good[0] or {})


RAW = ["", "[]", "1", "null", '{"result": 3, "sha256": ""}', '{"result": null}', "[" * 100_000, '{"result": "[[[[']
SEALED = ["[]", "1", '"a"', "{}", '{"key": "a"}', "[" * 100_000, '{"key": NaN}', "9" * 5000]


def test_what_is_no_result_at_all_and_a_right_seal_on_something_else(tmp_path: Path) -> None:
    for text in RAW:
        (tmp_path / RESULT).write_text(text, encoding="utf-8")
        assert load_result(tmp_path, "a") == (None, "its result is damaged")
    for text in SEALED:
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        (tmp_path / RESULT).write_text(json.dumps({"result": text, "sha256": sha256}), encoding="utf-8")
        result, why = load_result(tmp_path, "a")
        assert result is None and why


def test_spoiled_speeds_are_measured_again(comparison: Comparison) -> None:
    path, draw = comparison.folder / SPEEDS, random.Random(0)
    good, left = json.loads(path.read_text("utf-8")), 0
    for _ in range(200):
        path.write_text(json.dumps(spoiled(good, draw)), encoding="utf-8")
        known = _read_speeds(path)
        left += len(known)
        for speed in known.values():
            assert speed["step"] > 0 and speed["step"] + speed["curve"] + speed["whole"] < 1e101
            assert all(isinstance(note, str) for note in speed["notes"])
    assert 200 < left < 400  # of two variants, about one was spoiled each time
    speed = '{"step": 0.1, "curve": 0.2, "whole": 0.3, "notes": []}'
    odd = {"0.1": "NaN", "0.2": '"cuda"', "0.3": "1" + "0" * 400}
    entries = ["7", "{}", *(speed.replace(number, other) for number, other in odd.items())]
    nothing = ["", "[]", "1", "NaN", "[" * 100_000, '{"a": ' * 100_000, "\0" * 1000]
    for text in nothing + [f'{{"a": {entry}}}' for entry in entries]:
        path.write_text(text, encoding="utf-8")
        assert _read_speeds(path) == {}
    path.write_text(f'{{"a": {speed}}}', encoding="utf-8")
    assert list(_read_speeds(path)) == ["a"]
    path.write_text(json.dumps(good), encoding="utf-8")
