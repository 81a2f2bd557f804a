"""One way to build and call a program: read, held against the laws of a target, and measured.

It is right only if it also equals what was read, computed again by a kind of ours, on texts of other lengths.
"""

from __future__ import annotations

import copy
import inspect
import linecache
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.laws.again import again, positions
from minigpt.checks.laws.law import NO_STEP, UNASKED, Wanted, judged, on_purpose, step_of
from minigpt.checks.laws.loss import WantedLoss
from minigpt.checks.laws.target import IDS, JUDGES, LAWS_OF, QKV, SORTS, Options, Target, X, nearest, recognise
from minigpt.checks.learners.build import Candidate
from minigpt.checks.learners.cached import STARTS, find, parameters_of
from minigpt.checks.learners.calls import GIVEN, LENGTH, ONE_TEXT, Way, tensors, trial
from minigpt.checks.learners.handed_in import named
from minigpt.checks.learners.kinds import Compared, compared
from minigpt.checks.learners.measures import CAUSES, WHOLE, measure
from minigpt.checks.learners.mixing import compared_function, linear_function, linear_module
from minigpt.checks.learners.program import LONG, Program, axis_of, line_of, same, tokens
from minigpt.checks.learners.sizes import TABLES, place_of
from minigpt.checks.learners.source import file_text, says_full, says_next, text_of, two_lengths
from minigpt.checks.learners.tables import Value
from minigpt.checks.learners.verdict import Verdict, what_it_raised
from minigpt.checks.reading.meanings import Mixture, Score
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.structure import Broken, Ends, Found, Strange
from minigpt.checks.reading.values import NotGiven

B, T, SHORT = 2, 7, 5  # of the text that is read; a window may end later than in the short one
CHUNKS = (3, 1, 2, 1)
LATE = 3  # with fewer queries than keys: the position of the first query
LENGTHS, LONGEST_READ = (1, 2, 40), 24  # of other texts; of one that is read
LIKE = "texts of all lengths are treated alike"
TOKENS = torch.tensor([[3, 7, 1, 9, 5], [8, 2, 0, 6, 4]])  # (B, T): each once, so that it is known where a loss looks
BY_ITSELF = ("evaluation draws nothing", "each token is computed by itself")  # told first, of norms and MLPs
IS_IDS = re.compile("(?i)^(ids|idx|input_ids|tokens|token_ids|x|text)$")  # of a loss: ids that are not shifted yet
IS_NEXT = re.compile("(?i)^(targets?|y|tgt|trg|targ|next_(ids|tokens))$")  # the next tokens; labels may be either
LOSSES = re.compile(r"(?i)loss|nll|entrop|xent|perte|verlust|p[eé]rdida|perdita")  # names of methods
PADS = re.compile("(?i)pad|ignore")
SAID = {"sink": re.compile("(?i)sink|softmax_?1|softmax_?(plus|one)|off.by.one"),
        "two norms": re.compile("(?i)parallel|neox|pythia|falcon")}  # fmt: skip
WINDOW = re.compile(r"\.+(x+)\.*")  # the keys that a query sees, if not the first
OF_HEADS = set(SORTS) - set(JUDGES) - {"linear_attention"}  # targets in which an axis is told from another by the laws


@dataclass
class Read:
    """One way to build and call a program, read, and judged as one target."""

    candidate: Candidate
    target: Target
    way: Way | None = None
    laws: list[Broken] = field(default_factory=list)
    """What is broken, the cause first."""
    conventions: list[str] = field(default_factory=list)
    ends: str = ""
    """Why it cannot be told: where the reading ended, or what the program raised. Empty: it was read."""
    depth: int = 0
    """How many laws it obeys."""
    reading: Reading | None = None
    attention: Found | None = None
    notes: list[str] = field(default_factory=list)
    T: int = T
    """The length of the text that was read."""
    other_from: int = 0
    """The first token of a longer text that is another than what was read gives."""
    untried: dict[str, str] = field(default_factory=dict)
    """What could not be tried, in words, by the argument that asks for it."""
    tried: set[str] = field(default_factory=set)
    """The arguments that were tried beside those of its way: a state, where a text begins."""

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        if self.laws and (not self.ends or self.way is None):
            return "wrong"
        if self.ends:
            return "cannot tell"
        return "right, in another convention" if self.conventions else "right"

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """Of several ways to call a program, the one with the highest rank was meant.

        A part that is wrong is not taken for one of another layout: a sum over the batch is no sum over positions.
        """
        usual = self.target.name in OF_HEADS or (self.way is not None and not self.way.note)
        return self.verdict.startswith("right"), usual, not self.ends, self.depth


