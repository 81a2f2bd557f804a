"""One check from beginning to end: of all that a file hands in, what is judged, and what is reported.

A program may be built and called in several ways; the way that obeys the most laws is the one that was meant.
"""

from __future__ import annotations

import copy
import inspect
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from minigpt.attention import Attention
from minigpt.checks.laws.law import NO_STEP
from minigpt.checks.laws.target import IDS, QK, QKV, SORTS, Takes, Target, X, find_target
from minigpt.checks.learners.also import asked_of_all, asked_too
from minigpt.checks.learners.build import Candidate, builds
from minigpt.checks.learners.cached import (
    CACHES,
    OF_EACH,
    OF_FILE,
    ONE_TOKEN,
    PLACES,
    RESETS,
    STARTS,
    SWITCHES,
    cache_argument,
    find,
    fresh,
    makers,
    parameters_of,
    steps_of,
)
from minigpt.checks.learners.calls import GIVEN, MASKS, CannotCall, Way, is_mask, trial, ways
from minigpt.checks.learners.closed import as_module
from minigpt.checks.learners.file import File
from minigpt.checks.learners.handed_in import ANNOUNCED, WANTED, candidates, named
from minigpt.checks.learners.judging import (
    CHUNKS,
    OF_HEADS,
    SHORT,
    B,
    Read,
    T,
    as_kind,
    drawn,
    inputs_of,
    names_of,
    read_way,
)
from minigpt.checks.learners.measures import LEFT, measure
from minigpt.checks.learners.optional import optional
from minigpt.checks.learners.program import Inputs, Program, axis_of, moved, same, tokens
from minigpt.checks.learners.sizes import TABLES, meaning, stored
from minigpt.checks.learners.source import (
    is_numpy,
    looks_at,
    says_batch_first,
    says_full,
    says_time_first,
    sources_of,
    steps_behind,
    text_of,
    used_by,
)
from minigpt.checks.learners.tables import Value
from minigpt.checks.learners.verdict import Report, frames_in
from minigpt.checks.reading.listing import listing
from minigpt.checks.reading.reading import uncollected
from minigpt.checks.reading.structure import Broken
from minigpt.system.errors import UserError

R = TypeVar("R")
MOST_CANDIDATES, MOST_WAYS, MOST_FED = 12, 60, 6
HIDES = "a token sees itself and what came before"
NO_CHUNKS = "no way to feed a text in chunks was found"
MEANS = re.compile(r"(?i)(running|causal|cumulative|prefix|past)_?(mean|average|avg)")
PARTS = "a block is one attention, then one MLP"
TURNED = "a pair of features is rotated"
UNREAD = (
    "a text begins as its first tokens",
    "evaluation draws nothing",
    "a text of a batch is what it is alone",
    "the inputs stay as they are",
    LEFT,
)  # told of what cannot be read, too


def check_file(path: Path, target: str = "", name: str = "", lines: bool = False, exercise: str = "") -> Report:
    """The report on a learner's file; it runs in this process. Raises UserError for an unknown target.

    A file that is right is also asked what the text of its `exercise` promises.
    """
    wanted = find_target(target) if target else None
    listed = candidates(path, str(wanted or ""), name)
    reads = read_things(answers(listed, wanted.name) if wanted and exercise else listed, wanted)
    for one in reads:
        if one.verdict.startswith("right") and not one.target.options.full:
            one.laws = in_double(partial(asked_of_all, one.candidate.thing))
    read = best_of(reads) if exercise and reads else None
    if read and read.verdict.startswith("right"):
        read.laws = in_double(lambda: asked_too(read.candidate.thing, str(path), exercise))
    return report_on_all(reads, wanted, lines)


