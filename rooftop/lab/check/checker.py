"""Check kernels against their contract: on the GPU where there is one, else Triton in its interpreter and CUDA C++ in the simulator.

Inputs are random and fresh; outputs and scratch are poisoned and lie between guard zones; each case runs twice with different poison, so that
an element nobody writes differs; inputs must be unchanged after; results of a deterministic op must be the same bits both times.

An output of a few elements that misses its allowance is drawn again with other data and judged over all draws: what plain torch errs on one element,
of which the allowance is a multiple, is 0 as luck has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rooftop.core.contract import Contract
from rooftop.core.layouts import widen
from rooftop.core.spec import DTYPES, TARGETS, Case, Device, Input, Launch, Problem
from rooftop.lab.candidates import Subject
from rooftop.lab.check.compare import Verdict, compare, index_of
from rooftop.lab.check.guard_zones import GUARD, Guarded
from rooftop.lab.inputs import make, round_to

if TYPE_CHECKING:
    pass

BACKENDS = ("auto", "gpu", "cpu", "interpreter", "simt")  # cpu: whichever of the last two can run the kernel
INTERPRETED_ELEMENTS = 1 << 19  # larger cases are left to a GPU
FEW, DRAWS = 64, 16  # elements of an output that is judged over so many draws where the first misses its allowance
HUGE_BYTES = 72 << 30  # memory of the GPU that the huge cases need


@dataclass
class Result:
    """One subject on one case. `status`: ok, wrong, skipped (with the reason), error."""

    subject: str
    op: str
    case: str
    status: str
    backend: str = ""
    message: str = ""
    outputs: dict[str, Verdict] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def worst(self) -> Verdict | None:
        return max(self.outputs.values(), key=lambda v: max(v.max_share, v.rms_share), default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject, "op": self.op, "case": self.case, "status": self.status, "backend": self.backend, "message": self.message,
            "outputs": {k: v.to_json() for k, v in self.outputs.items()}, "path": list(self.path),
        }  # fmt: skip

    def error(self) -> dict[str, Any]:
        """What a record says of it: figures of the worst output."""
        worst = self.worst
        if worst is None:
            return {"ok": self.status == "ok"}
        names = ("max", "rms", "allowed_max", "allowed_rms", "max_share", "rms_share")
        return {"ok": self.status == "ok", **{n: min(float(getattr(worst, n)), 1e300) for n in names}}


@dataclass
class Expected:
    """The right results of one case and what went in."""

    tensors: dict[str, Any]
    options: dict[str, Any]
    exact: dict[str, Any]
    same: dict[str, Any]


def expect(op: Contract, case: Case, device: Any, seed: int) -> Expected:
    """Inputs of a case with the results in float64 and at the same precision (16 bits: computed in float32, rounded once)."""
    import torch

    tensors, options = make(op, case, device, seed)
    wide = [t.double() if t is not None and t.is_floating_point() else t for t in tensors.values()]
    with torch.no_grad():
        exact = op.reference(*wide, *options.values())
        del wide
        same = round_to(op, case, op.reference(*(widen(t) for t in tensors.values()), *options.values()))
    found = exact if isinstance(exact, tuple) else (exact,)
    return Expected(tensors, options, dict(zip(op.output_names, found, strict=True)), same)


def judge(op: Contract, case: Case, expected: Expected, outputs: dict[str, Any]) -> dict[str, Verdict]:
    problem = op.problem(case)
    return {
        n: compare(outputs[n], expected.exact[n], expected.same[n], problem[n].dtype, op.tolerance.multiple, op.tolerance.exact)
        for n in op.output_names
        if problem.get(n) is not None and not (outputs[n] is None and op.grad is not None and n in op.grad.aside)
    }


# -- running -------------------------------------------------------------------------------------------------------

Runner = Callable[[Subject, Problem, Sequence[Launch], dict[str, Any], Device], None]


def run_gpu(subject: Subject, problem: Problem, launches: Sequence[Launch], memory: dict[str, Any], device: Device) -> None:
    import torch

    assert subject.implementation is not None
    names = tuple(memory)
    prepared = subject.implementation.prepare(problem, launches, names, torch.cuda.current_device())
    addresses = [address(t) for t in memory.values()]
    for launch in prepared:
        launch(torch.cuda.current_stream().cuda_stream, addresses)
    torch.cuda.synchronize()


def address(value: Any) -> int:
    """What a launch is given for a tensor (None: null) or a late option."""
    return 0 if value is None else value if isinstance(value, int) else value.data_ptr()


def run_interpreter(subject: Subject, problem: Problem, launches: Sequence[Launch], memory: dict[str, Any], device: Device) -> None:
    from rooftop.lab.interpret import interpreter

    for launch in launches:
        args = {k: memory[v] if isinstance(v, str) and v in memory else v for k, v in launch.args.items()}
        inputs = {n for n in subject.op.tensor_names if n not in subject.op.mutates}
        readonly = [k for k, v in launch.args.items() if isinstance(v, str) and v in inputs and memory[v] is not None]
        interpreter.run(launch.kernel, launch.grid, args, readonly=readonly)


def run_simulator(subject: Subject, problem: Problem, launches: Sequence[Launch], memory: dict[str, Any], device: Device) -> None:
    from rooftop.lab import simt

    simt.run_simulator(subject, problem, launches, memory, device)


def backend_of(subject: Subject, wanted: str = "auto") -> tuple[str, str | None]:
    """Where the subject can run here, and the reason if nowhere. Raises ValueError for another backend than those of BACKENDS."""
    import torch

    if wanted not in BACKENDS:
        raise ValueError(f"backend is {wanted!r}; it is one of {', '.join(BACKENDS)}")
    gpu = torch.cuda.is_available()
    if wanted == "gpu" or (wanted == "auto" and gpu):
        return "gpu", None if gpu else "no GPU: torch.cuda.is_available() is False"
    assert subject.implementation is not None
    kind = subject.implementation.backend
    where = {"triton": "interpreter", "cuda": "simt"}.get(kind, "none")
    if where == "none" or (wanted in ("interpreter", "simt") and wanted != where):
        return "none", f"{kind} kernels run on a GPU" + ("" if where == "none" else f" or in the {where}")
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
    except Exception as error:  # whatever a kernel under test does is a finding
        import torch

        from rooftop.lab.simt import SimulatedFault

        if isinstance(error, SimulatedFault):
            result.status, result.message = "wrong", str(error)
        elif isinstance(error, torch.OutOfMemoryError):
            result.status, result.message = "skipped", "this case does not fit what is free of the GPU's memory"
        else:
            result.status, result.message = "error", f"{type(error).__name__}: {error}"
    result.seconds = time.perf_counter() - started
    return result


def _check(
    subject: Subject, case: Case, backend: str, seed: int, arch: int, result: Result, expected: Expected | None, guard: int
) -> None:
    import torch

    op, implementation = subject.op, subject.implementation
    assert implementation is not None, "peers are judged by check_callable"
    where, reason = backend_of(subject, backend)
    result.backend = where
    if where == "gpu" and reason is None:
        from rooftop.core.implementation import device_of

        device = device_of(torch.cuda.current_device())
    else:
        device = TARGETS[max(arch, implementation.arch)]
    if all(m is None or m.numel == 0 for n, m in op.problem(case, device).tensors if n in op.output_names):
        reason = "the output is empty: nothing is launched"
    reason = reason or _too_large(case, where) or subject.supports(case, device)
    if reason:
        result.status, result.message = "skipped", reason
        return
    place = "cuda" if where == "gpu" else "cpu"
    problem, seen = subject.kernel_problem(case, device)
    try:
        expected = expected or expect(op, case, place, seed)
    except torch.OutOfMemoryError:
        result.status, result.message = "skipped", "the float64 reference of this case does not fit the GPU's memory"
        return
    copies = op.kernel_problem(problem) is None
    tensors = {n: t.contiguous() if copies and t is not None else t for n, t in expected.tensors.items()}
    before = {n: t.clone() for n, t in tensors.items() if t is not None}
    output_metas = {n: m for n, m in (op.contiguous(problem) if copies else problem).tensors if n in op.output_names and m is not None}
    taken = {} if copies else op.taken(problem)
    config, _ = implementation.resolve(seen)
    launches = implementation.launches(seen, config)
    result.path = tuple(str(getattr(x.kernel, "__name__", x.kernel)) for x in launches)
    runner = run_gpu if where == "gpu" else run_simulator if where == "simt" else run_interpreter

    def run(inputs: dict[str, Any], options: dict[str, Any], poison: int) -> tuple[dict[str, Guarded], dict[str, Guarded]]:
        """Outputs and scratch of one run."""
        outputs = {n: Guarded(m, place, poison, guard) for n, m in output_metas.items()}
        scratch = {n: Guarded(m, place, poison, guard) for n, m in implementation.scratch(seen, config).items()}
        for name, source in taken.items():  # the output starts as the input, in a guarded copy of it
            outputs[name].tensor.copy_(inputs[source])
        given = {**inputs, **{source: outputs[name].tensor for name, source in taken.items()}}
        late = {n: options[n] for n in op.late}
        memory = {**given, **dict.fromkeys(op.output_names), **{n: g.tensor for n, g in (*outputs.items(), *scratch.items())}, **late}
        runner(subject, seen, launches, memory, device)
        return outputs, scratch

    first: dict[str, Any] | None = None
    for poison in (0xFF, 0x5A):  # NaN in every floating dtype, then a number
        outputs, scratch = run({**tensors, **{source: before[source] for source in taken.values()}}, expected.options, poison)
        got = {n: g.tensor for n, g in outputs.items()}
        if first is None:
            first = got
            result.outputs = judge(op, case, expected, got)
        for name, kept in (*outputs.items(), *scratch.items()):
            if (stray := kept.stray()) and not result.message:
                result.status, result.message = "wrong", f"{name}: {stray}"
        for name, old in before.items():
            if name not in op.mutates and not _same_bits(tensors[name], old) and not result.message:
                result.status, result.message = "wrong", f"the input {name} was written"
        if got is not first and not result.message:
            for name, value in got.items():
                if op.deterministic and not _same_bits(value, first[name]):
                    unequal = int(_differing(value, first[name]).sum())
                    result.status = "wrong"
                    result.message = f"{name}: {unequal} elements differ between two runs: not written, read before they were written, or a race"
    few = [n for n, v in result.outputs.items() if not v.ok and v.elements <= FEW and not op.tolerance.exact]
    if few and first is not None and not result.message:
        drawn = [_drawn(expected, first, few)]
        del expected, first
        for i in range(1, DRAWS):
            try:
                other = expect(op, case, place, seed + i)
                inputs = {n: t.contiguous() if copies and t is not None else t for n, t in other.tensors.items()}
                drawn.append(_drawn(other, {n: g.tensor for n, g in run(inputs, other.options, 0xFF)[0].items()}, few))
            except torch.OutOfMemoryError:
                break
        result.outputs.update({n: _judge_draws(op, problem, n, drawn) for n in few})
    for name, verdict in result.outputs.items():
        if not verdict.ok:
            result.status = "wrong"
            at = f" at [{', '.join(map(str, verdict.where))}]: {verdict.value!r}, expected {verdict.expected!r}" if verdict.where is not None else ""
            result.message = f"{name}: {verdict.message}{at}"


def _drawn(expected: Expected, got: dict[str, Any], names: Iterable[str]) -> dict[str, tuple[Any, Any, Any]]:
    """Of one draw, what was computed and what is right: copies, so that nothing else of it stays alive."""
    return {n: (got[n].clone(), expected.exact[n].clone(), expected.same[n].clone()) for n in names}


def _judge_draws(op: Contract, problem: Problem, name: str, drawn: Sequence[dict[str, tuple[Any, Any, Any]]]) -> Verdict:
    """One output of several draws, judged as one. Where it errs is said of the draw that errs most."""
    import torch

    out, exact, same = (torch.stack([draw[name][k].reshape(-1) for draw in drawn]) for k in range(3))
    verdict = compare(out, exact, same, problem[name].dtype, op.tolerance.multiple)
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
    elements = sum(count(v) for v in case.inputs.values() if isinstance(v, Input))
    tool = "simulator" if where == "simt" else "interpreter"
    return f"{elements} elements: too slow in the {tool}, left to a GPU" if elements > INTERPRETED_ELEMENTS else None


def count(spec: Input) -> int:
    """Elements of an input."""
    n = 1
    for extent in spec.shape:
        n *= extent
    return n


def _differing(a: Any, b: Any) -> Any:
    """Where two tensors do not hold the same bits, but that any NaN is as good as another."""
    import torch

    def bits(t: Any) -> Any:
        return t.contiguous().view(getattr(torch, f"int{8 * t.element_size()}")) if t.is_floating_point() else t

    found = bits(a) != bits(b)
    return found & ~(a.isnan() & b.isnan()) if a.is_floating_point() else found


def _same_bits(a: Any, b: Any) -> bool:
    return not bool(_differing(a, b).any())


def check_callable(
    op: Contract, case: Case, function: Callable[..., Any], *, name: str, device: Any = "cpu", seed: int = 0, expected: Expected | None = None
) -> Result:
    """Judge any callable with the reference's signature: peers, and the contract's known-wrong list."""
    import torch

    result = Result(name, op.name, case.id, "ok", backend="torch")
    started = time.perf_counter()
    try:
        expected = expected or expect(op, case, device, seed)
        writes = bool(op.into) or bool(op.mutates)
        with torch.no_grad():
            found = function(*(t if t is None else t.clone() if writes else t for t in expected.tensors.values()), *expected.options.values())
        results = found if isinstance(found, tuple) else (found,)
        for name, t in dict(zip(op.output_names, results, strict=True)).items():
            if t is None and op.problem(case).get(name) is not None and not (op.grad is not None and name in op.grad.aside):  # a peer keeps no such thing
                raise ValueError(f"{name} is None")
        result.outputs = judge(op, case, expected, dict(zip(op.output_names, results, strict=True)))
        for output, verdict in result.outputs.items():
            if not verdict.ok:
                result.status, result.message = "wrong", f"{output}: {verdict.message}"
    except Exception as error:  # a peer that refuses an input is a finding, not a crash
        result.status, result.message = "error", f"{type(error).__name__}: {error}"
    result.seconds = time.perf_counter() - started
    return result


LOWER = {"f64": "f32", "f32": "bf16", "f16": "f8e4m3", "bf16": "f8e4m3"}


def lower_precision(op: Contract) -> Callable[..., Any]:
    """The same computation one precision down: inputs rounded to it first. It must fail some case of every dtype."""

    def run(*args: Any) -> Any:
        import torch

        from rooftop.core.spec import OF_TORCH

        def cut(t: Any) -> Any:
            if not isinstance(t, torch.Tensor) or not t.is_floating_point():
                return t
            lower = getattr(torch, DTYPES[LOWER[OF_TORCH[str(t.dtype).removeprefix("torch.")]]].torch)
            return t.to(lower).to(t.dtype)

        return op.reference(*map(cut, args))

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
