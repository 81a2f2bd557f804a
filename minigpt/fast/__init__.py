"""The part fast."""
