"""The part training."""
