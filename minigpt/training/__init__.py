"""How a model learns: several processes as one, optimizers, the loop, what fits into memory, the floor."""
