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
from minigpt.checks.laws.turning import distances, rotations, turned
from minigpt.checks.laws.words import bias_in_words, scale_in_words, seen_in_words, several, tokens_in_words
from minigpt.checks.reading.meanings import Const, Exp, Feature, Param, Score, Token, Weight
from minigpt.checks.reading.structure import Ends, Found, Strange

Saws = Iterator[Saw]


@law("a query and a key are made of one token each", "split the heads with view(B, T, H, d), then transpose(1, 2)")
def one_token(found: Found, wanted: Wanted) -> Saws:
    for what, rows in (("query", found.query_rows), ("key", found.key_rows)):
        for row in rows:
            if len(tokens := found.tokens(row)) != 1:
                mixed = "the heads are split with view or reshape, without a transpose, which mixes positions and heads"
                yield Saw(found.line_of_row(row), f"a row of a {what} holds numbers of the tokens "
                          f"{tokens_in_words(tokens)}: {mixed}", "of one token", token_row(found, row))  # fmt: skip


def token_row(found: Found, row: int) -> str:
    """The token of each number of a row."""
    return "tokens " + " ".join(tokens_in_words(found.tokens(number)) for number in found.numbers(row))


@law("a query meets keys of its own text", "keep the batch as an axis of its own: (B, H, T, d)")
def one_text(found: Found, wanted: Wanted) -> Saws:
    for weight in found.weights:
        if len({b for side in found.sides(weight) for b, _ in found.tokens(side)}) > 1:
            yield Saw(found.line_of_product(weight), "a query meets the keys of another row of the batch", "of its own")


@law("queries, keys and values have layers of their own", "use the layer that belongs to each of them")
def own_layers(found: Found, wanted: Wanted) -> Saws:
    if not wanted.learned:
        for what, rows in (("queries", found.query_rows), ("keys", found.key_rows)):
            if row := next((row for row in rows if not found.is_text(row)), None):
                yield Saw(found.line_of_row(row), f"the {what} are made by a layer", "x itself")
        return
    sides = {"queries": found.query_rows, "keys": found.key_rows, "values": [found.of.row(found.values)]}
    units = {what: frozenset[int]().union(*map(found.units, rows)) for what, rows in sides.items()}
    for first, second in (("queries", "keys"), ("queries", "values"), ("keys", "values")):
        if units[first] & units[second]:
            line = found.line(found.mixtures[0]) if second == "values" else found.line_of_row(found.key_rows[0])
            x, tokens = found.reading.inputs, {one for row in found.query_rows for one in found.of.tokens(row)}
            if x is not None and len(tokens) < x[..., 0].size:
                yield Saw(line, "some tokens have no query, and their features stand where others' should: a view "
                          "mixes tokens and features", "one for each token: view(B, T, 3, H, d)")  # fmt: skip
                return
            applied = f": the weights are applied to the {first}" if second == "values" else ""
            yield Saw(line, f"the {second} are the {first}, made by the same layer{applied}", f"{second} of their own")
    for what, rows in sides.items() if not found.width else ():
        names = {found.given_as(row) for row in rows if found.numbers(row)} - {""}
        if names == {"keys"} and what == "queries" and found.makes != "scores":
            yield Saw(found.line(found.weights[0]), "queries and keys are exchanged, or the softmax runs over the "
                      "queries: all scores of a softmax share their key", "their query: softmax(dim=-1)")  # fmt: skip
        elif names - {what}:
            yield Saw(found.line_of_row(rows[0]), f"the given {names.pop()} are used as {what}", f"the given {what}")


