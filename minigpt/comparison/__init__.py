"""Which attention is better, and by how much? One experiment, one summary, one page.

In: variants (configs, sizes, or attentions in given weights) and seeds. Out: runs, a table with confidence intervals, a
page. Imports: the parts up to training.
"""
