"""A pool of worker processes that tokenize blocks of text; their ids come back in the order of the blocks.

A worker receives the tokenizer as JSON. It does not import torch: it starts in a fraction of a second and stays small.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import numpy as np

from minigpt.system.errors import UserError
from minigpt.system.process import IGNORE_SIGINT, python_command
from minigpt.system.waiting import in_background
from minigpt.text.cuts import Failed, Piece, encode_block
from minigpt.text.seams import Before
from minigpt.text.tokenizer import Byte, Char, Ids, Tokenizer

WORTHWHILE = 16 << 20  # characters of a text for which processes are started
LENGTH = struct.Struct("<Q")  # in front of each message
# `import minigpt` would import torch, so an empty module with the path of the package takes its place.
STATEMENT = f"""{IGNORE_SIGINT}
import types
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


class Worker:
    """A worker process. It has its own session: Ctrl-C reaches only the main process, which ends the worker."""

    def __init__(self, tokenizer: Tokenizer):
        pipe = subprocess.PIPE
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # numpy starts threads for matrices, of which there are none
        command = python_command(STATEMENT)
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, env=env)
        with suppress(BrokenPipeError):
            self._send(json.dumps(tokenizer.to_json()).encode())

    def _send(self, message: bytes) -> None:
        assert self.process.stdin
        write(self.process.stdin, message)

    def encode(self, block: list[Piece]) -> tuple[Ids, list[int]]:
        """The ids (N,) of a block, and how many each piece has. Raises Failed, also if the process has ended."""
        assert self.process.stdout
        try:
            self._send(json.dumps(block, ensure_ascii=False).encode("utf-8", "surrogatepass"))
            answer = json.loads(read(self.process.stdout))
            if isinstance(answer, dict):
                raise Failed(**answer)
            return np.frombuffer(read(self.process.stdout), "<u4").astype(np.int64), answer  # (N,)
        except (BrokenPipeError, EOFError):
            code = self.process.wait()
            ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            what = f"a process that tokenizes it, and what follows, {ended}: is there enough memory?"
            raise Failed(block[0].document, what) from None

    def end(self) -> None:
        """Wait until the killed process has ended, and close its pipes."""
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with suppress(BrokenPipeError):
                    pipe.close()


def write(stream: IO[bytes], message: bytes) -> None:
    """Send a message."""
    stream.write(LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def read(stream: IO[bytes]) -> bytes:
    """Wait for a message. Raises EOFError where the other process has ended."""
    length = stream.read(LENGTH.size)
    message = stream.read(*LENGTH.unpack(length)) if len(length) == LENGTH.size else b""
    if len(length) < LENGTH.size or len(message) < LENGTH.unpack(length)[0]:
        raise EOFError
    return message


def serve() -> None:
    """Answer until stdin ends: for each block, how many ids each piece has and the ids, or what has failed."""
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    with suppress(EOFError, BrokenPipeError), in_background():  # the process that asks shows the progress
        tokenizer, mistake = None, ""
        try:
            tokenizer = Tokenizer.from_json(json.loads(read(source)))
        except UserError as error:
            mistake = str(error)
        while True:
            sent = json.loads(read(source).decode("utf-8", "surrogatepass"))
            block = [Piece(document, n, text, Before(*before)) for document, n, text, before in sent]
            try:
                if tokenizer is None:
                    raise Failed(block[0].document, mistake)
                ids, counts = encode_block(tokenizer, block)
            except Failed as error:
                write(answers, json.dumps({"document": error.document, "message": error.message}).encode())
                continue
            write(answers, json.dumps(counts).encode())
            write(answers, ids.astype("<u4").tobytes())
