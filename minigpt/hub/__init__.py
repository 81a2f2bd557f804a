"""Import and export of weights: a Hugging Face folder or a GGUF file becomes a run, and a run becomes either."""

from minigpt.hub import families
from minigpt.hub.family import FAMILIES, Family, NoCounterpart, Rule

__all__ = ["FAMILIES", "Family", "NoCounterpart", "Rule", "families"]
