"""Is this attention right? The laws that every kind obeys, causality, and the programs of others, read line by line.

In: a kind, a model, or a learner's file. Out: the laws that it breaks, each with the line, what was found, what was
expected and how to mend it. Imports: system, config, attention, model, fast.
"""
