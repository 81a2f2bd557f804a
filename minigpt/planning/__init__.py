"""What a training will cost, before it begins."""
