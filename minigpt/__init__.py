"""minigpt: attention from averaging to a trained small GPT.

`minigpt/README.md` names every part and file in the order in which they are read.

From a notebook:

    import minigpt
    run = minigpt.train("tiny.yaml")                 # or minigpt.load("runs/tiny"); run shows what it is, and its curve
    print(run.generate("Mia was a shy fox."))
    run.show_attention("Mia was a shy fox.")         # a picture
    weights = run.attention("Mia was a shy fox.")    # one (H, T, T) a layer
"""

from typing import TYPE_CHECKING, Any

from minigpt.attention import Attention
from minigpt.fast import make_fast, shortcut
from minigpt.model import GPT, ModelConfig
from minigpt.system.plugin import load_plugin
from minigpt.training.assemble import RunConfig
from minigpt.training.notebook import fine_tune, resume, train
from minigpt.training.run import Run, load

if TYPE_CHECKING:
    from minigpt.checks.learners.check import check

__all__ = [
    "GPT",
    "Attention",
    "ModelConfig",
    "Run",
    "RunConfig",
    "check",
    "fine_tune",
    "load",
    "load_plugin",
    "make_fast",
    "resume",
    "shortcut",
    "train",
]


def __getattr__(name: str) -> Any:
    """`check`, imported when it is first asked for: no training needs the checker."""
    if name != "check":
        raise AttributeError(f"module 'minigpt' has no attribute {name!r}")
    from minigpt.checks.learners.check import check

    return check
