"""Import and export of weights: a Hugging Face folder or a GGUF file becomes a run, and a run becomes either.

In: somebody else's folder or file, which is not trusted; or a run. Out: a run, or a folder or file that others read.
Imports: the parts up to training.
"""

from minigpt.hub import families
from minigpt.hub.family import FAMILIES, Family, NoCounterpart, Rule

__all__ = ["FAMILIES", "Family", "NoCounterpart", "Rule", "families"]
