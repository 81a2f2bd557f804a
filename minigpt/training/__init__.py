"""Training: several processes, optimizers, the training loop, what fits into memory, the distance to the floor."""
