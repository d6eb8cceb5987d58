"""A contract that can be called: ``OP(x, dim)`` runs the best implementation for the input."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rooftop.core import dispatch
from rooftop.core.contract import Contract, like
from rooftop.core.contract_parts import Calls, Grad, Judged, Judging, Timed, Tolerance, Values
from rooftop.core.spec import Case, Problem
from rooftop.core.sweeps import Sizes, each_element, first_of

__all__ = [
    "Calls", "Grad", "Judged", "Judging", "Op", "Sizes", "Timed", "Tolerance", "Values", "each_element", "first_of", "in_place", "like"
]


def constant(function: Any) -> Any:
    """Like `torch.compiler.assume_constant_result`, but without importing torch: during tracing, which an op's first call may be part of,
    the function runs and its result is a constant."""
    function._dynamo_marked_constant = True
    return function


class Op(Contract):
    """An op that can be called. Its first call registers it with `torch.library`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._call: Callable[..., Any] | None = None

    def caller(self) -> Callable[..., Any]:
        """The function behind a call. The first access makes it and registers the op."""
        if self._call is None:
            self._call = dispatch.caller(self)
        return self._call

    @constant
    def _ready(self) -> bool:
        return self._call is not None or self.caller() is not None

    def __call__(self, *args: Any, implementation: str | None = None) -> Any:
        """Arguments are validated and in the reference's order, with none missing."""
        self._ready()
        assert self._call is not None
        return self._call(*args, implementation=implementation)

    def explain(self, *args: Any) -> dispatch.Explanation:
        """Which kernel a call with these arguments would run, and why not the others."""
        return dispatch.explain(self, args)


def in_place(op: Contract, into: Mapping[str, str], cases: Sequence[Case] | None = None) -> Op:
    """The in-place twin of an op, `<op>_`: the same kernels; each output of `into` is written over the input that it names. The other
    outputs must be absent.

    Only for kernels in which every thread reads the elements that it overwrites before it writes. It has an op file of its own: ``OP =
    in_place(rope.OP, {"out": "x"})``.

    The contract of the op applies to the twin, by the inputs' names: `compare`, `sizes` and `tolerance` of an output become those of the
    input that it overwrites. Peers are the twin's own.

    cases   those of the op whose inputs can hold the outputs; by default all of them

    Raises ValueError if `into` names no output, or no tensor."""
    for out, given in into.items():
        if out not in op.output_names or op.kinds.get(given) not in ("Tensor", "Tensor | None"):
            raise ValueError(f"{op.name}_: into is {{{out!r}: {given!r}}}; it takes an output ({', '.join(op.output_names)}) to a tensor "
                             f"({', '.join(n for n in op.tensor_names if n not in op.list_names)})")

    def written(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any) -> Any:
            tensors, _ = op.flattened(args)
            results = function(*args)
            if results is NotImplemented:
                return results
            for name, result in zip(op.output_names, results if isinstance(results, tuple) else (results,), strict=True):
                if result is not None:
                    tensors[into[name]].copy_(result)
            return None

        return run

    def as_op(problem: Problem) -> Problem:
        return op.problem_of(dict(problem.tensors), {**dict(problem.options), **dict.fromkeys(op.runtime_options, 0)}, problem.device)

    def named(tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Tensors by name, with the overwritten inputs under the outputs' names as well."""
        return {**tensors, **{out: tensors[given] for out, given in into.items() if given in tensors}}

    def judged(comparison: Callable[[Judged], str | None]) -> Callable[[Judged], str | None]:
        return lambda j: comparison(Judged(named(j.got), named(j.exact), named(j.same), j.tensors, j.options))

    bucket, measured = op.bucket, op.measured_work
    made = Op(
        written(op.reference), outputs=lambda **_: {}, cases=op.cases if cases is None else cases, work=lambda p: op.work(as_op(p)),
        name=f"{op.name}_", mutates=tuple(into.values()), tolerance={given: op.tolerance_of(out) for out, given in into.items()},
        swept=op.swept, wrong={**{name: written(function) for name, function in op.wrong.items()}, "nothing written": lambda *args: None},
        values=Values(op.fixup, op.runtime_options),
        judging=Judging(
            same=written(op.same) if op.same else None, deterministic=op.deterministic,
            compare={given: judged(op.compare[out]) for out, given in into.items() if out in op.compare},
            sizes={given: into[op.sizes[out]] for out, given in into.items() if out in op.sizes},
        ),
        calls=Calls(cpu=written(op.cpu) if op.cpu else None, public=op.public, objects=op.objects, faults=op.faults),
        timed=Timed(
            bucket=None if bucket is None else lambda p: bucket(as_op(p)),
            measured_work=None if measured is None else lambda p, tensors: measured(as_op(p), named(tensors)),
        ),
    )
    made.twin_of, made.into = op, into
    return made
