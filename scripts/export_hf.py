"""A run as a folder that Hugging Face's transformers loads, with its tokenizer.

python scripts/export_hf.py --out my-model                        the newest run, as a GPT-2, a Llama, ...
python scripts/export_hf.py --out my-model --remote-code          any run, with minigpt's own code
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path

from minigpt import command
from minigpt.hub.exporter import export_run
from minigpt.hub.out_folder import check_out
from minigpt.runs.report import say
from minigpt.runs.run import load, newest_run


def main(arguments: argparse.Namespace) -> None:
    """Write the folder."""
    check_out(arguments.out)
    run = load(newest_run(arguments.run), "cpu", fast=False)
    export_run(run, arguments.out, arguments.remote_code)
    consent = ", trust_remote_code=True" if arguments.remote_code else ""
    say(f"wrote {arguments.out}: AutoModelForCausalLM.from_pretrained({str(arguments.out)!r}{consent})")


if __name__ == "__main__":
    parser = command.parser("Write a run as a folder that Hugging Face's transformers loads.")
    parser.add_argument("--run", default="", metavar="RUN", help="folder or name of a run (default: the newest)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the folder goes: a new one")
    parser.add_argument("--remote-code", action="store_true", help="carry minigpt's own code, so that any model goes")
    sys.exit(command.execute(main, parser.parse_args()))
