"""A file without a head, timed on a GPU: the launches of its host code are listed by the stand-in for CUDA's runtime
(rooftop/lab/simt/program.py), which makes none of them, and made on the GPU, of kernels that NVRTC compiles. So no toolkit is needed, and a
file is timed at its own sizes.

What the host calculates from the GPU's results is not there when launches are listed, and memory holds random numbers when they are timed:
real ones where a kernel's parameter is a pointer to them, zeros elsewhere."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooftop.core.spec import Launch

if TYPE_CHECKING:
    from rooftop.lab.simt.program_build import Source
    from rooftop.lab.timing.timer import Timer

WHOLE = {4: "u32", 8: "u64"}  # bytes of a number -> its type in a launch
REAL = {4: ("f32", "<f", "<I"), 8: ("f64", "<d", "<Q")}
ELEMENTS = {  # what a pointer points to -> torch's type of the random numbers there
    **{f"float{n}": "float32" for n in ("", "2", "4")}, **{f"double{n}": "float64" for n in ("", "2")}, "half": "float16",
    "half2": "float16",
    "__half": "float16", "__half2": "float16", "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "__nv_bfloat162": "bfloat16",
}


@dataclass(frozen=True)
class Step:
    """A launch that is made so many times, with the line that makes it. Its pointers are names of memory: `at+offset`."""

    launch: Launch
    where: str
    times: int

    def __str__(self) -> str:
        grid, block = (re.sub(r"(?:x1)+$", "", "x".join(map(str, e))) for e in (self.launch.grid, self.launch.block))
        return f"{self.where}: {self.launch.kernel}<<<{grid}, {block}>>>" + (f", {self.times:,} times" if self.times > 1 else "")


@dataclass(frozen=True)
class Plan:
    """`memory`: bytes by allocation; `elements`: torch's type of what lies in it, where a kernel says so; `order`: indices of steps, as
    they are made."""

    steps: tuple[Step, ...]
    memory: Mapping[str, int]
    elements: Mapping[str, str]
    order: tuple[int, ...]


def plan(source: Source, words: Sequence[str] = ()) -> Plan:
    """What a program launches. Raises ValueError where it launches nothing, or with arguments that cannot be given from here."""
    from rooftop.lab.simt import ordinary, program

    run = program.run(source, words, listed=True)
    kernels = {k.name.rpartition("::")[2]: k for text in source.texts.values() for k in ordinary.kernels(text)}
    memory: dict[str, int] = {}
    elements: dict[str, str] = {}
    steps: dict[tuple[Any, ...], Step] = {}
    order = []
    for event in run.journal:
        if "step" not in event:
            continue
        made = run.launches[event["step"]]
        base = made.kernel.partition("<")[0].rpartition("::")[2].strip()
        parameters = kernels[base].parameters if base in kernels else ()
        values: dict[str, Any] = {}
        types = []
        for i, a in enumerate(event["raw"]):
            value, kind = _argument(a, f"{made.file}:{made.line}: argument {i + 1} of {made.kernel}")
            values[f"p{i}"] = value
            types.append(kind)
            if "at" in a:
                memory[str(a["at"])] = a["size"]
                target = re.sub(r"\bconst\b|\bvolatile\b|__restrict(?:__)?|[*&\s]", "", parameters[i].text) if i < len(parameters) else ""
                if target in ELEMENTS:
                    elements[str(a["at"])] = ELEMENTS[target]
        launch = Launch(
            made.kernel.strip(), made.grid, values, types=tuple(types), block=made.block, shared=made.shared, cooperative=made.cooperative
        )
        key = launch.kernel, launch.grid, launch.block, launch.shared, tuple(values.values()), made.line
        before = steps.get(key)
        steps[key] = Step(launch, f"{made.file}:{made.line}", before.times + 1 if before else 1)
        order.append(list(steps).index(key))
    if not steps:
        why = "; ".join(run.denied) or f"it ended ({run.ended}, exit code {run.status}) before any launch"
        raise ValueError(f"{source.shown}: nothing to time: {why}")
    return Plan(tuple(steps.values()), memory, elements, tuple(order))


def _argument(a: Mapping[str, Any], what: str) -> tuple[Any, str]:
    """The value and type of a launch's argument. Raises ValueError."""
    size, bits = int(a["bytes"]), int(a["value"], 16)
    if a["kind"] == "pointer":
        if "at" in a:
            return f"{a['at']}+{a['offset']}", "ptr"
        if bits == 0:
            return 0, "ptr"
        raise ValueError(f"{what} points to what is not allocated by CUDA: it cannot be given to a launch from here")
    if a["kind"] == "real" and size in REAL:
        kind, real, whole = REAL[size]
        return struct.unpack(real, struct.pack(whole, bits))[0], kind
    if a["kind"] == "number" and (size in WHOLE or not size):
        return bits & (1 << 8 * size) - 1 if size else 0, WHOLE.get(size, "u64")
    if a["kind"] == "number" and size == 1 and bits < 2:
        return bool(bits), "bool"
    raise ValueError(
        f"{what} is {'a struct' if a['kind'] == 'struct' else 'a number'} of {size} bytes: it cannot be given to a launch from here"
    )


Peer = tuple[Any, Sequence[tuple[tuple[int, ...], str]]]  # a function of Python, and the shapes and torch's types of its tensors


