"""Memory that is freed stays with the process, so that a step does not wait for the system's cleared pages."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

LOOP = """
import resource, torch
from minigpt.machine import keep_memory
{kept}
def work():
    return [torch.ones(2 << 20) for _ in range(8)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    work()
before = faults()
for _ in range(10):
    work()
print(faults() - before)
"""


TRAINING = """
import resource, sys
from minigpt import config, training
from minigpt.run import RunConfig, build_model
from minigpt.corpus import open_corpus
from minigpt.dataset import Dataset
if {given_back}:
    training.keep_memory = lambda: None
settings = config.load(RunConfig, "tiny.yaml", ["training.max_steps=12"])
corpus = open_corpus("stories", settings.data.stories)
tokenizer = settings.data.tokenizer.component.fit(settings.data.tokenizer, corpus.documents())
dataset, model = Dataset(settings.data, corpus, tokenizer, 128), build_model(settings, tokenizer)
optimizer = settings.training.optimizer.component(settings.training.optimizer, model)
for record in training.train(model, dataset, optimizer, settings.training):
    if record.step == 7:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")


def page_faults(code: str) -> int:
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_freed_memory_is_kept() -> None:
    """Ten times 64 MiB are 163,840 pages of 4 KiB, or 320 of 2 MiB."""
    assert page_faults(LOOP.format(kept="keep_memory()")) < 20 < page_faults(LOOP.format(kept=""))


@pytest.mark.slow
def test_a_training_step_finds_its_memory_again() -> None:
    assert 5 * page_faults(TRAINING.format(given_back=False)) < page_faults(TRAINING.format(given_back=True))