def check(thing: Any, as_: str = "", lines: bool = False) -> Report:
    """The report on a function, a module or a class; it runs in this process, and a module is left as it was.

    `as_` is what it should be, with options: "attend", "multi_head", "grouped_query,rotary", "multi_head,window=4"; by
    default what it is nearest to. `lines` shows each line beside what it makes.
    Raises UserError for an unknown target, an object that cannot be checked, or one that cannot be copied.
    """
    wanted = find_target(as_) if as_ else None
    is_code = inspect.isroutine(thing) or inspect.isclass(thing)
    name = thing.__name__ if is_code else type(thing).__name__
    try:
        module = thing if is_code else as_module(copy.deepcopy(thing))
    except Exception:  # the module keeps tensors of an earlier pass
        raise UserError(f"{name} cannot be copied: build a fresh one for the check") from None
    if module is None:
        raise UserError(f"{name} cannot be checked: expected a function, a module or a class with `__call__`")
    module = module.double().eval() if isinstance(module, nn.Module) else module
    reads = list[Read]()
    for path in sources_of(thing):
        listed = iter([Candidate(module, f"checked: {name}", name, path)])
        listed = builds(thing, File.of(thing, path), str(wanted or "")) if inspect.isclass(thing) else listed
        reads = read_things(listed, wanted)
        if any(result.line for read in reads if read.reading for result in read.reading.results):
            break  # lines of this file make something
    return report_on_all(reads, wanted, lines, whole=False)


def answers(listed: Iterator[Candidate], wanted: str) -> Iterator[Candidate]:
    """Of all that a file hands in, what an exercise asks for: a kind, or a function of this name; no part of it."""
    things = list(islice(listed, MOST_CANDIDATES))
    asked = [one for one in things if isinstance(one.thing, Attention) or one.name == wanted != "dot_product"]
    return iter(asked or things)


def read_things(listed: Iterator[Candidate], wanted: Target | None) -> list[Read]:
    """What is said of the things of a file."""
    return in_double(lambda: read_each(listed) if wanted is None else list(read_all(listed, wanted)))


def read_each(listed: Iterator[Candidate]) -> list[Read]:
    """What is said of each thing of a file, parts before wholes; or of what it builds itself as its answer alone."""
    best, read_before = dict[str, Read](), set[str]()
    for candidate in islice(listed, MOST_CANDIDATES):
        name = candidate.name
        if inspect.isfunction(candidate.thing) and is_inside(candidate, best):
            continue  # a part of what is right
        if name in best and (not best[name].ends or name in read_before):
            continue  # built in another way it would be the same
        for guess, takes in guesses(candidate):
            read = read_candidate(candidate, guess, takes)
            if guess is None and (read.verdict.startswith("right") or remembers(read)):
                read = with_cache(read)
            if read.verdict.startswith("right"):
                read = with_options(fed_back(read))
                read.conventions += window_meant(read)
            if not is_told(read) and not read.verdict.startswith("right"):
                read = as_named(read)
            if not is_told(read) and not read.verdict.startswith("right"):
                read.ends = read.ends or f"it is not known what it is; as {read.target} it would be wrong"
            if read.verdict == "wrong" and is_numpy(candidate.path):
                read.laws, read.ends = [], "it computes with numpy, which is not read"
            best[name] = best_of([read, *([best[name]] if name in best else [])])
            read_before |= {name} if read.reading else set()
            is_whole = guess is None and read.target.name in ("block", "gpt")  # nothing smaller
            if best[name].verdict.startswith("right") or is_whole or (
                guess is None and not read.ends and not is_another(read)):  # fmt: skip
                break
        is_function = inspect.isroutine(getattr(candidate.thing, "of", candidate.thing))
        if name in ANNOUNCED and not is_function and not best[name].ends:
            return [best[name]]
    return list(best.values())


def is_inside(candidate: Candidate, reads: dict[str, Read]) -> bool:
    """Whether a function is used by something that was found to be right."""
    right = [name for name, read in reads.items() if read.verdict.startswith("right")]
    return bool(right) and candidate.name in used_by(right, candidate.path)


def with_cache(read: Read) -> Read:
    """What is said of an attention that has a cache, when it is fed in chunks."""
    thing, target = read.candidate.thing, read.target
    if not isinstance(thing, nn.Module) or "cache" not in SORTS[target.name].options or target.options.full:
        return read
    names = [one.name.lower() for one in parameters_of(thing)]
    names += [name for part in thing.modules() for name, value in {**vars(part), **vars(part)["_buffers"]}.items()
              if not TABLES.search(name) and getattr(value, "dtype", None) != torch.bool]  # fmt: skip
    if not any(map(CACHES.search, names)) and not steps_of(thing):
        return read
    cached = replace(target, options=replace(target.options, cache=True))
    fed = read_candidate(read.candidate, cached, (X,), read.way)
    if fed.verdict == "cannot tell" or fed.way is None or (fed.laws and not uses_cache(fed)):
        name = cache_argument(parameters_of(thing), [*read.way.inputs] if read.way else [])
        if not name or looks_at(thing, name):
            read.untried[name] = f"what it does with {f'`{name}`' if name else 'its cache'}: {NO_CHUNKS}"
        return read
    return fed


