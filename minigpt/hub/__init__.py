"""Weights in and out: the formats of other programs. A folder of Hugging Face's becomes a run, and a run one."""

from minigpt.hub import families
from minigpt.hub.family import FAMILIES, Family, NoCounterpart, Rule

__all__ = ["FAMILIES", "Family", "NoCounterpart", "Rule", "families"]