@law("a layer reads all numbers of its token", "give the layer the whole x")
def reads(found: Found, wanted: Wanted) -> Saws:
    yield from before(found)
    known = dict[int, str]()
    bare = [row for row in (*found.query_rows, *found.key_rows) if found.is_text(row)] if wanted.learned else []
    if bare and set(bare) in (set(found.query_rows), set(found.key_rows)):
        yield Saw(found.line_of_product(found.weights[0]), "one matrix stands for two layers: x W x^T",
                  "a layer for queries and one for keys", "", "bilinear")  # fmt: skip
    for row in (*found.query_rows, *found.key_rows, found.of.row(found.values)):
        for number in found.atoms(row) if row not in bare else ():
            if not found.is_inside:
                found.use(number)
            leaves, what = found.leaves(number), ""
            for leaf in leaves if found.width and wanted.learned else ():
                atom = found.layer(leaf)
                row_read = atom.row if atom else found.of.nothing
                if row_read not in known:
                    known[row_read] = not_read(found, row_read) if atom else "x itself"
                what = what or known[row_read]
            if what.startswith("only"):
                own = "narrow" if {*map(len, found.input_rows)} == {found.width} else ""
                words = "one small layer for all heads: for each head it" if own else "a layer"
                yield Saw(found.line(number), f"{words} reads {what} of a token", f"all {found.width}", "", own)
            elif what or (leaves != {number} and not found.is_biased(number) and not found.normed(row)):
                name = what or found.of[number].op
                raise Strange(f"a query, key or value is made by {name}", found.line(number), "by a linear map")
        if found.normed(row):
            which = "queries" if row in found.query_rows else "keys"
            yield Saw(found.line_of_row(row), f"the {which} are normed", "queries and keys as the layers make them", "",
                      "normed")  # fmt: skip


def not_read(found: Found, row: int) -> str:
    """What is wrong with a row of numbers that a layer reads; "" if they are the input, each once."""
    numbers, op = found.numbers(row), ""
    units = set(map(found.of.unit, numbers))
    own = {found.tokens(one[0]): set(one) for one in found.input_rows}
    if found.is_inside and set(numbers) == own.get(found.tokens(row), set()):
        return ""
    if not units <= found.inputs:
        inner = next(number for number in numbers if found.of.unit(number) not in found.inputs)
        op = found.of[found.of[inner].terms[0][0]].op if found.is_kind(inner, Feature) else "something else"
        return {"input": "x itself", "linear": "a second linear layer", "sum": "a sum"}.get(op, op)
    factors = {factor for number in numbers for _, factor in found.of[number].terms}
    if found.inputs == found.text and factors != {1.0}:
        return f"a layer of x times {several(factors)}"
    short = len(units) < found.width or len(numbers) != found.width
    return f"only {len(units)} numbers" if short else ""


def before(found: Found) -> Saws:
    """What was done to x before the layers: it was normed, or positions were added."""
    if found.width and found.text and found.inputs and found.inputs != found.text and not found.is_inside:
        for convention, words in found.steps_before():
            yield Saw(found.line(found.input_rows[0][0]), words, "x as it is", "", convention)


@law("each head has features of its own", "split the width into H heads of d features")
def own_heads(found: Found, wanted: Wanted) -> Saws:
    for what, rows in (("queries", found.query_rows), ("keys", found.key_rows)):
        owners = dict[tuple[Token, int], int]()
        for row in rows:
            for unit in found.units(row):
                if owners.setdefault((found.tokens(row)[0], unit), row) != row:
                    yield Saw(found.line_of_row(row), f"features of the {what} belong to several heads: they overlap",
                              "each to one")  # fmt: skip


@law("a head's queries meet the keys of the same head", "multiply queries and keys head by head: (B, H, T, d)")
def own_partners(found: Found, wanted: Wanted) -> Saws:
    partners: dict[int, set[int]] = {}
    for weight in found.weights:
        partners.setdefault(found.query_head(weight), set()).add(found.key_head(weight))
    for keys in partners.values():
        if len(keys) > 1:
            mixed = "the heads are split with view(B, H, T, d), without a transpose, or summed over"
            yield Saw(found.line_of_product(found.weights[0]), f"the queries of a head meet the keys of {len(keys)} "
                      f"heads: {mixed}", "of one head")  # fmt: skip
    shared = Counter(key for keys in partners.values() for key in keys)
    line = found.line_of_row(found.key_rows[0]) if len(shared) < len(partners) else 0
    if len(set(shared.values())) > 1:
        yield Saw(line, f"the heads of keys serve {sorted(shared.values())} query heads", "the same number each")
    if wanted.heads not in (0, len(partners)):
        yield Saw(found.line_of_row(found.query_rows[0]), f"there are {len(partners)} heads", str(wanted.heads))
    if wanted.shares == 0 and len(partners) > 1 and len(shared) == len(partners):
        yield Saw(line, "no heads share their keys", "keys and values for several heads", "", "nothing shared")
    if wanted.shares == 1 and len(shared) < len(partners):
        yield Saw(line, f"{max(shared.values())} heads share their keys", "keys for each head", "", "shared keys")
    queries, heads = in_order(found, found.query_heads), in_order(found, found.key_heads)
    met = [heads.index(key) for query in queries if len(keys := partners.get(query, set())) == 1
           for key in keys if key in heads]  # fmt: skip
    if 1 < len(heads) < len(met) == len(partners) and met != sorted(met):
        turn = "h % G" if met == [h % len(heads) for h in range(len(met))] else f"{met} of {len(heads)}"
        yield Saw(line, f"query head h reads key head {turn}, in the order of the layers' rows: published weights, "
                  "for h // (H / G), have to be reordered", "key head h // (H / G)", "", "in turn")  # fmt: skip


