"""Freed memory stays with the process, so that no step waits while the system clears new pages.

The tests ask the C library how much memory it has from the system, because not every system counts page faults.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

HELD = """
import ctypes
class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Mallinfo
def held():
    now = mallinfo()
    return (now.arena + now.hblkhd) >> 20
"""

LOOP = """
import torch
from minigpt.fast.allocator import keep_memory
{kept}
tensors = [torch.ones(2 << 20) for _ in range(8)]
before = held()
del tensors
print(before - held())
"""

MODEL = """
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig
make_fast(GPT(ModelConfig(n_layer=1, n_embd=16), 10), fast={fast})
"""

FORKED = """
import os
import torch
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
exec({second!r} if child else {first!r})
"""

TRAINING = """
from minigpt.config import options as config
from minigpt.training import loop as training
from minigpt.fast import make_fast
from minigpt.model import GPT
from minigpt.training.assemble import RunConfig
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import Dataset
settings = config.load(RunConfig, "tiny.yaml", ["training.max_steps=12"])
corpus = open_corpus("stories", settings.data.stories)
tokenizer = settings.data.tokenizer.component.fit(settings.data.tokenizer, corpus.documents())
dataset = Dataset(settings.data, corpus, tokenizer, 128)
model = make_fast(GPT(settings.model, tokenizer.vocab_size), without={without})
optimizer = settings.training.optimizer.component(settings.training.optimizer, model)
after = [held() for _ in training.train(model, dataset, optimizer, settings.training)]
print(sum(max(a - b, 0) for a, b in zip(after, after[1:])))
"""

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library has no mallinfo2")


def mebibytes(code: str) -> list[int]:
    """What the code prints in a process of its own: how much it gave back to the system, each time."""
    ended = subprocess.run([sys.executable, "-c", HELD + code], capture_output=True, text=True, check=True)
    return [int(line) for line in ended.stdout.splitlines()]


@pytest.mark.slow
def test_freed_memory_is_kept_by_a_fast_model_and_not_by_a_plain_one() -> None:
    """The same loop four times, in two processes that are forked from one before any memory is kept."""
    called = LOOP.format(kept="") + LOOP.format(kept="keep_memory()")
    models = "".join(LOOP.format(kept=MODEL.format(fast=fast)) for fast in (False, True))
    given_back = mebibytes(FORKED.format(first=called, second=models))
    assert len(given_back) == 4 and given_back[0] >= 64 and given_back[2] >= 64
    assert given_back[1] == given_back[3] == 0


@pytest.mark.slow
def test_a_training_step_finds_its_memory_again() -> None:
    """Without the trick a training gives back 4 to 170 MiB between its steps; one in dozens, by chance, none."""
    assert mebibytes(TRAINING.format(without=[])) == [0]
    assert any(mebibytes(TRAINING.format(without=["kept memory"]))[0] > 0 for _ in range(4))
