"""The laws of softmax attention: what a right program obeys, whatever its layout, its order of heads or its names.

A law yields where it is not true: the line, what was found, what was expected. What is exact about a kind, such as who
may look where, its scale and its biases, is asked of the kind itself.

B batch, H heads, T positions, D model width, d width of a query and a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.checks.laws.law import Law, Saw, Wanted, law
from minigpt.checks.laws.turning import all_rotated, distances, rotations
from minigpt.checks.laws.words import bias_in_words, scale_in_words, seen_in_words, several, tokens_in_words
from minigpt.checks.reading.meanings import Const, Exp, Feature, Param, Score, Token, Weight
from minigpt.checks.reading.structure import Ends, Found, Strange

Saws = Iterator[Saw]


@law("a query and a key are made of one token each", "split the heads with view(B, T, H, d), then transpose(1, 2)")
def one_token(attention: Found, wanted: Wanted) -> Saws:
    for role, rows in (("query", attention.query_rows), ("key", attention.key_rows)):
        for row in rows:
            if len(tokens := attention.tokens(row)) != 1:
                mixed = "the heads are split with view or reshape, without a transpose, which mixes positions and heads"
                yield Saw(attention.line_of_row(row), f"a row of a {role} holds numbers of the tokens "
                          f"{tokens_in_words(tokens)}: {mixed}", "of one token", token_row(attention, row))  # fmt: skip


def token_row(attention: Found, row: int) -> str:
    """The token of each number of a row."""
    return "tokens " + " ".join(tokens_in_words(attention.tokens(number)) for number in attention.numbers(row))


@law("a query meets keys of its own text", "keep the batch as an axis of its own: (B, H, T, d)")
def one_text(attention: Found, wanted: Wanted) -> Saws:
    for weight in attention.weights:
        if len({b for side in attention.sides(weight) for b, _ in attention.tokens(side)}) > 1:
            yield Saw(attention.line_of_product(weight), "a query meets the keys of another row of the batch",
                      "of its own")  # fmt: skip


@law("queries, keys and values have layers of their own", "use the layer that belongs to each of them")
def own_layers(attention: Found, wanted: Wanted) -> Saws:
    if not wanted.learned:
        for role, rows in (("queries", attention.query_rows), ("keys", attention.key_rows)):
            if row := next((row for row in rows if not attention.is_text(row)), None):
                yield Saw(attention.line_of_row(row), f"the {role} are made by a layer", "x itself")
        return
    values = attention.of.row(attention.values)
    sides = {"queries": attention.query_rows, "keys": attention.key_rows, "values": [values]}
    units = {role: frozenset[int]().union(*map(attention.units, rows)) for role, rows in sides.items()}
    for first, second in (("queries", "keys"), ("queries", "values"), ("keys", "values")):
        if units[first] & units[second]:
            of_keys = second == "keys"
            line = attention.line_of_row(sides["keys"][0]) if of_keys else attention.line(attention.mixtures[0])
            x, tokens = attention.reading.inputs, {one for row in sides["queries"] for one in attention.of.tokens(row)}
            if x is not None and len(tokens) < x[..., 0].size:
                yield Saw(line, "some tokens have no query, and their features stand where others' should: a view "
                          "mixes tokens and features", "one for each token: view(B, T, 3, H, d)")  # fmt: skip
                return
            applied = f": the weights are applied to the {first}" if second == "values" else ""
            yield Saw(line, f"the {second} are the {first}, made by the same layer{applied}", f"{second} of their own")
    for role, rows in sides.items() if not attention.width else ():
        names = {attention.given_as(row) for row in rows if attention.numbers(row)} - {""}
        if names == {"keys"} and role == "queries" and attention.makes != "scores":
            yield Saw(attention.line(attention.weights[0]), "queries and keys are exchanged, or the softmax runs over "
                      "the queries: all scores of a softmax share their key",
                      "their query: softmax(dim=-1)")  # fmt: skip
        elif names - {role}:
            yield Saw(attention.line_of_row(rows[0]), f"the given {names.pop()} are used as {role}",
                      f"the given {role}")  # fmt: skip


@law("a layer reads all numbers of its token", "give the layer the whole x")
def reads(attention: Found, wanted: Wanted) -> Saws:
    yield from before(attention)
    known, rows = dict[int, str](), (*attention.query_rows, *attention.key_rows)
    bare = [row for row in rows if attention.is_text(row)] if wanted.learned else []
    if bare and set(bare) in (set(attention.query_rows), set(attention.key_rows)):
        yield Saw(attention.line_of_product(attention.weights[0]), "one matrix stands for two layers: x W x^T",
                  "a layer for queries and one for keys", "", "bilinear")  # fmt: skip
    for row in (*rows, attention.of.row(attention.values)):
        for number in attention.atoms(row) if row not in bare else ():
            if not attention.is_inside:
                attention.use(number)
            leaves, fault = attention.leaves(number), ""
            for leaf in leaves if attention.width and wanted.learned else ():
                atom = attention.layer(leaf)
                row_read = atom.row if atom else attention.of.nothing
                if row_read not in known:
                    known[row_read] = not_read(attention, row_read) if atom else "x itself"
                fault = fault or known[row_read]
            if fault.startswith("only"):
                own = "narrow" if {*map(len, attention.input_rows)} == {attention.width} else ""
                words = "one small layer for all heads: for each head it" if own else "a layer"
                yield Saw(attention.line(number), f"{words} reads {fault} of a token", f"all {attention.width}", "",
                          own)  # fmt: skip
            elif fault or (leaves != {number} and not attention.is_biased(number) and not attention.normed(row)):
                name = fault or attention.of[number].op
                raise Strange(f"a query, key or value is made by {name}", attention.line(number), "by a linear map")
        if attention.normed(row):
            which = "queries" if row in attention.query_rows else "keys"
            yield Saw(attention.line_of_row(row), f"the {which} are normed", "queries and keys as the layers make them",
                      "", "normed")  # fmt: skip


def not_read(attention: Found, row: int) -> str:
    """What is wrong with a row of numbers that a layer reads; "" if they are the input, each once."""
    numbers, op = attention.numbers(row), ""
    units = set(map(attention.of.unit, numbers))
    own = {attention.tokens(one[0]): set(one) for one in attention.input_rows}
    if attention.is_inside and set(numbers) == own.get(attention.tokens(row), set()):
        return ""
    if not units <= attention.inputs:
        inner = next(number for number in numbers if attention.of.unit(number) not in attention.inputs)
        op = attention.of[attention.of[inner].terms[0][0]].op if attention.is_kind(inner, Feature) else "something else"
        return {"input": "x itself", "linear": "a second linear layer", "sum": "a sum"}.get(op, op)
    factors = {factor for number in numbers for _, factor in attention.of[number].terms}
    if attention.inputs == attention.text and factors != {1.0}:
        return f"a layer of x times {several(factors)}"
    short = len(units) < attention.width or len(numbers) != attention.width
    return f"only {len(units)} numbers" if short else ""


def before(attention: Found) -> Saws:
    """What was done to x before the layers: it was normed, or positions were added."""
    changed = attention.inputs and attention.inputs != attention.text
    if attention.width and attention.text and changed and not attention.is_inside:
        for convention, words in attention.steps_before():
            yield Saw(attention.line(attention.input_rows[0][0]), words, "x as it is", "", convention)


@law("each head has features of its own", "split the width into H heads of d features")
def own_heads(attention: Found, wanted: Wanted) -> Saws:
    for role, rows in (("queries", attention.query_rows), ("keys", attention.key_rows)):
        owners = dict[tuple[Token, int], int]()
        for row in rows:
            for unit in attention.units(row):
                if (other := owners.setdefault((attention.tokens(row)[0], unit), row)) != row:
                    if attention.units(other) == attention.units(row) and len(attention.numbers(row)) > 1:
                        yield Saw(attention.line_of_row(row), f"the {role} of token {attention.tokens(row)[0][1]} are "
                                  "other numbers for later tokens: what is kept is rotated, or changed, again",
                                  "made once")  # fmt: skip
                    yield Saw(attention.line_of_row(row), f"features of the {role} belong to several heads: they "
                              "overlap", "each to one")  # fmt: skip


@law("a head's queries meet the keys of the same head", "multiply queries and keys head by head: (B, H, T, d)")
def own_partners(attention: Found, wanted: Wanted) -> Saws:
    partners: dict[int, set[int]] = {}
    for weight in attention.weights:
        partners.setdefault(attention.query_head(weight), set()).add(attention.key_head(weight))
    for keys in partners.values():
        if len(keys) > 1:
            mixed = "the heads are split with view(B, H, T, d), without a transpose, or summed over"
            yield Saw(attention.line_of_product(attention.weights[0]), f"the queries of a head meet the keys of "
                      f"{len(keys)} heads: {mixed}", "of one head")  # fmt: skip
    shared = Counter(key for keys in partners.values() for key in keys)
    line = attention.line_of_row(attention.key_rows[0]) if len(shared) < len(partners) else 0
    if len(set(shared.values())) > 1:
        yield Saw(line, f"the heads of keys serve {sorted(shared.values())} query heads", "the same number each")
    if wanted.heads not in (0, len(partners)):
        yield Saw(attention.line_of_row(attention.query_rows[0]), f"there are {len(partners)} heads", str(wanted.heads))
    if wanted.shares == 0 and len(partners) > 1 and len(shared) == len(partners):
        yield Saw(line, "no heads share their keys", "keys and values for several heads", "", "nothing shared")
    if wanted.shares == 1 and len(shared) < len(partners):
        yield Saw(line, f"{max(shared.values())} heads share their keys", "keys for each head", "", "shared keys")
    queries, heads = in_order(attention, attention.query_heads), in_order(attention, attention.key_heads)
    met = [heads.index(key) for query in queries if len(keys := partners.get(query, set())) == 1
           for key in keys if key in heads]  # fmt: skip
    if 1 < len(heads) < len(met) == len(partners) and met != sorted(met):
        turn = "h % G" if met == [h % len(heads) for h in range(len(met))] else f"{met} of {len(heads)}"
        yield Saw(line, f"query head h reads key head {turn}, in the order of the layers' rows: published weights, "
                  "for h // (H / G), have to be reordered", "key head h // (H / G)", "", "in turn")  # fmt: skip


def in_order(attention: Found, heads: dict[int, int]) -> list[int]:
    """Heads in the order of their rows in the layer, or as they were given; [] if several layers make them."""
    places = dict[int, tuple[str, int]]()
    for head, row in {head: row for row, head in reversed(heads.items())}.items():  # one row of each head
        name, h, _ = attention.given_feature(row)
        atoms = [attention.of[leaf] for number in attention.atoms(row) for leaf in attention.leaves(number)]
        columns = [one for atom in atoms if atom.op == "linear" for one in attention.numbers(atom.column)]
        parts = {part for one in columns for part in parts_of(attention.of[one].made_of)}
        places[head] = (name, h) if name else min(parts, default=("", 0))
    return sorted(places, key=places.__getitem__) if len({name for name, _ in places.values()}) == 1 else []


@law("weights sum to one", "divide each exponential by the sum over its row: softmax(dim=-1)")
def divided(attention: Found, wanted: Wanted) -> Saws:
    for weight in attention.weights:
        line, meaning = attention.line(weight), attention.of[weight]
        if not isinstance(meaning, Weight):
            yield Saw(line, "exponentials are not divided by their sum", "divided")
        elif parts := [attention.of[one] for one in attention.numbers(meaning.group) if attention.is_kind(one, Exp)]:
            sides = [{getattr(attention.of[one.score], side) for one in parts} for side in ("left", "right")]
            if min(map(len, sides)) > 1 or attention.of.query(weight) == attention.of.key(weight):
                yield Saw(line, "the sum runs over all queries and keys", "over the keys of one query, row by row")
            elif len({attention.of[one.score].left for one in parts}) > 1 and len(sides[1]) == 1:
                yield Saw(line, "the exponentials are divided by the sums of the columns, over the queries",
                          "of the rows")  # fmt: skip
            yield Saw(line, "sums of exponentials with different running maxima are added", "each rescaled by "
                      "exp(m_old - m_new) when the running maximum grows")  # fmt: skip
        elif abs(meaning.factor - 1) > 1e-6:
            drop = (f"dropout is active in evaluation, with p = {1 - 1 / meaning.factor:.3g}" if meaning.factor > 1
                    else "")  # fmt: skip
            after = drop or "scaled after the softmax"
            yield Saw(line, f"weights are multiplied by {meaning.factor:.4g}: {after}",
                      "used as the softmax gives them")  # fmt: skip


@law("the softmax runs over the keys of one query", "softmax(dim=-1) of (B, H, T, S)")
def one_query(attention: Found, wanted: Wanted) -> Saws:
    for weight in attention.first_weights:
        group = attention.of[weight].group
        scores = [attention.of[one] for one in attention.numbers(group) if attention.is_kind(one, Score)]
        queries = {score.left if attention.of.query_is_left(group) else score.right for score in scores}
        if len(queries) > 1:
            tokens = {attention.tokens(row) for row in queries}
            keys = {attention.tokens(side) for score in scores for side in (score.left, score.right)}
            over = "heads" if len(tokens) == 1 else "queries and heads" if len(queries) > len(tokens) else "queries"
            over = "sums of all queries and keys" if over == "queries" and len(keys) > 1 else over
            over = "batch" if len({token[0][0] for token in tokens}) > 1 else over
            yield Saw(attention.line(weight), f"the softmax runs over the {over}: over the scores of "
                      f"{len(queries)} queries", "over the keys")  # fmt: skip


@law(
    "the softmax is safe for large scores", "subtract the maximum of the scores that are seen: softmax(dim=-1) does it"
)
def safe(attention: Found, wanted: Wanted) -> Saws:
    for weight in attention.first_weights:
        line, group = attention.line(weight), attention.of[weight].group
        largest_of, mixed = (
            {attention.of[one][:2] for one in some if attention.is_kind(one, Score)}
            for some in (attention.of.subtracted.get(group, set()), attention.numbers(group))
        )
        if not largest_of <= mixed:
            yield Saw(line, "masked after exp: the maximum that is subtracted is one of hidden scores, too, so with "
                      "large scores all of the past becomes 0, and 0/0", "masked before", "", "no maximum")  # fmt: skip
        elif group in attention.of.unshifted:
            yield Saw(line, "the maximum is not subtracted: exp of large scores overflows to inf, then nan",
                      "exp(scores - maximum)", "", "no maximum")  # fmt: skip


@law("scores are divided by sqrt(d)", "divide by the square root of the width of a head", alone=True)
def scaled(attention: Found, wanted: Wanted) -> Saws:
    for weight in attention.weights:
        score = attention.score(weight)
        pairs = zip(*(attention.numbers(side) for side in (score.left, score.right)))
        gains = [attention.of.gain(a) * attention.of.gain(b) for a, b in pairs] or [1.0]
        factor, d = score.scale * gains[0], len(gains)
        if any(change == "by" for change, _ in score.extra):
            continue  # a learned temperature may be anything
        for change, value in score.extra:
            factor *= value if change == "tanh" else 1.0
        right = wanted.kind.scale(torch.zeros(1, 1, 1, d))
        line = attention.line_of_score(weight)
        if max(gains) - min(gains) > (near := 2**-7 if attention.rounded else 1e-6) * max(gains):
            yield Saw(line, f"the products of query and key are multiplied by {several(set(gains))}", "all alike")
        elif abs(factor - right) > near * max(right, 1):
            words = scale_in_words(factor, d, attention.width or d, wanted.T, len(attention.heads),
                                   len(set(attention.key_heads.values())))  # fmt: skip
            named = "scaled" if abs(factor - d**-0.5) < 1e-6 else ""
            if wanted.learned and (attention.is_text(score.left) or attention.is_text(score.right)):
                named = "bilinear"  # the matrix may hold any factor
            if words == f"multiplied by {factor:.4g}" and all(map(attention.normed, attention.sides(weight))):
                named = "sharpened"  # by no known slip, and behind norms any temperature will do
            if factor == 1 and attention.line_of_product(weight) in attention.reading.in_float32:
                words, named = f"{words}, and computed in float32, so as not to overflow: as in GPT-Neo", "unscaled"
            divided = f"divided by sqrt({d}) = {1 / right:.4g}" if right < 1 else "left unscaled"
            yield Saw(line, f"scores are {words}", divided, "", named)


EXTRA = {  # what else is done to scores: the name of the convention, and what it does
    "plus": ("learned bias", "a learned number is added to the scores"),
    "tanh": ("soft cap", "the scores are capped with tanh"),
    "by": ("temperature", "the scores are multiplied by a learned number"),
}


@law("what is added to the scores is the bias of the position", "add minus the head's slope times the distance")
def added(attention: Found, wanted: Wanted) -> Saws:
    H, d = len(attention.heads), len(attention.numbers(attention.query_rows[0]))
    values: dict[int, dict[Token, dict[int, float]]] = {}  # of each head and query: what is added to each key's score
    if relative := is_relative(attention):
        yield Saw(attention.line_of_score(attention.weights[0]), "a learned number for each distance is added to the "
                  "scores: relative positions, as in T5", "nothing", "", "relative")  # fmt: skip
    for weight in attention.weights:
        score = attention.score(weight)
        line = attention.line_of_score(weight)
        attention.used.update(one for change, one in score.extra if change == "by")
        for change in (change for change, _ in score.extra if change != "times"):
            if change not in EXTRA:
                raise Ends(str(change), line, "scores are expected as they are")
            if not relative:
                yield Saw(line, EXTRA[change][1], "scores as they are", "", EXTRA[change][0])
        query, key = attention.sides(weight)
        row = values.setdefault(attention.query_head(weight), {}).setdefault(attention.tokens(query)[0], {})
        if attention.lowered(weight) > -50:  # lower ones hide, or should
            row[attention.tokens(key)[0][1]] = score.added
    biases = wanted.biases(H, d)
    fits = fitting(values, biases)
    if any(is_one_each(heads) for heads in fits):
        return
    if any(is_one_each(heads) for heads in fitting(values, wanted.alibi(H, d))):
        yield Saw(line, "the scores get ALiBi's bias, minus a slope times the distance", "nothing", "", "alibi")
        return
    head = next((head for head, heads in zip(values, fits[0]) if not heads), 0)
    rows = [one for one in values[head].items() if not same_bias(dict([one]), biases[0][head])]
    token, row = (rows or list(values[head].items()))[-1]
    expected = biases[0][head, token[1]].tolist()
    wrong, right = ([round(one[s] - one[min(row)], 4) for s in sorted(row)] for one in (row, expected))
    last = [max(one.items())[1] for one in values.values()]  # of each head: what the last token's scores get
    slopes = [one[max(one)] - one[max(one) - 1] for one in last if len(one) > 1]
    words = bias_in_words(wrong, slopes, biases[0], d)
    yield Saw(line, f"in head {head} the scores of token {token[1]} get {wrong}{words}", f"{right}, plus any constant")


def is_relative(attention: Found) -> bool:
    """Whether learned numbers are added to the scores, for each head one for each distance of query and key."""
    known = dict[tuple[int, int], int]()
    for weight in attention.weights:
        plus = [one for change, one in attention.score(weight).extra if change == "plus"]
        if len(plus) != 1 or len(attention.score(weight).extra) != 1:
            return False
        query, key = (attention.tokens(side)[0][1] for side in attention.sides(weight))
        if known.setdefault((attention.query_head(weight), query - key), plus[0]) != plus[0]:
            return False
    attention.used.update(known.values())
    attention.positions.update(name for one in known.values() for name in attention.of.names(one))
    return len(set(known.values())) > 1


def fitting(values: dict[int, dict[Token, dict[int, float]]], biases: list[Tensor]) -> list[list[list[int]]]:
    """Of each bias (H, T, T) and each head that was read: the heads of the bias that are the same."""
    heads = range(len(values))
    return [[[h for h in heads if same_bias(rows, bias[h])] for rows in values.values()] for bias in biases]


def is_one_each(heads: list[list[int]]) -> bool:
    """Whether each head that was read is one of a bias, and each of a bias is one that was read."""
    return all(heads) and len({h for one in heads for h in one}) == len(heads)


def same_bias(rows: dict[Token, dict[int, float]], bias: Tensor) -> bool:
    """Whether what is added is a bias (T, T), up to a constant for each query, which changes no weight."""
    return all(len({round(value - float(bias[t, s]), 6) for s, value in row.items()}) == 1
               for (_, t), row in rows.items())  # fmt: skip


@law("a weight meets the value of its own key", "multiply weights (.., T, S) by values (.., S, d)")
def over_the_keys(attention: Found, wanted: Wanted) -> Saws:
    for mixture in attention.mixtures:
        weights = [one for one in attention.numbers(attention.of[mixture].weights) if attention.is_kind(one, Weight)]
        if len({attention.of[one].group for one in weights}) < 2:
            continue
        pairs = [[attention.tokens(side)[0][1] for side in attention.sides(one)] for one in attention.weights]
        visible = wanted.visible()
        if all(visible[t, s] for t, s in pairs) and not bool(visible.all()):
            yield Saw(attention.line(mixture), "the weights are transposed: the values are mixed by the weights of "
                      "their queries", "by those of their keys")  # fmt: skip
        yield Saw(attention.line(weights[0]), "the weights of one query come from several softmaxes: it runs over the "
                  "queries (dim=-2, columns), or over the heads", "one softmax over the keys, dim=-1")  # fmt: skip


@law("the scores of keys alone share the softmax", "leave it out, or say that it is a sink", alone=True)
def no_sink(attention: Found, wanted: Wanted) -> Saws:
    for weight in attention.first_weights:
        group = attention.numbers(attention.of[weight].group)
        listed, t = [attention.of[one] for one in group], attention.tokens(attention.of.query(weight))[0][1]
        sees_all = bool(wanted.visible()[t].all())
        if learned := [one for one in group if attention.is_kind(one, Param)]:
            attention.used.update(learned)
            yield Saw(attention.line(weight), "a learned number has a share of the softmax: a sink, as in GPT-OSS",
                      "scores alone", "", "learned sink")  # fmt: skip
        elif any(not isinstance(one, Score) and (sees_all or not isinstance(one, Const)) for one in listed):
            yield Saw(attention.line(weight), "a number that is no key's score has a share of the softmax: a sink, "
                      "softmax off by one", "scores alone", "", "sink")  # fmt: skip


@law("hidden scores are -inf", "fill with -inf before the softmax", alone=True)
def hides(attention: Found, wanted: Wanted) -> Saws:
    for weight in attention.first_weights:
        t = attention.tokens(attention.of.query(weight))[0][1]
        for one in [attention.of[number] for number in attention.numbers(attention.of[weight].group)]:
            common = attention.common(weight) if isinstance(one, Score) else 0.0
            value = getattr(one, "added", getattr(one, "value", 0.0))
            if isinstance(one, Const) and bool(wanted.visible()[t].all()):
                continue
            if isinstance(one, Const) or value - common <= -50:
                small = "the mask multiplies the scores" if value == 0 else "too small: large scores reach through"
                yield Saw(attention.line(weight), f"hidden scores of token {t} are {value:g}: {small}", "-inf")


@law(
    "a token sees itself and what came before",
    "look at the mask: its triangle, its offset, and where it is applied",
    alone=True,
)
def sees(attention: Found, wanted: Wanted) -> Saws:
    visible, line = wanted.visible(), attention.line(attention.weights[0])
    seen: dict[tuple[int, int, int], list[int]] = {}
    for weight in attention.first_weights:
        group, query = attention.of[weight].group, attention.of.query(weight)
        side = "right" if attention.of.query_is_left(group) else "left"
        scores = [one for one in map(attention.of.__getitem__, attention.numbers(group)) if isinstance(one, Score)]
        place = (attention.tokens(query)[0][0], attention.query_heads[query], attention.tokens(query)[0][1])
        seen[place] = sorted(s for one in scores for _, s in attention.tokens(getattr(one, side)))
    for b, h in dict.fromkeys((b, h) for b, h, _ in seen):
        table = [seen.get((b, h, t), []) for t in range(attention.first, wanted.T)]
        allowed = [row.nonzero().flatten().tolist() for row in visible]
        for t, keys in enumerate(table, start=attention.first):
            if keys != allowed[t]:
                corner = "corner" if table == allowed[: len(table)] else ""
                row = "".join("x" if s in keys else "." for s in range(wanted.T))
                yield Saw(line, seen_in_words(table, allowed, t), tokens_in_words(allowed[t]), row, corner)


@law("a weight meets the value of its own key", "multiply weights (.., T, S) by values (.., S, d)")
def own_value(attention: Found, wanted: Wanted) -> Saws:
    for mixture in attention.mixtures:
        for weight, value in attention.of.terms(mixture):
            key = attention.tokens(attention.of.key(weight))
            if key != attention.tokens(value):
                yield Saw(attention.line(mixture), f"the weight of key {tokens_in_words(key)} meets the value of token "
                          f"{tokens_in_words(attention.tokens(value))}", "of the same token")  # fmt: skip


@law("all keys that share the softmax are mixed", "mask the scores with -inf before the softmax, or renormalise")
def all_mixed(attention: Found, wanted: Wanted) -> Saws:
    groups = dict[int, list[int]]()
    for weight in attention.weights if attention.makes == "weights" else ():
        groups.setdefault(attention.of[weight].group, []).append(weight)
    used = [(weights[0], tuple(weights)) for weights in groups.values()] or [
        (mixture, attention.numbers(attention.of[mixture].weights)) for mixture in attention.mixtures
    ]
    for mixture, weights in used:
        scores = {one for one in attention.numbers(attention.of[weights[0]].group) if attention.is_kind(one, Score)}
        if not attention.is_blind(weights[0]) and {attention.of[weight].score for weight in weights} != scores:
            yield Saw(attention.line(mixture), "there is a mask after the softmax: hidden keys have a share of it, so "
                      "the rows do not sum to 1", "masked before the softmax")  # fmt: skip


@law("values are mixed as they are", "rotate and scale only queries and keys")
def plain_values(attention: Found, wanted: Wanted) -> Saws:
    for mixture in attention.mixtures:
        values = [attention.of[value] for value in attention.numbers(attention.of[mixture].features)]
        line = attention.line(mixture)
        if any(len(value.terms) > 1 for value in values):
            yield Saw(line, "the values are rotated, too, or they are sums of features", "as the layer makes them")
        if len({attention.of.unit(value) for value in attention.numbers(attention.of[mixture].features)}) > 1:
            yield Saw(line, "different features of the tokens are mixed", "the same feature of each")
        factors = {round(attention.of[mixture].factor * factor, 6) for value in values for _, factor in value.terms}
        if factors != {1.0}:
            after = ": the scale comes after the softmax" if max(factors) < 1 else ""
            yield Saw(line, f"the values, or what they are mixed to, are multiplied by {several(factors)}{after}",
                      "by 1")  # fmt: skip


@law("each head has values of its own", "split and repeat the values as the keys")
def own_values(attention: Found, wanted: Wanted) -> Saws:
    owners: dict[int, set[int]] = {}
    keys: dict[int, set[int]] = {}
    for mixture in attention.mixtures:
        weight, value = attention.of.terms(mixture)[0]
        owners.setdefault(attention.of.unit(value), set()).add(attention.query_head(weight))
        keys.setdefault(attention.of.unit(value), set()).add(attention.key_head(weight))
    line = attention.line(attention.mixtures[0])
    if any(len(heads) > 1 for heads in keys.values()):
        yield Saw(line, "a value is mixed with the weights of keys of several heads: keys and values are repeated in "
                  "different orders, keys interleaved (repeat_interleave) and values tiled (repeat), or the other way",
                  "values of the keys' own head, repeated in the same order")  # fmt: skip
    elif wanted.shares == 1 and any(len(heads) > 1 for heads in owners.values()):
        yield Saw(line, "a value is mixed by several heads", "by one", "", "shared keys")


@law("the heads of one token are joined, each number once", "transpose(1, 2) before reshape(B, T, D)")
def joined(attention: Found, wanted: Wanted) -> Saws:
    for (b, t), row in ((place, row) for place, rows in attention.rows.items() for row in rows):
        mixtures, tokens = attention.numbers(row), attention.tokens(row)
        if len(tokens) != 1:
            yield Saw(attention.line_of_row(row), f"the heads are joined without transpose, which mixes the tokens "
                      f"{tokens_in_words(tokens)}", "from one token", token_row(attention, row))  # fmt: skip
        elif len(set(mixtures)) < len(mixtures):
            yield Saw(attention.line_of_row(row), "numbers of the heads are there twice: all heads share the same "
                      "matrix, or one head is listed again", "once")  # fmt: skip
        heads = Counter(map(attention.head_of_mixture, mixtures))
        if len(heads) < len(attention.heads) or len(set(heads.values())) > 1:
            yield Saw(attention.line_of_row(row), f"{len(heads)} of {len(attention.heads)} heads go into one row",
                      "all, each whole")  # fmt: skip
        if tokens != ((b, t + attention.first),):
            yield Saw(attention.line_of_row(row), f"the output of token {tokens_in_words(tokens)} of text "
                      f"{tokens[0][0]} stands at the place of token {t} of text {b}", "at its own")  # fmt: skip


@law("the heads are projected", "end with an output projection", alone=True)
def projected(attention: Found, wanted: Wanted) -> Saws:
    line = attention.line(attention.mixtures[0])
    if wanted.projected and not attention.projected:
        yield Saw(line, "there is no output projection: the heads come out as they are", "projected by a layer", "",
                  "no projection")  # fmt: skip


@law("the output is as wide as x", "project to the model's width")
def as_wide(attention: Found, wanted: Wanted) -> Saws:
    for place in attention.rows:
        row = attention.output[place].tolist()
        if len(set(row)) < len(row) or (wanted.projected and attention.projected and len(row) != attention.width):
            yield Saw(attention.line(row[0]), f"the output of token {place[1]} holds {len(set(row))} different numbers",
                      f"{attention.width or len(row)}")  # fmt: skip


@law("each head stays at its place", "return (B, H, T, d) as the queries are")
def at_their_place(attention: Found, wanted: Wanted) -> Saws:
    for row in (attention.output[place].tolist() for place in attention.rows) if not attention.width else ():
        each = len(row) // len(attention.heads)
        for h in attention.heads:
            weights = [attention.of.terms(number)[0][0] for number in row[h * each : (h + 1) * each]]
            heads = {attention.given_feature(attention.of.query(weight))[1] for weight in weights}
            if heads != {h}:
                yield Saw(attention.line(row[0]), f"the output of head {min(heads)} stands at the place of head {h}",
                          "at its own")  # fmt: skip


@law("each parameter is used", "use it, or leave it out")
def all_used(attention: Found, wanted: Wanted) -> Saws:
    parts = {one for number in attention.used for one in parts_of(attention.of[number].made_of)}
    used = Counter(name for name, _ in parts)
    for name, count in attention.reading.names.items():
        if used[name] < count and not (used[name] and name in attention.positions):
            where = "the first " if (name, 0) in parts else "the last " if (name, count - 1) in parts else ""
            some = f"only {where}{used[name]} of {count} numbers are" if used[name] else "nothing is"
            yield Saw(0, f"of {name} {some} used: a layer, projection or group of heads never takes part", "all")


def parts_of(made_of: Any) -> set[tuple[str, int]]:
    """The numbers of parameters that a number is made of: (name, place)."""
    if len(made_of) == 2 and isinstance(made_of[0], str) and isinstance(made_of[1], int):
        return {made_of}
    return {one for part in made_of if isinstance(part, tuple) for one in parts_of(part)}


@law("the weight of query t and key s stands at [t, s]", "return (..., T, S): queries, then keys")
def weights_at_their_place(attention: Found, wanted: Wanted) -> Saws:
    for place, number in zip(zip(*attention.output.nonzero()), attention.output[attention.output.nonzero()].tolist()):
        b, *_, t, s = map(int, place)
        if attention.is_kind(number, Weight, Score) and all(map(attention.of.tokens, attention.sides(number))):
            (at,), (of,) = map(attention.of.tokens, attention.sides(number))
            if (at, of) != ((b, t + attention.first), (b, s)):
                yield Saw(attention.line(number), f"the weight of query {at[1]} and key {of[1]} stands at [{t}, {s}]",
                          f"at [{at[1] - attention.first}, {of[1]}]")  # fmt: skip


@law("rotated rows stand where they were given", "keep the order of batch, positions and heads")
def rows_at_their_place(attention: Found, wanted: Wanted) -> Saws:
    shape = attention.output.shape[:-1]
    for place, row in zip(np.ndindex(*shape), attention.output.reshape(-1, attention.output.shape[-1]).tolist()):
        tokens = attention.tokens(attention.of.row(row))
        if tokens != (place[:2],):
            yield Saw(attention.line(row[0]), f"numbers of the tokens {tokens_in_words(tokens)} stand at the place of "
                      f"token {place[1]}", "its own")  # fmt: skip


SCORES: tuple[Law, ...] = (one_token, one_text, own_layers, reads, own_heads, own_partners)
WEIGHTS: tuple[Law, ...] = (*SCORES, rotations, all_rotated, distances, divided, one_query, safe, scaled, added)
MIXED: tuple[Law, ...] = (over_the_keys, no_sink, hides, all_mixed, sees, own_value, plain_values, own_values)
INSIDE: tuple[Law, ...] = (*WEIGHTS, *MIXED, projected, joined, as_wide, at_their_place)
LAWS: tuple[Law, ...] = (*INSIDE, all_used)
ROWS: tuple[Law, ...] = (one_token, own_heads, rotations, all_rotated, distances, rows_at_their_place)
OF_SCORES: tuple[Law, ...] = (*SCORES, scaled, weights_at_their_place)
OF_WEIGHTS: tuple[Law, ...] = (*WEIGHTS, no_sink, hides, all_mixed, sees, weights_at_their_place)
