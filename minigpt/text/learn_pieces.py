"""Learns the pieces of byte-pair encoding in a separate process, because `tokenizers` does not react to signals.

`tokenizer.py` starts this file, and kills it when it is stopped itself. The texts come on stdin, each as a line of
JSON, and after them `null`; the answer is one line of JSON, {piece: id}. Nothing of minigpt is imported here, so
that the process starts fast.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def texts() -> Iterator[str]:
    """The texts on stdin. When stdin ends, the parent process has ended, and this one exits."""
    for line in iter(sys.stdin.readline, "null\n"):
        if not line:
            os._exit(1)
        yield json.loads(line)
    with suppress(RuntimeError):  # the system lets no further thread start
        threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """Wait for the end of stdin, then exit, even in the middle of learning."""
    sys.stdin.read()
    os._exit(1)


def main(vocab_size: int) -> None:
    """Learn the pieces and print them."""
    tokenizer = Tokenizer(models.BPE())
    # splits into words as PIECES in tokenizer.py does
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(texts(), trainer)
    print(json.dumps(tokenizer.get_vocab()), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