def remembers(read: Read) -> bool:
    """Whether a module keeps what a text leaves until a method says that another one begins: a cache, as is meant."""
    kept = bool(read.laws) and read.laws[0].law == LEFT
    return kept and any(RESETS.search(name) and not hasattr(nn.Module, name) for name in dir(read.candidate.thing))


def with_options(read: Read) -> Read:
    """What is said of a right program when what its arguments switch on is tried, too."""
    thing, way = read.candidate.thing, read.way
    left = steps_behind(thing, read.candidate.path, given_to(read, way)) if way and not read.laws else {}
    if way and left and not (way.protocol and way.protocol.method):
        tried, read.laws = optional(thing, way, inputs_of(way, B, T), left)
        read.tried |= tried
    return read


def fed_back(read: Read) -> Read:
    """What is said of a right program that returns a state and takes it, when a text is fed in chunks through it."""
    thing, way = read.candidate.thing, read.way
    name = cache_argument(parameters_of(thing), [*way.inputs]) if way and way.takes in (X, QKV, IDS) else ""
    if (
        way is None
        or way.protocol
        or not (CACHES.search(name.lower()) or (name and any(True for _ in makers(thing))))
        or read.target.options.cache
        or isinstance(thing, Attention)
    ):
        return read
    inputs, used = inputs_of(way, B, T), list[str]()
    with suppress(CannotCall):
        for fed in islice(ways(thing, way.takes, True, way), MOST_FED):
            if fed.layout == way.layout and fed.protocol and fed.protocol.argument == name:
                whole, parts = (trial(fed, thing, inputs, chunks) for chunks in ((), CHUNKS))
                if same(parts, whole):
                    read.tried |= {name, *(find(fed.listed, words) for words in (STARTS, PLACES, SWITCHES))}
                    return read
                if is_meant(fed) and not same(parts, in_pieces(fed, thing, inputs)):
                    t = int(moved(parts, whole).nonzero()[0, 1])
                    used.append(f"in chunks of {'+'.join(map(str, CHUNKS))} tokens, each with {fed.protocol.how} as "
                                f"`{name}`, token {t} is another than at once")  # fmt: skip
    mend = "hand on all that was summed up or kept: each part of it goes into the next"
    mend = "begin the positions behind what the cache holds" if way.takes == IDS else mend
    read.laws = [Broken("in chunks a text is what it is at once", one, "the same", mend, 0) for one in used[:1]]
    read.untried |= {} if used or not looks_at(thing, name) else {name: f"what it does with `{name}`: {NO_CHUNKS}"}
    return read


def is_meant(way: Way) -> bool:
    """Whether a cache is passed on as its author meant: as the call before returned it, or as a method makes it."""
    assert way.protocol is not None
    known = {*way.inputs, way.protocol.argument, *(find(way.listed, words) for words in (STARTS, PLACES, SWITCHES))}
    rest = [one.name for one in way.listed if one.name not in known and not (GIVEN.search(one.name) or is_mask(one))]
    sure = way.protocol.how.startswith((OF_FILE, OF_EACH)) or (way.protocol.returned and not way.protocol.make)
    return sure and not (way.takes == IDS and rest)


def window_meant(read: Read) -> list[str]:
    """In words, that a program sees another number of positions than its window says; [] if it does not."""
    thing, way, window = read.candidate.thing, read.way, read.target.options.window
    assert way is not None
    names = [one for one in way.listed if meaning(one.name) == "window"]
    windows = [way.settings[one.name].text if one.name in way.settings else str(one.default) for one in names]
    windows = windows or [*map(str, stored(thing, "window") if isinstance(thing, nn.Module) else ())]
    windows = [one for one in windows if one.isdigit()]  # a pair, (left, right), counts what is on either side
    hides = window or any(int(one) < read.T for one in windows)
    words = f"with a window of {', '.join(windows)} a query sees {window or 'all'} positions, its own included"
    return [words] if hides and windows and str(window) not in windows else []


