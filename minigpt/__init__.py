"""minigpt: attention from averaging to a trained small GPT.

`minigpt/README.md` names every part and file in the order in which they are read.

From a notebook:

    import minigpt
    run = minigpt.train("tiny.yaml")                 # or minigpt.load("runs/tiny"); run shows what it is, and its curve
    print(run.generate("Mia was a shy fox."))
    run.show_attention("Mia was a shy fox.")         # a picture
    weights = run.attention("Mia was a shy fox.")    # one (H, T, T) a layer

Each name is imported when it is first asked for, because importing torch takes longer than all else. (PEP 562)
"""

from importlib import import_module
from os.path import isfile, join
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers
    from minigpt.attention import Attention as Attention
    from minigpt.checks.learners.check import check as check
    from minigpt.fast import make_fast as make_fast
    from minigpt.fast import shortcut as shortcut
    from minigpt.fast.decoding import DecodingConfig as DecodingConfig
    from minigpt.model import GPT as GPT
    from minigpt.model import ModelConfig as ModelConfig
    from minigpt.system.plugin import load_plugin as load_plugin
    from minigpt.system.version import __version__ as __version__
    from minigpt.text.dataset import DataConfig as DataConfig
    from minigpt.training.assemble import RunConfig as RunConfig
    from minigpt.training.loop import TrainingConfig as TrainingConfig
    from minigpt.training.notebook import fine_tune as fine_tune
    from minigpt.training.notebook import resume as resume
    from minigpt.training.notebook import train as train
    from minigpt.training.run import Run as Run
    from minigpt.training.run import load as load

HOMES = {
    "GPT": "model",
    "Attention": "attention",
    "DataConfig": "text.dataset",
    "DecodingConfig": "fast.decoding",
    "ModelConfig": "model",
    "Run": "training.run",
    "RunConfig": "training.assemble",
    "TrainingConfig": "training.loop",
    "__version__": "system.version",
    "check": "checks.learners.check",
    "fine_tune": "training.notebook",
    "load": "training.run",
    "load_plugin": "system.plugin",
    "make_fast": "fast",
    "resume": "training.notebook",
    "shortcut": "fast",
    "train": "training.notebook",
}
"""The part or file that defines each name."""

__all__ = list(HOMES)


def __getattr__(name: str) -> Any:
    """A name of HOMES, or a part, such as `minigpt.attention`."""
    if name in HOMES:
        value = getattr(import_module(f"minigpt.{HOMES[name]}"), name)
    elif isfile(join(__path__[0], name, "__init__.py")):
        value = import_module(f"minigpt.{name}")
    else:
        raise AttributeError(f"module 'minigpt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What an interactive session completes."""
    return sorted({*globals(), *HOMES})