def in_order(found: Found, heads: dict[int, int]) -> list[int]:
    """Heads in the order of their rows in the layer, or as they were given; [] if several layers make them."""
    places = dict[int, tuple[str, int]]()
    for row, head in heads.items():
        name, h, _ = found.given(row)
        atoms = [found.of[leaf] for number in found.atoms(row) for leaf in found.leaves(number)]
        columns = [one for atom in atoms if atom.op == "linear" for one in found.numbers(atom.column)]
        parts = {part for one in columns for part in parts_of(found.of[one].made_of)}
        places.setdefault(head, (name, h) if name else min(parts, default=("", 0)))
    return sorted(places, key=places.__getitem__) if len({name for name, _ in places.values()}) == 1 else []


@law("weights sum to one", "divide each exponential by the sum over its row: softmax(dim=-1)")
def divided(found: Found, wanted: Wanted) -> Saws:
    for weight in found.weights:
        line, meaning = found.line(weight), found.of[weight]
        if not isinstance(meaning, Weight):
            yield Saw(line, "exponentials are not divided by their sum", "divided")
        elif parts := [found.of[one] for one in found.numbers(meaning.group) if found.is_kind(one, Exp)]:
            sides = [{getattr(found.of[one.score], side) for one in parts} for side in ("left", "right")]
            if min(map(len, sides)) > 1 or found.of.query(weight) == found.of.key(weight):
                yield Saw(line, "the sum runs over all queries and keys", "over the keys of one query, row by row")
            elif len({found.of[one.score].left for one in parts}) > 1 and len(sides[1]) == 1:
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
def one_query(found: Found, wanted: Wanted) -> Saws:
    for weight in found.first_weights:
        scores = [one for one in found.numbers(found.of[weight].group) if found.is_kind(one, Score)]
        queries = {found.of[one].left if found.of.query_is_left(found.of[weight].group) else found.of[one].right
                   for one in scores}  # fmt: skip
        if len(queries) > 1:
            tokens = {found.tokens(row) for row in queries}
            keys = {found.tokens(side) for one in scores for side in (found.of[one].left, found.of[one].right)}
            over = "heads" if len(tokens) == 1 else "queries and heads" if len(queries) > len(tokens) else "queries"
            over = "sums of all queries and keys" if over == "queries" and len(keys) > 1 else over
            over = "batch" if len({token[0][0] for token in tokens}) > 1 else over
            yield Saw(found.line(weight), f"the softmax runs over the {over}: over the scores of "
                      f"{len(queries)} queries", "over the keys")  # fmt: skip


@law(
    "the softmax is safe for large scores", "subtract the maximum of the scores that are seen: softmax(dim=-1) does it"
)
def safe(found: Found, wanted: Wanted) -> Saws:
    for weight in found.first_weights:
        line, group = found.line(weight), found.of[weight].group
        if not found.of.subtracted.get(group, set()) <= set(found.numbers(group)):
            yield Saw(line, "masked after exp: the maximum that is subtracted is one of hidden scores, too, so with "
                      "large scores all of the past becomes 0, and 0/0", "masked before", "", "no maximum")  # fmt: skip
        elif group in found.of.unshifted:
            yield Saw(line, "the maximum is not subtracted: exp of large scores overflows to inf, then nan",
                      "exp(scores - maximum)", "", "no maximum")  # fmt: skip


