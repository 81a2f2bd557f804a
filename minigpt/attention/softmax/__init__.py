"""Weights from scores. One kind a file.

dot_product, single_head, multi_head, grouped_query             the ladder: a softmax of products
sink, sigmoid, soft_cap, cosine, sparsemax, stick_breaking      how scores become weights
talking_heads, differential, gated                              what heads do with their weights and results
forgetting, selective, path                                     what was read in between changes the scores
synthesizer                                                     scores without keys
"""
