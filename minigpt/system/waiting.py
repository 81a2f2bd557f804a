"""Waiting: what takes longer than two seconds reports its progress, and Ctrl-C stops it.

Progress is a tqdm bar on a terminal, the notebook's own in a notebook with ipywidgets, and lines elsewhere. Loops of
this package go through `progress`, which makes a bar after two seconds: one with tqdm's own `delay` appears as soon
as a line is printed above the bars. A call into a library that does not check for signals goes through
`interruptible`; one that must stay in its thread, such as torch's, is shown by `heartbeat`, and `signals.py` ends it.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Any, TypeVar

from tqdm import tqdm

from minigpt.system.terminal import complain, one_line

QUIET_SECONDS = 2.0  # how long nothing is printed

Item = TypeVar("Item")
Result = TypeVar("Result")

UNSEEN = ContextVar("UNSEEN", default=False)  # each thread has its own


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter's, VS Code's, Colab's."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get is not None and hasattr(get(), "kernel")


def has_widgets() -> bool:
    """Whether this is a notebook that can draw bars of its own, and the main thread, whose cell shows them."""
    in_cell = in_notebook() and threading.current_thread() is threading.main_thread()
    return in_cell and importlib.util.find_spec("ipywidgets") is not None


def shows_bars() -> bool:
    """Whether bars are shown, on a terminal or in a notebook with ipywidgets; elsewhere lines are printed."""
    return sys.stderr.isatty() or has_widgets()


def progress_bar(visible: bool = True, **options: Any) -> Any:
    """A tqdm bar on stderr with tqdm's `options`, disabled unless it is `visible` and somebody can see it."""
    if visible and has_widgets():
        from tqdm.notebook import tqdm as notebook_tqdm

        return notebook_tqdm(**options)
    return tqdm(file=sys.stderr, disable=not (visible and shows_bars()), **options)


@contextmanager
def in_background() -> Iterator[None]:
    """Show no progress of what this thread does in the block: nobody waits for it."""
    before = UNSEEN.set(True)
    try:
        yield
    finally:
        UNSEEN.reset(before)


def progress(items: Iterable[Item], task: str, total: int | None = None, unit: str = "") -> Iterator[Item]:
    """Yield the items; after two seconds, show the progress: a bar on a terminal, elsewhere lines on stderr.

    The lines come after 2, 4, 8, 16 seconds and so on. Without a unit only the time is shown. Within `in_background`
    nothing is shown.
    """
    if UNSEEN.get():
        yield from items
        return
    began, due, bar = perf_counter(), QUIET_SECONDS, None
    try:
        for done, item in enumerate(items, start=1):
            yield item
            passed = perf_counter() - began
            if bar is not None:
                bar.update()
            elif passed >= due and shows_bars():
                form = None if unit else "{desc}: {elapsed}"
                words: dict[str, Any] = {"desc": one_line(task), "unit": f" {unit}", "bar_format": form}
                bar = progress_bar(total=total, initial=done, leave=False, **words)
            elif passed >= due:
                of = "" if total is None else f" of {total:,}"
                how_far = f"{done:,}{of} {unit}, " if unit else ""
                complain(one_line(f"{task}: {how_far}{passed:.0f} s"))
                due = 2 * passed
    finally:
        if bar is not None:
            bar.close()


def interruptible(call: Callable[[], Result], task: str, limit: float = math.inf) -> Result:
    """Return or raise what a call returns or raises. It runs in a thread, so that Ctrl-C and SIGTERM can interrupt it.

    Raises TimeoutError after `limit` seconds. An interrupted call runs on in its thread until it or the process ends.
    """
    results: list[Result] = []
    errors: list[BaseException] = []
    finished = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        finished.set()

    def seconds() -> Iterator[None]:
        deadline = perf_counter() + limit
        while not finished.wait(max(0.0, min(1.0, deadline - perf_counter()))):
            if perf_counter() >= deadline:
                raise TimeoutError(f"no answer in {limit:g} seconds")
            yield

    threading.Thread(target=run, daemon=True).start()
    for _ in progress(seconds(), task):
        pass
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def heartbeat(task: str) -> Iterator[None]:
    """While the block runs, show its time from another thread, as `progress` does."""
    if UNSEEN.get():
        yield
        return
    finished = threading.Event()

    def tell() -> None:
        for _ in progress(iter(lambda: finished.wait(1.0), True), task):
            pass

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield
    finally:
        finished.set()
        telling.join()
