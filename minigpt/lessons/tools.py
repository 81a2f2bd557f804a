"""What the lessons use, in one import."""

from minigpt.lessons.exercise import exercise
from minigpt.lessons.output import say, show
from minigpt.lessons.own_model import own_run
from minigpt.lessons.pictures import attention_map, bars, curves, matrix
from minigpt.lessons.reveal import reveal
from minigpt.lessons.small_training import watch

__all__ = ["attention_map", "bars", "curves", "exercise", "matrix", "own_run", "reveal", "say", "show", "watch"]
