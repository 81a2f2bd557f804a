"""The kinds of attention, one a file. A new kind is ONE new file here and nothing else: it is found by itself.

Read `ladder.py` first, then `base.py`, then the rungs: average, dot_product, single_head, multi_head, grouped_query.
"""

from importlib import import_module
from pkgutil import iter_modules

from minigpt.attention.base import Attention, SoftmaxAttention, shortcut

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["Attention", "SoftmaxAttention", "shortcut"]