def uses_cache(read: Read) -> bool:
    """Whether a chunk that is fed behind others gives something else than alone."""
    assert read.way is not None
    thing, inputs = read.candidate.thing, inputs_of(read.way, B, T)
    return not same(read.way.run(thing, inputs, CHUNKS), in_pieces(read.way, thing, inputs))


def in_pieces(way: Way, thing: Any, inputs: Inputs) -> Tensor:
    """The output of each chunk alone, joined."""
    starts = [sum(CHUNKS[:i]) for i in range(len(CHUNKS))]
    alone = [way.run(thing, tokens(inputs, first, first + T), (T,)) for first, T in zip(starts, CHUNKS)]
    return torch.cat(alone, axis_of(alone[0]))


def guesses(candidate: Candidate) -> Iterator[tuple[Target | None, Sequence[Takes]]]:
    """Yields what a thing may be, by its name and its arguments, and what it takes; None: whatever it is nearest to."""
    thing = candidate.thing
    needed = [one.name.lower() for one in parameters_of(thing) if one.default is one.empty]
    fits = {target for target in ("linear_attention", "loss", "rotary", "attend") for name in names_of(candidate)
            if named(name, target) > (target == "linear_attention")}  # fmt: skip
    if "loss" in fits or (len(needed) == 2 and (GIVEN.search(needed[1]) or "logit" in needed[0])):
        sure = ["loss"]
    elif any(map(MEANS.search, names_of(candidate))):
        sure = ["running_mean"]
    elif "rotary" in fits - {"attend"} or "linear_attention" in fits:
        sure = ["rotary" if "rotary" in fits else "linear_attention"]
    else:
        sure = ["rotary", "attention_weights", "dot_product"] if len(needed) == 2 and inspect.isroutine(thing) else []
    for name in sure:
        yield Target(name), Target(name).takes
    if sure != ["loss"]:
        takes_heads = inspect.isroutine(thing) and {name[0] for name in needed} >= set("qkv")
        yield None, (QKV,) if takes_heads else (X, QKV, IDS)
        yield Target("attention_weights"), (X,) if sure else (X, QK)
        if "linear_attention" not in sure:
            yield Target("linear_attention"), (X, QKV)


def report_on_all(reads: list[Read], wanted: Target | None, lines: bool, whole: bool = True) -> Report:
    """The report on the things of a file: on what is wanted, or on the first that is wrong, else the largest right one.

    What a right whole is made of is right in it, whatever is said of it alone.
    """
    if wanted is not None:
        return report_on(best_of(reads), wanted, lines, whole)
    if not reads:
        raise UserError("nothing was found that can be called: end the file with a line like "
                        "`attention = MyAttention(48, 6)`")  # fmt: skip
    right = [read for read in reads if read.verdict.startswith("right")]
    inside = used_by([name for read in right for name in names_of(read.candidate)], reads[0].candidate.path)
    own = [read for read in reads if read in right or read.candidate.name not in inside or forgets(read)]
    own = [read for read in own if read.candidate.name or read in right or not right]  # no lines beside what is right
    for read in own:
        if read.verdict == "wrong" and read.target.name in ("block", "gpt") and (part := other_attention(read, right)):
            read.ends = f"it uses {part}, which is linear attention: the whole is not read"
    wrong = [read for read in own if read.verdict == "wrong"]
    right.sort(key=lambda read: (read.candidate.name in inside, -len(text_of(read.candidate.thing))))
    untold = [read for read in own if read.candidate.name in ANNOUNCED and read.ends]  # no part of it speaks for it
    main = (wrong or untold or right or [best_of(own or reads)])[0]
    if main.verdict == "cannot tell" and inspect.isroutine(main.candidate.thing) and MASKS.search(main.candidate.name):
        main.ends = "a mask alone is no attention: hand in the function or the class that hides the scores with it"
    report = report_on(main, None, lines, whole)
    report.notes += [f"{read.candidate.name}: {read.verdict}, as {read.target}" if read in right or read in wrong else
                     f"{read.candidate.name}: cannot tell what it is" for read in own if read is not main]  # fmt: skip
    return report


