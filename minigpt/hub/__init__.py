"""Weights in and out: the formats of other programs."""
