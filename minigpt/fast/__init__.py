"""All that is there for speed, and nothing else. A reader who wants to know what is computed may skip this part whole.

    allocator       freed memory waits for its next use
    threads         how threads wait for one another where other programs use the CPUs
    guard           which faster form a class may use: the one that was written for its mathematics
    kernels         scores, softmax and mean in one fused kernel
    running_sum     averages as running sums
    rotary          rotations as products of complex numbers
    switch          `make_fast`: puts all of these into one model, or takes them out
    packed, decoding    `prepare`: a copy of a model whose weights lie as writing one token at a time wants them

Each faster form stands beside the textbook's and equals it: `tests/test_fast.py` holds the two against each other over
every kind, position and option, values and gradients. `training.fast: false` and `--plain` leave all of it out.
"""

from minigpt.fast.guard import shortcut
from minigpt.fast.switch import make_fast

__all__ = ["make_fast", "shortcut"]
