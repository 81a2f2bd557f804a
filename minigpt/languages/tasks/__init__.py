"""Tasks: generated texts that end in questions, whose answers follow from what was said before."""

from minigpt.languages.tasks import facts, memory, state, steps
from minigpt.languages.tasks.base import Task

__all__ = ["Task", "facts", "memory", "state", "steps"]
