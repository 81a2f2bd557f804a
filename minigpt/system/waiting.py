"""Waiting: what takes longer than two seconds says so, and Ctrl-C ends all of it.

A loop of our own goes through `progress`. A call into a library that does not look at signals goes through `aside`.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import TypeVar

from tqdm import tqdm

from minigpt.system.terminal import one_line

SILENCE = 2.0  # seconds without a word

Item = TypeVar("Item")
Result = TypeVar("Result")


def progress(items: Iterable[Item], what: str, total: int | None = None, unit: str = "") -> Iterator[Item]:
    """Pass items on, and after two seconds show how far it is: as a bar on a terminal, elsewhere as lines on stderr.

    The lines come after 2, 4, 8, 16 seconds and so on. Without a unit only the time is shown.
    """
    began, due, bar = perf_counter(), SILENCE, None
    try:
        for done, item in enumerate(items, start=1):
            yield item
            passed = perf_counter() - began
            if bar is not None:
                bar.update()
            elif passed >= due and sys.stderr.isatty():
                form = None if unit else "{desc}: {elapsed}"
                bar = tqdm(
                    desc=one_line(what), total=total, initial=done, unit=f" {unit}", bar_format=form, leave=False
                )
            elif passed >= due:
                of = "" if total is None else f" of {total:,}"
                _line(f"{what}: {done:,}{of} {unit}, {passed:.0f} s" if unit else f"{what}: {passed:.0f} s")
                due = 2 * passed
    finally:
        if bar is not None:
            bar.close()


def _line(text: str) -> None:
    with suppress(OSError):
        print(one_line(text), file=sys.stderr, flush=True)


def aside(call: Callable[[], Result], what: str, limit: float = math.inf) -> Result:
    """What a call returns or raises. It runs in a thread of its own, which Ctrl-C and SIGTERM leave behind.

    Raises TimeoutError after `limit` seconds. What is left behind goes on until it ends or the process does.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        over.set()

    def seconds() -> Iterator[None]:
        ends = perf_counter() + limit
        while not over.wait(max(0.0, min(1.0, ends - perf_counter()))):
            if perf_counter() >= ends:
                raise TimeoutError(f"no answer in {limit:g} seconds")
            yield

    threading.Thread(target=work, daemon=True).start()
    for _ in progress(seconds(), what):
        pass
    if errors:
        raise errors[0]
    return results[0]
