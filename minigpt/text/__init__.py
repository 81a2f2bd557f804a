"""Text to ids to batches: tokenizers, where texts come from, and the windows that a model is trained on."""
