"""How fast is a large text tokenized, and within how much memory? minigpt beside Hugging Face's `datasets`.

    python tests/big_text.py --megabytes 1000 --other-python PYTHON

Both tokenize the same JSON Lines with GPT-2's vocabulary, run by tiktoken, in as many processes, and leave one array of
ids on the disk; the ids are compared. `datasets` is used as nanoGPT uses it: `map`, then the ids are copied to a file.
PYTHON is one that has `datasets` and `tiktoken`; without it minigpt runs alone. The text is made of tiny Shakespeare,
cut anew for every document, and of built-in stories. Printed is a table: seconds, seconds of all cores together, text
per second of one core, and the memory of the largest process, without pages that only cache files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random

import numpy as np

from minigpt.text.corpus import shakespeare
from minigpt.text.languages.stories import stories

ROOT = Path(__file__).parents[1]
FILES = 4

OURS = """
import sys
from minigpt.text import workers
from minigpt.text.corpus import open_corpus
from minigpt.text.ids import ids_on_disk
from minigpt.text.tokenizer import GPT2
processes = int(sys.argv[2])
workers.processes_for = lambda *_: processes
ids, starts = ids_on_disk(open_corpus(sys.argv[1]), GPT2())
with open(sys.argv[3], "wb") as file:
    for start in range(0, len(ids), 1 << 22):
        ids[start : start + (1 << 22)].tofile(file)
"""

THEIRS = """
import glob, sys
import numpy as np, tiktoken
from datasets import load_dataset
from datasets.utils.logging import disable_progress_bar
disable_progress_bar()
folder, processes, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
encoding = tiktoken.get_encoding("gpt2")
def tokenize(batch):
    ids = [encoding.encode_ordinary(text) + [encoding.eot_token] for text in batch["text"]]
    return {"ids": ids, "len": [len(one) for one in ids]}
text = load_dataset("json", data_files=sorted(glob.glob(folder + "/*.jsonl")), split="train", cache_dir=out + "-cache",
                    num_proc=processes)
made = text.map(tokenize, batched=True, remove_columns=["text"], num_proc=processes)
array = np.memmap(out, np.uint16, "w+", shape=(sum(made["len"]),))
at = 0
for number in range(256):
    shard = made.shard(256, number, contiguous=True).with_format("numpy")
    if len(shard):
        ids = np.concatenate(shard["ids"][:])
        array[at : at + len(ids)] = ids
        at += len(ids)
array.flush()
"""


def make(folder: Path, size: int) -> None:
    """Write `size` bytes of JSON Lines in FILES files: documents of 500 to 8,000 characters."""
    plays, told, draw = shakespeare().read_text("utf-8"), "".join(stories(0, 5000)), Random(0)
    for number in range(FILES):
        left = size // FILES
        with (folder / f"{number}.jsonl").open("w") as file:
            while left > 0:
                source = plays if draw.random() < 0.7 else told
                start, length = draw.randrange(len(source) - 8000), draw.randint(500, 8000)
                text = f"{draw.getrandbits(40)} {source[start : start + length]}"
                left -= file.write(json.dumps({"text": text}) + "\n")


def tree(root: int) -> list[int]:
    """A process and all that it started."""
    found = [root]
    for pid in found:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        except OSError:
            continue
    return found


def anonymous(pid: int) -> int:
    """Bytes of memory of a process, without pages that only cache files."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)
    except OSError:
        return 0


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float, int, int]:
    """Seconds, seconds of all cores, the memory of the largest process, and of all together at their peak."""
    before, began, over = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), threading.Event()
    largest, together = [0], [0]
    process = subprocess.Popen(command, env=environment, cwd=ROOT)

    def watch() -> None:
        while not over.wait(0.1):
            sizes = [anonymous(pid) for pid in tree(process.pid)]
            largest[0], together[0] = max(largest[0], *sizes), max(together[0], sum(sizes))

    watching = threading.Thread(target=watch)
    watching.start()
    code = process.wait()
    over.set()
    watching.join()
    if code:
        sys.exit(f"{command[0]} ended with exit code {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cores = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cores, largest[0], together[0]


def main() -> None:
    """Make the text, run both, compare the ids, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the text (1000)")
    parser.add_argument("--processes", type=int, default=2, help="how many tokenize (2)")
    parser.add_argument("--other-python", help="a Python with the packages datasets and tiktoken")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        text = Path(place, "text")
        text.mkdir()
        make(text, options.megabytes * 10**6)
        size = sum(path.stat().st_size for path in text.iterdir())
        runs = {"minigpt": (sys.executable, OURS)}
        if options.other_python:
            runs["datasets"] = (options.other_python, THEIRS)
        print("| | seconds | seconds of all cores | MB per second of a core | largest process, MB | all together, MB |")
        print("|---|---|---|---|---|---|")
        for name, (python, code) in runs.items():
            paths = {"PYTHONPATH": str(ROOT)} if name == "minigpt" else {}
            variables = os.environ | paths | {"MINIGPT_DATA": f"{place}/data", "HF_HOME": f"{place}/hf"}
            command = [python, "-c", code, str(text), str(options.processes), f"{place}/{name}"]
            wall, cores, largest, together = measure(command, variables)
            memory = f"{largest / 1e6:,.0f} | {together / 1e6:,.0f} |"
            print(f"| {name} | {wall:.0f} | {cores:.0f} | {size / 1e6 / cores:.1f} | {memory}", flush=True)
        ours = np.memmap(Path(place, "minigpt"), np.uint16, mode="r")
        print(f"{size:,} bytes, {len(ours):,} ids", end="")
        if options.other_python:
            theirs = np.memmap(Path(place, "datasets"), np.uint16, mode="r")  # with one more end_of_text, at the end
            assert np.array_equal(ours, theirs[:-1])
            print(", the same ids", end="")
        print()


if __name__ == "__main__":
    main()
