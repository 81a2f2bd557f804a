"""The laws of the parts around attention: of norms and of MLPs, alone or inside a bigger program.

LayerNorm is from arXiv 1607.06450, RMSNorm from arXiv 1910.07467, GELU from arXiv 1606.08415, gates from 2002.05202.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from minigpt.checks.laws.law import UNASKED, USUAL, Judged, Saw, Wanted, judged, law
from minigpt.checks.laws.softmax import INSIDE
from minigpt.checks.reading.parts import Node, Parts, Stream
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids
from minigpt.checks.reading.structure import Broken, Ends, Found, Note

Saws = Iterator[Saw]
PART_LAW = Callable[["Model", Wanted], Iterator[Broken]]
KNOWN = USUAL | {"rms", "epsilon", "annotated", "behind", "around zero", "no gain", "activation", "gate", "post-norm",
                 "parallel", "sandwich", "no final norm", "scaled embeddings", "sinusoidal", "log softmax",
                 "normed embeddings", "sublayer"}  # fmt: skip
ASKED = frozenset({"no MLP", "bare end", "sink", "two norms"}) | UNASKED  # allowed if they were asked for


@dataclass
class Model:
    """What was read of a program that is more than an attention. `stream`: what it returns, or its head reads."""

    parts: Parts
    stream: Stream
    is_gpt: bool = False
    head: frozenset[str] = frozenset()
    """The names of the parameters of the head."""
    attention: Wanted | None = None
    """What each attention should be."""
    conventions: set[str] = field(default_factory=set)
    """In which conventions its attentions differ."""

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes, each after those that it reads."""
        nodes = dict[Node, None]()

        def visit(stream: Stream) -> None:
            for node in stream:
                if node not in nodes:
                    for read in node.reads:
                        visit(read)
                    nodes[node] = None

        visit(self.stream)
        return list(nodes)

    def of_kind(self, *kinds: str) -> list[Node]:
        """The nodes of some kinds, each after those that it reads."""
        return [node for node in self.nodes if node.kind in kinds]

    def where(self, node: Node) -> str:
        """The block that a node is in, in a model of several; "" in a block."""
        alike = self.of_kind("attention") if node.kind == "attention" else self.of_kind("mlp", "linear", "activation")
        if not self.is_gpt or len(alike) < 2 or node not in alike:
            return ""
        return f"in block {alike.index(node) + 1}, "


def in_words(stream: Stream, deep: bool = True) -> str:
    """A stream in words: "x + attention(norm(x))"."""
    terms = list[str]()
    for node, factor in stream.items():
        name = {"attention": "attention", "mlp": "mlp", "embedding": "embedding"}.get(node.kind, node.kind)
        inside = deep or node.kind in ("norm", "other")
        reads = in_words(node.reads[0], False) if node.reads and inside else ""
        words = f"{name}({reads})" if reads else name
        terms.append(words if factor == 1 else f"-{words}" if factor == -1 else f"{factor:.4g} {words}")
    return " + ".join(terms).replace("+ -", "- ") or "nothing"


@law("a norm reads the numbers of its token", "norm each token over its features: the last axis")
def reads_token(model: Model, wanted: Wanted) -> Saws:
    (node, factor), *others = [*model.stream.items()] or [(Node("nothing", (), 0), 1.0)]
    reads = node.reads[0] if node.reads else {}
    if node.kind != "norm" or others or factor != 1.0:
        plain = node.kind == "x" and not others
        words = "x comes out as it is" if plain else f"it computes {in_words(model.stream)}, which is no norm"
        yield Saw(node.line, words, "norm(x)")
    elif [one.kind for one in reads] != ["x"] or set(reads.values()) != {1.0}:
        yield Saw(node.line, f"it norms {in_words(reads)}: x is changed before it is normed, the gain comes first",
                  "x as it is")  # fmt: skip


NORM = "F.layer_norm, or (x - mean) / sqrt(variance + 1e-5), both over the last axis, then * weight + bias"


