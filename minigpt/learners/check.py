"""One check from beginning to end: what a file hands in is built, called and read, held against the laws, and measured.

A program may be built and called in several ways; the way that obeys the most laws is the one that was meant. It is
right only if it also equals what was read, computed again by a kind of ours, on texts of other lengths.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from minigpt.laws.again import again, positions
from minigpt.laws.families import JUDGES, WantedLoss, recognise
from minigpt.laws.law import Wanted, judged, step_of
from minigpt.laws.target import IDS, LAWS_OF, QK, QKV, SORTS, Takes, Target, X, find_target, nearest
from minigpt.learners.also import asked_too
from minigpt.learners.build import Candidate, builds
from minigpt.learners.cached import CACHES, parameters_of
from minigpt.learners.calls import GIVEN, ONE_TEXT, CannotCall, Way, is_mask, tensors, trial, ways
from minigpt.learners.closed import as_module
from minigpt.learners.file import File
from minigpt.learners.handed_in import ANNOUNCED, WANTED, candidates, named
from minigpt.learners.kinds import Compared, compared
from minigpt.learners.measures import measure
from minigpt.learners.mixing import compared_function
from minigpt.learners.program import Program
from minigpt.learners.tables import Value
from minigpt.learners.verdict import Report, Verdict, frames_in, what_it_raised
from minigpt.learners.weights import linear_function, linear_module
from minigpt.reading.listing import listing
from minigpt.reading.meanings import Mixture, Score
from minigpt.reading.reading import Reading, uncollected
from minigpt.reading.shadows import Ids
from minigpt.reading.structure import Broken, Ends, Found, Strange
from minigpt.reading.values import NotGiven
from minigpt.system.errors import UserError

R = TypeVar("R")
OF_HEADS = set(SORTS) - set(JUDGES) - {"linear_attention"}  # targets in which an axis is told from another by the laws
B, T, SHORT = 2, 7, 5  # of the text that is read; wholes are dear, so that their text is short
CHUNKS = (3, 1, 2, 1)
LATE = 4  # with fewer queries than keys: the position of the first query
LENGTHS = (1, 2, 40)  # of other texts
TOKENS = torch.tensor([[3, 7, 1, 9, 5], [8, 2, 0, 6, 4]])  # (B, T): each once, so that it is known where a loss looks
MOST_CANDIDATES, MOST_WAYS = 12, 60
HIDES = "a token sees itself and what came before"
BY_ITSELF = ("evaluation draws nothing", "each token is computed by itself")  # told first, of norms and MLPs
UNREAD = (
    "a text begins as its first tokens",
    "evaluation draws nothing",
)  # told of an attention that cannot be read, too
IS_IDS = re.compile("(?i)^(ids|idx|input_ids|tokens|token_ids|x|text)$")  # of a loss: ids that are not shifted yet
IS_NEXT = re.compile("(?i)^(targets?|y|tgt|trg|targ|next_(ids|tokens))$")  # the next tokens; labels may be either
LOSSES = re.compile(r"(?i)loss|nll|entrop|xent|perte|verlust|p[eé]rdida|perdita")  # names of methods
PADS = re.compile("(?i)pad|ignore")
MAKES = (".ones", ".zeros", ".full", ".arange", ".empty", ".tri", "_ones", "_zeros", "_full")  # make tensors of a size
AXES = r"(B|b|bs|bsz|batch\w*)", r"(T|S|L|t|n|seq\w*|time\w*|length|tokens)"
BATCH_FIRST, TIME_FIRST = (re.compile(rf"[(\[]\s*{one}\s*,\s*{other}\s*[,)\]]") for one, other in (AXES, AXES[::-1]))
FULL = re.compile(r"(?i)(not?|without|without a) causal|non-?causal|bidirectional|encoder|bert")


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
    found: Found | None = None
    notes: list[str] = field(default_factory=list)
    T: int = T
    """The length of the text that was read."""

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


def check_file(path: Path, target: str = "", name: str = "", lines: bool = False, exercise: str = "") -> Report:
    """The report on a learner's file; it runs in this process. Raises UserError for an unknown target.

    A file that is right is also asked what the text of its `exercise` promises.
    """
    wanted = find_target(target) if target else None
    listed = candidates(path, str(wanted or ""), name)
    if wanted is None:
        return report_on_all(in_double(lambda: read_each(listed)), lines)
    read = chosen(in_double(lambda: list(read_all(listed, wanted))))
    if read.verdict.startswith("right"):
        read.laws = in_double(lambda: asked_too(read.candidate.thing, str(path), exercise))
    return report_on(read, wanted, lines)


def check(thing: Any, as_: str = "", lines: bool = False) -> Report:
    """The report on a function, a module or a class; it runs in this process, and a module is left as it was.

    `as_` is what it should be, with options: "attend", "multi_head", "grouped_query,rotary", "multi_head,window=4"; by
    default what it is nearest to. `lines` shows each line beside what it makes.
    Raises UserError for an unknown target, an object that cannot be checked, or one that cannot be copied.
    """
    wanted = find_target(as_) if as_ else None
    name = thing.__name__ if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing).__name__
    try:
        copied = thing if inspect.isroutine(thing) or inspect.isclass(thing) else copy.deepcopy(thing)
    except Exception:  # the module keeps tensors of an earlier pass
        raise UserError(f"{name} cannot be copied: build a fresh one for the check") from None
    module = copied if inspect.isroutine(thing) or inspect.isclass(thing) else as_module(copied)
    if module is None:
        raise UserError(f"{name} cannot be checked: expected a function, a module or a class with `__call__`")
    made = module.double().eval() if isinstance(module, nn.Module) else module

    def reads(path: Path) -> list[Read]:
        listed = iter([Candidate(made, f"checked: {name}", name, path)])
        if inspect.isclass(thing):
            listed = builds(thing, File.of(thing, path), str(wanted or ""))
        return in_double(lambda: read_each(listed) if wanted is None else list(read_all(listed, wanted)))

    all_read = list[Read]()
    for path in sources_of(thing):
        all_read = reads(path)
        if any(one.line for read in all_read if read.reading for one in read.reading.made):
            break  # lines of this file make something
    if wanted is None:
        return report_on_all(all_read, lines, whole=False)
    return report_on(chosen(all_read), wanted, lines, whole=False)


def read_each(listed: Iterator[Candidate]) -> list[Read]:
    """What is said of each thing of a file, parts before wholes; or of what it builds itself as its answer alone."""
    best = dict[str, Read]()
    for candidate in islice(listed, MOST_CANDIDATES):
        name = candidate.name
        if name in best and not best[name].ends:
            continue  # built in another way it would be the same
        for guess, takes in guesses(candidate):
            read = read_candidate(candidate, guess, takes)
            if read.verdict.startswith("right") and guess is None:
                read = with_cache(read)
            if not is_told(read) and not read.verdict.startswith("right"):
                read.ends = read.ends or f"it is not known what it is; as {read.target} it would be wrong"
            best[name] = chosen([read, *([best[name]] if name in best else [])])
            if best[name].verdict.startswith("right") or (guess is None and not read.ends):
                break
        if name in ANNOUNCED and not inspect.isroutine(candidate.thing) and not best[name].ends:
            return [best[name]]
    return list(best.values())


def with_cache(read: Read) -> Read:
    """What is said of a right attention that has a cache, when it is fed in chunks."""
    thing, target = read.candidate.thing, read.target
    if not isinstance(thing, nn.Module) or "cache" not in SORTS[target.name].options or target.options.full or not (
        any(CACHES.search(one.name.lower()) for one in parameters_of(thing)) or
        any(CACHES.search(name) for part in thing.modules() for name in vars(part))):  # fmt: skip
        return read
    cached = replace(target, options=replace(target.options, cache=True))
    fed = read_candidate(read.candidate, cached, (X,))
    if fed.verdict == "cannot tell" or (fed.laws and not uses_cache(fed)):
        read.notes.append("its cache was not tried: no way to feed it in chunks was found")
        return read
    return fed


def uses_cache(read: Read) -> bool:
    """Whether a chunk that is fed behind others gives something else than alone."""
    assert read.way is not None
    thing, inputs = read.candidate.thing, inputs_of(read.way, B, T)
    whole, start, alone = read.way.run(thing, inputs, CHUNKS), 0, list[Tensor]()
    for length in CHUNKS:
        part = {name: x[:, start : start + length] for name, x in inputs.items()}
        alone.append(read.way.run(thing, part, (length,)))
        start += length
    return not torch.allclose(whole, torch.cat(alone, 1), equal_nan=True)


def guesses(candidate: Candidate) -> Iterator[tuple[Target | None, Sequence[Takes]]]:
    """Yields what a thing may be, by its name and its arguments, and what it takes; None: whatever it is nearest to."""
    thing = candidate.thing
    needed = [one.name.lower() for one in parameters_of(thing) if one.default is one.empty]
    fits = {what for what in ("linear_attention", "loss", "rotary", "attend") for name in names_of(candidate)
            if named(name, what) > (what == "linear_attention")}  # fmt: skip
    if "loss" in fits or (len(needed) == 2 and (GIVEN.search(needed[1]) or "logit" in needed[0])):
        sure = ["loss"]
    elif "rotary" in fits - {"attend"} or "linear_attention" in fits:
        sure = ["rotary" if "rotary" in fits else "linear_attention"]
    else:
        sure = ["rotary", "attention_weights", "dot_product"] if len(needed) == 2 and inspect.isroutine(thing) else []
    for what in sure:
        yield Target(what), Target(what).takes
    if sure != ["loss"]:
        given = inspect.isroutine(thing) and {name[0] for name in needed} >= set("qkv")
        yield None, (QKV,) if given else (X, QKV, IDS)
        yield Target("attention_weights"), (X,) if sure else (X, QK)
        yield Target("linear_attention"), (X, QKV)


def names_of(candidate: Candidate) -> list[str]:
    """The name of a thing, and that of its class, or with which it was defined."""
    thing = candidate.thing
    return [candidate.name, type(thing).__name__ if isinstance(thing, nn.Module) else getattr(thing, "__name__", "")]


def report_on_all(reads: list[Read], lines: bool, whole: bool = True) -> Report:
    """The report on the things of a file: on the first that is wrong, else on the largest that is right.

    What a right whole is made of is right in it, whatever is said of it alone.
    """
    inside = (
        used_by(
            [name for read in reads if read.verdict.startswith("right") for name in names_of(read.candidate)],
            reads[0].candidate.path,
        )
        if reads
        else set()
    )
    own = [read for read in reads if read.candidate.name not in inside or read.verdict.startswith("right")]
    wrong = [read for read in own if read.verdict == "wrong"]
    right = [read for read in own if read.verdict.startswith("right")]
    if not reads:
        raise UserError(
            "nothing was found that can be called: end the file with a line like `attention = MyAttention(48, 6)`"
        )
    right.sort(key=lambda read: (read.candidate.name in inside, -len(text_of(read.candidate.thing))))
    main = (wrong or right or [chosen(own or reads)])[0]
    report = report_on(main, None, lines, whole)
    report.notes += [f"{read.candidate.name}: {read.verdict}, as {read.target}" if read in right or read in wrong else
                     f"{read.candidate.name}: cannot tell what it is" for read in own if read is not main]  # fmt: skip
    return report


def is_told(read: Read) -> bool:
    """Whether it is known what a thing is: by its attention, or by its name."""
    if read.target.name not in ("norm", "mlp", "linear_attention", "attention_weights", "rotary"):
        return True
    sure = len(WANTED[read.target.name])  # its first words are the surest
    return any(named(name, read.target.name) == sure for name in names_of(read.candidate))


def used_by(names: Sequence[str], path: Path) -> set[str]:
    """The functions and classes of a file that these use, directly or not."""
    texts, used = dict[str, str](), set[str]()
    with suppress(OSError, UnicodeDecodeError, SyntaxError):
        nodes = ast.parse(path.read_text(encoding="utf-8")).body
        texts = {one.name: ast.unparse(one) for one in nodes if isinstance(one, ast.ClassDef | ast.FunctionDef)}
    queue = list(names)
    for name in queue:
        more = {other for other in texts if other != name and re.search(rf"\b{other}\b", texts.get(name, ""))} - used
        used |= more
        queue += more
    return used


def sources_of(thing: Any) -> list[Path]:
    """The files in which a function, or a class's own methods, were written, and that of its forward; or cells."""
    kind = thing if inspect.isclass(thing) else type(thing)
    own = [one for one in vars(kind).values() if inspect.isfunction(one)] if not inspect.isroutine(thing) else []
    functions = (vars(kind).get("forward") or next(iter(own), None), getattr(thing, "forward", thing))
    codes = [getattr(getattr(one, "__func__", one), "__code__", None) for one in functions]
    return list(dict.fromkeys(Path(code.co_filename) for code in codes if code)) or [Path("?")]


