"""A run folder: checkpoints, what is recorded, resuming, and where a step's time goes."""
