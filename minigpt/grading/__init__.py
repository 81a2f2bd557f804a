"""A checker that names the bug: what a learner wrote is right, right in another convention, wrong (this sentence), or
cannot be told.

    print(minigpt.check(MyAttention(48, 6), as_="multi_head"))
    python scripts/check.py my_attention.py --as multi_head,rotary

The order of attack: `load`, `call`, `bind`, `naming`, `measure`; `targets/` holds what there is to write, each as one
reference with knobs and the sentences that belong to them.
"""

from minigpt.grading.report import Report

__all__ = ["Report"]
