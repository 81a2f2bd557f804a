"""Tasks: generated texts that end in questions, whose answers follow from what was said before."""

from minigpt.text.languages.tasks import facts, memory, state, steps, talks
from minigpt.text.languages.tasks.base import Task

__all__ = ["Task", "facts", "memory", "state", "steps", "talks"]