@law("scores are divided by sqrt(d)", "divide by the square root of the width of a head", alone=True)
def scaled(found: Found, wanted: Wanted) -> Saws:
    for weight in found.weights:
        score = found.score(weight)
        pairs = zip(*(found.numbers(side) for side in (score.left, score.right)))
        gains = [found.of.gain(a) * found.of.gain(b) for a, b in pairs] or [1.0]
        factor, d = score.scale * gains[0], len(gains)
        for what, value in score.extra:
            factor *= value if what == "tanh" else 1.0
        right = wanted.kind.scale(torch.zeros(1, 1, 1, d))
        line = found.line_of_score(weight)
        if max(gains) - min(gains) > (near := 2**-7 if found.rounded else 1e-6) * max(gains):
            yield Saw(line, f"the products of query and key are multiplied by {several(set(gains))}", "all alike")
        elif abs(factor - right) > near * max(right, 1):
            words = scale_in_words(factor, d, found.width or d, wanted.T, len(found.heads),
                                   len(set(found.key_heads.values())))  # fmt: skip
            named = "scaled" if abs(factor - d**-0.5) < 1e-6 else ""
            if wanted.learned and (found.is_text(score.left) or found.is_text(score.right)):
                named = "bilinear"  # the matrix may hold any factor
            if words == f"multiplied by {factor:.4g}" and all(map(found.normed, found.sides(weight))):
                named = "sharpened"  # by no known slip, and behind norms any temperature will do
            if factor == 1 and found.line_of_product(weight) in found.reading.in_float32:
                words, named = f"{words}, and computed in float32, so as not to overflow: as in GPT-Neo", "unscaled"
            divided = f"divided by sqrt({d}) = {1 / right:.4g}" if right < 1 else "left unscaled"
            yield Saw(line, f"scores are {words}", divided, "", named)


EXTRA = {  # what else is done to scores: the name of the convention, and what it does
    "plus": ("learned bias", "a learned number is added to the scores"),
    "tanh": ("soft cap", "the scores are capped with tanh"),
    "by": ("temperature", "the scores are multiplied by a learned number"),
}


@law("what is added to the scores is the bias of the position", "add minus the head's slope times the distance")
def added(found: Found, wanted: Wanted) -> Saws:
    H, d = len(found.heads), len(found.numbers(found.query_rows[0]))
    values: dict[int, dict[Token, dict[int, float]]] = {}  # of each head and query: what is added to each key's score
    for weight in found.weights:
        score = found.score(weight)
        line = found.line_of_score(weight)
        for what in (what for what, _ in score.extra if what != "times"):
            if what not in EXTRA:
                raise Ends(str(what), line, "scores are expected as they are")
            yield Saw(line, EXTRA[what][1], "scores as they are", "", EXTRA[what][0])
        query, key = found.sides(weight)
        row = values.setdefault(found.query_head(weight), {}).setdefault(found.tokens(query)[0], {})
        if score.added > -50:  # lower ones hide, or should
            row[found.tokens(key)[0][1]] = score.added
    biases = wanted.biases(H, d)
    fits = [[[h for h in range(H) if same_bias(rows, bias[h])] for rows in values.values()] for bias in biases]
    if any(all(heads) and len({h for one in heads for h in one}) == H for heads in fits):
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


def same_bias(rows: dict[Token, dict[int, float]], bias: Tensor) -> bool:
    """Whether what is added is a bias (T, T), up to a constant for each query, which changes no weight."""
    return all(len({round(value - float(bias[t, s]), 6) for s, value in row.items()}) == 1
               for (_, t), row in rows.items())  # fmt: skip


@law("a weight meets the value of its own key", "multiply weights (.., T, S) by values (.., S, d)")
def over_the_keys(found: Found, wanted: Wanted) -> Saws:
    for mixture in found.mixtures:
        weights = [one for one in found.numbers(found.of[mixture].weights) if found.is_kind(one, Weight)]
        if len({found.of[one].group for one in weights}) < 2:
            continue
        pairs = [[found.tokens(side)[0][1] for side in found.sides(one)] for one in found.weights]
        visible = wanted.visible()
        if all(visible[t, s] for t, s in pairs) and not bool(visible.all()):
            yield Saw(found.line(mixture), "the weights are transposed: the values are mixed by the weights of "
                      "their queries", "by those of their keys")  # fmt: skip
        yield Saw(found.line(weights[0]), "the weights of one query come from several softmaxes: it runs over the "
                  "queries (dim=-2, columns), or over the heads", "one softmax over the keys, dim=-1")  # fmt: skip