def read_way(candidate: Candidate, way: Way, wanted: Target | None, late: int = 0, length: int = 0) -> Read:
    """Read one way to call a program; if it obeys all laws, it is measured. The queries begin at position `late`.

    If a longer text is another than what was read, so long a text is read, too.
    """
    read = Read(candidate, wanted or Target("multi_head"), way)
    options = wanted.options if wanted else Options(window=int(way.takes != IDS))  # perhaps a window
    read.T = length or (T if options.window or options.cache else SHORT)
    chunks = CHUNKS if wanted and wanted.options.cache else ()
    if wanted and (wanted.name not in SORTS or wanted.name == "linear_attention"):
        return as_kind(read, wanted)
    if lists := unregistered(candidate):
        read.laws, read.depth = lists, 1
        return read
    makes = read.target.makes(way.takes)
    if read.target.name == "grouped_query" and way.takes == QKV:
        way = read.way = replace(way, sizes={**way.sizes, "H": 2 * way.sizes["G"]})
    try:
        with Reading(str(candidate.path)) as reading:
            inputs = inputs_of(way, B, read.T, reading, late)
            if isinstance(candidate.thing, nn.Module):
                reading.parameters(candidate.thing)
            losses = list[tuple[Tensor, WantedLoss]]()
            if way.takes == IDS and way.layout not in ONE_TEXT:
                y, losses = model_run(candidate.thing, way, inputs["ids"])  # (B, T, V)
            else:
                y = way.run(candidate.thing, inputs, chunks)  # (B, T, D), or (B, H, T, e) of given heads
            if way.takes == QKV and y.dim() == 4:
                y = y.transpose(1, 2).flatten(2)  # (B, T, H e)
            elif makes == "weights" and y.dim() == 4 and y.shape[1] == read.T - late:  # (B, T, H, S) of (B, T, H, d)
                y = y.transpose(1, 2)  # (B, H, T, S)
            elif makes == "rows":
                y = y.transpose(1, 2)  # (B, T, 2 H, d): both, rotated
    except Exception as error:  # the learner's code: anything
        read.ends = f"it raises {what_it_raised(error, candidate.path)}"
        read.laws = [*only_once(read)]
        read.ends = "" if read.laws else read.ends
        return read
    read.reading = reading
    judge(read, y, wanted, late)
    if written := overwritten(reading):
        read.laws, read.ends = [*written, *read.laws], ""
    for loss, asked in losses if not read.laws and not read.ends else ():
        logits = replace(asked, logits=reading.shadows.ids(y))
        judge_part(read, read.target, reading.shadows.ids(loss), logits, "loss")
    if not read.laws and not read.ends and not late:
        read.laws = [*other_texts(read, chunks), *(goes_on(read) if makes == "rows" else ()),
                     *measured(read, inputs)]  # fmt: skip
        read.laws.sort(key=lambda one: one.law not in CAUSES)  # the cause of what other texts show
        if not length and not chunks and read.laws and read.T <= read.other_from < LONGEST_READ:
            longer = read_way(candidate, way, wanted, length=read.other_from + 2)
            if longer.laws and longer.laws[0].law not in (NO_STEP, LIKE):
                return longer
        if not read.laws and way.takes != X and makes != "rows":
            with suppress(Exception):  # a right function may refuse fewer queries than keys
                fewer = read_way(candidate, way, wanted or read.target, LATE)
                if fewer.verdict == "wrong":
                    return fewer
                read.conventions += [words for words in fewer.conventions if words not in read.conventions]
    return read


