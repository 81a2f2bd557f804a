"""The part runs."""
