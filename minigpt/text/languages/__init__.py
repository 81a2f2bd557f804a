"""Texts with a known best possible loss: the built-in stories, and the readers that compute it."""
