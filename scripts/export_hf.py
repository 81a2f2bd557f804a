"""Write a run as a folder that Hugging Face's transformers loads, with its tokenizer, or as a GGUF file.

python scripts/export_hf.py --out my-model                        the newest run, as a GPT-2, a Llama, ...
python scripts/export_hf.py --out my-model --remote-code          any run, with minigpt's own code
python scripts/export_hf.py --gguf my-model.gguf                  for llama.cpp and ollama
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path
from typing import get_args

from minigpt import command
from minigpt.hub.exporter import export_run
from minigpt.hub.gguf_writer import Weights, check_file, export_gguf
from minigpt.hub.out_folder import check_out
from minigpt.system.errors import UserError
from minigpt.training.report import say
from minigpt.training.run import load, newest_run, parted


def main(arguments: argparse.Namespace) -> None:
    """Write the folder, the file, or both."""
    out, gguf = arguments.out, arguments.gguf
    if out is None and gguf is None:
        raise UserError("give --out DIR, --gguf FILE, or both")
    command.effect("--gguf-weights", arguments.gguf_weights is not None, "--gguf", gguf is not None)
    command.effect("--remote-code", arguments.remote_code, "--out", out is not None)
    folder = newest_run(arguments.run)
    if out is not None:
        check_out(out, parted(folder)[0].resolve().name)
    if gguf is not None:
        check_file(gguf)
    run = load(folder, "cpu", fast=False)
    if out is not None:
        export_run(run, out, arguments.remote_code, say)
    if gguf is not None:
        export_gguf(run, gguf, arguments.gguf_weights or "float32")
        say(f"wrote {gguf}: {gguf.stat().st_size:,} bytes")


if __name__ == "__main__":
    parser = command.parser("Write a run as a folder that Hugging Face's transformers loads, or as a GGUF file.")
    parser.add_argument("--run", default="", metavar="RUN", help=command.RUN)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the folder goes: a new one")
    parser.add_argument("--remote-code", action="store_true", help="carry minigpt's own code, so that any model goes")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="where a GGUF file goes, for llama.cpp and ollama")
    parser.add_argument("--gguf-weights", choices=get_args(Weights), help="how it keeps numbers (default: float32)")
    sys.exit(command.execute(main, parser.parse_args()))