def in_double(do: Callable[[], R]) -> R:
    """Call `do` with float64 as the default type, without gradients, in one thread: tensors are small."""
    default, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # several would only wait for each other
    try:
        with torch.no_grad(), uncollected():
            return do()
    finally:
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)


def read_all(listed: Iterator[Candidate], wanted: Target) -> Iterator[Read]:
    """Yields what is said of each thing that is handed in, up to the first that is right as what is wanted.

    A rotation alone is looked for only where no attention is there.
    """
    rotation = (QK,) if QK in wanted.takes and wanted.name != "rotary" and wanted.options.rotary else ()
    seen, judged_names = list[Candidate](), set[str]()
    for candidate in islice(listed, MOST_CANDIDATES):
        if candidate.name in judged_names:
            continue  # built in another way it would be the same
        seen.append(candidate)
        read = read_candidate(candidate, wanted, tuple(one for one in wanted.takes if one not in rotation))
        yield read
        if read.verdict.startswith("right") or (candidate.name in (wanted.name, *ANNOUNCED) and not read.ends):
            return
        judged_names |= set(names_of(candidate)) if not read.ends else set()
    if rotation and not judged_names:
        yield from (read_candidate(candidate, wanted, rotation) for candidate in seen)


def chosen(reads: list[Read]) -> Read:
    """Of all that a file hands in, what is reported: what is right, else what obeys most, the first of them."""
    return max(reads, key=lambda read: read.rank)


