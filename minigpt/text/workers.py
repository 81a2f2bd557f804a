"""A pool of worker processes that tokenize blocks of text; their ids come back in the order of the blocks.

A worker receives the tokenizer as JSON. It does not import torch: it starts in a fraction of a second and stays small.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from minigpt.system.errors import UserError
from minigpt.system.process import JsonProcess, messages
from minigpt.system.waiting import in_background
from minigpt.text.cuts import Failed, Piece, encode_block
from minigpt.text.seams import Before
from minigpt.text.tokenizer import Byte, Char, Ids, Tokenizer

WORTHWHILE = 16 << 20  # characters of a text for which processes are started
# `import minigpt` would import torch, so an empty module with the path of the package takes its place.
SERVE = f"""import sys, types
sys.modules["minigpt"] = package = types.ModuleType("minigpt")
package.__path__ = [{str(Path(__file__).parents[1])!a}]
from minigpt.text.workers import serve
serve()"""

Encoded = tuple[list[Piece], Ids, list[int]]  # a block, its ids (N,), and how many each piece has


def processes_for(tokenizer: Tokenizer, characters: int) -> int:
    """How many worker processes tokenize a text: one for each core, or 0, if this process does it.

    0 for short texts, for `char` and `byte`, which take less time than sending the text, and for kinds of a plugin.
    """
    kind = type(tokenizer)
    if (
        characters < WORTHWHILE
        or kind.encode in (Char.encode, Byte.encode)
        or not kind.__module__.startswith("minigpt.")
    ):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if cores > 1 else 0


def encoded(blocks: Iterable[list[Piece]], tokenizer: Tokenizer, processes: int) -> Generator[Encoded, None, None]:
    """The ids of blocks, in order. At most two blocks for each process are in memory. Raises Failed.

    The processes have ended when the generator has ended, or is closed.
    """
    if not processes:
        for block in blocks:
            yield block, *encode_block(tokenizer, block)
        return
    workers, free = list[Worker](), SimpleQueue[Worker]()

    def ask(block: list[Piece]) -> tuple[Ids, list[int]]:
        worker = free.get()
        try:
            return worker.encode(block)
        finally:
            free.put(worker)

    pending = deque[tuple[list[Piece], Future[tuple[Ids, list[int]]]]]()
    executor = ThreadPoolExecutor(processes)
    try:
        for _ in range(processes):
            workers.append(Worker(tokenizer))
            free.put(workers[-1])
        for block in blocks:
            pending.append((block, executor.submit(ask, block)))
            if len(pending) >= 2 * processes:
                done, future = pending.popleft()
                yield done, *future.result()
        while pending:
            done, future = pending.popleft()
            yield done, *future.result()
    finally:
        for worker in workers:
            worker.process.kill()  # so that a thread that waits for it continues
        executor.shutdown(cancel_futures=True)
        for worker in workers:
            worker.end()


class Worker(JsonProcess):
    """A worker process. It has its own session: Ctrl-C reaches only the main process, which ends the worker."""

    def __init__(self, tokenizer: Tokenizer):
        # numpy starts threads for matrices, of which there are none
        super().__init__(SERVE, variables={"OPENBLAS_NUM_THREADS": "1"})
        self.send(tokenizer.to_json())

    def encode(self, block: list[Piece]) -> tuple[Ids, list[int]]:
        """The ids (N,) of a block, and how many each piece has. Raises Failed, also if the process has ended."""
        self.send(block)
        answer = self.receive()
        if answer is None:
            code = self.process.wait()
            ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            what = f"a process that tokenizes it, and what follows, {ended}: is there enough memory?"
            raise Failed(block[0].document, what)
        if "message" in answer:
            raise Failed(**answer)
        return np.frombuffer(base64.b64decode(answer["ids"]), "<u4").astype(np.int64), answer["counts"]  # (N,)


def serve() -> None:
    """Answer until stdin ends: for each block, how many ids each piece has and the ids, or what has failed."""
    with suppress(BrokenPipeError), in_background():  # the process that asks shows the progress
        tokenizer, mistake, asked = None, "", messages()
        try:
            tokenizer = Tokenizer.from_json(next(asked, None))
        except UserError as error:
            mistake = str(error)
        for pieces in asked:
            block = [Piece(document, n, text, Before(*before)) for document, n, text, before in pieces]
            try:
                if tokenizer is None:
                    raise Failed(block[0].document, mistake)
                ids, counts = encode_block(tokenizer, block)
                raw = base64.b64encode(ids.astype("<u4").tobytes())
                answer: dict[str, Any] = {"counts": counts, "ids": raw.decode()}
            except Failed as error:
                answer = {"document": error.document, "message": error.message}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
