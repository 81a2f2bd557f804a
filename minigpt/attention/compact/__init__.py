"""Fewer numbers to keep: a latent, factors, or another layer's keys and values. One kind a file."""