@law("a norm divides by the root of a token's variance, after its mean was subtracted", NORM)
def normed(model: Model, wanted: Wanted) -> Saws:
    for node in model.of_kind("norm"):
        norm, D = node.norm, len(node.row)
        assert norm is not None
        unbiased = abs(norm.factor - math.sqrt((D - 1) / D)) < 1e-5 and norm.form in ("layer", "mean left")
        words = {"mean left": "the norm divides by the standard deviation but does not subtract the mean",
                 "no root": "the norm divides by the variance, not by its root",
                 "mean only": "the norm subtracts the mean and divides by nothing"}.get(norm.form, "")  # fmt: skip
        if words:
            yield Saw(node.line, words, "(x - mean) / sqrt(variance + eps)")
        elif unbiased and norm.eps_is == "behind":
            yield Saw(node.line, "the standard deviation is over D - 1, plus an epsilon, as in the Annotated "
                                 "Transformer",
                      "over D", "", "annotated")  # fmt: skip
        elif unbiased:
            yield Saw(node.line, f"the variance is unbiased, over D - 1 = {D - 1}, as x.var() gives it", f"over D = "
                       f"{D}: unbiased=False")  # fmt: skip
        elif abs(norm.factor - D**-0.5) < 1e-6:
            yield Saw(node.line, "the norm divides by the length of x, the root of the sum of squares, sqrt(D) times "
                      "too much", "by the root of their mean")  # fmt: skip
        elif abs(norm.factor - 1) > 1e-5:
            yield Saw(node.line, f"the norm multiplies by {norm.factor:.4g}, whatever its weight is", "by its weight")
        elif norm.form == "rms":
            yield Saw(node.line, "the norm is RMSNorm: no mean is subtracted, as in Llama", "LayerNorm", "", "rms")


@law("a norm's epsilon is small, under the root, and keeps it from dividing by zero", "sqrt(variance + 1e-5)")
def epsilon(model: Model, wanted: Wanted) -> Saws:
    for node in model.of_kind("norm"):
        norm = node.norm
        assert norm is not None
        if norm.eps == 0 and norm.eps_is != "least":
            yield Saw(node.line, "the norm has no epsilon: a token whose features are all equal is divided by zero",
                      "1e-5 under the root")  # fmt: skip
        elif norm.eps > 0.005:
            yield Saw(node.line, f"the norm's epsilon is {norm.eps:.2g}, too large: small inputs stay small", "1e-5")
        elif norm.eps_is == "behind":
            yield Saw(node.line, "the epsilon is added behind the root", "under it", "", "behind")
        elif not 0.9e-5 < norm.eps < 1.1e-5:
            yield Saw(node.line, f"the norm's epsilon is {norm.eps:.2g}", "1e-5", "", "epsilon")


@law("a norm has a gain for each feature, and perhaps a shift", "normed * weight + bias")
def gained(model: Model, wanted: Wanted) -> Saws:
    for node in model.of_kind("norm"):
        norm = node.norm
        assert norm is not None
        if norm.around_zero:
            yield Saw(node.line, "1 + weight multiplies, as in Gemma", "the weight", "", "around zero")
        if not norm.gain:
            yield Saw(node.line, "the norm has no weight, or it is made and never used", "a weight for each feature",
                      "", "no gain")  # fmt: skip


@law("an MLP computes each token from its own numbers, by two linear layers", "down(gelu(up(x)))")
def of_two_layers(model: Model, wanted: Wanted) -> Saws:
    for node in model.nodes:
        where = model.where(node)
        if node.kind == "linear":
            yield Saw(node.line, f"{where}there is a single linear layer", "two, with an activation between them")
        elif node.kind == "activation":
            act = node.hidden.act if node.hidden else ""
            read = [one for read in node.reads for one in read]
            twice = any(one.hidden is not None and one.hidden.act != "none" for one in read)  # the MLP has one already
            if [one.kind for one in read] == ["x"]:
                yield Saw(node.line, f"{where}{act} is applied to x itself, the input", "to the hidden layer alone")
            yield Saw(node.line, f"{where}the activation ({act}) comes after the second linear layer, at the end"
                      f"{', too: twice' if twice else ', not between the two'}", "the second layer's output "
                      "as it is")  # fmt: skip


