"""What the reader writes at the end of a lesson, and how it is checked."""

from __future__ import annotations

from html import escape

from minigpt.learners.exercises import EXERCISES, hint, template
from minigpt.lessons.output import Output, show


def exercise(name: str) -> None:
    """Show an exercise of `minigpt/learners`: what is to be written, the commands, and the hint behind its fold."""
    place = list(EXERCISES).index(name) + 1
    commands = f"python scripts/exercises.py --out my\npython scripts/check.py --exercise {name} my/{name}.py"
    stuck = f"python scripts/exercises.py --hint {name}"
    told = f"Exercise {place}: write my/{name}.py. The checker says whether it is right, and else names the bug."
    lines = [told, "", *(f"    {line}" for line in commands.splitlines()), "", f"If you are stuck: {stuck}"]
    html = [
        f"<p>Exercise {place}: write <code>my/{name}.py</code>. The checker says whether it is right, and else names "
        f'the bug.</p>\n<pre tabindex="0"><code>{escape(commands)}</code></pre>',
        f"<details><summary>The file to fill in</summary>"
        f'<pre tabindex="0"><code>{escape(template(name))}</code></pre></details>',
        f'<details class="hint"><summary>A hint</summary><p>{escape(hint(name))}</p></details>',
    ]
    show(Output("\n".join(lines), "\n".join(html)))