def read_candidate(candidate: Candidate, wanted: Target | None, taken: Sequence[Takes]) -> Read:
    """What is said of one thing, by the way to call it that obeys the most laws."""
    start = Read(candidate, wanted or Target("multi_head"), ends="no way to call it was found", depth=-1)
    best, cached = start, bool(wanted and wanted.options.cache)
    for takes in taken:
        try:
            batch_first = says_batch_first(candidate.thing)
            for way in islice(ways(candidate.thing, takes, cached), MOST_WAYS):
                if (batch_first and way.layout == "(T, B, D)") or is_mixed(candidate.thing, way):
                    continue
                read = read_way(candidate, way, wanted)
                best = max(best, read, key=lambda one: one.rank)
                if read.verdict.startswith("right"):
                    return read
        except CannotCall as error:
            if best is start and start.ends.startswith("no way"):
                start.ends = str(error)
                alone = sum(one.default is one.empty for one in parameters_of(candidate.thing)) <= len(takes)
                start.laws = raised(candidate, error.__cause__) if alone else []
    return leaks(with_doubt(best), wanted)


def leaks(read: Read, wanted: Target | None) -> Read:
    """What was not read to its end; if a token sees a later one, it is wrong all the same.

    Only of an attention that is asked to hide the future, or is called one, and that could not be told otherwise.
    """
    asked = wanted is not None and wanted.name in OF_HEADS and not wanted.options.full
    asked = asked or any(named(name, "attend") for name in names_of(read.candidate))
    if not (asked and read.ends and read.reading and read.way) or read.laws or read.way.takes not in (X, QKV):
        return read
    thing = read.candidate.thing
    if says_full(read.candidate.path) or any(is_mask(one) or "causal" in one.name for one in parameters_of(thing)):
        return read
    program = Program(thing, read.way.run, inputs_of(read.way, B, T), str(read.candidate.path))
    with suppress(Exception):  # the learner's code: anything
        read.laws = [one for one in measure(program).broken if one.law in UNREAD]
        read.ends = "" if read.laws else read.ends
    return read


