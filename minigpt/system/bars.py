"""Progress bars: on a terminal, and in a notebook with ipywidgets, where they are the notebook's own."""

from __future__ import annotations

import importlib.util
import sys
import threading
from typing import Any

from tqdm import tqdm


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: Jupyter's, VS Code's, Colab's."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get is not None and hasattr(get(), "kernel")


def shows_bars() -> bool:
    """Whether bars are shown, on a terminal or in a notebook with ipywidgets; elsewhere lines are printed."""
    return sys.stderr.isatty() or has_widgets()


def has_widgets() -> bool:
    """Whether this is a notebook that can draw bars of its own, and the main thread, whose cell shows them."""
    here = in_notebook() and threading.current_thread() is threading.main_thread()
    return here and importlib.util.find_spec("ipywidgets") is not None


def bar(shown: bool = True, **options: Any) -> Any:
    """A tqdm bar on stderr with tqdm's `options`, disabled unless it is `shown` and somebody can see it."""
    if shown and has_widgets():
        from tqdm.notebook import tqdm as of_notebook

        return of_notebook(**options)
    return tqdm(file=sys.stderr, disable=not (shown and shows_bars()), **options)
