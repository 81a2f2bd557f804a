"""Weights from a softmax of scores: dot_product, single_head, multi_head, grouped_query. One kind a file."""
