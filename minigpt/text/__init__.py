"""Text -> ids -> batches: corpora, tokenizers, and the windows that a model is trained on."""
