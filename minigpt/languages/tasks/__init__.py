"""Tasks: generated texts that end in questions, whose answers follow from what was said before."""

from minigpt.languages.tasks import memory, state
from minigpt.languages.tasks.base import Task

__all__ = ["Task", "memory", "state"]
