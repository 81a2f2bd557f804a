"""Start-up: seconds from the start of a process to the end of its first training step, and of imports alone."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import nanogpt, trainings
from benchmarks.processes import in_turn, time_command
from benchmarks.report import Report, Row, Spread
from benchmarks.setting import Setting
from minigpt.system.process import python_command

COLUMNS = {
    "from the start of a process to": ("what", ""),
    "seconds": ("seconds", ".2f"),
    "x minigpt's first step": ("ratio", ".2f"),
}
IMPORTS = {"torch imported": "import torch", "minigpt imported": "import minigpt"}
IMPORTS["GPT-2 of transformers imported"] = "from transformers import GPT2LMHeadModel"
WARM_UP = 1  # rounds that only load the files into the operating system's cache
MINIGPT, NANOGPT = "minigpt's first step", "nanoGPT's first step"


def run(setting: Setting, text: Path, config: str = "shakespeare_char_cpu.yaml") -> Report:
    """Measure all processes in turn. Raises UserError."""
    settings = trainings.check(config, trainings.overrides(text, setting.device))
    trainings.prepare(settings)  # writes the ids to disk before anything is timed; make_copy does so for nanoGPT
    report = setting.report("startup", "transformers alone")
    with TemporaryDirectory(prefix="minigpt-benchmark-") as folder:
        commands = {name: (python_command(code), Path(folder), "") for name, code in IMPORTS.items()}
        changes = trainings.overrides(text, setting.device)
        commands[MINIGPT] = (trainings.train(setting, config, "startup", changes), Path(folder), trainings.FIRST_STEP)
        if setting.nanogpt:
            copy = nanogpt.make_copy(setting.nanogpt, Path(folder, "nanogpt"), text)
            command = copy.train(1, nanogpt.STEPS, setting.device)
            commands[NANOGPT] = (command, copy.folder, nanogpt.FIRST_STEP)
        took: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(WARM_UP + setting.repeat):
            for name in in_turn(list(commands), turn):
                command, where, line_of_step = commands[name]
                seconds = time_command(name, command, where, line_of_step, stop=bool(line_of_step)).seconds
                if turn >= WARM_UP:
                    took[name].append(seconds)
    spreads = {name: Spread(tuple(values)) for name, values in took.items()}
    rows = [Row(what=name, seconds=seconds, ratio=seconds.over(spreads[MINIGPT])) for name, seconds in spreads.items()]
    report.add(f"start-up: the median (smallest..largest) of {setting.repeat} rounds, in turn", COLUMNS, rows)
    report.notes.append(
        f"minigpt trains {config}, nanoGPT the recipe for a laptop in its README; ids are on disk beforehand"
    )
    report.notes.append("nanoGPT evaluates 2 x 20 batches before its first step, as the recipe says")
    report.notes.append("ratios are taken in each round; there is no MFU, since starting up is no work of the model")
    return report
