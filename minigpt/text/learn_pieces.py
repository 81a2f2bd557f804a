"""The pieces of byte-pair encoding, learned in a process of its own: `tokenizers` looks at no signal while it works.

`tokenizer.py` starts this file, and ends it when it is itself stopped. Texts come on stdin, each as a line of JSON, and
after them an empty line; the answer is a line of JSON, {piece: id}. It imports nothing of minigpt, and so starts fast.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator

from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def texts() -> Iterator[str]:
    """The texts on stdin. When stdin ends, whoever asked is gone, and so is this process."""
    for line in iter(sys.stdin.readline, "\n"):
        if not line:
            os._exit(1)
        yield json.loads(line)
    threading.Thread(target=leave, daemon=True).start()


def leave() -> None:
    """Wait for the end of stdin, and end this process, whatever it is doing."""
    sys.stdin.read()
    os._exit(1)


def main(vocab_size: int) -> None:
    """Learn, and answer."""
    trainee = Tokenizer(models.BPE())
    trainee.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # splits into words, as PIECES does
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=letters, show_progress=False)
    trainee.train_from_iterator(texts(), trainer)
    print(json.dumps(trainee.get_vocab()), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
