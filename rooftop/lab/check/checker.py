"""Check kernels against their contract: on the GPU where there is one, else Triton in its interpreter and CUDA C++ in the simulator.

Inputs are random and fresh; outputs and scratch are poisoned and lie between guard zones; each case runs twice with different poison, so
that an element nobody writes differs; inputs must be unchanged after; results of a deterministic op must be the same bits both times.

An output of a few elements that misses its allowance is drawn again with other data and judged over all draws: what plain torch errs on one
element, of which the allowance is a multiple, may be 0, where torch happens to round exactly."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import child
from rooftop.core.call import Call
from rooftop.core.contract import Contract, metas_of
from rooftop.core.cubins import AbsentCompiler
from rooftop.core.implementation import device_of
from rooftop.core.layouts import remark
from rooftop.core.spec import DTYPES, Case, Descriptor, Device, Input, Meta, Problem, TorchCall, dtype_of
from rooftop.core.triton_compat import descriptor
from rooftop.lab.candidates import Subject
from rooftop.lab.check.compare import Verdict, compare, differing, index_of
from rooftop.lab.check.guard_zones import GUARD, Guarded
from rooftop.lab.check.judgement import Expected, expect, judge, settled, used, without_onednn
from rooftop.lab.check.result import Result as Result
from rooftop.lab.inputs import by_name

if TYPE_CHECKING:
    from rooftop.lab.interpret.interpreter import Run

BACKENDS = ("auto", "gpu", "cpu", "interpreter", "simt", "pallas")  # cpu: whichever of the last three can run the kernel
INTERPRETED_ELEMENTS = 1 << 19  # larger cases are left to a GPU
CPU_ELEMENTS = 1 << 22  # of calls of torch
FEW, DRAWS = 64, 16  # elements of an output that is judged over so many draws where the first misses its allowance
HUGE_BYTES = 72 << 30  # memory of the GPU that the huge cases need


# -- running -------------------------------------------------------------------------------------------------------

Runner = Callable[[Call, dict[str, Any]], object]  # a call and its memory (`Call.memory`)


def run_gpu(call: Call, memory: dict[str, Any]) -> None:
    import torch

    call.runner(torch.cuda.current_device())(torch.cuda.current_stream().cuda_stream, list(memory.values()))
    torch.cuda.synchronize()


def run_torch(call: Call, memory: dict[str, Any]) -> None:
    with without_onednn():
        call.runner(0)(0, list(memory.values()))


def run_interpreter(call: Call, memory: dict[str, Any]) -> list[Run]:
    """What each launch did."""
    from rooftop.lab.interpret import interpreter

    done: list[Run] = []
    for launch in call.steps:
        if isinstance(launch, TorchCall):
            with without_onednn():
                launch.run(memory)
            continue
        inputs = {n for n in call.inputs if n not in call.mutated}
        tensors = {k: v.tensor if isinstance(v, Descriptor) else v for k, v in launch.args.items() if isinstance(v, str | Descriptor)}
        readonly = [k for k, n in tensors.items() if n in inputs and memory[n] is not None]
        done.append(
            interpreter.run(launch.kernel, launch.grid, {k: _in_memory(v, call, memory) for k, v in launch.args.items()}, readonly=readonly)
        )
    return done


def _in_memory(value: Any, call: Call, memory: dict[str, Any]) -> Any:
    """An argument of a Triton launch, with the tensors of this run."""
    if not isinstance(value, Descriptor):
        return _as_words(memory[value], call.problem.get(value)) if isinstance(value, str) and value in memory else value
    meta = {**dict(call.problem.tensors), **call.scratch}[value.tensor]
    return None if meta is None else descriptor(value, meta, memory[value.tensor])


def _as_words(value: Any, meta: Meta | None) -> Any:
    """The tensor, with the dtype that the kernel sees it in where elements are moved several at once."""
    import torch

    if meta is None or not isinstance(value, torch.Tensor) or value.element_size() == meta.itemsize:
        return value
    start = value.storage_offset() * value.element_size() // meta.itemsize
    return torch.empty(0, dtype=getattr(torch, DTYPES[meta.dtype].torch)).set_(value.untyped_storage(), start, meta.shape, meta.strides)


def run_simulator(call: Call, memory: dict[str, Any]) -> None:
    from rooftop.lab import simt

    simt.run_simulator(call, memory)


RUNNERS: Mapping[str, Runner] = {
    "gpu": run_gpu, "torch": run_torch, "interpreter": run_interpreter, "simt": run_simulator, "pallas": run_torch
}


def backend_of(subject: Subject, wanted: str = "auto") -> tuple[str, str | None]:
    """Where the subject can run here, and the reason if nowhere. Raises ValueError for another backend than those of BACKENDS."""
    import torch

    if wanted not in BACKENDS:
        raise ValueError(f"backend is {wanted!r}; it is one of {', '.join(BACKENDS)}")
    gpu = torch.cuda.is_available()
    assert subject.implementation is not None
    for_gpu = subject.implementation.platform == "gpu"
    if wanted == "gpu" or (wanted == "auto" and gpu and for_gpu):
        reason = None if gpu else "no GPU: torch.cuda.is_available() is False"
        return "gpu", reason if for_gpu else f"{subject.implementation.backend} kernels are for a TPU"
    where, reason = subject.implementation.where()
    if where == "none":
        return where, reason
    if wanted in ("interpreter", "simt", "pallas") and wanted != where:
        there = {"torch": "on a GPU or the CPU", "pallas": "in jax's interpreter"}.get(where, f"on a GPU or in the {where}")
        return "none", f"{subject.implementation.backend} kernels run {there}"
    if where == "simt":
        from rooftop.lab import simt

        return where, simt.unavailable()
    return where, None


def check(
    subject: Subject,
    case: Case,
    *,
    backend: str = "auto",
    seed: int = 0,
    arch: int = 90,
    expected: Expected | None = None,
    guard: int = GUARD,
) -> Result:
    """Run one subject on one case and judge it. Never raises for a wrong kernel: the result says what is wrong.

    `guard`: bytes around every output that must stay as they are; 0 where something else (the sanitizer) watches the exact bounds."""
    started = time.perf_counter()
    result = Result(subject.name, subject.op.name, case.id, "ok")
    try:
        _check(subject, case, backend, seed, arch, result, expected, guard)
    except BaseException as error:  # whatever a kernel under test does is a finding
        import torch

        if isinstance(error, KeyboardInterrupt):
            raise

        if isinstance(error, OSError) and of_this_machine(error):
            raise

        from rooftop.lab.simt import NotSimulatedError, SimulatedCrash, SimulatedFault

        if isinstance(error, (SimulatedFault, SimulatedCrash)):
            result.status, result.message = "wrong", str(error)
        elif isinstance(error, NotSimulatedError | AbsentCompiler):
            result.status, result.message = "skipped", str(error)
        elif isinstance(error, torch.OutOfMemoryError):
            result.status, result.message = "skipped", "this case does not fit what is free of the GPU's memory"
        else:
            ends = "it ends the process: " if isinstance(error, SystemExit) else ""
            result.status, result.message = "error", f"{ends}{type(error).__name__}: {error}"
    result.seconds = time.perf_counter() - started
    child.alive()
    return result


def of_this_machine(error: OSError) -> bool:
    """Whether an error is that of a full disk or a cache that cannot be written: no kernel is to blame."""
    from rooftop.core import settings

    if error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
        return True
    if not isinstance(error.filename, (str, Path)):
        return False
    path, cache = Path(error.filename).absolute(), settings.load().cache.absolute()
    return path.is_relative_to(cache) or cache.is_relative_to(path)


class Trial:
    """One kernel on one case: its call, and runs of it in memory that tells of misuse."""

    def __init__(self, call: Call, place: str, runner: Runner, guard: int) -> None:
        self.call, self.place, self.runner, self.guard = call, place, runner, guard

    def run(self, tensors: Mapping[str, Any], options: Mapping[str, Any], poison: int) -> tuple[dict[str, Any], dict[str, Guarded]]:
        """What it wrote (outputs, and inputs that it writes into) by name, and all memory that it may write to."""
        call = self.call
        guarded: dict[str, Guarded] = {}

        def allocate(name: str, meta: Meta) -> Any:
            guarded[name] = Guarded(meta, self.place, poison, self.guard)
            return guarded[name].tensor.zero_() if name in call.zeroed else guarded[name].tensor

        given = call.given(tensors)
        metas = metas_of(given)
        for name in call.mutated:  # each run begins with the tensor as it was
            if (t := given[name]) is not None and (meta := metas[name]) is not None:
                given[name] = allocate(name, meta).copy_(t)
        memory = call.memory(given, {n: options[n] for n in call.op.runtime_options}, allocate)
        self.runner(call, memory)
        written = {n: memory[n] for n in (*call.op.output_names, *call.op.mutates)}
        return {n: t for n, t in written.items() if t is not None}, guarded


def _check(subject: Subject, case: Case, backend: str, seed: int, arch: int, result: Result, expected: Expected | None, guard: int) -> None:
    import torch

    op, implementation = subject.op, subject.implementation
    assert implementation is not None, "peers are judged by check_callable"
    where, reason = backend_of(subject, backend)
    result.backend = where
    if where == "gpu" and reason is None:
        device = device_of(torch.cuda.current_device())
    else:
        device = implementation.stand_in(arch)
    if reason := left_out(subject, case, where, device, reason):
        result.status, result.message = "skipped", reason
        return
    place = "cuda" if where == "gpu" else "cpu"
    call = subject.call(case, device)
    try:
        expected = expected or expect(op, case, place, seed)
    except torch.OutOfMemoryError:
        result.status, result.message = "skipped", "the float64 reference of this case does not fit the GPU's memory"
        return
    result.path = call.path
    trial = Trial(call, place, RUNNERS[where], guard)
    before = {n: t.clone() for n, t in expected.tensors.items() if t is not None}
    first: dict[str, Any] | None = None
    for poison in (0xFF, 0x5A):  # NaN in every floating dtype, then a number
        got, guarded = trial.run(expected.tensors, expected.options, poison)
        if first is None:
            first = got
            result.outputs = judge(op, case, expected, {**dict.fromkeys(op.output_names), **got})
        for name, kept in guarded.items():
            if (stray := kept.stray()) and not result.message:
                result.status, result.message = "wrong", f"{name}: {stray}"
        for name, old in before.items():
            if not same_bits(expected.tensors[name], old) and not result.message:
                result.status, result.message = "wrong", f"the input {name} was written"
        if got is not first and op.deterministic and not implementation.unordered and not result.message:
            for name, value in got.items():
                unequal = int(differing(used(op, name, value, expected.same), used(op, name, first[name], expected.same)).sum())
                if unequal:
                    result.status = "wrong"
                    result.message = f"{name}: {unequal} elements differ between two runs: not written, read before they were written, or a race"

    def draws() -> Iterator[tuple[Expected, dict[str, Any]]]:
        nonlocal expected, first
        assert expected is not None and first is not None
        yield expected, first
        expected = first = None  # their memory is free for the others
        for i in range(1, DRAWS):
            other = expect(op, case, place, seed + i)
            yield other, trial.run(other.tensors, other.options, 0xFF)[0]

    if not result.message:
        judge_few(op, call.called, result.outputs, draws())
    for name, verdict in result.outputs.items():
        if not verdict.ok:
            result.status = "wrong"
            at = (
                f" at [{', '.join(map(str, verdict.where))}]: {verdict.value!r}, expected {verdict.expected!r}" if verdict.where is not None
                else ""
            )
            result.message = f"{name}: {verdict.message}{at}{remark(call.problem, implementation.head is not None)}"


def judge_few(op: Contract, problem: Problem, verdicts: dict[str, Verdict], draws: Iterable[tuple[Expected, dict[str, Any]]]) -> None:
    """Replaces the verdicts on outputs of a few elements that miss their allowance by those over all draws. `draws`: what is expected and
    computed in each; the first was judged."""
    import torch

    few = [n for n, v in verdicts.items() if not v.ok and v.elements <= FEW and not op.tolerance_of(n).exact and n not in op.compare]
    if not few:
        return
    drawn = []
    try:
        for expected, got in draws:
            drawn.append(_drawn(op, expected, got, few))
    except torch.OutOfMemoryError:
        pass  # those that fit
    verdicts.update({n: _judge_draws(op, problem, n, drawn) for n in few})


def left_out(subject: Subject, case: Case, where: str, device: Device, reason: str | None = None) -> str | None:
    """Why a case is not run here, or None. `reason`: why the kernel is not."""
    if subject.op.idle(subject.op.problem(case, device)):
        return "there is nothing to write: nothing is launched"
    said = reason or _too_large(case, where) or subject.supports(case, device)
    if said is not None and not isinstance(said, str):
        raise TypeError(f"supports() of {subject.name} returns {said!r}; it must return None, or the reason as a text")
    return said


def _drawn(op: Contract, expected: Expected, got: dict[str, Any], names: Iterable[str]) -> dict[str, tuple[Any, Any, Any]]:
    """Of one draw, what was computed and what is right: copies, so that nothing else of it stays alive."""
    got, expected = settled(op, got, expected)
    found = {n: [used(op, n, t[n], expected.same).clone() for t in (got, expected.exact, expected.same)] for n in names}
    return {n: (got, exact, same) for n, (got, exact, same) in found.items()}


def _judge_draws(op: Contract, problem: Problem, name: str, drawn: Sequence[dict[str, tuple[Any, Any, Any]]]) -> Verdict:
    """One output of several draws, judged as one. Where it errs is said of the draw that errs most."""
    import torch

    out, exact, same = (torch.stack([draw[name][k].reshape(-1) for draw in drawn]) for k in range(3))
    verdict = compare(out, exact, same, problem[name].dtype, op.tolerance_of(name).multiple, floor=op.tolerance_of(name).floor)
    verdict.elements = out.shape[1]
    if verdict.where is not None:
        errors = (out.double() - exact.double()).abs()
        draw, at = verdict.where if bool(errors.isnan().any()) else divmod(int(errors.argmax()), out.shape[1])
        verdict.where = index_of(drawn[0][name][1].shape, at)
        verdict.value, verdict.expected = float(out[draw, at]), float(exact[draw, at])
        verdict.message = f"{verdict.message.partition(' in rows ')[0]} over {len(drawn)} draws"
        if verdict.max_share > 1.0:
            verdict.message += f"; {verdict.allowed_max:.3g} is allowed"
    return verdict


def _too_large(case: Case, where: str) -> str | None:
    import torch

    if where == "gpu":
        if "huge" in case.tags and torch.cuda.get_device_properties(0).total_memory < HUGE_BYTES:
            return f"needs a GPU with {HUGE_BYTES >> 30} GiB of memory"
        return None
    if "huge" in case.tags:  # small inputs may have a large result
        return "more than 2^31 elements: left to a GPU"
    elements = sum(count(v) for _, v in case.tensors())
    tool = {"simt": "in the simulator", "torch": "on the CPU", "pallas": "in jax's interpreter"}.get(where, "in the interpreter")
    if elements <= (CPU_ELEMENTS if where == "torch" else INTERPRETED_ELEMENTS):
        return None
    return f"{elements} elements: too slow {tool}, left to {'the compiler' if where == 'pallas' else 'a GPU'}"


def count(spec: Input) -> int:
    """Elements of an input."""
    n = 1
    for extent in spec.shape:
        n *= extent
    return n


def same_bits(a: Any, b: Any) -> bool:
    return not bool(differing(a, b).any())


def check_callable(
    op: Contract, case: Case, function: Callable[..., Any], *, name: str, device: Any = "cpu", seed: int = 0,
    expected: Expected | None = None
) -> Result:
    """Judge any callable with the reference's signature: peers, and the contract's known-wrong list."""
    import torch

    result = Result(name, op.name, case.id, "ok", backend="torch")
    started = time.perf_counter()
    try:
        expected = expected or expect(op, case, device, seed)
        writes = bool(op.into) or bool(op.mutates)
        given = {n: t if t is None or not writes else t.clone() for n, t in expected.tensors.items()}
        with torch.no_grad():
            results = by_name(op, function(*op.arguments(given, expected.options)))
        for name, t in results.items():
            # peers lack it
            if t is None and op.problem(case).get(name) is not None and not (op.grad is not None and name in op.grad.non_differentiable):
                raise ValueError(f"{name} is None")
        result.outputs = judge(op, case, expected, {**results, **{n: given[n] for n in op.mutates}})
        for output, verdict in result.outputs.items():
            if not verdict.ok:
                result.status, result.message = "wrong", f"{output}: {verdict.message}"
    except Exception as error:  # a peer that refuses an input is a finding, not a crash
        result.status, result.message = "error", f"{type(error).__name__}: {error}"
    result.seconds = time.perf_counter() - started
    return result


LOWER = {"f64": "f32", "f32": "bf16", "f16": "f8e4m3", "bf16": "f8e4m3"}  # 8 bits have nothing below them that torch computes with


def lower_precision(op: Contract) -> Callable[..., Any]:
    """The same computation one precision down: inputs rounded to it first. It must fail some case of every dtype."""

    def run(*args: Any) -> Any:
        import torch

        def cut(t: Any) -> Any:
            if isinstance(t, list):
                return [cut(one) for one in t]
            if not isinstance(t, torch.Tensor) or (name := dtype_of(t.dtype)) not in LOWER:
                return t
            return t.to(getattr(torch, DTYPES[LOWER[name]].torch)).to(t.dtype)

        tensors, options = op.flattened(args)
        lower = {n: cut(t) for n, t in tensors.items()}
        result = op.reference(*op.arguments(lower, options))
        for name in op.mutates:
            tensors[name].copy_(lower[name])
        return result

    return run


def select_cases(subject: Subject, *, name: str | None = None, tags: Iterable[str] = (), dtype: str | None = None) -> list[Case]:
    """A rung's cases are those of its ladder and the edge cases of its dtypes; of everything else, all."""
    cases: list[Case] = list(subject.op.cases)
    if subject.rung is not None:
        from rooftop.core import registry

        ladder = registry.ladder(subject.rung.ladder)
        cases = [c for c in cases if c.dtype in ladder.dtypes and (c.name in ladder.cases or "edge" in c.tags)]
    if name is not None:
        chosen = [c for c in cases if name in (c.id, c.name)]
        if not chosen:
            subject.op.case(name)
        cases = chosen
    wanted = set(tags)
    return [c for c in cases if (not wanted or wanted & c.tags) and (dtype is None or c.dtype == dtype)]