@law("the scores of keys alone share the softmax", "leave it out, or say that it is a sink", alone=True)
def no_sink(found: Found, wanted: Wanted) -> Saws:
    for weight in found.first_weights:
        group = found.numbers(found.of[weight].group)
        listed, t = [found.of[one] for one in group], found.tokens(found.of.query(weight))[0][1]
        sees_all = bool(wanted.visible()[t].all())
        if learned := [one for one in group if found.is_kind(one, Param)]:
            found.used.update(learned)
            yield Saw(found.line(weight), "a learned number has a share of the softmax: a sink, as in GPT-OSS",
                      "scores alone", "", "learned sink")  # fmt: skip
        elif any(not isinstance(one, Score) and (sees_all or not isinstance(one, Const)) for one in listed):
            yield Saw(found.line(weight), "a number that is no key's score has a share of the softmax: a sink, "
                      "softmax off by one", "scores alone", "", "sink")  # fmt: skip


@law("hidden scores are -inf", "fill with -inf before the softmax", alone=True)
def hides(found: Found, wanted: Wanted) -> Saws:
    for weight in found.first_weights:
        t = found.tokens(found.of.query(weight))[0][1]
        for one in [found.of[number] for number in found.numbers(found.of[weight].group)]:
            value = getattr(one, "added", getattr(one, "value", 0.0))
            if isinstance(one, Const) and bool(wanted.visible()[t].all()):
                continue
            if isinstance(one, Const) or value <= -50:
                small = "the mask multiplies the scores" if value == 0 else "too small: large scores reach through"
                yield Saw(found.line(weight), f"hidden scores of token {t} are {value:g}: {small}", "-inf")


@law(
    "a token sees itself and what came before",
    "look at the mask: its triangle, its offset, and where it is applied",
    alone=True,
)
def sees(found: Found, wanted: Wanted) -> Saws:
    visible, line = wanted.visible(), found.line(found.weights[0])
    seen: dict[tuple[int, int, int], list[int]] = {}
    for weight in found.first_weights:
        group, query = found.of[weight].group, found.of.query(weight)
        side = "right" if found.of.query_is_left(group) else "left"
        scores = [one for one in map(found.of.__getitem__, found.numbers(group)) if isinstance(one, Score)]
        place = (found.tokens(query)[0][0], found.query_heads[query], found.tokens(query)[0][1])
        seen[place] = sorted(s for one in scores for _, s in found.tokens(getattr(one, side)))
    for b, h in dict.fromkeys((b, h) for b, h, _ in seen):
        table = [seen.get((b, h, t), []) for t in range(found.first, wanted.T)]
        allowed = [row.nonzero().flatten().tolist() for row in visible]
        for t, keys in enumerate(table, start=found.first):
            if keys != allowed[t]:
                corner = "corner" if table == allowed[: len(table)] else ""
                row = "".join("x" if s in keys else "." for s in range(wanted.T))
                yield Saw(line, seen_in_words(table, allowed, t), tokens_in_words(allowed[t]), row, corner)


@law("a weight meets the value of its own key", "multiply weights (.., T, S) by values (.., S, d)")
def own_value(found: Found, wanted: Wanted) -> Saws:
    for mixture in found.mixtures:
        for weight, value in found.of.terms(mixture):
            key = found.tokens(found.of.key(weight))
            if key != found.tokens(value):
                yield Saw(found.line(mixture), f"the weight of key {tokens_in_words(key)} meets the value of token "
                          f"{tokens_in_words(found.tokens(value))}", "of the same token")  # fmt: skip