def as_kind(read: Read, wanted: Target) -> Read:
    """Compare a program with a kind of ours as a number; linear attention by its measured weights."""
    way, thing, is_linear = read.way, read.candidate.thing, wanted.name == "linear_attention"
    assert way is not None

    def run(*inputs: Tensor) -> Tensor:
        fed = (inputs[0].shape[axis_of(inputs[0])],) if way.protocol else ()
        return way.run(thing, dict(zip(way.takes, inputs)), fed)

    try:
        if way.takes == QKV:
            H, d = way.sizes["H"], way.sizes["d"]
            comparison = linear_function(run, H, d) if is_linear else compared_function(wanted.name, thing)
        elif not isinstance(thing, nn.Module):
            comparison = Compared("cannot tell", ["it has no parameters that could be matched with those of the kind"])
        else:
            compare = linear_module if is_linear else partial(compared, wanted.name)
            comparison = compare(run, thing, way.sizes["D"], read.candidate.numbers)
    except Exception as error:  # the learner's code: anything
        comparison = Compared("cannot tell", [f"it raises {what_it_raised(error, read.candidate.path)}"])
    read.laws = [comparison.broken] if comparison.broken and comparison.verdict == "wrong" else []
    if read.laws:
        read.laws[:0] = [one for one in measured(read, inputs_of(way, B, T)) if one.law in CAUSES]  # the cause
    if comparison.verdict == "cannot tell":
        read.laws = [one for one in measured(read, inputs_of(way, B, T)) if one.law != WHOLE]  # ties may count
    read.depth = 1 + round(10 * comparison.depth) + 2 * bool(read.laws)
    if comparison.verdict == "right":
        read.conventions = [*([way.note] if way.note else []), *comparison.notes]
    elif not read.laws:
        read.ends = "; ".join(comparison.notes) or "no way was found to match its parameters with those of the kind"
    return read


def inputs_of(way: Way, B: int, T: int, reading: Reading | None = None, late: int = 0) -> dict[str, Tensor]:
    """Texts for a way to call a program; a reading is told what they are. The queries begin at position `late`."""
    if way.takes == IDS:
        ids = torch.randperm(max(way.sizes["V"], B * T), generator=torch.Generator().manual_seed(2))
        ids = ids[: B * T].view(B, T) % way.sizes["V"]
        if reading:
            reading.ids(ids)
        return {"ids": ids}
    if way.takes == X or "logits" in way.takes:
        text = drawn(B, T, way.sizes["D"]) if way.takes == X else drawn(*TOKENS.shape, way.sizes["V"])
        if reading:
            reading.text(text)
        return {"x": text} if way.takes == X else {"logits": text, "targets": TOKENS}
    H, G, d, e = (way.sizes[axis] for axis in "HGde")
    inputs, shapes = dict[str, Tensor](), {"query": (H, d), "key": (G, d), "value": (G, e)}
    for name in way.takes:
        x = drawn(B, T, *shapes[name], seed=len(name))  # (B, T, H, d)
        if reading:
            reading.heads(name, x)
        inputs[name] = x.transpose(1, 2)[:, :, late if name == "query" else 0 :]  # (B, H, T, d)
    return inputs


