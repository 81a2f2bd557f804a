"""The part softmax."""