@law("all keys that share the softmax are mixed", "mask the scores with -inf before the softmax, or renormalise")
def all_mixed(found: Found, wanted: Wanted) -> Saws:
    groups = dict[int, list[int]]()
    for weight in found.weights if found.makes == "weights" else ():
        groups.setdefault(found.of[weight].group, []).append(weight)
    used = [(weights[0], tuple(weights)) for weights in groups.values()] or [
        (mixture, found.numbers(found.of[mixture].weights)) for mixture in found.mixtures
    ]
    for mixture, weights in used:
        scores = {one for one in found.numbers(found.of[weights[0]].group) if found.is_kind(one, Score)}
        if not found.is_blind(weights[0]) and {found.of[weight].score for weight in weights} != scores:
            yield Saw(found.line(mixture), "there is a mask after the softmax: hidden keys have a share of it, so the "
                      "rows do not sum to 1", "masked before the softmax")  # fmt: skip


@law("values are mixed as they are", "rotate and scale only queries and keys")
def plain_values(found: Found, wanted: Wanted) -> Saws:
    for mixture in found.mixtures:
        values = [found.of[value] for value in found.numbers(found.of[mixture].features)]
        line = found.line(mixture)
        if any(len(value.terms) > 1 for value in values):
            yield Saw(line, "the values are rotated, too, or they are sums of features", "as the layer makes them")
        if len({found.of.unit(value) for value in found.numbers(found.of[mixture].features)}) > 1:
            yield Saw(line, "different features of the tokens are mixed", "the same feature of each")
        factors = {round(found.of[mixture].factor * factor, 6) for value in values for _, factor in value.terms}
        if factors != {1.0}:
            after = ": the scale comes after the softmax" if max(factors) < 1 else ""
            yield Saw(line, f"the values, or what they are mixed to, are multiplied by {several(factors)}{after}",
                      "by 1")  # fmt: skip


@law("each head has values of its own", "split and repeat the values as the keys")
def own_values(found: Found, wanted: Wanted) -> Saws:
    owners: dict[int, set[int]] = {}
    keys: dict[int, set[int]] = {}
    for mixture in found.mixtures:
        weight, value = found.of.terms(mixture)[0]
        owners.setdefault(found.of.unit(value), set()).add(found.query_head(weight))
        keys.setdefault(found.of.unit(value), set()).add(found.key_head(weight))
    line = found.line(found.mixtures[0])
    if any(len(heads) > 1 for heads in keys.values()):
        yield Saw(line, "a value is mixed with the weights of keys of several heads: keys and values are repeated in "
                  "different orders, keys interleaved (repeat_interleave) and values tiled (repeat), or the other way",
                  "values of the keys' own head, repeated in the same order")  # fmt: skip
    elif wanted.shares == 1 and any(len(heads) > 1 for heads in owners.values()):
        yield Saw(line, "a value is mixed by several heads", "by one", "", "shared keys")


@law("the heads of one token are joined, each number once", "transpose(1, 2) before reshape(B, T, D)")
def joined(found: Found, wanted: Wanted) -> Saws:
    for (b, t), row in ((place, row) for place, rows in found.rows.items() for row in rows):
        mixtures, tokens = found.numbers(row), found.tokens(row)
        if len(tokens) != 1:
            yield Saw(found.line_of_row(row), f"the heads are joined without transpose, which mixes the tokens "
                      f"{tokens_in_words(tokens)}", "from one token", token_row(found, row))  # fmt: skip
        elif len(set(mixtures)) < len(mixtures):
            yield Saw(found.line_of_row(row), "numbers of the heads are there twice: all heads share the same matrix, "
                      "or one head is listed again", "once")  # fmt: skip
        heads = Counter(map(found.head_of_mixture, mixtures))
        if len(heads) < len(found.heads) or len(set(heads.values())) > 1:
            yield Saw(found.line_of_row(row), f"{len(heads)} of {len(found.heads)} heads go into one row",
                      "all, each whole")  # fmt: skip
        if tokens != ((b, t + found.first),):
            yield Saw(found.line_of_row(row), f"the output of token {tokens_in_words(tokens)} of text {tokens[0][0]} "
                      f"stands at the place of token {t} of text {b}", "at its own")  # fmt: skip


@law("the heads are projected", "end with an output projection", alone=True)
def projected(found: Found, wanted: Wanted) -> Saws:
    line = found.line(found.mixtures[0])
    if wanted.projected and not found.projected:
        yield Saw(line, "there is no output projection: the heads come out as they are", "projected by a layer", "",
                  "no projection")  # fmt: skip


