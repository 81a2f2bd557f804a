"""The part model."""
