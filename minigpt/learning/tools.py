"""What the lessons use, in one import, and the exercise at the end of a lesson."""

from html import escape

from minigpt.learning.exercises import EXERCISES, hint, template
from minigpt.learning.languages import message, spoken, text
from minigpt.learning.output import Output, prose, say, show
from minigpt.learning.pictures import attention_map, bars, curves, matrix
from minigpt.learning.prose import as_code, as_html, plain
from minigpt.learning.reveal import reveal
from minigpt.learning.small_training import own_run, watch
from minigpt.learning.turn import turn, turn_through
from minigpt.seeing.document import folded
from minigpt.system.places import command

__all__ = ["attention_map", "bars", "curves", "exercise", "matrix", "message", "own_run", "reveal", "say", "show"]
__all__ += ["prose", "turn", "turn_through", "watch"]


def exercise(name: str) -> None:
    """Show an exercise of `exercises.py`: what is to be written, the commands, and the hint behind its fold."""
    number = list(EXERCISES).index(name) + 1
    commands = f"    {command('exercises')} --out my{spoken()}\n    {command('check')} --exercise {name} my/{name}.py"
    task = text(
        "Exercise {number}: write `my/{name}.py`. The checker says whether it is right, and else names the bug.",
        number=number,
        name=name,
    )
    stuck = text("If you are stuck: {command}", command=f"{command('exercises')} --hint {name}{spoken()}")
    file = folded(text("The file to fill in"), as_code(escape(template(name))))
    advice = folded(text("A hint"), f"<p>{escape(hint(name))}</p>", style="hint")
    show(Output(f"{plain(task)}\n\n{commands}\n\n{stuck}", f"{as_html(task)}\n{as_html(commands)}\n{file}\n{advice}"))
