"""Errors, the terminal, signals, processes, and files that are written whole or not at all.

In: what other parts print, write and start. Out: the same, safe on any terminal and disk. Imports: no other part.
"""
