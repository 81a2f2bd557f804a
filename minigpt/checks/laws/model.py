"""The laws of a GPT: embeddings of tokens and positions, blocks one after the other, a final norm, and a head.

Each block obeys the laws of a block, with its number in the sentence.

B batch, T positions, V vocabulary, D width of the stream, L blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from minigpt.attention.position import angles
from minigpt.checks.laws.block import norm_of, of_block, one_stream, parts_of, plus, step, two_parts
from minigpt.checks.laws.law import Judged, Saw, Wanted, judged, law
from minigpt.checks.laws.parts import (
    ASKED,
    KNOWN,
    OF_NORMS,
    Model,
    activated,
    attentions,
    in_words,
    of_two_layers,
    used,
)
from minigpt.checks.reading.meanings import Atom, Const, Feature, Param
from minigpt.checks.reading.parts import Node, Parts, Stream
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.structure import Broken, Ends, Note

Saws = Iterator[Saw]
CHAIN = "for block in self.blocks: x = block(x)"
SUM = "x = tokens(ids) + position(torch.arange(T))"
END = "return self.head(self.norm(x)): the final norm, then the head"


@dataclass
class Gpt(Model):
    """A model of ids that was read. `logits`: the meanings (B, T, V) of what it returned."""

    logits: Ids = field(default_factory=lambda: np.zeros((0, 0, 0), np.int64))
    factor: float = 1.0
    """What the logits are multiplied by."""

    @property
    def blocks(self) -> list[list[Node]]:
        """The parts, two by two."""
        parts = parts_of(self)
        return [parts[i : i + 2] for i in range(0, len(parts), 2)]

    @property
    def is_post(self) -> bool:
        """Whether the first attention reads the embeddings themselves, and the sum with it is normed."""
        first = next(iter(self.of_kind("attention")), None)
        reads = first.reads[0] if first is not None and first.reads else {}
        return first is not None and not is_norm(reads) and norm_of(self, plus(reads, first)) is not None

    @property
    def start(self) -> Stream:
        """The stream that the first block reads."""
        attention = next(iter(self.of_kind("attention")), None)
        return step(attention, {}).base if attention is not None else self.stream

    @property
    def end(self) -> Stream:
        """The stream behind the last block, before the final norm."""
        stream, last = self.stream, parts_of(self)[-1:]
        while is_norm(stream) and not (self.is_post and any(part in next(iter(stream)).reads[0] for part in last)):
            stream = next(iter(stream)).reads[0]
        return stream


def is_norm(stream: Stream) -> bool:
    """Whether a stream is one norm."""
    return [node.kind for node in stream] == ["norm"]


@law("the logits are a linear map of the last stream, for each token", END)
def logits_of(model: Gpt, wanted: Wanted) -> Saws:
    of = model.parts.of
    for b, t in np.ndindex(*model.logits.shape[:2]):
        tokens = of.tokens(of.row(model.logits[b, t].tolist()))
        if tokens != ((b, t),):
            yield Saw(of.made_at[int(model.logits[b, t, 0])], f"the logits of the tokens {tokens[:3]} (text, position) "
                       f"stand at the place of token {t} of text {b}", "its own")  # fmt: skip
    if abs(model.factor - 1) > 1e-6:
        yield Saw(of.made_at[int(model.logits[0, 0, 0])], f"the logits are multiplied by {model.factor:.4g}", "by 1")


@law("the first block reads the embeddings of the tokens plus those of their positions", SUM)
def embedded(model: Gpt, wanted: Wanted) -> Saws:
    start, D = model.start, len(model.parts.output[0, 0])
    if is_norm(start) and is_norm(model.stream):
        yield Saw(next(iter(start)).line, "the embeddings are normed first, as in BLOOM", "as they are", "",
                  "normed embeddings")  # fmt: skip
        start = next(iter(start)).reads[0]
    tokens = [node for node in start if node.kind == "embedding"]
    added = [node for node in start if node.kind in ("parameter", "constant")]
    line = tokens[0].line if tokens else 0
    for node in start:
        if node.kind == "norm" and not is_norm(model.stream):
            yield Saw(node.line, "the final norm is applied to the embeddings, not behind the last block", "behind it")
        elif node.kind == "other":
            yield Saw(node.line, "token and position embeddings are multiplied instead of added", "added")
    for node in model.of_kind("norm"):
        stream = node.reads[0]
        if any(stream[one] > 1.01 * max(stream.get(token, 0.0), 1.0) for one in stream if one in added
               for token in tokens):  # fmt: skip
            yield Saw(node.line, "the position embeddings are added again before every block", "once")
    if len(tokens) > 1:
        yield Saw(tokens[1].line, "the position table is read with the ids of the tokens, not with their positions",
                  SUM)  # fmt: skip
    elif not tokens:
        bare = any(node.kind in ("parameter", "constant") for node in start)
        yield Saw(line, "the blocks read the positions alone: the token embeddings are overwritten" if bare else
                  f"the first block reads {in_words(start)}", "embeddings of the ids")  # fmt: skip
    for node in tokens:
        root = abs(start[node] - D**0.5) < 1e-6
        if root and all(abs(start[other] - 1) < 1e-6 for other in added):
            yield Saw(line, "the token embeddings are multiplied by sqrt(D), as in the first Transformer", "left alone",
                      "", "scaled embeddings")  # fmt: skip
        elif abs(start[node] - 1) > 1e-6:
            yield Saw(line, f"the embeddings are multiplied by {start[node]:.4g}", "as they are")
    for node in added:
        if abs(start[node] - 1) > 1e-6:
            yield Saw(node.line, f"the position embeddings are added {start[node]:.4g} times", "once")
    rotary = bool(wanted.rotary or model.conventions & {"rotary", "partial rotary", "alibi", "relative"})
    late = [node for node in model.of_kind("parameter", "constant") if node not in start]
    if not added and late and not rotary:
        yield Saw(late[0].line, "the position embeddings are added behind the first block, or later", "before it")
    elif not added and not rotary and wanted.kind.position.kind != "alibi" and not is_norm(start):
        yield Saw(line, "no position is added to the token embeddings: the model cannot tell the order of the tokens "
                  "but by its mask", SUM)  # fmt: skip


@law("token t gets the position t", "positions 0, 1, ..., T - 1: self.position(torch.arange(T))")
def at_positions(model: Gpt, wanted: Wanted) -> Saws:
    of, tables = model.parts.of, dict[str, dict[tuple[int, int], int]]()
    sums: dict[tuple[int, int], dict[int, float]] = {}
    line, D, reading = 0, model.parts.output.shape[-1], model.parts.reading
    for number, atom in enumerate(list(of.all)):
        if not isinstance(atom, Atom) or atom.op not in ("bias", "sum") or len(of.numbers_in(atom.row)) > 2:
            continue
        inside = [*of.numbers_in(atom.row), *of.numbers_in(atom.column)]
        places = [of[of[one].terms[0][0]].place for one in inside if model.parts.algebra.op(one) == "embedding"]
        for one in inside if places else ():
            token = of.tokens(of.row(inside[:1]))[0]
            if isinstance(param := of[one], Param) and places[0] == 0 and (
                reading.names.get(param.made_of[0], 0) > D):  # fmt: skip
                tables.setdefault(param.made_of[0], {})[token] = param.made_of[1] // D
                line = of.made_at[number]
            elif isinstance(of[one], Const):
                sums.setdefault(token, {})[places[0]] = of[one].value
    for rows in tables.values():
        if any(row != t for (_, t), row in rows.items()):
            yield Saw(line, rows_in_words(rows, model.logits.shape[1], model.logits.shape[0]), "row t for token t")
    if sums:
        yield from sines(model, sums)


def sines(model: Gpt, sums: dict[tuple[int, int], dict[int, float]]) -> Saws:
    """Constants that are added to embeddings: the sines and cosines of the first Transformer, or others by position."""
    D, (B, T) = model.parts.output.shape[-1], model.logits.shape[:2]
    values = np.array([[[sums.get((b, t), {}).get(j, 0.0) for j in range(D)] for t in range(T)] for b in range(B)])
    line = next(node.line for node in [*model.of_kind("constant"), *model.nodes])
    if B > 1 and np.abs(values - values[:1]).max() > 1e-9:
        over = (
            "the position is the number of the sequence in the batch, not that of the token: positions are added along "
        )
        yield Saw(line, f"{over}the batch", "along the positions")
    elif len(np.unique(values[0].round(9), axis=0)) < T:
        yield Saw(line, "several tokens get the same position: the order of the tokens is lost",
                  "one for each position")  # fmt: skip
    else:
        waves = angles(0, T, D + D % 2, 10_000.0, torch.device("cpu"))  # (T, D / 2)
        right = torch.cat((waves.sin(), waves.cos()), -1)[:, :D].numpy()
        known = D % 2 == 0 and np.abs(np.sort(values[0], 1) - np.sort(right, 1)).max() < 1e-5
        words = "sines and cosines" if known else "constants of another kind than the first Transformer's"
        yield Saw(line, f"the positions are {words}, as in the first Transformer", "a learned table", "", "sinusoidal")


def rows_in_words(rows: dict[tuple[int, int], int], T: int, B: int) -> str:
    """Which rows of the table of positions are read."""
    known: dict[str, Callable[[int, int], int]] = {
        "the position is the number of the sequence in the batch, not that of the token: positions are added along the "
        "batch": lambda b, t: b,
        "the positions start at 1 instead of 0": lambda b, t: t + 1,
        "every token gets the position 0: the order of the tokens is lost": lambda b, t: 0,
        "every token gets the same position, T - 1": lambda b, t: T - 1,
        "every token gets the same position, T": lambda b, t: T,
        "the positions are counted backwards: the first token has T - 1": lambda b, t: T - 1 - t,
    }
    last = max(rows.values())
    known["the positions are read from the end of the table, its last T rows"] = lambda b, t: last - (T - 1 - t)
    return next((words for words, rule in known.items() if all(rule(b, t) == row for (b, t), row in rows.items())),
                f"the tokens of text 0 get the positions {[rows.get((0, t)) for t in range(T)]}")  # fmt: skip


@law("each block reads what the block before it returned, and each has weights of its own", CHAIN)
def chained(model: Gpt, wanted: Wanted) -> Saws:
    attentions_, unused = model.of_kind("attention"), unused_blocks(model)
    bases = [step(node, {}).base for node in attentions_ if node.reads]
    if not attentions_:
        yield Saw(0, "no block counts: what the blocks return is thrown away", CHAIN)
    elif len(bases) > 1 and all(base == bases[0] for base in bases):
        yield Saw(attentions_[1].line, "every block reads the embeddings, and their outputs are summed up", CHAIN)
    names = [node.names for node in attentions_]
    if len(set(names)) < len(names) and all(names):
        more = f", and {', '.join(unused)} never" if unused else ": the layers share their weights"
        yield Saw(attentions_[0].line, f"one and the same block is used {max(map(names.count, names))} times{more}",
                  "a new block for every layer, each once")  # fmt: skip
    elif unused:
        yield Saw(attentions_[-1].line if attentions_ else 0, f"{', '.join(unused)} never counts: a block is left out, "
                   f"or only the last of the blocks counts because each block reads the embeddings", CHAIN)  # fmt: skip
    numbers = [int(digits[0]) for one in names if one and (digits := re.findall(r"(?<=\.)\d+(?=\.)", min(one)))]
    if len(numbers) == len(names) > 1 and numbers == sorted(numbers, reverse=True) and len(set(numbers)) > 1:
        yield Saw(attentions_[0].line, "the blocks are used in reverse order", CHAIN)


def unused_blocks(model: Model) -> list[str]:
    """The blocks of which nothing is used: lists of modules have numbers in the names of their parameters."""
    names = set(model.head).union(model.parts.biases, *(node.names for node in model.nodes))
    block = {name: match[1] for name in model.parts.reading.names if (match := re.match(r"(.*?\.\d+)\.", name))}
    alive = {block[name] for name in names if name in block}
    alike = [one for one in dict.fromkeys(block.values()) if one.rpartition(".")[0] in {
        two.rpartition(".")[0] for two in block.values() if two != one}]  # fmt: skip
    return [one for one in alike if one not in alive] if len(alike) > 1 else []


@law("in each block, each part reads the norm of the stream, and what it returns is added to the stream",
     "h = x + attention(norm1(x)); return h + mlp(norm2(h))")  # fmt: skip
def blocks(model: Gpt, wanted: Wanted) -> Saws:
    x, listed = model.start, model.blocks
    if listed and is_attention_alone(model):
        yield Saw(listed[0][0].line, "there are attentions alone, each with its norm and its residual", "an attention, "
                  "then an MLP", "", "attention alone")  # fmt: skip
        return
    for number, parts in enumerate(listed, start=1):
        kinds = [part.kind for part in parts]
        where = f"in block {number}: "
        if kinds != ["attention", "mlp"]:
            yield Saw(parts[0].line, f"{where}it is {', then '.join(kinds)}", "an attention, then an MLP")
            return
        out = model.end
        if number < len(listed) and listed[number][0].reads:
            following = listed[number][0]
            out = following.reads[0] if model.is_post else step(following, {}).base
        every = norm_of(model, out) if len(out) > 1 else None
        if number < len(listed) and is_norm(out) and not model.is_post and every is None:
            yield Saw(next(iter(out)).line, "the final norm is applied behind every block", "behind the last one")
            return
        yield from of_block(model, x, parts, out, where)
        x = out


def is_attention_alone(model: Gpt) -> bool:
    """Whether a model is a chain of attentions, each of which reads the norm of the stream that it is added to."""
    x = model.start
    for node in parts_of(model):
        one = step(node, x)
        if node.kind != "attention" or one.base != x or one.norm is None:
            return False
        x = plus(x, node)
    return model.end == x


@law("a final norm stands between the last block and the head", END)
def final_norm(model: Gpt, wanted: Wanted) -> Saws:
    line = model.parts.line(int(model.logits[0, 0, 0]))
    if is_norm(model.stream) and is_norm(inner := next(iter(model.stream)).reads[0]) and inner is not model.end:
        yield Saw(line, "the final norm is applied twice", "once")
    elif model.end is model.stream and model.is_post:
        yield Saw(line, "there is no norm before the head, as in GPT-1: post-norm", "one", "", "no final norm")
    elif model.end is model.stream:
        of_toys = "attention alone" if is_attention_alone(model) else "bare end"
        yield Saw(line, "the final norm is missing before the head", "one behind the last block", "", of_toys)


GPT_LAWS = (logits_of, of_two_layers, two_parts, one_stream, attentions, chained, embedded, at_positions, blocks,
            final_norm, *OF_NORMS, activated, used)  # fmt: skip


def judge_gpt(reading: Reading, logits: Ids, wanted: Wanted) -> Judged:
    """A model whose logits (B, T, V) were read; `wanted`: what its attention should be. Raises Ends."""
    of, notes = reading.of, list[Note]()
    parts = Parts(reading, logits)
    first = of[int(logits[0, 0, 0])]
    if isinstance(first, Feature) and [of[atom].op for atom, _ in first.terms][1:] == ["logsumexp"]:
        notes.append(Note("the model returns logits", "log_softmax is applied to them", "logits", "return them as "
                   "they are",
                          parts.line(int(logits[0, 0, 0])), "", "log softmax"))  # fmt: skip
        flat = [of(Feature(of.tokens(one), of[one].terms[:1])) for one in logits.ravel().tolist()]
        logits = np.array(flat, dtype=np.int64).reshape(logits.shape)
    layers = np.array([parts.layer(one) for one in logits[..., 0].ravel().tolist()] + [None], dtype=object)[:-1]
    if any(layer is None for layer in layers):
        return Judged([not_logits(parts, int(logits[0, 0, 0]))], [], 2)
    rows = [of.numbers_in(layer.row) for layer in layers]
    parts.output = np.array(rows, dtype=np.int64).reshape(*logits.shape[:2], -1)
    names, factor = parts.names_in((int(logits[0, 0, 0]),)), of[int(logits[0, 0, 0])].terms[0][1]
    model = Gpt(parts, parts.stream(rows[0]), True, names, wanted, logits=logits, factor=factor)
    judgement = judged(model, replace(wanted, allows=KNOWN | (wanted.allows & ASKED)), GPT_LAWS)
    return judgement._replace(notes=[*notes, *judgement.notes])


def not_logits(parts: Parts, number: int) -> Broken:
    """What was done to the logits, if they are not the head's output as it is. Raises Ends for an unknown operation."""
    op = parts.algebra.op(number)
    words = {"softmax": "a softmax is applied to the logits: you return probabilities, and cross entropy would take a "
             "second one", "relu": "relu is applied to the logits: none can be negative"}.get(op, "")  # fmt: skip
    if not words:
        raise Ends(op or parts.of.word(number), parts.of.line_of(number), "logits are expected")
    return Broken("the model returns logits", words, "the head's output as it is", "return it; F.cross_entropy and "
               "sampling take the softmax themselves", parts.line(number))  # fmt: skip
