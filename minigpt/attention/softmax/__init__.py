"""Weights from scores. One kind in each file.

dot_product, query_key, single_head, multi_head, grouped_query  the ladder: a softmax of products
sink, sigmoid, soft_cap, cosine, sparsemax, stick_breaking      how scores become weights
talking_heads, differential, gated                              what heads do with their weights and results
forgetting, selective, path                                     the tokens between query and key change the scores
synthesizer                                                     scores without keys
token_shift, value_residual                                     other keys and values
"""
