"""Every operation of torch, at the level of aten, as a rule on meanings.

Operations that only move numbers are done to the shadows as they are done to the numbers. Products of matrices, sums
and softmaxes are worked out row by row, all others element by element. What has no rule makes numbers that attention
does not have, unless each row of its result is made of a row of numbers of one token: then they are new features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.checks.reading.algebra import PARAM, SINGLE, Algebra
from minigpt.checks.reading.meanings import Atom, Const, Feature
from minigpt.checks.reading.shadows import Ids, Shadows

MOVES = {  # operations that move numbers, and which of their arguments hold numbers; the others say where to
    "clone": 1, "contiguous": 1, "_to_copy": 1, "cat": 1, "stack": 1, "index": 1, "index_select": 1, "gather": 1,
    "repeat": 1, "repeat_interleave": 1, "flip": 1, "roll": 1, "tril": 1, "triu": 1, "embedding": 1,
    "constant_pad_nd": 1,     "slice_scatter": 2, "select_scatter": 2, "diagonal_copy": 1, "take": 1, "unfold_copy": 1,
    "lift_fresh": 1, "lift_fresh_copy": 1, "tril_": 1, "triu_": 1, "new_zeros": 0, "reshape": 1, "masked_select": 1,
    "squeeze_copy": 1, "expand_copy": 1, "split_copy": 1, "rot90": 1, "view_copy": 1, "_reshape_copy": 1,
}  # fmt: skip
FILLS = ("masked_fill", "masked_fill_", "fill_", "zero_", "where", "index_put_", "index_put", "copy_", "scatter_",
         "scatter", "masked_scatter", "index_copy", "index_copy_", "index_fill", "index_fill_",
         "_index_put_impl_")  # fmt: skip
BY_VALUE = ("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "bitwise_not", "bitwise_and", "logical_and")
COMPARES = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "all", "any", "argmax",
            "sign", "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_full",
            "new_empty", "bernoulli", "rand_like", "randn_like", "is_nonzero", "equal", "_local_scalar_dense",
            "bitwise_not", "bitwise_and", "logical_and")  # fmt: skip
SAME = ("dropout", "nan_to_num", "alias", "detach", "clamp", "clamp_min")
ELEMENTS = ("exp", "tanh", "neg", "pow", "sqrt", "rsqrt", "reciprocal", "relu", "sigmoid", "silu", "gelu", "elu", "abs",
            "softplus", "maximum", "minimum", "logaddexp", "log", "sin", "cos", "clamp_max", "square", "leaky_relu",
            "hardtanh", "erf", "exp2")  # fmt: skip
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv", "addbmm", "vdot", "outer")


class Operations:
    """The rules. Each takes the arguments of an operation and gives the meanings of its result."""

    def __init__(self, algebra: Algebra, shadows: Shadows) -> None:
        self.algebra, self.shadows = algebra, shadows
        self.func: Any = None  # the operation that runs
        self.lost = 0  # the line at which a number was taken out of torch, which ends the reading of it

    def moves(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """The operation done to the shadows; fills are constants."""
        number = MOVES.get(name)

        def one(part: int) -> Any:
            taken = [self.moved(arg, name, place, number, part) for place, arg in enumerate(args)]
            named = {key: value for key, value in kwargs.items() if key not in ("dtype", "layout", "device")}
            if name in ("_to_copy", "copy_"):
                return taken[0].copy_(taken[1]) if name == "copy_" else taken[0].clone()
            return func(*taken, **named)

        return one

    def moved(self, arg: Any, name: str, place: int, numbers: int | None, part: int) -> Any:
        """An argument of an operation that moves numbers: its shadows, if it holds numbers."""
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor) and place == 0:
            return [self.shadow(one, part) for one in arg]
        if not isinstance(arg, Tensor):
            scalar = numbers is None and isinstance(arg, (int, float)) and place == {"fill_": 1}.get(name, -1)
            fill = name in ("masked_fill", "masked_fill_", "constant_pad_nd") and place == 2
            fill |= name in ("scatter", "scatter_", "index_fill", "index_fill_") and place == 3
            return 0 if scalar or fill else arg
        if numbers is not None:
            return self.shadow(arg, part) if place < numbers else arg
        index = {"masked_fill": (1,), "masked_fill_": (1,), "where": (0,), "scatter_": (2,), "scatter": (2,),
                 "masked_scatter": (1,), "index_copy": (2,), "index_copy_": (2,), "index_fill": (2,)}  # fmt: skip
        if place in index.get(name, ()) or (arg.dtype == torch.bool and name != "copy_"):
            return arg
        return self.shadow(arg, part)

    def shadow(self, x: Tensor, part: int) -> Tensor:
        """The shadows of a tensor, zeros if it has none."""
        if not self.shadows.has(x):
            return torch.zeros(x.shape, dtype=torch.int64)
        return self.shadows.at(x)[..., part] if x.is_complex() else self.shadows.at(x)

    def each(self, rule: Callable[..., int], *operands: Ids) -> Ids:
        """A rule, element by element. Equal elements are worked out once."""
        spread = np.broadcast_arrays(*operands)
        results: dict[tuple[int, ...], int] = {}
        flat = []
        for numbers in zip(*(one.ravel().tolist() for one in spread)):
            if numbers not in results:
                results[numbers] = rule(*numbers)
            flat.append(results[numbers])
        return np.array(flat, dtype=np.int64).reshape(spread[0].shape)

    def rows(self, args: Any, rule: Callable[[tuple[int, ...]], list[int]]) -> Ids:
        """A rule that makes a row of each row along an axis: `args` are a tensor and the axis."""
        x, dim, *_ = args
        moved = np.moveaxis(self.shadows.ids(x), dim, -1)
        count = int(np.prod(moved.shape[:-1]))  # -1 could not be told where a row is empty
        rows = [rule(tuple(row)) for row in moved.reshape(count, moved.shape[-1]).tolist()]
        return np.moveaxis(np.array(rows, dtype=np.int64).reshape(moved.shape), -1, dim)

    def matmul(self, a: Ids, b: Ids) -> Ids:
        """The product of matrices (..., n, k) and (..., k, m)."""
        if a.ndim == 3:
            return np.stack([self.matmul(one, other) for one, other in zip(a, b)])
        of, dot, known, linear = self.algebra.of, self.algebra.dot, self.algebra.products, self.algebra.linear_maps
        lefts, rights = [of.row(one) for one in a.tolist()], [of.row(one) for one in b.T.tolist()]
        if all(of.kinds(right) == PARAM for right in rights) and all(of.kinds(left) in SINGLE for left in lefts):
            rows = [linear(left, rights) for left in lefts]
        elif all(of.kinds(left) == PARAM for left in lefts) and all(of.kinds(right) in SINGLE for right in rights):
            rows = [list(row) for row in zip(*(linear(right, lefts) for right in rights))]
        else:
            for pair in product(lefts, rights):
                if pair not in known:
                    known[pair] = dot(*pair)
            rows = [[known[left, right] for right in rights] for left in lefts]
        return np.array(rows, dtype=np.int64).reshape(len(a), b.shape[1])

    def matrix_product(self, name: str, args: Any, kwargs: Any) -> Ids:
        """mm, bmm, mv, dot, and those that add something first."""
        ids = [self.shadows.ids(arg) for arg in args if isinstance(arg, Tensor)]
        plus = ids.pop(0) if name.startswith(("add", "badd")) else None
        a, b = ids
        if name in ("mv", "addmv"):
            result = self.matmul(a, b[:, None])[:, 0]
        elif name in ("dot", "vdot"):
            result = self.matmul(a[None], b[:, None])[0, 0]
        elif name == "outer":
            result = self.matmul(a[:, None], b[None])
        else:
            result = self.matmul(a, b)
        if plus is None:
            return np.asarray(result)
        return self.each(self.algebra.add, self.scaled(result, kwargs.get("alpha", 1)),
                         self.scaled(plus, kwargs.get("beta", 1)))  # fmt: skip

    def convolution(self, name: str, args: Any, kwargs: Any) -> Ids | None:
        """A convolution of width one of x (B, D, ...): a product of matrices."""
        x, weight, bias, *others = args
        if any(size != 1 for size in weight.shape[2:]) or others[-1] != 1:
            return None
        ids = self.shadows.ids(x)
        columns = np.moveaxis(ids, 1, -1)
        result = self.matmul(columns.reshape(-1, ids.shape[1]), self.shadows.ids(weight).reshape(len(weight), -1).T)
        if bias is not None:
            result = self.each(self.algebra.add, result, self.shadows.ids(bias))
        return np.moveaxis(result.reshape(*columns.shape[:-1], -1), -1, 1)

    def scaled(self, ids: Ids, factor: float) -> Ids:
        """All numbers times a constant."""
        return ids if factor == 1 else self.each(lambda number: self.algebra.scale(number, factor), ids)

    def complex(self, name: str, args: Any, kwargs: Any) -> Ids:
        """Complex numbers of real and imaginary parts."""
        return np.stack(np.broadcast_arrays(*(self.shadows.ids(arg) for arg in args)), -1)

    def complex_product(self, a: Ids, b: Ids) -> Ids:
        """The products of complex numbers, whose parts are the last axis."""
        times, add, scale = self.algebra.times, self.algebra.add, self.algebra.scale
        parts = a[..., 0], a[..., 1], b[..., 0], b[..., 1]
        real = self.each(lambda x, y, u, v: add(times(x, u), scale(times(y, v), -1.0)), *parts)
        return np.stack((real, self.each(lambda x, y, u, v: add(times(x, v), times(y, u)), *parts)), -1)

    def two(self, name: str, args: Any, kwargs: Any) -> Ids | None:
        """add, sub, mul and div of two operands."""
        if kwargs.get("rounding_mode") is not None:
            return None
        a, b = (self.shadows.ids(arg) for arg in args[:2])
        if any(isinstance(arg, Tensor) and arg.is_complex() for arg in args[:2]):
            a, b = (self.with_parts(ids, arg) for ids, arg in zip((a, b), args))
            if name == "mul":
                return self.complex_product(a, b)
        if name in ("mul", "div"):
            return self.each(self.algebra.times if name == "mul" else self.algebra.over, a, b)
        if name == "rsub":
            a, b = b, a
        return self.each(self.algebra.add, a, self.scaled(b, kwargs.get("alpha", 1) * (1 if name == "add" else -1)))

    def three(self, name: str, args: Any, kwargs: Any) -> Ids:
        """addcmul, addcdiv and lerp: a + value b c, a + value b / c, a + c (b - a)."""
        a, b, c = (self.shadows.ids(arg) for arg in args)
        add, scale, value = self.algebra.add, self.algebra.scale, kwargs.get("value", 1)
        if name == "lerp":
            return self.each(lambda x, y, z: add(x, self.algebra.times(add(y, scale(x, -1.0)), z)), a, b, c)
        rule = self.algebra.times if name == "addcmul" else self.algebra.over
        return self.each(lambda x, y, z: add(x, scale(rule(y, z), value)), a, b, c)

    def glu(self, name: str, args: Any, kwargs: Any) -> Ids:
        """One half of the numbers times the sigmoid of the other."""
        x, dim = args[0], args[1] if len(args) > 1 else -1
        self.algebra.of.functions.setdefault("sigmoid", torch.sigmoid)
        first, second = np.split(self.shadows.ids(x), 2, axis=dim)
        return self.each(lambda a, b: self.algebra.times(a, self.algebra.function("sigmoid", b)), first, second)

    def compared(self, name: str, args: Any, kwargs: Any) -> Ids | None:
        """Whether features are above a number, and so on: a function of them. None for scores, weights and ids."""
        operands = [self.shadows.ids(arg) for arg in args if isinstance(arg, Tensor)]
        ids = any(self.algebra.op(one) == "id" for each in operands for one in set(each.ravel().tolist()))
        return self.function(name, args, kwargs) if self.are_features(*operands) and not ids else None

    def are_features(self, *operands: Ids) -> bool:
        """Whether all numbers are features or constants."""
        numbers = {one for ids in operands for one in ids.ravel().tolist()}
        return all(self.algebra.of.is_kind(one, Feature, Const) for one in numbers)

    def by_value(self, name: str, args: Any) -> Ids | None:
        """`where` and `masked_fill` where the mask depends on features: a function. None for other masks and scores."""
        x, mask, fill = args if name.startswith("masked_fill") else (args[2], args[0], args[1])
        if not self.shadows.has(mask) or not (self.shadows.ids(mask) > 0).any():
            return None
        ids, algebra = [self.shadows.ids(one) for one in (mask, fill, x)], self.algebra
        if not self.are_features(*ids):
            return None

        def run(rows: Tensor) -> Tensor:
            return torch.where(rows[:, :1] != 0, rows[:, 1:2], rows[:, 2:])

        algebra.of.functions.setdefault("where", run)
        return self.each(lambda *numbers: algebra.new("where", *numbers), *ids)

    def with_parts(self, ids: Ids, arg: Any) -> Ids:
        """Real numbers as complex ones: with an imaginary part of zero."""
        if isinstance(arg, Tensor) and arg.is_complex():
            return ids
        return np.stack((ids, np.full_like(ids, self.algebra.of.zero)), -1)

    def along(self, args: Any, kwargs: Any, rule: Callable[[tuple[int, ...]], int], keep: bool = False) -> Ids:
        """A rule on the rows along one or several axes: `args` are a tensor, the axes, and whether to keep them."""
        x, dims, keepdim, *_ = (*args, None, None) if len(args) < 3 else args
        dims = kwargs.get("dim") if dims is None else dims
        ids = self.shadows.ids(x)
        listed = [dims] if isinstance(dims, int) else list(dims or range(x.dim()))
        axes = [dim % x.dim() for dim in listed]
        moved = np.moveaxis(ids, axes, range(-len(axes), 0)) if axes else ids[..., None]
        rest = [size for axis, size in enumerate(ids.shape) if axis not in axes]
        flat = moved.reshape(int(np.prod(rest)), -1).tolist()
        values = np.array([rule(tuple(row)) for row in flat], dtype=np.int64)
        ones = [1 if axis in axes else size for axis, size in enumerate(ids.shape)]
        return values.reshape(ones if keep or keepdim or kwargs.get("keepdim") else rest)

    def total(self, name: str, args: Any, kwargs: Any) -> Ids:
        """sum and mean."""
        of, dot = self.algebra.of, self.algebra.dot
        totals = self.along(args, kwargs, lambda row: dot(of.row(row), of.row((of.one,) * len(row))))
        return totals if name == "sum" else self.scaled(totals, max(totals.size, 1) / args[0].numel())

    def largest(self, name: str, args: Any, kwargs: Any) -> Ids | None:
        """amax, max along an axis, maximum of two, and logsumexp."""
        if name == "max" and (len(args) < 2 or isinstance(args[1], Tensor)):
            return self.function("maximum", args, kwargs) if len(args) > 1 else None
        return self.along(args, kwargs, lambda row: self.algebra.largest(row, name == "logsumexp"))

    def softmax(self, name: str, args: Any, kwargs: Any) -> Ids:
        """A softmax along an axis."""
        return self.rows(args, self.algebra.softmax)

    def log_softmax(self, name: str, args: Any, kwargs: Any) -> Ids:
        """Scores less the logarithm of the sum of their exponentials."""
        total = self.along(args[:2], {}, lambda row: self.algebra.largest(row, True), keep=True)
        return self.each(self.algebra.add, self.shadows.ids(args[0]), self.scaled(total, -1.0))

    def running_sum(self, name: str, args: Any, kwargs: Any) -> Ids:
        """cumsum."""
        return self.rows(args, lambda row: list(accumulate(row, self.algebra.add)))

    def same(self, name: str, args: Any, kwargs: Any) -> Ids | None:
        """What leaves numbers as they are; clamp does so with all but features, as it keeps sums from being zero."""
        ids = self.shadows.ids(args[0])
        is_feature = name.startswith("clamp") and self.algebra.of.is_kind(int(ids.flat[0]), Feature)
        return self.function(name, args, kwargs) if is_feature else ids

    def no_rule(self, name: str, args: Any, kwargs: Any) -> None:
        """Nothing is known of the result."""

    def unknown(self, name: str, args: Any, kwargs: Any, out: Tensor, which: int = 0) -> Ids:
        """An operation without a rule: new features, if each number of the result is made of one number, or each row
        of it of one row, as changed numbers show; otherwise the end of the reading. `which`: of several results."""
        x = next(arg for arg in args if isinstance(arg, Tensor))
        if args[0] is x and (axis := self.axis_in(x, args, kwargs)) is not None:
            return self.along_axis(axis, name, args, kwargs, out, which)
        shape = (*out.shape, 2) if out.is_complex() else tuple(out.shape)
        ids, algebra = self.shadows.ids(x), self.algebra
        reach = self.reach(x, args, kwargs, which) if args[0] is x and x.dim() and not out.is_complex() else ""
        if reach == "number":
            return self.function(name, args, kwargs)
        if reach != "row":
            return np.full(shape, algebra.other(name, *ids.ravel()[:1].tolist()))
        label = self.label(name, args, kwargs) + "'" * which
        params = [one for arg in args[1:] if self.shadows.has(arg) for one in self.shadows.ids(arg).ravel().tolist()]
        algebra.of.functions[label] = self.on_rows(x, args, kwargs, which)
        places = ids.shape[-1] if out.shape == x.shape else 1
        rows = [algebra.places(label, (*row, *params), places) for row in ids.reshape(-1, ids.shape[-1]).tolist()]
        return np.array(rows, dtype=np.int64).reshape(shape)

    def axis_in(self, x: Tensor, args: Any, kwargs: Any) -> int | None:
        """The one axis along which an operation goes, if it is not the last one."""
        names = [one.name for one in self.func._schema.arguments]
        dims = dict(zip(names, args), **kwargs).get("dim")
        axis = dims[0] if isinstance(dims, (list, tuple)) and len(dims) == 1 else dims
        return axis % x.dim() if isinstance(axis, int) and axis % x.dim() != x.dim() - 1 else None

    def along_axis(self, axis: int, name: str, args: Any, kwargs: Any, out: Tensor, which: int) -> Ids:
        """The same operation along the last axis, of what was moved there."""
        names, x = [one.name for one in self.func._schema.arguments], args[0]
        last = {one: [-1] if isinstance(value, (list, tuple)) else -1 for one, value in dict(
            zip(names, args), **kwargs).items() if one == "dim"}  # fmt: skip
        moved = [x.movedim(axis, -1), *(last.get(one, arg) for one, arg in zip(names[1:], args[1:]))]
        more = {one: last.get(one, value) for one, value in kwargs.items()}
        result = out.movedim(axis, -1) if out.dim() == x.dim() else out
        ids = self.unknown(name, moved, more, result, which)
        return np.moveaxis(ids, -1, axis) if out.dim() == x.dim() else ids

    def reach(self, x: Tensor, args: Any, kwargs: Any, which: int) -> str:
        """How far a number of x changes the result of the operation that runs: "number", "row", or ""."""

        def run(numbers: Tensor) -> Tensor:
            result = self.func(numbers.clone(), *args[1:], **kwargs)
            return (result[which] if isinstance(result, (list, tuple)) else result).to(torch.float64)

        changed = x.clone(memory_format=torch.contiguous_format)
        changed.view(-1)[0] = changed.view(-1)[0] * 0.7 + 0.31
        one, other = run(x.contiguous()), run(changed)  # of one layout, so that they are rounded alike
        different = ((one != other) & ~(one.isnan() & other.isnan())).flatten()
        if one.shape == x.shape and not bool(different[1:].any()):
            return "number"
        if one.shape != x.shape and one.numel() * x.shape[-1] != x.numel():
            return ""
        each = one.numel() * x.shape[-1] // x.numel() if one.shape != x.shape else x.shape[-1]
        return "" if bool(different[each:].any()) else "row"

    def on_rows(self, x: Tensor, args: Any, kwargs: Any, which: int) -> Callable[[Tensor], Tensor]:
        """The operation that runs, on rows (N, n) of numbers, then parameters: -> (N, places)."""
        func, n, dims = self.func, x.shape[-1], max(x.dim(), 2)
        shapes = [tuple(arg.shape) if self.shadows.has(arg) else None for arg in args[1:]]

        def run(rows: Tensor) -> Tensor:
            arguments, start = list[Any]([rows[:, :n].reshape(*[1] * (dims - 2), len(rows), n)]), n
            for arg, shape in zip(args[1:], shapes):
                size = int(np.prod(shape)) if shape is not None else 0
                arguments.append(arg if shape is None else rows[0, start : start + size].reshape(shape))
                start += size
            result = func(*arguments, **kwargs)
            return (result[which] if isinstance(result, (list, tuple)) else result).reshape(len(rows), -1)

        return run

    def label(self, name: str, args: Any, kwargs: Any) -> str:
        """An operation's name, with its arguments that are no tensors."""
        extra = [str(arg) for arg in (*args, *kwargs.values()) if isinstance(arg, (int, float, str, list))
                 and not isinstance(arg, bool)]  # fmt: skip
        return f"{name}({', '.join(extra)})" if extra else name

    def picked(self, args: Any, moved: Ids, index: Tensor) -> Ids:
        """Rows of a table of parameters at given ids: features of the tokens that the ids are of."""
        of, table = self.algebra.of, self.shadows.ids(args[0])
        ids = self.shadows.ids(index).reshape(-1).tolist()
        flat = moved.reshape(len(ids), -1)
        rows = [[of.feature(of.tokens(one), Atom("embedding", of.row((one,)), of.row((first,)), place))
                 for place, first in enumerate(table[0].ravel().tolist())]
                for one in ids]  # fmt: skip
        return np.array(rows, dtype=np.int64).reshape(moved.shape) if flat.size else moved

    def at_targets(self, name: str, args: Any, kwargs: Any) -> Ids | None:
        """nll_loss: minus the number at each target, and their mean (reduction 1) or sum (2)."""
        x, target, weight, reduction, ignored = args[:5]
        if weight is not None:
            return None
        ids = self.shadows.ids(x)
        rows = np.moveaxis(ids, 1, -1).reshape(-1, ids.shape[1]) if ids.ndim > 1 else ids[None]
        picks = [self.algebra.scale(int(row[y]), -1.0) if y != ignored else self.algebra.of.zero
                 for row, y in zip(rows, target.reshape(-1).tolist())]  # fmt: skip
        if not reduction:
            return np.array(picks, dtype=np.int64).reshape(tuple(target.shape))
        of, row = self.algebra.of, [one for one in picks if one]
        total = self.algebra.dot(of.row(row), of.row([of.one] * len(row)))
        count = int((target != ignored).sum())
        return np.array(self.algebra.scale(total, 1 / count if reduction == 1 and count else 1.0))

    def function(self, name: str, args: Any, kwargs: Any) -> Ids:
        """A function, element by element, with its other arguments as a part of its name."""
        operands = [self.shadows.ids(arg) for arg in args if isinstance(arg, Tensor)]
        if name == "pow" and args[1:] in ((2,), (2.0,)):
            return self.each(self.algebra.times, operands[0], operands[0])
        if name == "exp2":
            self.algebra.of.functions.setdefault("exp", torch.exp)
            return self.each(lambda x: self.algebra.function("exp", self.algebra.scale(x, math.log(2))), *operands)
        label, func = self.label(name, args, kwargs), self.func

        def run(rows: Tensor) -> Tensor:
            columns = iter(rows.unbind(1))
            arguments = (next(columns).clone() if isinstance(arg, Tensor) else arg for arg in args)
            result: Tensor = func(*arguments, **kwargs)
            return result[:, None]

        self.algebra.of.functions.setdefault(label, run)
        return self.each(lambda *numbers: self.algebra.function(label, *numbers), *operands)


RULES: dict[str, Callable[[Operations, str, Any, Any], Ids | None]] = {
    **dict.fromkeys(PRODUCTS, Operations.matrix_product),
    **dict.fromkeys(("add", "sub", "rsub", "mul", "div"), Operations.two),
    **dict.fromkeys(("addcmul", "addcdiv", "lerp"), Operations.three),
    **dict.fromkeys(BY_VALUE, Operations.compared),
    "glu": Operations.glu,
    "complex": Operations.complex,
    **dict.fromkeys(("sum", "mean"), Operations.total),
    **dict.fromkeys(("amax", "max", "logsumexp"), Operations.largest),
    **dict.fromkeys(("_softmax", "_safe_softmax", "softmax"), Operations.softmax),
    **dict.fromkeys(ELEMENTS, Operations.function),
    **dict.fromkeys(SAME, Operations.same),
    "_log_softmax": Operations.log_softmax,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), Operations.at_targets),
    "cumsum": Operations.running_sum,
    "convolution": Operations.convolution,
}
"""What an operation's result is, by its name. Others move numbers (`MOVES`), fill them in, or are `unknown`."""