def is_mixed(thing: Any, way: Way) -> bool:
    """Whether a way mixes the texts of a batch, and with the other axis as the batch they are apart; or is that other.

    Of two layouts, the one in which texts are apart was meant; the usual one, if they are so in both.
    """
    layouts = ("(B, T, D)", "(T, B, D)")
    if way.layout not in layouts or way.takes != X or way.protocol:
        return False
    usual, other = (are_apart(thing, replace(way, layout=layout)) for layout in layouts)
    return usual if way.layout != layouts[0] else other and not usual


def are_apart(thing: Any, way: Way) -> bool:
    """Whether a text of a batch changes no other."""
    x = drawn(B, SHORT, way.sizes["D"])  # (B, T, D)
    other = x.clone()
    other[0] = other[0].flip(0) * 1.5 + 0.3
    with suppress(Exception):  # the learner's code: anything
        return torch.allclose(trial(way, thing, {"x": x})[1:], trial(way, thing, {"x": other})[1:], equal_nan=True)
    return False


def raised(candidate: Candidate, error: BaseException | None) -> list[Broken]:
    """That a program raises, if it does so by itself: nothing was guessed, and it is no error of an argument."""
    if candidate.guessed or not isinstance(error, Exception) or isinstance(error, TypeError):
        return []
    lines = [frame.lineno or 0 for frame in frames_in(error, candidate.path)]
    words = f"it raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return [Broken("it runs", words, "an output", "run it on a small input", lines[-1])] if lines else []


