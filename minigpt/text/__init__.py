"""The part text."""
