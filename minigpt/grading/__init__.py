"""A checker that names the bug: what a learner wrote is right, right in another convention, wrong (this sentence), or
cannot be told.

    minigpt.check(MyAttention(48, 6), as_="multi_head")        in a notebook
    python scripts/check.py my_attention.py --as multi_head,rotary

The order of attack: `load`, `call`, `bind`, `naming`, `measure`; `targets/` holds what there is to write, each as one
reference with knobs and the sentences that belong to them.
"""

from typing import Any

from minigpt.grading.report import Report


def check(thing: Any, as_: str = "multi_head") -> Report:
    """The report on a function, a module or a module's class; it runs in this process, and a module is left as it was.

    `as_` is a target with its options: "attend", "multi_head", "grouped_query,rotary", "multi_head,window=4".
    Raises UserError for an unknown target.
    """
    from minigpt.grading.grade import check_here  # what only a check needs is not loaded with the package

    return check_here(thing, as_)


__all__ = ["Report", "check"]
