"""Play with trained models in the browser: write, look at the probabilities, change the model, see its loss.

python scripts/play.py                                   # the newest run
python scripts/play.py --run runs/tiny --run runs/mine   # two runs side by side, with the same random draws
python scripts/play.py --run tiny --run tiny model.attention=average_softmax    # a run, and another attention in it
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import os
import signal
import sys
import threading
import webbrowser
from http.client import HTTPException

from minigpt import command
from minigpt.fast.threads import use_threads_to_sample
from minigpt.learning.playground.answers import Playground
from minigpt.learning.playground.server import Server
from minigpt.learning.playground.speed import measure
from minigpt.model import count_parameters
from minigpt.system.errors import UserError
from minigpt.system.terminal import complain
from minigpt.system.waiting import heartbeat
from minigpt.training.report import say
from minigpt.training.run import load, newest_run


def main(arguments: argparse.Namespace) -> None:
    """Load the runs, and serve their page until a signal ends it."""
    names = arguments.run or [""]
    if len(names) > 2:
        raise UserError(f"--run: two runs fit side by side, found {len(names)}")
    folders = [newest_run(name).resolve() for name in names]
    runs = [load(folder) for folder in folders[:-1]]
    same = folders[0] == folders[-1] and runs and not arguments.overrides  # the same run twice is loaded once
    runs.append(runs[0] if same else load(folders[-1], overrides=arguments.overrides))  # a swap is made in the last run
    for run in runs:
        command.special(run, arguments, "")  # the page has the prompt
    use_threads_to_sample(max(sum(count_parameters(run.model).values()) for run in runs))
    with heartbeat("trying which edits the models allow"):
        playground = Playground(runs)
    with Server(playground, arguments.port) as server:
        if arguments.measure:
            try:
                return say(measure(server))
            except (OSError, HTTPException):
                if server.crowded.is_set():  # which is said already
                    raise UserError("the playground could not be measured") from None
                raise
        say(f"open {server.address}\nCtrl-C ends the playground")
        if arguments.open:
            open_browser(server)
        try:
            server.serve_forever()
        except KeyboardInterrupt as stop:
            if not playground.close():  # a model is within one long call: nothing is left to save
                complain("stopped")
                server.server_close()
                os._exit(128 + getattr(stop, "signum", signal.SIGINT))
            raise


def open_browser(server: Server) -> None:
    """Open the page in the user's browser, unless it would take the terminal."""
    try:
        browser = webbrowser.get()
        if type(browser) is not webbrowser.GenericBrowser:
            threading.Thread(target=browser.open, args=(server.entrance(),), daemon=True).start()
    except (webbrowser.Error, OSError):
        return


if __name__ == "__main__":
    parser = command.parser("Play with trained models in the browser." + command.SWAPS)
    parser.add_argument("--run", action="append", metavar="RUN", help=f"{command.RUN}; twice for two")
    command.add_special(parser)
    parser.add_argument("--port", type=int, default=0, metavar="N", help="where to serve (default: any free port)")
    parser.add_argument("--no-open", dest="open", action="store_false", help="print the address only")
    parser.add_argument("--measure", action="store_true", help="print the processor time of a token and of a slider")
    arguments = command.parse(parser)
    sys.exit(command.execute(main, arguments))
