"""Text -> ids -> batches: corpora, tokenizers, the windows that a model is trained on; texts with a known floor.

In: the name of a corpus, files, or a language of `languages/`. Out: ids on disk, and batch n of a split. Imports:
system, config.
"""

from minigpt.text import hf_tokenizer, ranked  # the kinds of tokenizers that are not in tokenizer.py

__all__ = ["hf_tokenizer", "ranked"]
