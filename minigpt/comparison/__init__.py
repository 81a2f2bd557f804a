"""The part comparison."""