def with_doubt(read: Read) -> Read:
    """What was read, but where nothing is hidden because no mask was handed over, that cannot be told."""
    if read.way is None or not read.laws or read.laws[0].law != HIDES:
        return read
    thing = read.candidate.thing
    left = [one.name for one in parameters_of(thing) if is_mask(one) and one.name not in read.way.chosen]
    left = [name for name in left if not ignores(read, name)]
    if left and "x" * T in read.laws[0].row:
        read.ends = (
            f"it takes a mask as `{left[0]}`, and no way was found to give it one; without one, nothing is hidden"
        )
    return read


def ignores(read: Read, name: str) -> bool:
    """Whether a program takes any mask as this argument, and gives the same output with it."""
    assert read.way is not None
    thing, inputs = read.candidate.thing, inputs_of(read.way, B, T)
    before = read.way.run(thing, inputs)
    same = list[bool]()
    for shape in ((T, T), (1, 1, T, T), (B, T), (B, 1, T, T)):
        for mask in (drawn(*shape) > 0, drawn(*shape)):
            value = Value("a mask", lambda now, mask=mask: mask)  # type: ignore[misc]
            with suppress(Exception):  # the learner's code: anything
                y = replace(read.way, chosen={**read.way.chosen, name: value}).run(thing, inputs)
                same.append(y.shape == before.shape and torch.allclose(y, before, equal_nan=True))
    return bool(same) and all(same)


def read_way(candidate: Candidate, way: Way, wanted: Target | None, late: int = 0) -> Read:
    """Read one way to call a program; if it obeys all laws, it is measured. The queries begin at position `late`."""
    read = Read(candidate, wanted or Target("multi_head"), way)
    is_whole = way.takes == IDS or (wanted is not None and wanted.name == "block")
    read.T = SHORT if is_whole and not (wanted and wanted.options.window) else T
    chunks = CHUNKS if wanted and wanted.options.cache else ()
    if wanted and (wanted.name not in SORTS or wanted.name == "linear_attention"):
        return as_kind(read, wanted)
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
            elif makes == "weights" and y.dim() == 4 and y.shape[1] == T - late:  # (B, T, H, S) of (B, T, H, d)
                y = y.transpose(1, 2)  # (B, H, T, S)
            elif makes == "rows":
                y = y.transpose(1, 2)  # (B, T, 2 H, d): both, rotated
    except Exception as error:  # the learner's code: anything
        read.ends = f"it raises {what_it_raised(error, candidate.path)}"
        return read
    read.reading = reading
    if lists := unregistered(candidate):
        read.laws, read.depth = lists, 1
        return read
    judge(read, y, wanted, late)
    if written := overwritten(reading):
        read.laws, read.ends = [*written, *read.laws], ""
    for loss, asked in losses if not read.laws and not read.ends else ():
        logits = replace(asked, logits=reading.shadows.ids(y))
        judge_part(read, read.target, reading.shadows.ids(loss), logits, "loss")
    if not read.laws and not read.ends and not late:
        read.laws = [*other_texts(read, chunks), *measured(read, inputs, chunks)]
        if not read.laws and way.takes != X and makes != "rows":
            with suppress(Exception):  # a right function may refuse fewer queries than keys
                fewer = read_way(candidate, way, wanted, LATE)
                if fewer.verdict == "wrong":
                    return fewer
                read.conventions += [words for words in fewer.conventions if words not in read.conventions]
    return read


def as_kind(read: Read, wanted: Target) -> Read:
    """Compare a program with a kind of ours as a number; linear attention by its measured weights."""
    way, thing = read.way, read.candidate.thing
    assert way is not None

    def run(x: Tensor) -> Tensor:
        return way.run(thing, {"x": x})

    def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return way.run(thing, {"query": query, "key": key, "value": value})

    try:
        if way.takes == QKV:
            H, d = way.sizes["H"], way.sizes["d"]
            is_linear = wanted.name == "linear_attention"
            said = linear_function(mix, H, d) if is_linear else compared_function(wanted.name, thing)
        elif not isinstance(thing, nn.Module):
            said = Compared("cannot tell", ["it has no parameters that could be matched with those of the kind"])
        elif wanted.name == "linear_attention":
            said = linear_module(run, thing, way.sizes["D"], read.candidate.numbers)
        else:
            said = compared(wanted.name, run, thing, way.sizes["D"], read.candidate.numbers)
    except Exception as error:  # the learner's code: anything
        said = Compared("cannot tell", [f"it raises {what_it_raised(error, read.candidate.path)}"])
    read.laws = [said.broken] if said.broken and said.verdict == "wrong" else []
    if said.verdict == "cannot tell":
        read.laws = measured(read, inputs_of(way, B, T), ())
    read.depth = 1 + round(10 * said.depth) + 2 * bool(read.laws)
    if said.verdict == "right":
        read.conventions = [*([way.note] if way.note else []), *said.notes]
    elif not read.laws:
        read.ends = "; ".join(said.notes) or "no way was found to match its parameters with those of the kind"
    return read