@law("the output is as wide as x", "project to the model's width")
def as_wide(found: Found, wanted: Wanted) -> Saws:
    for place in found.rows:
        row = found.output[place].tolist()
        if len(set(row)) < len(row) or (wanted.projected and found.projected and len(row) != found.width):
            yield Saw(found.line(row[0]), f"the output of token {place[1]} holds {len(set(row))} different numbers",
                      f"{found.width or len(row)}")  # fmt: skip


@law("each head stays at its place", "return (B, H, T, d) as the queries are")
def at_their_place(found: Found, wanted: Wanted) -> Saws:
    for row in (found.output[place].tolist() for place in found.rows) if not found.width else ():
        each = len(row) // len(found.heads)
        for h in found.heads:
            weights = [found.of.terms(number)[0][0] for number in row[h * each : (h + 1) * each]]
            heads = {found.given(found.of.query(weight))[1] for weight in weights}
            if heads != {h}:
                yield Saw(found.line(row[0]), f"the output of head {min(heads)} stands at the place of head {h}",
                          "at its own")  # fmt: skip


@law("each parameter is used", "use it, or leave it out")
def all_used(found: Found, wanted: Wanted) -> Saws:
    parts = {one for number in found.used for one in parts_of(found.of[number].made_of)}
    used = Counter(name for name, _ in parts)
    for name, count in found.reading.names.items():
        if used[name] < count and not (used[name] and name in found.positions):
            where = "the first " if (name, 0) in parts else "the last " if (name, count - 1) in parts else ""
            some = f"only {where}{used[name]} of {count} numbers are" if used[name] else "nothing is"
            yield Saw(0, f"of {name} {some} used: a layer, projection or group of heads never takes part", "all")


def parts_of(made_of: Any) -> set[tuple[str, int]]:
    """The numbers of parameters that a number is made of: (name, place)."""
    if len(made_of) == 2 and isinstance(made_of[0], str) and isinstance(made_of[1], int):
        return {made_of}
    return {one for part in made_of if isinstance(part, tuple) for one in parts_of(part)}


@law("the weight of query t and key s stands at [t, s]", "return (..., T, S): queries, then keys")
def weights_at_their_place(found: Found, wanted: Wanted) -> Saws:
    for place, number in zip(zip(*found.output.nonzero()), found.output[found.output.nonzero()].tolist()):
        b, *_, t, s = map(int, place)
        if found.is_kind(number, Weight, Score) and all(map(found.of.tokens, found.sides(number))):
            (at,), (of,) = map(found.of.tokens, found.sides(number))
            if (at, of) != ((b, t + found.first), (b, s)):
                yield Saw(found.line(number), f"the weight of query {at[1]} and key {of[1]} stands at [{t}, {s}]",
                          f"at [{at[1] - found.first}, {of[1]}]")  # fmt: skip


@law("rotated rows stand where they were given", "keep the order of batch, positions and heads")
def rows_at_their_place(found: Found, wanted: Wanted) -> Saws:
    shape = found.output.shape[:-1]
    for place, row in zip(np.ndindex(*shape), found.output.reshape(-1, found.output.shape[-1]).tolist()):
        tokens = found.tokens(found.of.row(row))
        if tokens != (place[:2],):
            yield Saw(found.line(row[0]), f"numbers of the tokens {tokens_in_words(tokens)} stand at the place of "
                      f"token {place[1]}", "its own")  # fmt: skip


SCORES: tuple[Law, ...] = (one_token, one_text, own_layers, reads, own_heads, own_partners)
WEIGHTS: tuple[Law, ...] = (*SCORES, rotations, turned, distances, divided, one_query, safe, scaled, added)
MIXED: tuple[Law, ...] = (over_the_keys, no_sink, hides, all_mixed, sees, own_value, plain_values, own_values)
INSIDE: tuple[Law, ...] = (*WEIGHTS, *MIXED, projected, joined, as_wide, at_their_place)
LAWS: tuple[Law, ...] = (*INSIDE, all_used)
ROWS: tuple[Law, ...] = (one_token, own_heads, rotations, turned, distances, rows_at_their_place)
OF_SCORES: tuple[Law, ...] = (*SCORES, scaled, weights_at_their_place)
OF_WEIGHTS: tuple[Law, ...] = (*WEIGHTS, no_sink, hides, all_mixed, sees, weights_at_their_place)
