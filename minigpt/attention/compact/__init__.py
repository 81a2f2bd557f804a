"""Smaller caches: a latent, factors, or another layer's keys and values. One kind in each file."""