def inputs_of(way: Way, B: int, T: int, reading: Reading | None = None, late: int = 0) -> dict[str, Tensor]:
    """Texts for a way to call a program; a reading is told what they are. The queries begin at position `late`."""
    if way.takes == X:
        x = drawn(B, T, way.sizes["D"])  # (B, T, D)
        if reading:
            reading.text(x)
        return {"x": x}
    if way.takes == IDS:
        ids = torch.randperm(max(way.sizes["V"], B * T), generator=torch.Generator().manual_seed(2))
        ids = ids[: B * T].view(B, T) % way.sizes["V"]
        if reading:
            reading.ids(ids)
        return {"ids": ids}
    if "logits" in way.takes:
        logits = drawn(*TOKENS.shape, way.sizes["V"])  # (B, T, V)
        if reading:
            reading.text(logits)
        return {"logits": logits, "targets": TOKENS}
    H, G, d, e = (way.sizes[axis] for axis in "HGde")
    shapes = {"query": (H, d), "key": (G, d), "value": (G, e)}
    inputs = {name: drawn(B, T, *shapes[name], seed=len(name)) for name in way.takes}
    for name, x in inputs.items():  # (B, T, H, d)
        if reading:
            reading.heads(name, x)
    inputs = {name: x.transpose(1, 2) for name, x in inputs.items()}  # (B, H, T, d)
    return inputs | {"query": inputs["query"][:, :, late:]}


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
        judge_part(read, wanted or Target(name), ids)
        return
    found = read.found = Found(read.reading, ids, width=width, makes=makes, first=late)
    try:
        full, near = says_full(read.candidate.path), read.target
        if makes == "output" and not found.weights:
            raise Ends("a mask that hides all", 0, "weights are expected")
        if makes == "output" and (full or wanted is None):
            near = nearest(found, bool(wanted and wanted.options.cache))
        full = full and near.options.full
        read.target = wanted or near
        full = full or bool(wanted and wanted.options.full)
        read.target = replace(read.target, options=replace(read.target.options, full=full))
        asked = read.target.wanted(T, takes)
        if late and not two_lengths(read.candidate.thing):
            asked = replace(asked, allows=asked.allows | {"corner"})
        if takes != X and read.way.sizes["G"] < read.way.sizes["H"]:
            asked = replace(asked, shares=0)
        broken, notes, read.depth = judged(found, asked, LAWS_OF[makes])
        read.laws = broken
        read.conventions = [*([read.way.note] if read.way.note else []), *(f"{note.found}" for note in notes)]
    except Strange as step:
        read.laws, read.depth = [step_of(step)], 1
        if not any(isinstance(one, Mixture | Score) and len(tokens_of(found, one)) > 1 for one in found.of.all):
            read.ends = "no token reads another one: there is no attention in it"
        elif read.way.note:
            read.ends = str(step)  # of the usual layout it may be true, of another one it is not known
    except Ends as error:
        read.ends = str(error)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # the laws are of another thing
        read.ends = f"it returns something else ({type(error).__name__})"


def tokens_of(found: Found, meaning: Mixture | Score) -> set[tuple[int, int]]:
    """The tokens that a score or a mixture is of."""
    rows = (meaning.left, meaning.right) if isinstance(meaning, Score) else (meaning.features,)
    return {token for row in rows for token in found.of.tokens(row)}


