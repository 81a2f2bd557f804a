"""Looks inside a model: every intermediate value of a pass, its cost, pictures, and pages in a browser.

In: a model, a tokenizer and a text. Out: arrays, SVG, or one HTML file. Imports: the parts up to checks.
"""
