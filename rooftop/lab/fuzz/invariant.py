"""Random row lengths, batches and sequences under `rooftop.invariant()`: no bit of a row may depend on what else is in the call."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rooftop.core import registry
from rooftop.core.contract import MODE, Contract
from rooftop.core.invariance import InvarianceError
from rooftop.lab.check.sequences import comparisons

SEEDS = 2**31


@dataclass
class Found:
    """What a campaign did. `wrong`: lines of Python that show it, with what was found."""

    calls: int = 0
    skipped: Counter[str] = field(default_factory=Counter)  # by the reason
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def ops(names: Sequence[str] = ()) -> list[Contract]:
    """Those that hold under the mode, forward and backward, of which rows can be drawn."""
    every = [registry.op(n) for n in names or registry.op_names()]
    return [o for op in every for o in (op, op.bwd) if o is not None and o.rows is not None and o.invariance["batch"] == MODE and o.swept and o.swept.counted]


def run(
    names: Sequence[str], *, seed: int, seconds: float | None = None, rounds: int | None = None, gpu: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Found:
    """Rounds of one length for each op, until the time or their number is over. Raises ValueError where no op can be drawn."""
    begin, found, done = time.monotonic(), Found(), 0
    todo = ops(names)
    if not todo:
        raise ValueError(f"{', '.join(names)}: no result of these holds under rooftop.invariant(); rooftop check --invariant says why")
    while (rounds is None or done < rounds) and (seconds is None or time.monotonic() - begin < seconds):
        at = (seed + done) % SEEDS
        done += 1
        for op in todo:
            if seconds is not None and time.monotonic() - begin >= seconds:
                break
            choices = list(comparisons(op, at, gpu, "gpu" if gpu else "cpu"))
            text, compare = choices[random.Random(at).randrange(len(choices))]
            try:
                one = compare()
            except InvarianceError:
                found.refused += 1
                continue
            found.calls += one.calls
            if one.skipped:
                found.skipped[one.skipped] += 1
            if one.wrong:
                module = text.partition("(")[0]
                imports = f"from rooftop.core import registry\nfrom rooftop.lab.check.{module} import {module}\n"
                found.wrong.append(f"# {one.case}, {one.kernel}: {one.wrong[0]}\n{imports}print({text})")
                say(found.wrong[-1])
    return found
