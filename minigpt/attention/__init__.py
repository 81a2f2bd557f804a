"""Attention as a textbook. Read `ladder.py` first, then `cache`, `position`, `norm` and `base.py`, then a family:

    averages/   the mean of the past, three ways: a loop, a matrix, a softmax of masked zeros
    softmax/    scores and a softmax: dot_product, query_key, single_head, multi_head, ...; the others change one step
    compact/    smaller caches: a latent, factors, or another layer's keys and values
    sparse/     a softmax over some of the past: a window, a stride, a chunk, or chosen keys
    linear/     no softmax: the past is a state of fixed size, read and written by each token

In: x (B, T, D), and a cache of what came before. Out: (B, T, D), of which position t depends on no later one. Imports:
system, config.

A new kind is ONE new file in a family's folder and nothing else: this package imports every file in these folders.
"""

from importlib import import_module
from pkgutil import walk_packages

from minigpt.attention.averages.average_loop import AverageLoop
from minigpt.attention.averages.average_matrix import AverageMatrix
from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.attention.base import Attention, SoftmaxAttention
from minigpt.attention.cache import KVCache, Past, Shared, State
from minigpt.attention.norm import RMSNorm
from minigpt.attention.position import Position, Shape, distance
from minigpt.attention.softmax.dot_product import DotProduct
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.softmax.query_key import QueryKey
from minigpt.attention.softmax.single_head import SingleHead

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)

__all__ = [
    "Attention",
    "AverageLoop",
    "AverageMatrix",
    "AverageSoftmax",
    "DotProduct",
    "GroupedQuery",
    "KVCache",
    "MultiHead",
    "Past",
    "Position",
    "QueryKey",
    "RMSNorm",
    "Shape",
    "Shared",
    "SingleHead",
    "SoftmaxAttention",
    "State",
    "distance",
]