def two_lengths(thing: Any) -> bool:
    """Whether a function makes tensors of two lengths that it asked for, like a mask (T, S); True if it is not known.

    One that does not was written for as many queries as keys.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(thing, "forward", thing))))
    except (OSError, TypeError, SyntaxError):
        return True
    asked = dict[str, str]()
    for one in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        names = [target.id for target in ast.walk(one.targets[0]) if isinstance(target, ast.Name)]
        if ".shape" in (text := ast.unparse(one.value)) or ".size(" in text or "len(" in text:
            asked |= {name: f"{text} {i}" for i, name in enumerate(names)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(MAKES)]
    lengths = [one.id for call in calls for part in call.args for one in ast.walk(part) if isinstance(one, ast.Name)]
    return len({asked[name] for name in lengths if name in asked}) > 1


def parts_of(thing: Any) -> Iterator[nn.Module]:
    """All modules of a module; none of a function."""
    yield from thing.modules() if isinstance(thing, nn.Module) else ()


def judge_part(read: Read, target: Target, ids: Ids, wanted: Wanted | None = None, name: str = "") -> None:
    """Hold a program that is no attention, or what it gives beside its output, against its own laws."""
    assert read.reading is not None and read.way is not None
    read.target, before = target, read.conventions or ([read.way.note] if read.way.note else [])
    wanted = wanted or target.wanted(read.T)
    if target.name == "block" and not any(named(one, "block") for one in names_of(read.candidate)):
        wanted = replace(wanted, allows=wanted.allows | {"no MLP"})  # an attention with its residual
    if any(isinstance(part, nn.TransformerEncoder) for part in parts_of(read.candidate.thing)):
        wanted = replace(wanted, allows=wanted.allows | {"bare end"})  # torch's own stack has no norm at its end
    try:
        read.laws, notes, depth = JUDGES[name or target.name](read.reading, ids, wanted)
        read.depth = max(read.depth, depth)
        read.conventions = [*before, *(note.found for note in notes)]
    except Ends as error:
        read.ends = str(error)
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # the laws are of another thing
        read.ends = f"it returns something else ({type(error).__name__})"
    by_itself = target.name in ("norm", "mlp") and (read.ends or read.laws)
    measures = measured(read, inputs_of(read.way, B, T), ()) if by_itself else []
    if first := [one for one in measures if one.law in BY_ITSELF]:
        read.laws, read.ends = first, ""


def model_run(thing: Any, way: Way, ids: Tensor) -> tuple[Tensor, list[tuple[Tensor, WantedLoss]]]:
    """The logits (B, T, V) of a model, and the losses that it gives beside them or by a method: what they should be."""
    asked, losses = WantedLoss(**vars(Target("gpt").wanted(ids.shape[1])), ids=ids), list[tuple[Tensor, WantedLoss]]()
    y: Tensor | None = None
    if more := next((one for one in way.listed if GIVEN.search(one.name)), None):
        own = more.name == "labels" and "input_ids" in way.inputs  # as in Hugging Face's models
        targets = ids.clone() if own else ids.roll(1, 0).flip(1).clone()  # (B, T)
        chosen = {name: value for name, value in way.chosen.items() if name != more.name}
        both = replace(way, takes=("ids", "targets"), inputs={**way.inputs, more.name: "targets"}, chosen=chosen)
        given, shifts = {"ids": ids, "targets": targets}, not IS_NEXT.search(more.name)
        with suppress(Exception):  # it is no argument for targets
            result = both.call(thing, given)
            named = asked if own else replace(asked, targets=targets, shifts=shifts)
            losses.append((both.output(result, given), named))
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
    thing, given = read.candidate.thing, {take: name for name, take in read.way.inputs.items()}
    more = {one.name: one.default for one in parameters_of(thing) if one.name not in given.values()}
    more |= vars(thing) if isinstance(thing, nn.Module) else {}
    own = bool(IS_IDS.search(given["targets"]))
    pads = any(PADS.search(name) and value in (0, inspect.Parameter.empty) for name, value in more.items())
    smoothing = next((one for name, one in more.items() if "smooth" in name.lower() and isinstance(one, float)), 0.0)
    asked = WantedLoss(**vars(read.target.wanted(TOKENS.shape[1])), ids=TOKENS, targets=None if own else TOKENS,
                       pads=pads, smoothing=smoothing,
                       shifts=not own and not IS_NEXT.search(given["targets"]))  # fmt: skip
    judge_part(read, read.target, read.reading.shadows.ids(y), asked)


def says_batch_first(thing: Any) -> bool:
    """Whether the text of a program says that the batch is the first axis, and nowhere that the sequence is."""
    text = text_of(thing)
    return bool(BATCH_FIRST.search(text)) and not TIME_FIRST.search(text)


def text_of(thing: Any) -> str:
    """The source of a function, or of a module's class."""
    with suppress(OSError, TypeError):
        return inspect.getsource(type(thing) if isinstance(thing, nn.Module) else thing)
    return ""


