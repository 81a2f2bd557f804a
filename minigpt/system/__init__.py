"""The part system."""