def other_attention(read: Read, right: list[Read]) -> str:
    """The name of a part of a whole that is right as linear attention; "" if there is none."""
    used = used_by(names_of(read.candidate), read.candidate.path)
    names = [one.candidate.name for one in right if one.target.name == "linear_attention"]
    return next((name for name in names if name in used), "")


def forgets(read: Read) -> bool:
    """Whether a part goes wrong with its cache, which the whole perhaps never had."""
    return read.verdict == "wrong" and read.way is not None and read.way.protocol is not None and is_meant(read.way)


def as_named(read: Read) -> Read:
    """What is said of what was taken for an MLP or a norm, if its name says what it is: the law that it breaks."""
    is_block = any(named(name, "block") for name in names_of(read.candidate))
    if read.target.name in ("mlp", "norm") and (is_block or is_called_attention(read.candidate)):
        other = read_candidate(read.candidate, Target("block" if is_block else "multi_head"), (X,))
        if is_another(other):
            other.laws, other.ends = [], f"{other.laws[0].actual}: attention has no such step"
            other = leaks(other, other.target)
        return other if other.verdict == "wrong" else read
    return read


def is_called_attention(candidate: Candidate) -> bool:
    """Whether a name of a thing says that it is an attention."""
    return any(named(name, target) for name in names_of(candidate) for target in ("attend", "grouped_query"))


def is_another(read: Read) -> bool:
    """Whether a step was found that attention does not have: perhaps something else was meant, as linear attention."""
    return bool(read.laws) and read.laws[0].law == NO_STEP


def is_told(read: Read) -> bool:
    """Whether it is known what a thing is: by its attention, or by its name."""
    if read.target.name == "block" and read.laws and read.laws[0].law == PARTS:
        return any(named(name, "block") for name in names_of(read.candidate))
    if read.target.name not in ("norm", "mlp", "linear_attention", "attention_weights", "rotary"):
        return True
    sure = len(WANTED[read.target.name])  # its first words are the surest
    return any(named(name, read.target.name) == sure for name in names_of(read.candidate))


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
        read = with_options(fed_back(read)) if read.verdict.startswith("right") else read
        yield read
        if read.verdict.startswith("right") or (candidate.name in (wanted.name, *ANNOUNCED) and not read.ends):
            return
        judged_names |= set(names_of(candidate)) if not read.ends else set()
    if rotation and not judged_names and not any(named(name, "multi_head") for one in seen for name in names_of(one)):
        yield from (read_candidate(candidate, wanted, rotation) for candidate in seen)


def best_of(reads: list[Read]) -> Read:
    """Of all that a file hands in, what is reported: what is right, else what obeys most, the first of them."""
    return max(reads, key=lambda read: read.rank)


def read_candidate(
    candidate: Candidate, wanted: Target | None, taken: Sequence[Takes], like: Way | None = None
) -> Read:
    """What is said of one thing, by the way to call it that obeys the most laws; fed in chunks as `like` is called."""
    start = Read(candidate, wanted or Target("multi_head"), ends="no way to call it was found", depth=-1)
    best, cached = start, bool(wanted and wanted.options.cache)
    for takes in taken:
        try:
            batch_first = says_batch_first(candidate.thing)
            listed = islice(ways(candidate.thing, takes, cached, like), MOST_WAYS)
            for way in listed if wanted and wanted.options.full else hiding_first(candidate, listed):
                if (batch_first and way.layout == "(T, B, D)") or is_mixed(candidate, way):
                    continue
                if len(way.inputs) < len(takes) and not (wanted and (wanted.name == "rotary" or wanted.options.rotary)):
                    continue  # one tensor alone is a query only where it is rotated
                with fresh(candidate.thing):  # what one text leaves behind is no part of the next reading
                    read = read_way(candidate, way, wanted)
                best = max(best, read, key=lambda one: (*one.rank[:3], not (cached and is_idle(one)), one.depth))
                if read.verdict.startswith("right"):
                    return read
                if turns_by_itself(read):
                    return with_doubt(read)
                if is_step(read):
                    fed = [Read(candidate, read.target, way) for way in islice(one_by_one(candidate.thing), MOST_FED)]
                    best = max((as_kind(one, one.target) for one in fed), key=lambda one: one.rank, default=best)
                    return best
        except CannotCall as error:
            if best is start and start.ends.startswith("no way"):
                start.ends = str(error)
                needed = [one for one in parameters_of(candidate.thing) if one.default is one.empty]
                alone = len(needed) <= len(takes) and (needed or isinstance(candidate.thing, nn.Module))
                start.laws = raised(candidate, error.__cause__) if alone else []
    return leaks(with_doubt(best), wanted)


