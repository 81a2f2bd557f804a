"""Datasets: ids on disk -> (x, y), the inputs and the targets of a model.

A corpus is tokenized once, into a file of ids that is mapped into memory: a text may be larger than memory, and the
next run starts at once. Batch number n is a pure function of (seed, n). The windows of an evaluation contain every
target of their split exactly once.

N ids of the corpus   B windows of a batch   T ids of a window (`block_size`)   W windows of a split
y[:, t] is the id that follows x[:, t] in the text, or IGNORED where the window is longer than the text. In the texts of
a task, and in a chat, only the answers are targets and all other positions are IGNORED; T is then the length of the
longest text in the batch.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch

from minigpt.config.options import MOST, Options, Range
from minigpt.system.errors import Mistake, UserError
from minigpt.system.terminal import printable
from minigpt.system.waiting import progress
from minigpt.text import corpus as corpora
from minigpt.text.chat import Talking, Whole, whole_turns
from minigpt.text.corpus import Corpus, open_corpus
from minigpt.text.formats import UTF8, text_encoding
from minigpt.text.ids import Numbers, check_size, ids_on_disk
from minigpt.text.languages.language import Language, StoriesConfig
from minigpt.text.languages.tasks import Task
from minigpt.text.order import Packed, PackedWhole, draws, window_order
from minigpt.text.source import Source
from minigpt.text.talks import FieldNames, turns_of
from minigpt.text.tokenizer import Char, Tokenizer

IGNORED = -100  # the target that torch.nn.functional.cross_entropy leaves out

Split = Literal["train", "val"]
Batch = tuple[torch.Tensor, torch.Tensor]  # x (B,T), y (B,T), int64
ALL = slice(None)
SHOWN = 1000  # characters of a talk


@dataclass(frozen=True, kw_only=True)
class DataConfig(Options):
    """The text, the tokenizer and the windows."""

    source: str | Task.Config | Source.Config = "stories"
    """A name (stories, shakespeare), a task with its options ({kind: recall, pairs: [4, 8]}, or its name alone), a
    source of a plug-in in the same way, or the path of a file, a folder or a glob: of text, JSON Lines (.jsonl) and
    Parquet, each also compressed (.gz, .zst)."""
    field: str = "text"
    """The field of JSON Lines, and the column of Parquet, that has the text. Each line and each row is a document."""
    encoding: str = UTF8
    """How the characters of text files and JSON Lines are written: utf-8, latin-1, cp1252, shift_jis or another text
    encoding that Python knows. Where a file begins with a byte-order mark of UTF-8, UTF-16 or UTF-32, that counts."""
    format: Literal["text", "chat"] = "text"
    """What a document is. `chat`: a talk, a line of JSON Lines in the form of `messages`, `conversations`,
    `instruction` and `output`, or `prompt` and `completion`. One longer than the context loses turns at its end."""
    fields: FieldNames = FieldNames()
    """The names of the fields of a chat, where they are not the usual ones."""
    learn: Literal["answers", "everything"] = "answers"
    """What of a chat is learned: the answers, each with its end, or the questions and the roles too. An evaluation is
    on the answers in either case."""
    bad_files: Literal["pass_over", "refuse"] = "pass_over"
    """What to do with files in a folder, and with lines of JSON Lines, that cannot be used. `pass_over`: they are
    counted and left out, and the first are named. `refuse`: the first is an error."""
    tokenizer: Tokenizer.Config = Char.Config()
    """How text becomes ids."""
    stories: StoriesConfig = StoriesConfig()
    """The stories of the source `stories`."""
    validation: Annotated[float, Range(0, 1, open_low=True, open_high=True)] | Annotated[int, Range(2, MOST)] | str = (
        0.1
    )
    """How much of the text, at its end, is for validation: a fraction of its tokens (0.1), or a number of tokens
    (100_000), which keeps evaluations short for a text of any size. It begins with a document if one begins near:
    within 1 % of the text, or of that number. 1 is refused, because it could mean all or one. Or a number of documents
    (100 documents); or a text of its own, the path of a file, a folder or a glob. For the stories, see
    `stories.validation`."""
    windows: Literal["random", "shuffled", "documents", "packed"] = "random"
    """Where windows start. `random`: anywhere. `shuffled`: side by side in a random order, each once in an epoch; every
    epoch has another offset and another order. `documents`: at the start of a document, then side by side up to its
    end, so that no window contains text of two documents; the rest of the last one is padding. `packed`: documents are
    joined in a random order, another one in every epoch, and the windows are side by side, without padding."""
    attend: Literal["window", "document"] = "window"
    """What a token attends to in training. `window`: all earlier tokens of its window. `document`: only those of its
    own document, whose first token is at position 0; an evaluation then uses windows as with `documents`."""

    @property
    def divides(self) -> bool:
        """Whether a training window is divided into documents that do not see one another."""
        return self.attend == "document" and self.windows != "documents"

    @property
    def language(self) -> Language | None:
        """The built-in language of the source; None for a text."""
        return corpora.language_of(self.source, self.stories)

    def open(self) -> Corpus:
        """The text, and after it the one for validation, if that has files of its own. Raises UserError and OSError, as
        `open_corpus` does."""
        field = self.fields if self.format == "chat" else self.field
        how = field, self.bad_files == "refuse", text_encoding(self.encoding) or UTF8
        corpus = open_corpus(self.source, self.stories, *how)
        if corpus.language is not None or not isinstance(self.validation, str) or self.validation_documents:
            return corpus
        return corpus.followed_by(open_corpus(self.validation, self.stories, *how, "data.validation"))

    @property
    def validation_documents(self) -> int:
        """The number of documents for validation, as in `validation: 100 documents`; 0 if it is not given so."""
        words = re.fullmatch(r"([1-9][\d_,]{0,11}) documents?", str(self.validation))
        return int(re.sub("[_,]", "", words[1])) if words else 0

    def mistakes(self) -> Iterator[Mistake]:
        """Refuses an empty path, which would mean the current directory, and windows that cut the texts of a task."""
        if isinstance(self.source, str) and not self.source.strip():
            yield "source", f"expected a name ({', '.join(corpora.NAMES)}) or a path, found an empty text"
        if isinstance(self.validation, str) and (not self.validation.strip() or self.validation in corpora.NAMES):
            expected = "a fraction (0.1), a number of tokens (100_000), or of documents (100 documents), or a path"
            yield "validation", f"expected {expected}, found {self.validation!r}"
        if text_encoding(self.encoding) is None:
            problem = f"expected a text encoding, such as utf-8, latin-1 or cp1252, found {self.encoding[:40]!r}"
            yield "encoding", problem
        if isinstance(language := self.language, Task) and not language.talks and self.windows != "documents":
            yield "windows", f"the texts of a task are seen whole: expected documents, found {self.windows}"
        yield from self._mistakes_of_a_chat()

    def _mistakes_of_a_chat(self) -> Iterator[Mistake]:
        chat, language = self.format == "chat", self.language
        if chat and (self.source == "shakespeare" or (language is not None and not language.talks)):
            yield "format", f"{language.plural if language else self.source} are not talks: expected text, found chat"
        if chat and (isinstance(self.source, Source.Config) or self.source in Source.kinds):
            yield "format", "a source of your own makes texts, not talks: expected text, found chat"
        if not chat and language is not None and language.talks:
            yield "format", f"{language.plural} are talks: expected chat, found text"
        if chat and self.windows not in ("documents", "packed"):
            yield "windows", f"a talk is not cut anywhere: expected documents or packed, found {self.windows}"
        if chat and self.windows == "packed" and self.attend != "document":
            yield "attend", "a talk would see others in its window: expected document with packed talks, found window"
        if not chat and self.learn != "answers":
            yield "learn", "only a chat has answers to tell apart: leave it out, or set format: chat"
        if not chat and self.fields != FieldNames():
            yield "fields", "they are those of a chat: set format: chat, or give the name of the text as field"


class Dataset:
    """The ids of a corpus, in two splits, `train` and `val`.

    With `windows: documents` or `packed`, the last target of a document is the first id of the next one. So a model
    learns where a text ends.
    """

    def __init__(self, config: DataConfig, corpus: Corpus, tokenizer: Tokenizer, block_size: int):
        """Tokenizes the corpus unless its ids are on disk. Raises UserError if a split is shorter than a window."""
        self.config, self.block_size, self.tokenizer = config, block_size, tokenizer
        self.talking = Talking(tokenizer) if config.format == "chat" else None
        self.ids, self.document_starts = ids_on_disk(corpus, self.talking or tokenizer)  # (N,), (documents,)
        self._front = int(
            tokenizer.end_of_text not in (None, tokenizer.begin_of_text)
        )  # ids before all documents but one
        known = None if self.talking else corpus.language
        self.answer_mask = None if known is None else self._answers(corpus, known, tokenizer)  # (N,)
        cut = self._cut(corpus)
        self.splits = {"train": range(cut), "val": range(cut, len(self.ids))}
        for split, indices in self.splits.items():
            if len(indices) < block_size + 1 and self.talking is None:
                problem = f"the {split} split of {corpus.source} has {len(indices):,} of its {len(self.ids):,} ids"
                need = f"one window takes model.block_size + 1 = {block_size + 1:,}"
                now = as_text(config.validation)
                hint = f"give it more text, a smaller block_size, or another data.validation than {now}"
                raise UserError(f"data.source: {problem}, and {need}: {hint}")
        self._check_documents(corpus)
        self.talks = None if self.talking is None else self._talks(corpus)
        self.question = self._question(corpus) if self.talking and corpus.language is None else ""
        aligned = config.windows == "documents" or config.attend == "document"
        # Computed on first use: for a large text they take 8 bytes a window, or a document, and more.
        self._windows = lru_cache(lambda split: self._cover(self.splits[split], aligned))
        self._packed = lru_cache(self._pack)

    @cached_property
    def byte_counts(self) -> Numbers:
        """How many bytes of text each id stands for, (V,): `Tokenizer.byte_counts`."""
        return self.tokenizer.byte_counts()

    def _check_documents(self, corpus: Corpus) -> None:
        """Raises UserError if packing or dividing a text would do nothing, because training has one document."""
        single = int((self.document_starts < self.splits["train"].stop).sum()) <= 1
        problem = f"{corpus.source} has a single document to train on"
        files = "make each document a file, or a line of JSON Lines"
        if single and self.config.windows == "packed":
            raise UserError(f"data.windows: {problem}, nothing to pack: use data.windows=shuffled, or {files}")
        if single and self.config.divides:
            raise UserError(f"data.attend: {problem}, which every window is within: leave it out, or {files}")

    def in_both(self) -> tuple[int, int]:
        """How many documents for validation have the ids of one for training, and how many there are in all."""
        begins, ends = self.document_starts.copy(), np.append(self.document_starts[1:], len(self.ids))
        begins[1:] += self._front
        lengths, cut = ends - begins, self.splits["val"].start  # (documents,)
        first = int(np.searchsorted(self.document_starts, cut))  # of those for validation

        def digest(n: int) -> bytes:
            return hashlib.sha256(self.ids[int(begins[n]) : int(ends[n])].tobytes()).digest()

        counts = Counter(map(digest, range(first, len(begins))))
        alike = np.flatnonzero(np.isin(lengths[:first], lengths[first:]) & (ends[:first] <= cut)).tolist()
        watched = progress(alike, "comparing documents", len(alike), "documents")
        return sum(counts[each] for each in {digest(n) for n in watched}), len(begins) - first

    def _cut(self, corpus: Corpus) -> int:
        """The index of the first id for validation: of the first validation story, or by `data.validation`."""
        config, language = self.config, corpus.language
        if language is None:
            documents = corpus.validation or config.validation_documents
            if documents >= len(self.document_starts):
                problem = f"{corpus.source} has {len(self.document_starts):,} documents, and {documents:,}"
                raise UserError(f"data.validation: {problem} for validation leave none for training")
            if isinstance(config.validation, str):
                return int(self.document_starts[-documents])
            whole = self.talking is not None
            return _cut(len(self.ids), self.document_starts, config.validation, corpus.source, whole)
        if config.validation != DataConfig.validation:
            option = "source" if isinstance(language, Task) else "stories"
            hint = f"set data.{option}.validation, now {language.config.validation:,} {language.plural}"
            raise UserError(f"data.validation: the {language.plural} have new ones for validation: {hint}")
        if language != config.language:
            raise ValueError("the corpus has other options: use config.open()")
        return int(self.document_starts[-language.config.validation])

    def _answers(self, corpus: Corpus, language: Language, tokenizer: Tokenizer) -> npt.NDArray[np.bool_] | None:
        """Which ids are answers, (N,) bool; None: all are targets. Raises UserError if a text does not fit a window."""
        texts = list(corpus.documents())
        if language.answers(texts[0]) is None:
            return None
        lengths = np.diff(self.document_starts, append=len(self.ids))  # (documents,)
        front = np.full(len(lengths), self._front)  # (documents,): an end of text stands there
        front[0] = 0
        if (lengths - front).tolist() != list(map(len, texts)):
            problem = f"the answers of {corpus.source} are single characters"
            raise UserError(f"data.tokenizer: {problem}, which need an id each: use data.tokenizer=char")
        if (longest := int(lengths.max())) > self.block_size:
            problem = f"a text of {corpus.source} has {longest} characters"
            raise UserError(f"model.block_size: {problem}, {self.block_size} fit into the context: set it to {longest}")
        answer_mask = np.zeros(len(self.ids), np.bool_)  # (N,)
        for start, text in zip(self.document_starts + front, texts):
            answer_mask[start : start + len(text)][language.answers(text)] = True
        return answer_mask

    def _of_split(self, split: range) -> npt.NDArray[np.bool_]:
        """Which documents begin in a split, (documents,)."""
        return np.asarray((self.document_starts >= split.start) & (self.document_starts < split.stop))

    def _talks(self, corpus: Corpus) -> Whole:
        """The whole turns of a chat that fit into the context. Raises UserError if a split has no answer among them,
        and if a talk of a language, whose answers are known, does not fit."""
        talks = whole_turns(self.ids, self.document_starts, self.block_size)
        if corpus.language is not None and (talks.shortened | (talks.taught == 0)).any():
            longest = int(np.diff(self.document_starts, append=len(self.ids)).max()) - 1
            problem = f"a talk of {corpus.source} has {longest} tokens"
            raise UserError(f"model.block_size: {problem}, {self.block_size} fit into the context: set it to {longest}")
        for split, indices in self.splits.items():
            if not talks.taught[self._of_split(indices)].any():
                problem = f"the {split} split of {corpus.source} has no answer that fits into the context"
                hint = f"give it more talks, or a larger model.block_size than {self.block_size:,}"
                raise UserError(f"data.source: {problem}: {hint}")
        return talks

    def _question(self, corpus: Corpus) -> str:
        """What a user asks first in the first talk for validation."""
        n = int(np.argmax(self._of_split(self.splits["val"])))
        return next((turn.text for turn in turns_of(next(corpus.documents(n))) if turn.role == "user"), "")

    def about_talks(self) -> list[str]:
        """What is taught of a chat, and its first talk, as lines; [] for a text."""
        if self.talks is None or self.talking is None:
            return []
        of_train = self._of_split(self.splits["train"])  # (documents,)
        starts, ends, answers = self.document_starts[of_train], self.talks.ends[of_train], self.talks.taught[of_train]
        first = int(np.argmax(answers > 0))
        ids, taught = self._at(np.arange(starts[first], ends[first]))  # (talk,) each
        tokens, n = int((ends - starts).sum()), int(answers.sum())
        counts = f"{n:,} of {tokens:,} tokens are taught ({n / tokens:.1%}): the answers, each with its end"
        if self.config.learn == "everything" or taught is None:
            counts, taught = f"all {tokens:,} tokens are taught (data.learn: everything)", np.ones(len(ids), np.bool_)
        sample = printable(self.talking.as_text(ids, taught))
        sample = sample if len(sample) <= SHOWN else f"{sample[:SHOWN]} ..."
        template = self.talking.template
        lines = [f"note: {template.note}"] if template.note else []
        lines += [f"talks: {counts}; the first one, in the template of {template.name}, taught in [[ ]]:", sample]
        if cut := int(self.talks.shortened.sum()):
            lines.append(f"note: {cut:,} talks are longer than the context and lose their last turns")
        if cut := int((self.talks.taught == 0).sum()):
            lines.append(f"note: {cut:,} talks are left out: not even their first answer fits into the context")
        return lines

    def batch(self, split: Split, n: int, batch_size: int, seed: int, rows: slice = ALL) -> Batch:
        """Batch number n: x and y, (B,T) int64. It depends only on n and the seed, on every machine.

        `rows` selects rows of the batch: in distributed training, each process takes its own rows, and together they
        are the batch of a single process.
        """
        if self.config.windows != "documents":
            return self._shifted(self._indices(split, n, batch_size, seed, rows), train=True)
        starts, stops = self._windows(split)  # (W,) each
        pick = (draws(seed, n, batch_size)[rows] % np.uint64(len(starts))).astype(np.int64)  # (B,)
        return self._gather(starts[pick], stops[pick], train=True)

    def _shifted(self, indices: Numbers, train: bool) -> Batch:
        """The ids at indices (B,T+1) as inputs and targets, which are the ids one further on, as is what is asked.

        Padding repeats an index: it is input 0, and no target.
        """
        window, asked = self._at(indices)  # (B,T+1) each
        x, y = window[:, :-1].copy(), window[:, 1:].copy()  # (B,T) each
        beyond = indices[:, 1:] == indices[:, :-1]  # (B,T)
        x[beyond], y[beyond] = 0, IGNORED
        if self.talking is not None and train and self.config.learn == "everything":
            y[self._is_start(indices[:, 1:])] = IGNORED  # a talk does not say what the next one is
        elif asked is not None:
            y[~asked[:, 1:]] = IGNORED
        return torch.from_numpy(x), torch.from_numpy(y)

    def _at(self, indices: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_] | None]:
        """The ids at indices, and which of them are answers, of the same shape each; None: nothing is asked."""
        check_size(self.ids)
        ids = self.ids[indices].astype(np.int64)
        if self.talking is not None:
            return ids >> 1, (ids & 1).astype(np.bool_)
        return ids, None if self.answer_mask is None else self.answer_mask[indices]

    def _is_start(self, indices: Numbers) -> npt.NDArray[np.bool_]:
        """Whether a document starts at an index; the result has the same shape."""
        next_start = np.searchsorted(self.document_starts, indices).clip(max=len(self.document_starts) - 1)
        return np.asarray(self.document_starts[next_start] == indices)

    def begins(self, split: Split, n: int, batch_size: int, seed: int, rows: slice = ALL) -> torch.Tensor | None:
        """Which tokens of batch number n begin a document, or a window, for `within_documents`: (B,T) bool.

        None if a token attends to its whole window (`data.attend`).
        """
        if not self.config.divides:
            return None
        indices = self._indices(split, n, batch_size, seed, rows)[:, :-1]  # (B,T)
        begins = self._is_start(indices)  # (B,T)
        begins[:, 0] = True
        return torch.from_numpy(begins)

    def _indices(self, split: Split, n: int, batch_size: int, seed: int, rows: slice) -> Numbers:
        """The indices in the corpus of the ids of batch number n, (B,T+1), for windows without padding."""
        ids, numbers = self.splits[split], n * batch_size + np.arange(batch_size)[rows]  # (B,)
        if self.config.windows == "packed":
            return self._packed(split).indices(numbers, seed)
        if self.config.windows == "shuffled":
            starts = self._shuffled(ids, numbers, seed)  # (B,)
        else:
            offsets = draws(seed, n, batch_size)[rows] % np.uint64(len(ids) - self.block_size)  # (B,)
            starts = ids.start + offsets.astype(np.int64)  # (B,)
        return starts[:, None] + np.arange(self.block_size + 1)  # (B,T+1)

    def _shuffled(self, split: range, numbers: Numbers, seed: int) -> Numbers:
        """The starts (B,) of the windows with these numbers (B,), counted from the first batch of the first epoch."""
        T, ids = self.block_size, len(split)
        count = max(1, (ids - T) // T)  # windows of an epoch: as many as fit at every offset
        epochs, nth = np.divmod(numbers, count)  # (B,) each
        starts = np.empty_like(numbers)  # (B,)
        for epoch in np.unique(epochs):
            order, draw = window_order(seed, int(epoch), count)  # (count,)
            starts[epochs == epoch] = split.start + draw % (ids - count * T) + order[nth[epochs == epoch]] * T
        return starts

    def windows(self, split: Split, batch_size: int, rows: slice = ALL) -> Iterator[Batch]:
        """The whole split in windows side by side, in batches: x and y, (B,T) int64, B <= batch_size.

        Every id except the split's first is the target of exactly one position; all other targets are IGNORED. `rows`
        selects windows: `slice(rank, None, world)` divides them among processes.
        """
        starts, stops = (edges[rows] for edges in self._windows(split))  # (W,) each
        for first in range(0, len(starts), batch_size):
            batch = slice(first, first + batch_size)
            yield self._gather(starts[batch], stops[batch])

    def first_targets(self, split: Split, count: int) -> Numbers:
        """The first targets of a split in the order of its `windows`, (count,), or as many as there are."""
        targets, length = list[Numbers](), 0
        for _, y in self.windows(split, 64):
            if length >= count:
                break
            targets.append(y[y != IGNORED].numpy())
            length += len(targets[-1])
        return np.concatenate(targets)[:count]

    def _pack(self, split: Split) -> Packed | PackedWhole:
        """What packs the documents of a split; of a chat those turns that fit, talk by talk."""
        if self.talks is None:
            return Packed(self.splits[split], self.document_starts, self.block_size)
        of_split = self._of_split(self.splits[split]) & (self.talks.taught > 0)  # (documents,)
        return PackedWhole(self.document_starts[of_split], self.talks.ends[of_split], self.block_size)

    def window_count(self, split: Split) -> int:
        """The number of windows of a split: W."""
        return len(self._windows(split)[0])

    def _cover(self, split: range, aligned: bool) -> tuple[Numbers, Numbers]:
        """The windows of a split: where the x of each starts, and where its text ends; (W,) each."""
        if self.talks is not None:
            of_split = self._of_split(split) & (self.talks.taught > 0)  # (documents,)
            return self.document_starts[of_split], self.talks.ends[of_split] - 1  # the last id is never an input
        last = split.stop - 1  # the last id is never an input
        inside = self.document_starts[(self.document_starts > split.start) & (self.document_starts < last)]
        begins = np.concatenate([[split.start], inside[: len(inside) * aligned]]).astype(np.int64)  # (stretches,)
        ends = np.append(begins[1:], last)  # (stretches,)
        counts = -(-(ends - begins) // self.block_size)  # (stretches,): windows of each; the last one may be shorter
        nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # (W,): 0, 1, 2 in each stretch
        return np.repeat(begins, counts) + nth * self.block_size, np.repeat(ends, counts)

    def _gather(self, starts: Numbers, stops: Numbers, train: bool = False) -> Batch:
        asks = self.answer_mask is not None or self.talking is not None
        T = int((stops - starts).max()) if asks else self.block_size  # the longest text of a task
        return self._shifted(np.minimum(starts[:, None] + np.arange(T + 1), stops[:, None]), train)  # (B,T+1)


def as_text(validation: float | str) -> str:
    """The value of `data.validation` as text."""
    return validation if isinstance(validation, str) else f"{validation:,}"


def _cut(length: int, document_starts: Numbers, validation: float, source: str, whole: bool = False) -> int:
    """The index of the first id for validation (see `DataConfig.validation`); `whole`: no document is cut.

    Raises UserError if a number of ids leaves none for training.
    """
    is_count = validation > 1
    cut = length - int(validation) if is_count else int(length * (1 - validation))
    if cut <= 0:
        problem = f"data.validation: {validation:,} ids for validation leave none of the {length:,} of {source}"
        raise UserError(f"{problem}: give it more text, a smaller number, or a fraction such as 0.1")
    inside = document_starts[(document_starts > 0) & (document_starts < length)]
    distance = length if whole else 0.01 * (validation if is_count else length)
    near = inside[np.abs(inside - cut) <= distance]
    return int(near[np.argmin(np.abs(near - cut))]) if len(near) else cut