RIGHT = (
    "GELU",
    "GELU by tanh",
    "GELU by sigmoid",
    "ReLU",
    "squared ReLU",
    "SiLU",
    "leaky ReLU",
    "ELU",
    "SELU",
    "Mish",
    "tanh",
)
GATED = ("SiLU", "GELU", "GELU by tanh", "a sigmoid", "ReLU")


@law("between the two layers stands an activation", "F.gelu(hidden), or F.silu(gate) * hidden with a gate")
def activated(model: Model, wanted: Wanted) -> Saws:
    for node in model.of_kind("mlp"):
        hidden = node.hidden
        assert hidden is not None
        where, act = model.where(node), hidden.act
        line = model.parts.line(model.parts.before(node.row)[0]) if not hidden else node.line
        gate = act.removeprefix("a gate with ")
        if act == "none":
            yield Saw(line, f"{where}there is no activation between the two linear layers: together they are one "
                            f"linear layer, without GELU or ReLU", "GELU")  # fmt: skip
        elif act == "a gate with none":
            yield Saw(line, f"{where}the gate has no activation: gate(x) * up(x), where SiLU is missing", "SiLU(gate)")
        elif act != gate and gate in GATED:
            yield Saw(line, f"{where}the MLP has a gate with {gate}", "GELU without a gate", "", "gate")
        elif hidden.gated:
            yield Saw(line, f"{where}the hidden layer is {act or 'an unknown function of gate and hidden layer'}",
                      "SiLU(gate) times the hidden layer")  # fmt: skip
        elif act not in RIGHT:
            yield Saw(line, f"{where}the activation is {act or 'an unknown function'}", "GELU: 0.5 x (1 + erf(x / "
                      "sqrt(2))), or about 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))")  # fmt: skip
        elif act != "GELU":
            yield Saw(line, f"{where}the activation is {act}", "GELU", "", "activation")


def is_sublayer(model: Model) -> bool:
    """Whether an MLP has its residual and its norm inside: norm(x + mlp(x)), or x + mlp(norm(x))."""
    mlps, norms, x = model.of_kind("mlp"), model.of_kind("norm"), dict.fromkeys(model.of_kind("x"), 1.0)
    if len(mlps) != 1 or len(norms) != 1:
        return False
    (mlp,), (norm,) = mlps, norms
    whole = {**x, mlp: 1.0}
    post = model.stream == {norm: 1.0} and norm.reads[0] == whole and mlp.reads == [x]
    return post or (model.stream == whole and norm.reads[0] == x and mlp.reads == [{norm: 1.0}])


@law("an MLP reads x, and returns what its second layer makes", "return the second linear layer's output alone")
def lone(model: Model, wanted: Wanted) -> Saws:
    if is_sublayer(model):
        yield Saw(model.of_kind("mlp")[0].line, "the MLP has its residual and its norm inside", "the MLP alone", "",
                  "sublayer")  # fmt: skip
        return
    for node, factor in model.stream.items():
        if node.kind == "x":
            alone = len(model.stream) == 1
            yield Saw(node.line, "x comes out as it is: what is computed is thrown away" if alone else
                      "x is added inside the MLP: the residual belongs to the block, which would add it twice",
                      "the output of the second layer")  # fmt: skip
        elif factor != 1.0:
            words = "has the wrong sign: a minus" if factor == -1 else f"is multiplied by {factor:.4g}"
            yield Saw(node.line, f"the output {words}", "as the layer makes it")
    for node in model.of_kind("mlp"):
        reads = [read for node in model.of_kind("mlp") for read in node.reads]
        for act in [one for read in reads for one in read if one.kind in ("activation", "other")]:
            yield Saw(act.line, f"the first layer reads {act.op} of its input: an activation comes before it",
                      "x; the activation between the two layers")  # fmt: skip
        for read in reads:
            if [one.kind for one in read] != ["x"] or set(read.values()) != {1.0}:
                yield Saw(node.line, f"the first layer reads {in_words(read)}", "x")
    if len(model.stream) != 1 or next(iter(model.stream)).kind not in ("mlp", "linear", "activation"):
        yield Saw(0, f"it returns {in_words(model.stream)}", "an MLP of x")