def drawn(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers, the same each time."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def judge(read: Read, y: Tensor, wanted: Target | None, late: int) -> None:
    """Hold what was read against the laws: as what is wanted, else as what it is nearest to."""
    assert read.reading is not None and read.way is not None
    takes = read.way.takes
    if "logits" in takes:
        judge_loss(read, y)
        return
    makes = (wanted or read.target).makes(takes)
    if (makes == "output" and (y.dim() != 3 or y.shape[1] != read.T - late)) or y.shape[:1] != (B,):
        read.ends = f"it returned the shape {tuple(y.shape)}"
        return
    ids, width = read.reading.shadows.ids(y), read.way.sizes["D"] if takes == X else 0
    name = wanted.name if wanted else recognise(read.reading, ids) if takes == X else "gpt" if takes == IDS else ""
    if name in JUDGES:
        judge_part(read, wanted or Target(name), ids, None if wanted else free(read, Target(name).wanted(read.T)))
        row = WINDOW.fullmatch(read.laws[0].row) if read.laws and not wanted else None
        if row and "window" in SORTS[name].options:  # perhaps it is meant
            before = read.laws, read.conventions, read.depth, read.target
            target = Target(name, Options(window=len(row[1])))
            judge_part(read, target, ids, free(read, target.wanted(read.T)))
            if read.ends or (read.laws and read.laws[0].law == before[0][0].law):
                read.laws, read.conventions, read.depth, read.target = before
            read.laws = [] if read.ends else read.laws
        return
    attention = read.attention = Found(read.reading, ids, width=width, makes=makes, first=late)
    with ending(read):
        try:
            judge_attention(read, attention, wanted)
        except Strange as step:
            read.laws, read.depth = [step_of(step)], 1
            if not mixes_tokens(attention):
                words, mend = "there is no attention in what it returns", "mix the values by weights"
                if wanted and not (wanted.options.rotary or read.way.settings or read.way.note):
                    read.laws = [Broken("a token mixes what it sees", words, "a mixture of values", mend, step.line)]
                else:  # perhaps a rotation alone
                    read.ends = words
            elif read.way.note:
                read.ends = str(step)  # of the usual layout it may be true, of another one it is not known


@contextmanager
def ending(read: Read) -> Iterator[None]:
    """Where the reading ends inside the `with`, or the laws are of another thing, that is said."""
    try:
        yield
    except Ends as error:
        read.ends = str(error)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        read.ends = f"it returns something else ({type(error).__name__})"


def judge_attention(read: Read, attention: Found, wanted: Target | None) -> None:
    """Hold an attention that was found against the laws. Raises Ends."""
    assert read.way is not None
    full, near = says_full(read.candidate.path), read.target
    if attention.makes == "output" and not attention.weights:
        raise Ends("a mask that hides all", 0, "weights are expected")
    if attention.makes == "output" and (full or wanted is None):
        near = nearest(attention, bool(wanted and wanted.options.cache))
    full = (full and near.options.full) or bool(wanted and wanted.options.full)
    target = wanted or near
    read.target = replace(target, options=replace(target.options, full=full))
    asked = read.target.wanted(read.T, read.way.takes)
    asked = replace(asked, allows=asked.allows | on_purpose(text_of(read.candidate.thing)))
    asked = asked if wanted else free(read, asked)
    if attention.first and not two_lengths(read.candidate.thing):
        asked = replace(asked, allows=asked.allows | {"corner"})
    if read.way.takes != X and read.way.sizes["G"] < read.way.sizes["H"]:
        asked = replace(asked, shares=0)
    read.laws, notes, read.depth = judged(attention, asked, LAWS_OF[attention.makes])
    read.conventions = [*([read.way.note] if read.way.note else []), *(note.actual for note in notes)]


def free(read: Read, wanted: Wanted) -> Wanted:
    """What is asked of a program of which nobody said what it should be: kinds with more than the plain ones are right.

    A sink is, and attention and MLP beside one another are, where the text says so.
    """
    text = file_text(read.candidate.path)
    return replace(
        wanted, allows=wanted.allows | UNASKED | {name for name, words in SAID.items() if words.search(text)}
    )


def mixes_tokens(attention: Found) -> bool:
    """Whether any number is a score or a mixture of several tokens."""
    rows = ((one.left, one.right) if isinstance(one, Score) else (one.features,)
            for one in attention.of.all if isinstance(one, Mixture | Score))  # fmt: skip
    return any(len({token for row in each for token in attention.of.tokens(row)}) > 1 for each in rows)


def judge_part(read: Read, target: Target, ids: Ids, wanted: Wanted | None = None, name: str = "") -> None:
    """Hold a program that is no attention, or what it gives beside its output, against its own laws."""
    assert read.reading is not None and read.way is not None
    read.target, before = target, read.conventions or ([read.way.note] if read.way.note else [])
    wanted = wanted or target.wanted(read.T)
    if target.name == "block" and not any(named(one, "block") and not named(one, "attend")
                                          for one in names_of(read.candidate)):  # fmt: skip
        wanted = replace(wanted, allows=wanted.allows | {"no MLP"})  # an attention with its residual
    thing = read.candidate.thing
    if isinstance(thing, nn.Module) and any(isinstance(part, nn.TransformerEncoder) for part in thing.modules()):
        wanted = replace(wanted, allows=wanted.allows | {"bare end"})  # torch's own stack has no norm at its end
    with ending(read):
        read.laws, notes, depth = JUDGES[name or target.name](read.reading, ids, wanted)
        read.depth = max(read.depth, depth)
        read.conventions = [*before, *(note.actual for note in notes)]
    by_itself = target.name in ("norm", "mlp") and (read.ends or read.laws)
    measures = measured(read, inputs_of(read.way, B, read.T)) if by_itself else []
    if first := [one for one in measures if one.law in BY_ITSELF]:
        read.laws, read.ends = first, ""


def model_run(thing: Any, way: Way, ids: Tensor) -> tuple[Tensor, list[tuple[Tensor, WantedLoss]]]:
    """The logits (B, T, V) of a model, and the losses that it gives beside them or by a method: what they should be."""
    asked, losses = WantedLoss(**vars(Target("gpt").wanted(ids.shape[1])), ids=ids), list[tuple[Tensor, WantedLoss]]()
    y: Tensor | None = None
    if more := next((one for one in way.listed if GIVEN.search(one.name)), None):
        own = (
            more.name == "labels" and "input_ids" in way.inputs and not says_next(place_of(thing))
        )  # as in HF's models
        targets = ids.clone() if own else ids.roll(1, 0).flip(1).clone()  # (B, T)
        settings = {name: value for name, value in way.settings.items() if name != more.name}
        both = replace(way, takes=("ids", "targets"), inputs={**way.inputs, more.name: "targets"}, settings=settings)
        inputs, shifts = {"ids": ids, "targets": targets}, not IS_NEXT.search(more.name)
        with suppress(Exception):  # it is no argument for targets
            result = both.call(thing, inputs)
            named = asked if own else replace(asked, targets=targets, shifts=shifts)
            losses.append((both.output(result, inputs), named))
            y = one if (one := way.output(result, {"ids": ids})).dim() == 3 else None
    if y is None:
        result = way.call(thing, {"ids": ids})
        y = way.output(result, {"ids": ids})
        losses += [(one, asked) for one in tensors(result) if one.numel() == 1 and more is None]
    for name, method in vars(type(thing)).items():
        if callable(method) and LOSSES.search(name):
            with suppress(Exception):  # a method that needs something else
                losses.append((getattr(thing, name)(ids.clone()), asked))
    return y, losses


def judge_loss(read: Read, y: Tensor) -> None:
    """Hold a loss of logits and targets against its laws: names of arguments say if it has ids or the next tokens."""
    assert read.reading is not None and read.way is not None
    thing, arguments = read.candidate.thing, {take: name for name, take in read.way.inputs.items()}
    more = {one.name: one.default for one in parameters_of(thing) if one.name not in arguments.values()}
    more |= vars(thing) if isinstance(thing, nn.Module) else {}
    own = bool(IS_IDS.search(arguments["targets"]))
    pads = any(PADS.search(name) and value in (0, inspect.Parameter.empty) for name, value in more.items())
    smoothing = next((one for name, one in more.items() if "smooth" in name.lower() and isinstance(one, float)), 0.0)
    asked = WantedLoss(**vars(read.target.wanted(TOKENS.shape[1])), ids=TOKENS, targets=None if own else TOKENS,
                       pads=pads, smoothing=smoothing,
                       shifts=not own and not IS_NEXT.search(arguments["targets"]))  # fmt: skip
    judge_part(read, read.target, read.reading.shadows.ids(y), asked)


def other_texts(read: Read, chunks: tuple[int, ...]) -> Iterator[Broken]:
    """Compare texts of other lengths with what was read, computed again by a kind of ours."""
    assert read.way is not None
    thing, way = read.candidate.thing, read.way
    if read.target.name == "running_mean":
        yield from long_mean(read)
    if read.attention is None or read.attention.makes != "output":
        return
    parameters = {name: one.detach() for name, one in thing.named_parameters()} if isinstance(thing, nn.Module) else {}
    wanted = read.target.wanted(read.T, way.takes)
    try:
        computed = list(again(read.attention, wanted, parameters) if way.takes == X else mixed(wanted))
        for length in LENGTHS:
            inputs = inputs_of(way, B, length)
            try:
                y = way.run(thing, inputs, in_chunks(length) if chunks else ())
            except Exception as error:  # the learner's code: anything
                if length > read.T and ends_at(read, read.T):
                    yield no_law(read.T + 1, read.T)
                    return
                read.notes.append(f"for a text of {length} tokens it raises {type(error).__name__}")
                continue
            if y.shape != (right := computed[0](*inputs.values())).shape:
                yield replace(no_law(length, 0), actual=f"for texts of length {length} the output is {tuple(y.shape)}",
                              expected=f"{tuple(right.shape)}", mend="squeeze(dim), not squeeze()")  # fmt: skip
                return
            each = ((y - run(*inputs.values())).abs().nan_to_num(torch.inf) for run in computed)
            off = min(each, key=lambda one: float(one.max()))
            if float(off.max()) > 1e-6 * max(1.0, float(right.abs().max())):
                by_token = off.amax([axis for axis in range(y.dim()) if axis != y.dim() - 2])  # (T,)
                read.other_from = int((by_token > 1e-6).nonzero()[0])
                yield no_law(length, read.other_from, bool(chunks))
                return
    except NotGiven as step:
        read.notes.append(f"not computed again: {step}")


def long_mean(read: Read) -> Iterator[Broken]:
    """Compare a running mean of a long text with the mean itself."""
    assert read.way is not None
    x = drawn(B, LONG, read.way.sizes["D"])  # (B, T, D)
    with suppress(Exception):  # a table may end before: the length is measured
        off = read.way.run(read.candidate.thing, {"x": x}) - x.cumsum(1) / torch.arange(1, LONG + 1)[:, None]
        by_token = off.abs().nan_to_num(torch.inf).amax((0, 2))  # (T,)
        if float(by_token.max()) > 1e-6:
            yield no_law(LONG, int((by_token > 1e-6).nonzero()[0]))


def only_once(read: Read) -> Iterator[Broken]:
    """Whether a call raises that ran before: something is left behind, as in a list of a class."""
    way, path = read.way, read.candidate.path
    assert way is not None
    try:
        trial(way, read.candidate.thing, inputs_of(way, B, LENGTH), in_chunks(LENGTH) if way.protocol else ())
    except Exception as error:  # the learner's code: anything
        yield Broken("nothing is left behind", f"it ran once; called again it raises {what_it_raised(error, path)}",
                     "the same output each time", "what one text leaves belongs to its object: self.keys = [] in "
                     "__init__, no list of the class", line_of(error, str(path)))  # fmt: skip


def goes_on(read: Read) -> Iterator[Broken]:
    """Call a rotation for two parts of a text, of the same length, each with its start, if it takes one."""
    way, thing, inputs = read.way, read.candidate.thing, inputs_of(read.way, B, 2 * LATE)  # type: ignore[arg-type]
    assert way is not None
    name = find(way.listed, STARTS)
    if name and name not in way.inputs and not any(TABLES.search(one) for one in way.settings):
        read.tried.add(name)
        whole = way.run(thing, inputs)  # (B, 2 H, T, d)
        for start in (0, LATE):
            value = Value(f"{start}", lambda now, start=start: start)  # type: ignore[misc]
            part = replace(way, settings={**way.settings, name: value}).run(thing, tokens(inputs, start, start + LATE))
            if not same(part, whole[:, :, start : start + LATE]):
                yield Broken("a text that goes on is turned on", f"a text that begins at {name} = {start} gets the "
                             "angles of other positions", f"those of {start}, {start + 1}, ...", "make the angles for "
                             "these positions: a table that is kept is known by its start, too", 0)  # fmt: skip
                return


def ends_at(read: Read, length: int) -> bool:
    """Whether a program fails from one more token on than an earlier text had, which its sizes do not say."""
    assert read.way is not None
    runs = list[bool]()
    for one in (length, length + 1):
        with suppress(Exception):  # the learner's code: anything
            read.way.run(read.candidate.thing, inputs_of(read.way, B, one))
            runs.append(True)
    return len(runs) == 1 and length not in read.candidate.numbers.values()


def mixed(wanted: Wanted) -> Iterator[Callable[..., Tensor]]:
    """What our kind makes of given queries, keys and values, by each formula that is right. Raises NotGiven."""
    if wanted.rotary:
        raise NotGiven("a rotation of given queries and keys")
    for position in positions(wanted, 0.0):
        kind = copy.deepcopy(wanted.kind)
        kind.position = position
        yield kind.mix


def unregistered(candidate: Candidate) -> list[Broken]:
    """Whether layers stand in a plain list or dict, so that an optimizer does not know their parameters."""
    module = candidate.thing
    if not isinstance(module, nn.Module):
        return []
    known = set(map(id, module.parameters()))
    for part in module.modules():
        for name, value in vars(part).items():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            if not name.startswith("_") and any(isinstance(one, nn.Module) and not known.issuperset(
                    map(id, one.parameters())) for one in held):  # fmt: skip
                lines = linecache.getlines(str(candidate.path))
                line = next((i for i, text in enumerate(lines, 1) if re.search(rf"self\.{name}\s*(:.*)?=", text)), 0)
                return [Broken("all layers are registered", f"`{name}` is a plain {type(value).__name__} of layers: "
                           f"their parameters are not registered, and never trained", "nn.ModuleList", "self."
                               f"{name} = nn.ModuleList([...])", line)]  # fmt: skip
    return []


def overwritten(reading: Reading) -> list[Broken]:
    """Whether a text was written over."""
    if not reading.overwritten:
        return []
    words = "it writes into its input: x is written over"
    return [Broken("the input stays as it is", words, "left as it is", "work on a copy", reading.overwritten)]


def in_chunks(length: int) -> tuple[int, ...]:
    """A text in chunks: a long one first, then single tokens."""
    first = max(1, length // 2)
    return (first, *[1] * (length - first))


def no_law(length: int, token: int, chunks: bool = False) -> Broken:
    """Other numbers than what was read gives."""
    words = f"in a text of {length} tokens{', in chunks,' * chunks} the output is another from token {token} on"
    mend = "look for what ends at that position: a table, a mask, a window, a state of an earlier text"
    return Broken(LIKE, words, "what its own parameters give by the same steps", mend, 0)


def measured(read: Read, inputs: dict[str, Tensor]) -> list[Broken]:
    """What a reading of one pass does not show."""
    assert read.way is not None
    if read.way.protocol:
        return []  # other lengths and chunks were compared with what was read
    thing, options = read.candidate.thing, read.target.options
    of_causal = (read.attention is None or read.attention.makes == "output") and not options.full
    alone = read.target.name in ("mlp", "norm") or (read.attention is not None and read.attention.makes == "rows")
    reach = 1 if alone else 0 if options.window and read.target.name == "gpt" else options.window or None
    program = Program(thing, read.way.run, inputs, str(read.candidate.path), of_causal, reach,
                      frozenset(read.candidate.numbers.values()))  # fmt: skip
    measures = measure(program)
    read.notes += [remark.actual for remark in measures.remarks]
    return measures.broken


def names_of(candidate: Candidate) -> list[str]:
    """The name of a thing, that of its class, or with which it was defined, and of the method that was taken."""
    thing = candidate.thing
    kind = type(thing) if isinstance(thing, nn.Module) else thing
    names = [getattr(one, "__name__", "") for one in (kind, getattr(thing, "forward", thing))]
    return [candidate.name, *(name for name in dict.fromkeys(names) if name != "forward")]
