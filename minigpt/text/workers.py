"""A pool of worker processes that tokenize blocks of text; their ids come back in the order of the blocks.

A worker receives the tokenizer as JSON. It does not import torch: it starts in a fraction of a second and stays small.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from minigpt.system.errors import UserError
from minigpt.system.machine import processors
from minigpt.system.process import JsonProcess, Pool, answering, messages
from minigpt.system.waiting import in_background
from minigpt.text.cuts import Failed, Piece, encode_block
from minigpt.text.seams import Before
from minigpt.text.tokenizer import Byte, Char, Ids, Tokenizer

WORTHWHILE = 16 << 20  # characters of a text for which processes are started
SERVE = "from minigpt.text.workers import serve; serve()"

Encoded = tuple[list[Piece], Ids, list[int]]  # a block, its ids (N,), and how many each piece has


def processes_for(tokenizer: Tokenizer, characters: int) -> int:
    """How many worker processes tokenize a text: one for each core, or 0, if this process does it.

    0 for short texts, for `char` and `byte`, which take less time than sending the text, and for kinds of a plugin.
    """
    kind = type(tokenizer)
    if (
        characters < WORTHWHILE
        or not kind.kind  # talks: a process could not make it from JSON
        or kind.encode in (Char.encode, Byte.encode)
        or not kind.__module__.startswith("minigpt.")
    ):
        return 0
    return processors() if processors() > 1 else 0


def encoded(blocks: Iterable[list[Piece]], tokenizer: Tokenizer, processes: int) -> Generator[Encoded, None, None]:
    """The ids of blocks, in order. At most two blocks for each process are in memory. Raises Failed.

    The processes have ended when the generator has ended, or is closed.
    """
    if not processes:
        for block in blocks:
            yield block, *encode_block(tokenizer, block)
        return
    first, variables = tokenizer.to_json(), {"OPENBLAS_NUM_THREADS": "1"}  # numpy's threads are for matrices
    pending = deque[tuple[list[Piece], Future[tuple[Ids, list[int]]]]]()
    with Pool(processes, lambda: JsonProcess(SERVE, first=first, variables=variables)) as pool:
        for block in blocks:
            pending.append((block, pool.submit(partial(encode_elsewhere, block))))
            if len(pending) >= 2 * processes:
                done, future = pending.popleft()
                yield done, *future.result()
        while pending:
            done, future = pending.popleft()
            yield done, *future.result()


def encode_elsewhere(block: list[Piece], worker: JsonProcess) -> tuple[Ids, list[int]]:
    """The ids (N,) of a block, and how many each piece has. Raises Failed, also if the process has ended."""
    worker.send(block)
    answer = worker.receive()
    if answer is None:
        code = worker.process.wait()
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        problem = f"a process that tokenizes it, and what follows, {ended}: is there enough memory?"
        raise Failed(block[0].document, problem)
    if "message" in answer:
        raise Failed(**answer)
    return np.frombuffer(base64.b64decode(answer["ids"]), "<u4").astype(np.int64), answer["counts"]  # (N,)


def serve() -> None:
    """Answer until stdin ends: for each block, how many ids each piece has and the ids, or what has failed."""
    with suppress(BrokenPipeError), in_background():  # the process that asks shows the progress
        tokenizer, mistake, requests, send = None, "", messages(), answering()
        try:
            tokenizer = Tokenizer.from_json(next(requests, None))
        except UserError as error:
            mistake = str(error)
        for pieces in requests:
            block = [Piece(document, n, text, Before(*before)) for document, n, text, before in pieces]
            try:
                if tokenizer is None:
                    raise Failed(block[0].document, mistake)
                ids, counts = encode_block(tokenizer, block)
                raw = base64.b64encode(ids.astype("<u4").tobytes())
                answer: dict[str, Any] = {"counts": counts, "ids": raw.decode()}
            except Failed as error:
                answer = {"document": error.document, "message": error.message}
            send(answer)
