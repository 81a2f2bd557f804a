"""Reads what a program does with each number: which token it is of, which score, which weight, which mixture of values.

In: a program, called with a text inside a `Reading`. Out: for each number of its output what it is made of, and for
each line of its file what that line makes. `laws` says what attention is, and at which line a program breaks it.
"""
