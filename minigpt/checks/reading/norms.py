"""What a norm is: it shows in the values of what it makes, in whatever way it is written.

D features of a row, N samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from minigpt.checks.reading.meanings import Atom, Feature
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.values import NotGiven, Values, inner

N, LARGE, TINY = 12, 5000.0, 1e-8
FORMS: dict[str, Callable[[Tensor], Tensor]] = {  # x (N, D) -> (N, D)
    "layer": lambda x: centred(x) / spread(centred(x)),
    "rms": lambda x: x / spread(x),
    "mean left": lambda x: x / spread(centred(x)),
    "no root": lambda x: centred(x) / spread(centred(x)) ** 2,
    "mean only": lambda x: centred(x),
}


def centred(x: Tensor) -> Tensor:
    """x (N, D) less its mean."""
    return x - x.mean(1, keepdim=True)


def spread(x: Tensor) -> Tensor:
    """The root of the mean square of x (N, D): (N, 1)."""
    return x.square().mean(1, keepdim=True).sqrt()


@dataclass(frozen=True)
class Norm:
    """A norm: `base` is the row that is normed, `form` one of FORMS, `factor` what multiplies it at a gain of one."""

    base: tuple[int, ...]
    form: str
    factor: float
    gain: bool
    shift: bool
    around_zero: bool
    eps: float
    eps_is: str
    """inside: under the root, behind: added to it, least: the least value of the root."""


class Norms:
    """The norms in a reading."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.of, self.algebra = reading, reading.of, reading.operations.algebra

    @cached_property
    def random(self) -> dict[str, Tensor]:
        """Other values of the parameters, none of them small."""
        generator = torch.Generator().manual_seed(0)
        return {name: torch.rand(tensor.shape, generator=generator, dtype=torch.float64) + 0.5
                for name, tensor in self.reading.tensors.items()}  # fmt: skip

    def layer(self, number: int) -> Atom | None:
        """The linear map of several numbers that a feature is, with its bias or without; None for others."""
        meaning = self.of[number]
        single = isinstance(meaning, Feature) and len(meaning.terms) == 1
        return self.layer_of(meaning.terms[0][0]) if single else None

    def layer_of(self, number: int) -> Atom | None:
        """The same for an atom."""
        atom: Atom = self.of[number]
        if atom.op == "linear":
            return atom if len(self.of.numbers_in(atom.row)) > 1 else None
        return self.layer(self.of.numbers_in(atom.row)[0]) if atom.op == "bias" else None

    def norm(self, row: tuple[int, ...]) -> Norm | None:
        """The norm that made a row; None if none did."""
        best = None
        for base in dict.fromkeys(self.bases(row)):
            fitted = self.fitted(row, base)
            best = fitted or best
            if fitted and not set.intersection(*({atom for atom, _ in self.of[number].terms} for number in base)):
                break  # else the numbers of the base have a summand in common: their mean
        return best

    def bases(self, row: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """The rows of as many features that a feature is made of: the first number of a norm knows all of them."""
        if not row or self.layer(row[0]) is not None:  # it is a layer's, with nothing after it
            return
        ends = list[int]()
        for one, atom in inner(self.of, row[:1], self.layer_of):
            features = [one for one in self.of.numbers_in(atom.row) if self.of.is_kind(one, Feature)]
            if len(features) >= len(row) and not atom.op.startswith(("linear", "softmax")):
                terms = self.of[features[0]].terms
                factor = 1 / len(row) if len(terms) == 1 and abs(terms[0][1] * len(row) - 1) < 1e-9 else 1.0  # a mean's
                yield tuple(self.algebra.scale(number, 1 / factor) for number in features[: len(row)])
            ends += [one] if not features or self.layer_of(one) else []
        if len(ends) == len(row):
            tokens = self.of.tokens(row[0])
            yield tuple(self.of.bare(one, tokens) for one in sorted(ends))

    def fitted(self, row: tuple[int, ...], base: tuple[int, ...]) -> Norm | None:
        """The norm of `base` that a row is, by its values; None if it is none."""
        scale = torch.tensor([LARGE] * (N - 4) + [TINY] * 3 + [0.0], dtype=torch.float64)
        try:
            x, y = self.values(row, base, self.random, scale)
            form, gains, shifts = next(one for one in self.fits(x[:-4], y[:-4]))
            all_ones, all_zeros = ({name: torch.full_like(one, value) for name, one in self.random.items()}
                                   for value in (1.0, 0.0))  # fmt: skip
            _, ones = self.values(row, base, all_ones, scale)
            _, zeros = self.values(row, base, all_zeros, scale)
        except (NotGiven, StopIteration):
            return None
        z = FORMS[form](x[:-4])
        at_one, at_zero = (line_fit(z, one[:-4])[0] for one in (ones, zeros))
        gain = bool((gains - at_one).abs().max() > 1e-6)
        around_zero = gain and bool(at_zero.abs().max() > 1e-6)
        known, factors, y = (all_zeros, at_zero, zeros) if around_zero else (all_ones, at_one, ones)
        if float(factors.max() - factors.min()) > 1e-6 * float(factors.abs().max()):
            return None
        factor = float(factors.mean())
        eps, eps_is = self.epsilon(row, base, known, form, factor, y[-4:], x[-4:])
        return Norm(base, form, factor, gain, bool(shifts.abs().max() > 1e-6), around_zero, eps, eps_is)

    def epsilon(self, row: tuple[int, ...], base: tuple[int, ...], known: dict[str, Tensor], form: str, factor: float,
                y: Tensor, x: Tensor) -> tuple[float, str]:  # fmt: skip
        """A norm's epsilon, read off what it makes (y) of tiny numbers and of zeros (x), and where it is added."""
        if form in ("mean only", "no root"):
            return 1e-5, "inside"
        if bool(y[-1].isnan().any()):
            return 0.0, "inside"
        over, sizes = self.sides(form, x[:-1])
        least = float((factor * over / (y[:-1] - y[-1])).abs().nanmedian())
        if least < 3 * float(sizes.mean()):
            return 0.0, "least"
        x, y_at_least = self.values(row, base, known, torch.full((N,), least, dtype=torch.float64))
        over, sizes = self.sides(form, x)
        roots = (factor * over / (y_at_least - y[-1])).abs().nanmedian(1).values  # (N)
        ways = {"inside": (sizes**2 + least**2).sqrt(), "behind": sizes + least, "least": sizes.clamp(min=least)}
        eps_is = min(ways, key=lambda name: float((ways[name] - roots).abs().max()))
        return (least**2 if eps_is == "inside" else least), eps_is

    def sides(self, form: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """What a norm of x (N, D) divides (N, D), and by what, without an epsilon: (N)."""
        over = x if form in ("rms", "mean left") else centred(x)
        return over, spread(x if form == "rms" else centred(x))[:, 0]

    def values(self, row: tuple[int, ...], base: tuple[int, ...], parameters: dict[str, Tensor],
               scale: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The values of a base (N, D), random times a scale (N), and what a row is for them. Raises NotGiven."""
        generator, atoms = torch.Generator().manual_seed(1), dict[int, Tensor]()
        for number in base:
            for atom, _ in self.of[number].terms:
                if atom not in atoms:
                    atoms[atom] = torch.randn(N, generator=generator, dtype=torch.float64) * scale
        values = Values(self.of, atoms, parameters, N)
        return tuple(torch.stack([values.of_number(number) for number in one], 1) for one in (base, row))  # type: ignore[return-value]

    def fits(self, x: Tensor, y: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The forms that y (N, D) has as a function of x (N, D), up to a gain and a shift for each feature."""
        for form, function in FORMS.items():
            z = function(x)
            gains, shifts = line_fit(z, y)
            if bool((y - gains * z - shifts).abs().max() < 1e-6 * y.abs().max()):
                yield form, gains, shifts


def line_fit(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes and shifts (D) of the lines through the points of z and y (N, D), feature by feature."""
    over, up = z - z.mean(0), y - y.mean(0)
    slopes = (over * up).sum(0) / over.square().sum(0).clamp(min=1e-300)
    return slopes, y.mean(0) - slopes * z.mean(0)
