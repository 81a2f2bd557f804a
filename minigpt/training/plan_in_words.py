"""A plan in words and a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minigpt.training.fake import PARTS
from minigpt.training.fits import in_words
from minigpt.training.memory import COPIES, LARGE
from minigpt.training.plan import OPTIMAL, Plan

DAY, HOUR = 86_400, 3600


def as_text(plan: Plan, mfu: float, price: float | None = None) -> str:
    """The plan as text. `price` is the price of one device for an hour; the total has the same currency."""
    total = sum(plan.parameters.values())
    lines = [
        row("parameters", f"{total:,}: " + ", ".join(f"{part} {count:,}" for part, count in plan.parameters.items())),
        row("operations", f"{scaled(plan.flops)} a token to train; {scaled(plan.forward)} forward, of which "
            f"{scaled(plan.attention)} are attention over the whole context"),
        row("tokens", f"{plan.tokens:,}, {plan.tokens / total:.3g} a parameter "
            f"(compute-optimal: about {OPTIMAL}, which is {scaled(plan.optimal)})"),
        row("precision", precision(plan)),
        row("memory", memory(plan)),
        row("", "of which, at that moment:"),
        *(row("", f"{part:<12} {size(plan.step.parts[part])}") for part in PARTS),
        *(row(name, text) for name, text in zip(("saving", ""), saving(plan))),
        row("fits", fits(plan)),
    ]  # fmt: skip
    seconds = plan.seconds(mfu)
    if seconds is not None:
        speed = f"at {mfu:.0%} of {scaled(plan.device.flops)} operations a second"
        lines.append(row("time", f"{duration(seconds)} on {named(plan)}, {speed}"))
        if price is not None:
            hours = plan.devices * seconds / HOUR
            lines.append(row("cost", f"{price * hours:,.2f}, {hours:,.1f} device hours at {price:g}"))
    return "\n".join(lines)


def row(label: str, text: str) -> str:
    return f"{label:<11} {text}"


def precision(plan: Plan) -> str:
    """The text of the row `precision`: the type of the matrix products, and what of the plan is not known for it."""
    has_speed = not plan.device.flops or plan.seconds(1.0) is not None
    return plan.precision if has_speed else f"{plan.precision}, for which no speed of {plan.device.name} is known here"


def memory(plan: Plan) -> str:
    """The text of the row `memory`: the peak, with which settings, and the memory that there is."""
    windows = "1 window" if plan.micro_batch == 1 else f"{plan.micro_batch:,} windows"
    each = "each of " if plan.devices > 1 else ""
    where = f"of {size(plan.device.usable)} on {each}{named(plan)}" if plan.device.is_gpu else "on this machine"
    again = ", activations computed again" * plan.again + ", a share of the model each" * plan.shared
    return f"{size(plan.step.peak)} at the peak, with {windows} at a time{again}, {where}"


def saving(plan: Plan) -> Iterator[str]:
    """The lines of the row `saving`: the memory for a checkpoint; none for a small one, for which training waits."""
    if plan.saved >= LARGE:
        each = " in each process" if plan.shared else " in the first process" if plan.devices > 1 else ""
        yield f"{size(plan.saved)} more for the copy{each} of a checkpoint that is written while training goes on,"
        yield f"{size(COPIES * plan.saved)} with its files at most; without that room in the machine, training waits"


def fits(plan: Plan) -> str:
    """The text of the row `fits`: whether the training fits, and what would fit."""
    if not plan.device.memory:
        return "not known: this system does not say how much memory is free"
    if plan.most is None:
        return f"no, not even one window at a time; what would: {in_words(plan.remedies)}"
    if plan.most == plan.rows:
        return "yes" if plan.micro_batch == plan.rows else f"yes; so would all {plan.rows} windows of a process at once"
    largest = f"training.micro_batch_size={plan.most}"
    return f"yes; {largest} is the most that does" if plan.fits else f"no; what would: {in_words(plan.remedies)}"


def by_ranks(peaks: Iterable[tuple[int, int, int]]) -> Iterator[str]:
    """The lines of a table of `peaks_by_ranks`."""
    yield f"{'processes':>12}  {'activations kept':>18}  {'computed again':>16}"
    for ranks, once, again in peaks:
        yield f"{ranks:>12}  {size(once):>18}  {size(again):>16}"


def named(plan: Plan) -> str:
    """The devices in words, such as `8 H100`."""
    return f"{plan.devices} {plan.device.name}"


def size(number: int) -> str:
    """Bytes, in units of 1000."""
    return f"{number / 1e9:,.2f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"


def scaled(number: float) -> str:
    """A large number in short: 86.3e9 -> 86.3 G."""
    for power, letter in ((15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if abs(number) >= 10**power:
            return f"{number / 10**power:.3g} {letter}"
    return f"{number:,.0f}"


def duration(seconds: float) -> str:
    """A time in minutes, hours or days."""
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:,.1f} days"
    return f"{seconds / HOUR:.1f} hours" if seconds >= HOUR else f"{seconds / 60:.0f} minutes"
