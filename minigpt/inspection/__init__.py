"""Looks inside a model: all intermediate values of a pass, the causality check, its cost, pictures."""
