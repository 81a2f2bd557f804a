"""Texts whose best possible loss is known: the built-in stories, and the readers that score them."""