@law("each parameter is used", "use it, or leave it out")
def used(model: Model, wanted: Wanted) -> Saws:
    names = set(model.head).union(model.parts.biases, *(node.names for node in model.nodes))
    for name in [name for name in model.parts.reading.names if name not in names]:
        layer = name.rpartition(".")[0]
        whole = layer if layer and not any(one.startswith(f"{layer}.") for one in names) else name
        yield Saw(0, f"{whole} is made and never used", "used, or not made")


def attentions(model: Model, wanted: Wanted) -> Iterator[Broken]:
    """The attention inside obeys the laws of attention."""
    for node in model.of_kind("attention"):
        if node.ends:
            raise node.ends
        assert node.attention is not None and model.attention is not None
        broken, notes, _ = judged(node.attention, model.attention, INSIDE)
        for place in broken:
            actual = f"{model.where(node)}in the attention, {place.actual}"
            yield Broken(place.law, actual, place.expected, place.mend, place.line, place.row)
        model.conventions.update(note.convention for note in notes)
        yield from (Note(**{**vars(note), "actual": f"in the attention: {note.actual}"}) for note in notes)


@law(
    "the output of a token is made of that token's stream, in the same way for all",
    "keep the order of batch and tokens",
)
def at_place(model: Model, wanted: Wanted) -> Saws:
    of, output = model.parts.of, model.parts.output
    first = [of.unit(of.row(row.tolist())) for row in output[0, :2]]  # at angle 0 a rotation is not seen
    for b, t in ((b, t) for b in range(output.shape[0]) for t in range(output.shape[1])):
        row = output[b, t].tolist()
        tokens = of.tokens(of.row(row))
        if tokens != ((b, t),):
            yield Saw(of.made_at[row[0]], f"the numbers of the tokens {tokens[:4]} (text, position) stand at the place "
                                          f"of token {t} of text {b}", "its own")  # fmt: skip
        elif of.unit(of.row(row)) != first[min(t, 1)]:
            yield Saw(of.made_at[row[0]], f"token {t} of text {b} is computed in another way than the first", "alike")


def first_attention(reading: Reading, shape: tuple[int, int], wanted: Wanted) -> Judged | None:
    """What the laws of attention say of the first attention that breaks one, where the reading ends after it.

    `shape`: the numbers of texts and of tokens, (B, T).
    """
    B, T = shape
    for result in reading.results:
        ids = result.ids
        numbers = ids.reshape(-1, ids.shape[-1]) if ids.ndim > 1 and ids.size else ids[None]
        ends = [int(one) for one in (numbers[0, 0], numbers[-1, -1])] if len(numbers) == B * T else []
        if ends and all(reading.of.layers_of_heads(one) for one in ends):
            with suppress(Ends):
                judgement = judged(Found.inside(reading, numbers.reshape(B, T, -1)), wanted, INSIDE)
                if judgement.broken:
                    return judgement
    return None


def judge_parts(reading: Reading, output: Ids, wanted: Wanted, laws: tuple[PART_LAW, ...],
                allows: frozenset[str] = KNOWN) -> Judged:  # fmt: skip
    """What laws say of a program of x whose output (B, T, D) was read. Raises Ends where the reading ends."""
    parts = Parts(reading, output)
    model = Model(parts, parts.stream(tuple(output[0, 0].tolist())), attention=wanted)
    if all(node.kind == "constant" for node in model.stream):
        raise Ends("a constant", 0, "the output is expected to depend on the input")
    return judged(model, replace(wanted, allows=allows | (wanted.allows & ASKED)), laws)


OF_NORMS = (normed, epsilon, gained)
NORM_LAWS = (reads_token, *OF_NORMS, at_place, used)
MLP_LAWS = (of_two_layers, lone, used, activated, *OF_NORMS, at_place)