def hiding_first(candidate: Candidate, listed: Iterator[Way]) -> Iterator[Way]:
    """Yields ways to call what takes a mask: first those in which no token sees a later one."""
    late = list[Way]()
    for way in listed:
        masks = [one for one in way.listed if is_mask(one) and one.default is one.empty]
        if masks and not says_full(candidate.path) and looks_ahead(candidate.thing, way):
            late.append(way)
        else:
            yield way
    yield from late


def looks_ahead(thing: Any, way: Way) -> bool:
    """Whether the first token changes with the last one."""
    inputs = inputs_of(way, B, SHORT)
    last = {name: torch.cat((tokens({name: x}, 0, SHORT - 1)[name], tokens({name: x}, 0, 1)[name]), axis_of(x))
            for name, x in inputs.items()}  # fmt: skip
    with suppress(Exception):  # the learner's code: anything
        return bool(moved(trial(way, thing, last), trial(way, thing, inputs))[:, 0].any())
    return False


def is_idle(read: Read) -> bool:
    """Whether something is wrong because this way to pass a cache on hands over nothing."""
    with suppress(Exception):  # the learner's code: anything
        return bool(read.laws) and read.way is not None and not uses_cache(read)
    return False


def turns_by_itself(read: Read) -> bool:
    """Whether a program that may be given tables of angles was given none, and turns by its own in a wrong way."""
    way, law = read.way, read.laws[0].law if read.laws else ""
    return law == TURNED and way is not None and not way.settings and any(TABLES.search(one.name) for one in way.listed)


def is_step(read: Read) -> bool:
    """Whether a linear attention that takes a state mixes no tokens of a text: it is written for one token."""
    way, thing = read.way, read.candidate.thing
    if way is None or not read.laws or way.takes != QKV or not inspect.isroutine(thing):
        return False
    if read.target.name != "linear_attention" or not cache_argument(way.listed, [*way.inputs]):
        return False
    text = inputs_of(way, B, SHORT)
    other = {name: torch.cat((-x[:, :, :1], x[:, :, 1:]), dim=2) for name, x in text.items()}
    with suppress(Exception):  # the learner's code: anything
        return not bool(moved(way.run(thing, text), way.run(thing, other))[:, 1:].any())
    return False


def one_by_one(thing: Any) -> Iterator[Way]:
    """Yields the ways in which a text can be fed to a function of one token's query, key and value."""
    with suppress(CannotCall):
        yield from (way for way in ways(thing, QKV, True) if way.layout in ONE_TOKEN)


def leaks(read: Read, wanted: Target | None) -> Read:
    """What was not read to its end; if texts are mixed, or a token sees a later one, it is wrong all the same.

    Only of a model of ids, of what is asked to be an attention or a mean, or is called one, and could not be told.
    """
    thing, way = read.candidate.thing, read.way
    asked = wanted is not None and wanted.name in (*OF_HEADS, "running_mean", "block") and not wanted.options.full
    asked = asked or is_called_attention(read.candidate) or bool(way and way.takes == IDS)
    asked = asked or any(named(name, "block") for name in names_of(read.candidate))
    if not (asked and read.ends and read.reading and way) or read.laws or way.takes not in (X, QKV, IDS):
        return read
    full = says_full(read.candidate.path) or any(is_mask(one) or "causal" in one.name for one in parameters_of(thing))
    program = Program(thing, way.run, inputs_of(way, B, T), str(read.candidate.path), causal=not full)
    with suppress(Exception):  # the learner's code: anything
        read.laws = [one for one in measure(program).broken if one.law in UNREAD or "no gradient" in one.actual]
        read.ends = "" if read.laws else read.ends
    return read


