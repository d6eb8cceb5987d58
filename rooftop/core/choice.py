"""Which kernel runs, with which config: one plain function an op, in the `choose.py` of its family.

    def softmax(p: Problem, named: str = "") -> Chosen | str

It enumerates the kernels that could run, rejects those that cannot with a reason, and takes the fastest by the family's model of the
hardware. It is a pure function of shapes, strides, dtypes, options and device. `named`: the kernel that the call asks for, which is then
the only candidate. A string: the reason why no kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from rooftop.core.names import RegistryError
from rooftop.core.spec import Problem


@dataclass(frozen=True, slots=True)
class Chosen:
    """A kernel and its config."""

    kernel: str  # the stem of its file
    config: Any  # the kernel's frozen Config, or a mapping of its constants
    why: str = ""  # one sentence: what speaks for it, with the predicted time where a model gives one


Choose: TypeAlias = Callable[..., "Chosen | str"]


class ChoiceError(RegistryError):
    """A `choose.py` that names no kernel, or a config that the kernel refuses."""


def asked(choose: Choose, where: str, kernels: tuple[str, ...], problem: Problem, named: str) -> Chosen | str:
    """What `choose` says. Raises ChoiceError for an answer of another type, or one that names no kernel of the op, or another than
    `named`."""
    try:
        found = choose(problem, named)
    except ChoiceError:
        raise
    except RegistryError as error:  # it asks for a kernel that there is none of
        raise ChoiceError(f"{where}: {problem.op}: {error}") from None
    if isinstance(found, str):
        return found
    if not isinstance(found, Chosen):
        raise ChoiceError(
            f"{where}: {problem.op} returns {found!r}; it must return Chosen(kernel, config, why), or the reason why no kernel runs"
        )
    if found.kernel not in kernels or (named and found.kernel != named):
        raise ChoiceError(
            f"{where}: {problem.op} chooses {found.kernel!r}; "
            f"{'the call names ' + named if named else 'its kernels are ' + ', '.join(kernels)}"
        )
    return found