def peers(source: Source, like: str, given: Sequence[str]) -> dict[str, Peer]:
    """The function that is timed beside a file's, with tensors of the shapes that `--arg` gives of the arrays which the file only reads.

    Raises ValueError where it does not."""
    from rooftop.lab.check import like as likes
    from rooftop.lab.simt import ordinary, program_caller

    text = source.texts[source.shown]
    texts = {n.strip(): v.strip() for n, _, v in (g.partition("=") for g in given)}
    offered: list[Any] = [*program_caller.of_arrays(text)] or [
        k for k in ordinary.kernels(text) if {p.name for p in k.parameters} >= set(texts)
    ]
    if len(offered) != 1:
        raise ValueError(f"--like {like}: {source.shown} has {len(offered)} functions of arrays; it goes with one")
    tensors = []
    for p in offered[0].parameters:
        if not p.pointer or "const" not in p.text:
            continue
        sizes = texts.get(p.name, "").partition(":")[2].partition(":")[0]
        if not sizes:
            how = f"give that of {p.name}, as in --arg {p.name}=f32:4096x1024"
            raise ValueError(f"--like {like} gets tensors of the shapes of the arrays that are const: {how}")
        target = re.sub(r"\bconst\b|__restrict(?:__)?|[*&\s]", "", p.text)
        tensors.append((tuple(map(int, sizes.split("x"))), ELEMENTS.get(target, "int32")))
    return {like: (likes.reference_of(like), tensors)}


def on(peers_of: Mapping[str, Peer], at: Any, count: int) -> dict[str, list[Any]]:
    """Calls of the peers without arguments, each on random tensors of its own on a device of torch: so many of each."""
    import torch

    from rooftop.lab.check import like as likes

    def tensor(shape: tuple[int, ...], kind: str) -> Any:
        zeros = torch.zeros(shape, dtype=getattr(torch, kind), device=at)
        return zeros.normal_() if zeros.is_floating_point() else zeros

    def call(name: str, function: Any, shapes: Sequence[tuple[tuple[int, ...], str]]) -> Any:
        tensors = [tensor(*s) for s in shapes]
        return lambda: likes.called(function, name, tensors)

    return {name: [call(name, function, shapes) for _ in range(count)] for name, (function, shapes) in peers_of.items()}


def sets(plan: Plan, l2_bytes: int) -> int:
    """How often the plan's memory must be there, so that its calls, one on each in turn, find none of it in L2."""
    from rooftop.lab.timing.timer import sets_needed

    return sets_needed(_touched(plan), l2_bytes)


def _touched(plan: Plan) -> int:
    return max(sum(plan.memory.values()), 1)


def compiled(source: Source, plan: Plan, target: str) -> Any:
    """The machine code of the plan's kernels (rooftop.core.compile.Binary). Raises ValueError with the compiler's words for one that it
    refuses."""
    from rooftop.lab.simt import own_file

    return own_file.binary(source, list(dict.fromkeys(s.launch.kernel for s in plan.steps)), target)


def measure(
    source: Source, plan: Plan, timer: Timer, device: Any, target: str, peers: Mapping[str, Sequence[Any]], budget_s: float, count: int
) -> list[dict[str, Any]]:
    """Seconds of each launch and, where there are several, of all in their order, on the kernel clock; beside `peers`, calls without
    arguments. `device`: torch's; `target`: what to compile for; `count`: of `sets`, how many calls there are of each peer."""
    import torch

    from rooftop.core.launch import Module
    from rooftop.lab.timing.timer import Candidate

    module = Module(compiled(source, plan, target))
    memories = [{name: _filled(torch, size, plan.elements.get(name), device) for name, size in plan.memory.items()} for _ in range(count)]

    def calls_of(step: Step) -> list[Any]:
        names = list(dict.fromkeys(v for v in step.launch.args.values() if isinstance(v, str)))
        prepared = module.prepare(step.launch, names, device.index or 0)

        def call(held: Mapping[str, Any]) -> Any:
            addresses = [held[n.partition("+")[0]].data_ptr() + int(n.partition("+")[2]) for n in names]
            return lambda: prepared(torch.cuda.current_stream().cuda_stream, addresses)

        return [call(held) for held in memories]

    calls = [calls_of(s) for s in plan.steps]

    def whole(i: int) -> Any:
        def run() -> None:
            for step in plan.order:
                calls[step][i]()

        return run

    everything = "all launches, in order"
    fields = [[Candidate(str(s), c)] for s, c in zip(plan.steps, calls, strict=True)]
    if len(calls) > 1 or peers:
        fields.append([Candidate(everything, [whole(i) for i in range(count)]), *(Candidate(n, c) for n, c in peers.items())])
    rows = []
    for field in fields:
        measured = timer.measure(field, "kernel", bytes_per_call=_touched(plan), budget_s=budget_s)
        for name, t in measured.timings.items():
            ratio = measured.versus[name].ratio if name in measured.versus else None
            rows.append({"what": name, "seconds": t.median, "low": t.low, "high": t.high, "method": t.method, "ratio": ratio})
    return rows


def _filled(torch: Any, size: int, element: str | None, at: Any) -> Any:
    if element is None:
        return torch.zeros(size, dtype=torch.uint8, device=at)
    kind = getattr(torch, element)
    tensor = torch.zeros(-(-size // kind.itemsize), dtype=kind, device=at)
    return tensor.normal_()