def is_mixed(candidate: Candidate, way: Way) -> bool:
    """Whether a way mixes the texts of a batch, and with the other axis as the batch they are apart; or is that other.

    Of two layouts, the one in which texts are apart was meant; the usual one, if they are so in both.
    """
    layouts = ("(B, T)", "(T, B)") if way.takes == IDS else ("(B, T, D)", "(T, B, D)")
    if way.layout not in layouts or way.takes not in (X, IDS) or way.protocol:
        return False
    if way.takes == IDS and not says_time_first(candidate.path):
        return way.layout != layouts[0]  # texts that are mixed are so by mistake
    usual, other = (are_apart(candidate.thing, replace(way, layout=layout)) for layout in layouts)
    return usual if way.layout != layouts[0] else other and not usual


def are_apart(thing: Any, way: Way) -> bool:
    """Whether a text of a batch changes no other."""
    inputs = inputs_of(way, B, SHORT)
    other = {name: x.clone() for name, x in inputs.items()}
    for x in other.values():
        x[0] = x[0].flip(0) * 1.5 + 0.3 if x.is_floating_point() else x[0].flip(0)
    with suppress(Exception):  # the learner's code: anything
        return torch.allclose(trial(way, thing, inputs)[1:], trial(way, thing, other)[1:], equal_nan=True)
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
    if read.way is not None and read.laws:
        guessed = [name for name, value in read.way.settings.items() if value.guessed]
        read.ends = read.ends or (f"it is not known what it takes as `{guessed[0]}`" if guessed else "")
    if read.way is None or not read.laws or read.laws[0].law != HIDES:
        return read
    thing = read.candidate.thing
    left = [one.name for one in parameters_of(thing) if is_mask(one) and one.name not in read.way.settings]
    left = [name for name in left if not ignores(read, name)]
    if left and "x" * read.T in read.laws[0].row:
        words = "and no way was found to give it one; without one, nothing is hidden"
        read.ends = f"it takes a mask as `{left[0]}`, {words}"
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
                y = replace(read.way, settings={**read.way.settings, name: value}).run(thing, inputs)
                same.append(y.shape == before.shape and torch.allclose(y, before, equal_nan=True))
    return bool(same) and all(same)


def given_to(read: Read, way: Way) -> set[str]:
    """The arguments that were tried."""
    of_cache = [find(way.listed, words) for words in (STARTS, PLACES, SWITCHES)] if way.protocol else []
    targets = [one.name for one in way.listed if GIVEN.search(one.name)] if way.takes == IDS else []
    return {*way.inputs, *way.settings, *read.tried, *of_cache, *targets, way.protocol.argument if way.protocol else ""}


def report_on(read: Read, wanted: Target | None, lines: bool, whole: bool = True) -> Report:
    """The report on what was read, with a listing if `lines`: of the whole file, or of what ran alone."""
    path, law = read.candidate.path, read.laws[0] if read.laws else None
    report = Report(read.verdict, str(wanted or read.target), str(path), read.laws)
    report.names = [f"{one.actual}, not {one.expected}" for one in read.laws] or read.conventions
    report.names = [read.ends] if read.ends else report.names
    report.code = linecache.getline(str(path), law.line).strip() if law and law.line else ""
    report.how = [read.candidate.how, *([read.way.how] if read.way else [])]
    report.notes = [*(read.conventions if read.laws else []), *read.notes]
    if read.way and read.verdict.startswith("right"):
        steps = steps_behind(read.candidate.thing, path, given_to(read, read.way))
        left = {name: f"what it does with `{name}`, line {line}" for name, line in steps.items()} | read.untried
        if left:
            report.verdict = "cannot tell"
            report.names = [f"what was tried is right; not tried: {'; '.join(left.values())}"]
            report.notes[:0] = read.conventions
    if lines and read.reading is not None:
        report.listing = listing(path, read.reading, read.attention, read.laws, color=True, whole=whole)
    return report
