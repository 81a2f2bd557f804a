"""Text -> ids -> batches: corpora, tokenizers, and the windows that a model is trained on."""

from minigpt.text import hf_tokenizer, ranked  # the kinds of tokenizers that are not in tokenizer.py

__all__ = ["hf_tokenizer", "ranked"]
