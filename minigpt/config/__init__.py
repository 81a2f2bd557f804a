"""The part config."""
