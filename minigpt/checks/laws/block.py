"""The laws of a block: h = x + attention(norm1(x)), then h + mlp(norm2(h)).

Pre-norm is GPT-2's order ("On Layer Normalization in the Transformer Architecture", arXiv 2002.04745); post-norm, norm
of the sum, is the first Transformer's. A stream is what the parts read and add to; its laws compare sums of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minigpt.checks.laws.law import Saw, Wanted, law
from minigpt.checks.laws.parts import OF_NORMS, Model, activated, at_place, attentions, in_words, of_two_layers, used
from minigpt.checks.reading.parts import Node, Stream
from minigpt.checks.reading.structure import Ends

Saws = Iterator[Saw]
FIRST, SECOND = "h = x + attention(norm1(x))", "return h + mlp(norm2(h))"


@dataclass
class Step:
    """One part of a block: what it reads, before and after a norm, and the stream after it."""

    part: Node
    before: Stream
    base: Stream
    """What it reads, without the norm of it."""
    norm: Node | None


def step(part: Node, before: Stream) -> Step:
    """A part with what it reads: a stream, or the norm of one."""
    reads = part.reads[0] if part.reads else Stream()
    node = next(iter(reads), None)
    if len(reads) == 1 and node is not None and node.kind == "norm" and reads != before:
        return Step(part, before, node.reads[0], node)
    return Step(part, before, reads, None)


def plus(stream: Stream, *nodes: Node) -> Stream:
    """A stream to which nodes are added."""
    return {**stream, **dict.fromkeys(nodes, 1.0)}


def one(node: Node | None) -> Stream:
    """The stream that is one node."""
    return {node: 1.0} if node is not None else {}


def norm_of(model: Model, stream: Stream) -> Node | None:
    """The norm that reads a stream."""
    return next((node for node in model.of_kind("norm") if node.reads[0] == stream), None)


@law("a block is one attention, then one MLP", f"{FIRST}; {SECOND}")
def two_parts(model: Model, wanted: Wanted) -> Saws:
    kinds = [node.kind for node in parts_of(model)]
    for node in model.of_kind("other"):
        known = {"product": "parts are multiplied with the stream instead of added", "linear": "token and position "
                 "embeddings are multiplied instead of added, or the stream by a parameter"}  # fmt: skip
        if not node.op:
            raise Ends("something that is not known", node.line, "a sum of x and of what the parts return is expected")
        other = f"{node.op} stands in the stream"
        yield Saw(node.line, known.get(node.op, other), "sums of x and of what attention and MLP return")
    line = parts_of(model)[0].line if kinds else 0
    if not model.is_gpt and kinds != ["attention", "mlp"]:
        words = {(): "neither attention nor MLP is used",
                 ("attention",): "the MLP is not used: the block ends after the attention",
                 ("mlp",): "the attention is not used: the block is its MLP alone",
                 ("mlp", "attention"): "the MLP comes before the attention: the order is exchanged",
                 ("attention", "attention"): "the second part is the attention again, not the MLP"}.get(tuple(kinds),
                 f"it is {', then '.join(kinds)}")  # fmt: skip
        attention, x = parts_of(model)[:1], start_of(model)
        sums = [plus(x, *attention)] if kinds == ["attention"] else []
        alone = model.stream in (*sums, *(one(norm_of(model, each)) for each in sums if norm_of(model, each)))
        yield Saw(line, words, "an attention, then an MLP", "", "no MLP" if alone else "")


def parts_of(model: Model) -> list[Node]:
    """The attentions and MLPs, each after those that it reads; of two that read the same the attention first."""
    depths = dict[Node, int]()
    for node in model.nodes:
        depths[node] = 1 + max((depths.get(inner, 0) for read in node.reads for inner in read), default=0)
    listed = model.of_kind("attention", "mlp", "linear")
    return sorted(listed, key=lambda node: (depths[node], node.kind != "attention"))


@law("queries, keys and values are made of one stream", "the attention reads norm1(x) alone: query, key and value")
def one_stream(model: Model, wanted: Wanted) -> Saws:
    for node in model.of_kind("attention"):
        names = {"the queries": node.reads[0], "the keys": node.reads[1], "the values": node.reads[2]} if len(
            node.reads) == 3 else {}  # fmt: skip
        raw = [name for name, read in names.items() if not any(inner.kind == "norm" for inner in read)]
        if names and any(read != node.reads[0] for read in node.reads):
            yield Saw(node.line, f"{model.where(node)}{' and '.join(raw) or 'they'} are made of x as it is, without "
                                 f"the norm", "all of norm(x)")  # fmt: skip


@law("each part reads the norm of the stream, and what it returns is added to the stream", f"{FIRST}; {SECOND}")
def residuals(model: Model, wanted: Wanted) -> Saws:
    yield from of_block(model, start_of(model), parts_of(model), model.stream, "")


def start_of(model: Model) -> Stream:
    """The stream that the first block reads."""
    kinds = ("x",) if not model.is_gpt else ("embedding", "parameter", "constant")
    return dict.fromkeys(model.of_kind(*kinds), 1.0)


def of_block(model: Model, x: Stream, parts: list[Node], out: Stream, where: str) -> Saws:
    """Where a block of an attention and an MLP is wrong; `x` is what it reads, `out` what it should return."""
    if len(parts) != 2 or parts[0].kind != "attention":
        return
    attention, mlp = parts
    first = step(attention, x)
    h = plus(x, attention)
    if first.base != x:
        twice = first.norm is not None and len(first.base) == 1 and next(iter(first.base)).kind == "norm"
        words = "both norms, one after the other" if twice else f"{in_words(first.base, False)}, not x"
        yield Saw(attention.line, f"{where}the attention reads the norm of {words}", "norm(x)")
        return
    is_post = False
    if first.norm is None:
        post, behind = norm_of(model, h), norm_of(model, one(attention))
        second = step(mlp, h)
        is_post = post is not None and (out == plus(one(post), mlp) or
                                        out == one(norm_of(model, plus(one(post), mlp))))  # fmt: skip
        if behind is not None and not any(node in second.base or node in out for node in x):
            yield Saw(behind.line, f"{where}the first residual is missing: norm(attention(x)), without adding x",
                      "norm(x + attention(x)), or x + attention(norm(x))")  # fmt: skip
            return
        if behind is not None:
            both = norm_of(model, one(mlp)) is not None
            yield Saw(behind.line, f"{where}{'the norms are' if both else 'the first norm is'} applied to what "
                      f"{'the parts return' if both else 'attention returns'}, x + norm(part(x)), behind it, not to "
                      f"what it reads", "norm(x) before it")  # fmt: skip
            return
        if not is_post:
            bare = "both norms are missing: attention and MLP read" if second.norm is None else (
                "the first norm is missing: attention reads")  # fmt: skip
            yield Saw(attention.line, f"{where}{bare} the stream as it is", "its norm")
            return
        assert post is not None
        h = one(post)
    elif (sandwich := norm_of(model, one(attention))) is not None and norm_of(model, one(mlp)) is not None:
        yield Saw(sandwich.line, f"{where}what the parts return is normed too, as in Gemma 2", "norms before the parts "
                  "alone", "", "sandwich")  # fmt: skip
        h = plus(x, sandwich)
    yield from of_mlp(model, x, h, first, mlp, out, where, is_post)


def of_mlp(model: Model, x: Stream, h: Stream, first: Step, mlp: Node, out: Stream, where: str,
           is_post: bool) -> Saws:  # fmt: skip
    """The second half of a block: `h` is the stream after the attention."""
    attention, second = first.part, step(mlp, h)
    if is_post and mlp.reads[0] == h:
        second = Step(mlp, h, h, None)
    line = mlp.line
    wrapped = norm_of(model, one(mlp))
    added = wrapped if wrapped is not None and wrapped in out else mlp
    if is_post:
        last = norm_of(model, plus(h, mlp))
        if second.base == h and second.norm is None and last is not None and out == one(last):
            yield Saw(last.line, f"{where}post-norm, norm(x + part(x)), as in the first Transformer", "pre-norm", "",
                      "post-norm")  # fmt: skip
        elif second.norm is not None and out == plus(h, mlp):
            yield Saw(attention.line, f"{where}the first norm stands behind the sum, norm1(x + attention(x))",
                      "attention(norm1(x))")  # fmt: skip
        else:
            yield Saw(line, f"{where}it computes {in_words(out)}, neither pre-norm nor post-norm", f"{FIRST}; {SECOND}")
        return
    if second.base == x and out == plus(x, attention, mlp):
        if second.norm is first.norm:
            yield Saw(line, f"{where}attention and MLP read the same norm, in parallel, as in GPT-J and PaLM", "one "
                      "after the other", "", "parallel")  # fmt: skip
        else:
            yield Saw(line, f"{where}the MLP reads the block's input x, not h, the sum after attention: they are "
                      "parallel", "norm2(h), h = x + attention(norm1(x))", "", "two norms")  # fmt: skip
        return
    if second.base == x and out == plus(one(attention), mlp):
        yield Saw(line, f"{where}the residual is missing: attention and MLP are added to each other, not to x",
                  f"{FIRST}; {SECOND}")  # fmt: skip
    elif second.base != h:
        yield Saw(line, where + not_added(x, attention, second, out), "norm2(h), h = x + attention(norm1(x))")
    elif second.norm is None:
        last = norm_of(model, plus(h, mlp))
        behind = "stands behind the sum, norm2(h + mlp(h))" if last is not None and out == one(last) else (
            "is applied to what the MLP returns" if wrapped else "is missing: the MLP reads h as it is")  # fmt: skip
        yield Saw(line, f"{where}the second norm {behind}", "mlp(norm2(h))")
    elif out != plus(h, added):
        yield Saw(line, where + not_kept(x, h, mlp, second, out), "h + mlp(norm2(h))")
    elif added is wrapped and all(inner.reads[0] != one(attention) for inner in model.of_kind("norm")):
        yield Saw(line, f"{where}the second norm is applied to what the MLP returns", "to what it reads")
    elif first.norm is not None and first.norm.names == second.norm.names and first.norm.names:
        yield Saw(second.norm.line, f"{where}one norm is used for both parts: attention and MLP share its weight",
                  "a norm for each")  # fmt: skip


def not_added(x: Stream, attention: Node, second: Step, out: Stream) -> str:
    """What is wrong where the MLP does not read the sum of x and attention."""
    base = second.base
    if base == one(attention):
        if any(node in out for node in x):
            return "the MLP reads what attention returns, without x: the first residual is missing there"
        return ("both residuals are missing" if attention not in out else
                "the first residual is missing: attention(norm1(x)) without adding x")  # fmt: skip
    if base == x:
        return "the MLP reads the norm of x, the block's input, not of h, the sum after attention"
    if base.get(attention, 1.0) == -1.0:
        return "what the attention returns is subtracted from the stream instead of added"
    if any(node.kind == "norm" and node.reads[0] == x for node in base):
        return ("x is replaced by norm1(x), its norm, before the first residual: the sum is norm1(x) + "
                "attention(norm1(x)), it adds the normed x instead of x; x is replaced by its norm")  # fmt: skip
    if any(base.get(node, 0.0) > 1.0 for node in x):
        return "x is added twice to what attention returns: inside the attention and in the block"
    if len(base) == 1 and next(iter(base)).kind == "norm":
        return "the MLP reads both norms, one after the other, norm2(norm1(h))"
    return f"the MLP reads the norm of {in_words(base, False)}"


def not_kept(x: Stream, h: Stream, mlp: Node, second: Step, out: Stream) -> str:
    """What is wrong where a block does not return the sum of h and MLP."""
    if out == one(mlp):
        return "the second residual is missing: mlp(norm2(h)) without adding h"
    if out == plus(x, mlp):
        return "the second residual adds the block's input x, not h: what attention found is lost (residual shortcut)"
    if out.get(mlp, 1.0) == -1.0:
        return "what the MLP returns is subtracted from the stream instead of added"
    if second.norm is not None and second.norm in out:
        if all(node in out for node in h):
            return "the MLP adds what it reads to its output, besides the block's own residual"
        return ("h is replaced by its norm: norm2(h) + mlp(norm2(h)), so the second residual adds the normed x, it is "
                "replaced by norm2(h)")  # fmt: skip
    if any(node.kind == "norm" and node.reads[0] == one(mlp) for node in out):
        return "a norm is applied to what the MLP returns"
    counts = [out.get(node, 0.0) for node in h]
    if all(count == 2.0 for count in counts):
        return "h is added twice at the end"
    if any(count > 1.0 for count in counts):
        return "x is added once more at the end, twice: h holds x already"
    if any(count == 0.0 for count in counts):
        return f"the block returns {in_words(out, False)}: x is missing, it is the change only"
    return f"the block returns {in_words(out, False)}"


BLOCK_LAWS = (of_two_layers, two_parts, one_stream, attentions, residuals, *OF_NORMS, activated,
              at_place, used)  # fmt: skip