def says_full(path: Path) -> bool:
    """Whether the text of a program says that it hides nothing."""
    with suppress(OSError, UnicodeDecodeError):
        return bool(FULL.search(path.read_text(encoding="utf-8")))
    return False


def other_texts(read: Read, chunks: tuple[int, ...]) -> Iterator[Broken]:
    """Compare texts of other lengths with what was read, computed again by a kind of ours."""
    assert read.way is not None
    thing, way = read.candidate.thing, read.way
    if read.found is None or read.found.makes != "output":
        return
    parameters = {name: one.detach() for name, one in thing.named_parameters()} if isinstance(thing, nn.Module) else {}
    wanted = read.target.wanted(T, way.takes)
    try:
        computed = list(again(read.found, wanted, parameters) if way.takes == X else mixed(wanted))
        for length in LENGTHS:
            inputs = inputs_of(way, B, length)
            try:
                y = way.run(thing, inputs, in_chunks(length) if chunks else ())
            except Exception as error:  # the learner's code: anything
                if length > T and ends_at(read, T):
                    yield no_law(T + 1, T)
                    return
                read.notes.append(f"for a text of {length} tokens it raises {type(error).__name__}")
                continue
            off = min(((y - run(*inputs.values())).abs() for run in computed), key=lambda one: float(one.max()))
            if float(off.max()) > 1e-6 * max(1.0, float(y.abs().max())):
                by_token = off.amax([axis for axis in range(y.dim()) if axis != y.dim() - 2])  # (T,)
                yield no_law(length, int((by_token > 1e-6).nonzero()[0]))
                return
    except NotGiven as step:
        read.notes.append(f"not computed again: {step}")


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
                           f"their "
                               "parameters are not registered, and never trained", "nn.ModuleList", "self."
                               f"{name} = nn.ModuleList([...])", line)]  # fmt: skip
    return []


def overwritten(reading: Reading) -> list[Broken]:
    """Whether a text was written over."""
    if not reading.overwritten:
        return []
    return [
        Broken(
            "the input stays as it is",
            "it writes into its input: x is written over",
            "left as it is",
            "work on a copy",
            reading.overwritten,
        )
    ]


def in_chunks(length: int) -> tuple[int, ...]:
    """A text in chunks: a long one first, then single tokens."""
    first = max(1, length - 3)
    return (first, *[1] * (length - first))


def no_law(length: int, token: int) -> Broken:
    """Other numbers than what was read gives."""
    return Broken(
        "texts of all lengths are treated alike",
        f"in a text of {length} tokens the output is another from token {token} on",
        "what its own parameters give by the same steps",
        "look for what ends at that position: a table, a mask, a window, a state of an earlier text",
        0,
    )


def measured(read: Read, inputs: dict[str, Tensor], chunks: tuple[int, ...]) -> list[Broken]:
    """What a reading of one pass does not show."""
    assert read.way is not None
    if chunks:
        return []  # other lengths and chunks were compared with what was read
    thing, options = read.candidate.thing, read.target.options
    of_causal = (read.found is None or read.found.makes == "output") and not options.full
    alone = read.target.name in ("mlp", "norm") or (read.found is not None and read.found.makes == "rows")
    reach = 1 if alone else options.window or None
    program = Program(thing, read.way.run, inputs, str(read.candidate.path), of_causal, reach,
                      frozenset(read.candidate.numbers.values()))  # fmt: skip
    measures = measure(program)
    read.notes += [remark.found for remark in measures.remarks]
    return measures.broken


def report_on(read: Read, wanted: Target | None, lines: bool, whole: bool = True) -> Report:
    """The report on what was read, with a listing if `lines`: of the whole file, or of what ran alone."""
    path, law = read.candidate.path, read.laws[0] if read.laws else None
    report = Report(read.verdict, str(wanted or read.target), str(path), read.laws)
    report.names = [f"{one.found}, not {one.expected}" for one in read.laws] or read.conventions
    report.names = [read.ends] if read.ends else report.names
    report.code = linecache.getline(str(path), law.line).strip() if law and law.line else ""
    report.how = [read.candidate.how, *([read.way.how] if read.way else [])]
    report.notes = [*(read.conventions if read.laws else []), *read.notes]
    if lines and read.reading is not None:
        report.listing = listing(path, read.reading, read.found, read.laws, color=True, whole=whole)
    return report
