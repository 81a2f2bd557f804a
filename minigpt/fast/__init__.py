"""Faster forms of what the textbook computes. A reader who wants to know what is computed may skip this package.

In: a model or a kind. Out: the same numbers, sooner. Imports: the parts up to model.

    allocator       freed memory is kept for the next step
    threads         how many threads compute, and how they wait for one another on a shared machine
    guard           which faster form a class may use: the one that was written for its mathematics
    kernels         scores, softmax and mean in one fused kernel
    flexible        capped scores and masks in one kernel of a GPU
    channels        kinds whose part of the scores is one more channel for the kernel
    parts           queries in parts, for kinds without a fused kernel
    windows         a block of queries with the keys near it only
    running_sum     averages as running sums
    rotary          rotations as products of complex numbers
    chunks          linear attention: a matrix within each chunk, a state between them
    triton_chunks   the same on a GPU, in the kernels of another package
    recurrence      recurrent kinds: training in chunks, decoding with a state of fixed size
    levels          log-linear attention in chunks
    convolution     long convolutions by FFT, and decoding with a state
    rewriting       decoding of kinds whose later tokens change earlier keys
    joined          linear layers of one input as one layer
    switch          `make_fast`: puts all of these into one model, or takes them out
    packed          weights in blocks, or in fewer bits
    decoding        `prepare`: a copy of a model for writing one token at a time

Each faster form equals the textbook's: `tests/test_fast.py` compares the two over every kind, position and option,
values and gradients. `training.fast: false` and `--plain` leave all of it out.
"""

from minigpt.fast.guard import shortcut
from minigpt.fast.switch import make_fast

__all__ = ["make_fast", "shortcut"]
