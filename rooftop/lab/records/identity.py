"""What made a record: what is computed for its case, what is launched for it, and the code of that. When one of these has changed, the
record is stale.

A record holds three hashes. `digest`: the contract for the case (`Contract.digest`), and each launch on the record's card (grid, block,
cluster, shared memory, options, arguments in the order of the kernel's parameters), scratch memory and what of it is zeroed; worked out on
the host. No text of host code counts.
`source`: the code that these launches run on the device, normalised, so that it does not depend on where and under which name it stands.
`machine`: the machine code. A record is fresh while `digest` and one of the two others are those of the tree; machine code is compiled only
where `source` differs."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rooftop.core import normal_form
from rooftop.core.call import problem_for_kernels
from rooftop.core.contract import Contract
from rooftop.core.digests import digest
from rooftop.core.implementation import Implementation, UnsupportedError
from rooftop.core.spec import TARGETS, Case, Device, Launch, Meta, Problem, Step

DIGITS = 8  # of `source` and `machine`: a record has many like it
OWN = (".text.", ".nv.constant0.", ".nv.constant2.", ".nv.shared.", ".nv.local.")  # sections of one kernel
SHARED = (".nv.constant3", ".nv.constant4", ".nv.global")  # and of all: `__constant__` and `__device__` variables
NO_BITS = 8  # kind of a section that only reserves memory


class Made(Protocol):
    """What can have records: a `rooftop.lab.candidates.Subject`."""

    @property
    def name(self) -> str: ...

    @property
    def op(self) -> Contract: ...

    @property
    def implementation(self) -> Implementation | None: ...


@dataclasses.dataclass(frozen=True)
class Memo:
    """A cache of what every subject of an op needs of a case: the problem as kernels see it on a card, and the contract's digest. It lasts
    no longer than the tree stays as it is."""

    _problems: dict[tuple[str, str, Device], Problem] = dataclasses.field(default_factory=dict)
    _digests: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    def problem(self, op: Contract, case: Case, device: Device) -> Problem:
        key = (op.name, case.id, device)
        if key not in self._problems:
            self._problems[key] = problem_for_kernels(op, op.problem(case, device))[0]
        return self._problems[key]

    def digest(self, op: Contract, case: Case) -> str:
        key = (op.name, case.id)
        if key not in self._digests:
            self._digests[key] = op.digest(case)
        return self._digests[key]


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a record depends on; its fields are keys of the record. A peer has no `source`, nor has what the kernel refuses."""

    digest: str
    source: str = ""

    @property
    def facts(self) -> dict[str, str]:
        return {k: v for k, v in dataclasses.asdict(self).items() if v}

    @property
    def key(self) -> str:
        return f"{self.digest} {self.source}"

    def made(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is of it, as far as texts say."""
        return self == of_record(record)


def of_record(record: Mapping[str, Any]) -> Identity:
    return Identity(str(record.get("digest", "")), str(record.get("source", "")))


def joined(found: Sequence[Identity]) -> Identity:
    """Of several cases together."""
    if len(found) == 1:
        return found[0]
    return Identity(digest(*(one.digest for one in found)), digest(*(one.source for one in found))[:DIGITS])


def of(subject: Made, cases: Sequence[Case], device: Device, memo: Memo | None = None) -> Identity:
    """Of a subject at these cases on a card. `memo`: what was worked out for others; grows."""
    known = memo or Memo()
    return joined([_of_case(subject, case, device, known) for case in cases])


def facts(subject: Made, cases: Sequence[Case], device: Device, memo: Memo | None = None) -> dict[str, str]:
    """What a new record holds of it, machine code among it."""
    found = of(subject, cases, device, memo).facts
    code = machine(subject, cases, device, memo)
    return found if code is None else {**found, "machine": code}


def fresh(record: Mapping[str, Any], subject: Made, cases: Sequence[Case], device: Device, memo: Memo | None = None) -> bool:
    """Whether a record is of the tree."""
    now = of(subject, cases, device, memo)
    return now.made(record) or is_same_code(record, now, lambda whole: machine(subject, cases, device, memo, whole))


def is_same_code(record: Mapping[str, Any], now: Identity, compiled: Callable[[bool], str | None]) -> bool:
    """Whether a record of other text is of the same machine code, in either form of its hash; `compiled` is asked, for `whole` or not, only
    where that can be."""
    return bool(record.get("machine")) and now.digest == record.get("digest") and any(compiled(w) == record["machine"] for w in (False, True))


def _of_case(subject: Made, case: Case, device: Device, memo: Memo) -> Identity:
    contract = memo.digest(subject.op, case)
    if subject.implementation is None:
        return Identity(digest(contract, subject.name))
    problem = memo.problem(subject.op, case, as_recorded(device, subject.implementation))
    try:
        config, steps = _prepared(subject.implementation, problem)
    except UnsupportedError as error:
        return Identity(digest(contract, subject.name, str(error)))
    return Identity(
        digest(contract, launched(subject.implementation, problem, config, steps)), subject.implementation.source(steps)[:DIGITS]
    )


def as_recorded(device: Device, implementation: Implementation) -> Device:
    """The card with what records hold of it; how many clusters it runs at once is taken from its architecture's. For a kernel of another
    platform, which runs here in its interpreter, the device that it stands for."""
    if implementation.platform != "gpu" and type(device) is Device:
        return implementation.stand_in(device.arch)
    return (
        dataclasses.replace(device, clusters=TARGETS[device.arch].clusters if device.arch in TARGETS else ()) if type(device) is Device
        else device
    )


def _prepared(implementation: Implementation, problem: Problem) -> tuple[Any, list[Step]]:
    config, _ = implementation.resolve(problem)
    return config, list(implementation.steps(problem, config))


def launched(implementation: Implementation, problem: Problem, config: Any, steps: Sequence[Step]) -> Any:
    """What runs for a problem, as JSON: the launches without their code; of a kernel that is one function of the host, its config."""
    found: list[Any] = [[_how(step), _arguments(step)] for step in steps]
    if not steps and implementation.backend in ("torch", "pallas"):
        found.append(_plain(implementation.config_dict(config)))
    scratch = implementation.scratch(problem, config)
    return [found, {n: _plain(m) for n, m in sorted(scratch.items())}, sorted(implementation.zeroed(problem, config))]


def _how(step: Step) -> Any:
    """A launch but for its kernel and arguments: what is not at its default."""
    return {k: v for k, v in _fields(step).items() if k not in ("kernel", "args")} if isinstance(step, Launch) else "torch"


def _arguments(step: Step) -> list[Any]:
    kernel = step.kernel if isinstance(step, Launch) else step.function
    names = getattr(kernel, "arg_names", None)  # Triton passes by name
    if names is None and hasattr(kernel, "__code__"):
        names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount + kernel.__code__.co_kwonlyargcount]
    values = list(step.args.values()) if names is None else [step.args[n] for n in names if n in step.args]
    return [int(v) if isinstance(v, bool) else _plain(v) for v in values]  # a kernel takes False as 0


OLD = {"pdl": "chained"}  # names of fields of a launch as digests of records have them


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not at their defaults."""
    found = {}
    for field in dataclasses.fields(value):
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if (one := getattr(value, field.name)) != default:
            found[OLD.get(field.name, field.name)] = _plain(one) if field.name not in ("kernel", "args") else None
    return found


def _plain(value: Any) -> Any:
    """A value of a launch as JSON. Raises ValueError where its text would hold an address."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Meta):
        return [list(value.shape), value.dtype, list(value.strides)]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("rooftop."):
        return {type(value).__name__: _fields(value)}
    if hasattr(value, "__name__"):
        return str(value.__name__)
    text = repr(value)
    if re.search(r"\bat 0x[0-9a-f]+", text):
        raise ValueError(f"no text for {text}")
    return text


# -- machine code ------------------------------------------------------------------------------------------------------


def machine(subject: Made, cases: Sequence[Case], device: Device, memo: Memo | None = None, whole: bool = False) -> str | None:
    """Hash of the machine code of a subject at these cases; compiles what is not in the cache. None where there is none, or it cannot be
    compiled here. `whole`: as older records have it, with data of the file that the kernel does not read."""
    from rooftop.core.compile import CompileError, ToolchainError
    from rooftop.core.cubins import AbsentCompiler
    if subject.implementation is None or subject.implementation.backend in ("torch", "pallas"):
        return None
    known, target, found = memo or Memo(), as_recorded(device, subject.implementation), []
    try:
        for case in cases:
            problem = known.problem(subject.op, case, target)
            config, steps = _prepared(subject.implementation, problem)
            scratch = subject.implementation.scratch(problem, config)
            found.append(digest(*(_code(subject.implementation, problem, step, scratch)[whole] for step in steps)))
    except (AbsentCompiler, CompileError, ToolchainError, ImportError):
        return None
    return (found[0] if len(found) == 1 else digest(*found))[:DIGITS]


_CODE: dict[tuple[str, str, str], tuple[str, str]] = {}  # target, source and variant -> hashes of the machine code, not `whole` and `whole`


def _code(implementation: Implementation, problem: Problem, step: Step, scratch: Mapping[str, Meta]) -> tuple[str, str]:
    if not isinstance(step, Launch):
        return (normal_form.of_object(step.function),) * 2
    key = (
        problem.device.target, implementation.source([step]), implementation.variant(step, {**dict(problem.tensors), **scratch}, problem)
    )
    if key not in _CODE:
        made = implementation.machine_code(problem, step, scratch)
        _CODE[key] = code_of(made.cubin, made.symbol), code_of(made.cubin, made.symbol, whole=True)
    return _CODE[key]


def code_of(cubin: bytes, symbol: str, *, whole: bool = False) -> str:
    """Hash of all that a cubin gives to the GPU for one of its kernels: instructions, number of registers, constants and shared memory of
    the kernel, and, if it reads any of it or `whole`, the data that all kernels of the file share. Names, source lines, versions and the
    file's other kernels do not count.

    Raises ValueError for what is no ELF-64 file, or has no such kernel."""
    if cubin[:4] != b"\x7fELF":
        raise ValueError(f"not a cubin: it starts with {cubin[:4]!r}")
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    each, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * each) for i in range(count)]
    parts, shared, reads = [], [], whole
    for name_at, kind, flags, _, at, size, _, info, _, _ in sections:
        begin = sections[names][4] + name_at
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        content = b"" if kind == NO_BITS else cubin[at : at + size]
        if name.startswith(OWN) and name.endswith(f".{symbol}"):
            registers = info >> 24 if name.startswith(".text.") else 0
            reads |= name.startswith(".text.") and _reads_shared(content)
            parts.append(f"{name.removesuffix(symbol)} {kind} {flags} {size} {registers} {hashlib.sha256(content).hexdigest()}")
        elif name in (f".rel.text.{symbol}", f".rela.text.{symbol}") and size:
            reads = True  # an address may be that of shared data
        elif name.startswith(SHARED):
            shared.append(f"{name} {kind} {flags} {size} {hashlib.sha256(content).hexdigest()}")
    if not any(part.startswith(".text.") for part in parts):
        raise ValueError(f"the cubin has no kernel {symbol}")
    return hashlib.sha256("\n".join(sorted(parts + shared if reads else parts)).encode()).hexdigest()


def _reads_shared(code: bytes) -> bool:
    """Whether an instruction (16 bytes, from sm_70 on) has an operand in constant bank 3, `__constant__` variables, or 4, the addresses of
    `__device__`
    variables: bits 9 to 11 say where a constant stands among the operands, bits 54 to 58 its bank."""
    words = (word for word, _ in struct.iter_unpack("<QQ", code[: len(code) // 16 * 16]))
    return any(word >> 9 & 7 in (3, 5) and word >> 54 & 31 in (3, 4) for word in words)
