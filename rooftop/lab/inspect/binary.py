"""What a compiled kernel holds, read from its cubin with no GPU.

Two of NVIDIA's binary utilities are asked, once each: `cuobjdump --dump-resource-usage` for registers, stack,
shared and constant memory, and `nvdisasm` for the instructions. NVIDIA's *CUDA Binary Utilities*,
https://docs.nvidia.com/cuda/cuda-binary-utilities/, describes what they print. Nothing is cached here: the caller
caches by the hash of the cubin. `rooftop.lab.inspect.sass` reads the instructions.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.core.compile import BinaryError as BinaryError
from rooftop.core.compile import ToolchainError
from rooftop.lab.inspect.dependent_launch import before_wait
from rooftop.lab.inspect.sass import Loop as Loop
from rooftop.lab.inspect.sass import by_family, hottest, parse, width
from rooftop.lab.inspect.sass import count as count
from rooftop.lab.inspect.sass import matches as matches

# From sm_90 on the first KiB of a block's shared memory is the system's. The kernel's own variables are placed behind
# it, so that cuobjdump's SHARED is 1024 more than what `ptxas -v` and the source say (tests compare the two).
RESERVED_SHARED = 1024


@dataclass(frozen=True, slots=True)
class Facts:
    """What the binary says of one kernel. Bytes are bytes; nothing depends on how it is launched."""

    kernel: str  # the symbol, mangled
    arch: int  # 80, 89, 90
    registers: int  # a thread
    stack: int  # bytes of local memory a thread: spilled registers and arrays that registers cannot hold
    spill_stores: int  # bytes that the code's STL instructions write, each instruction counted once
    spill_loads: int  # bytes that the code's LDL instructions read, each instruction counted once
    shared: int  # static bytes a block, without the KiB that the driver keeps (sm_90 and later)
    constant: int  # bytes of the kernel's constant banks: bank 0 holds launch data and the parameters
    opcodes: Mapping[str, int]  # instructions by full opcode, as `{"LDG.E.128.CONSTANT": 2}`; no padding
    loop: Loop | None  # the hottest loop (see `hottest`), or none
    before_wait: tuple[str, ...] | None  # what must not stand before its wait (rooftop.lab.inspect.dependent_launch); None: it never waits

    @property
    def counts(self) -> dict[str, int]:
        """Instructions by family, as `{"FFMA": 64, "LDG.128": 4}`; families with none are left out."""
        return by_family(self.opcodes)

    @property
    def instructions(self) -> int:
        return sum(self.opcodes.values())

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back; `counts` and `instructions` in it are for the reader."""
        out = {name: getattr(self, name) for name in self.__slots__ if name not in ("opcodes", "loop")}
        out |= {"instructions": self.instructions, "counts": self.counts, "opcodes": dict(self.opcodes)}
        body = self.loop
        out["loop"] = None if body is None else {
            "start": body.start, "end": body.end, "depth": body.depth, "instructions": body.instructions,
            "counts": body.counts, "opcodes": dict(body.opcodes),
        }
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """The inverse of `to_json`. Raises `KeyError` where a fact is missing, `TypeError` where one is of another type."""
        body = data["loop"]
        fields: dict[str, Any] = {name: data[name] for name in cls.__slots__}
        fields["loop"] = body and Loop(body["start"], body["end"], body["depth"], body["opcodes"])
        early = data["before_wait"]
        if not isinstance(early, list | tuple | None):
            raise TypeError(f"before_wait is a list or null, not {early!r}")
        fields["before_wait"] = None if early is None else tuple(early)
        return cls(**fields)


def facts(cubin: bytes, kernel: str | None = None, arch: int | None = None) -> Facts:
    """Facts of one kernel of `cubin`.

    `kernel` is its symbol, mangled unless `extern "C"`; it may be left out where the cubin holds one kernel.
    `arch` (80, 89, 90, ...) is read from the cubin; where given, another one there is an error.

    Raises BinaryError for a kernel that is not there and for a cubin that cannot be read or is for another
    architecture, ToolchainError where cuobjdump or nvdisasm is absent.
    """
    found = all_facts(cubin)
    if kernel is None and len(found) != 1:
        raise BinaryError(f"the cubin holds {len(found)} kernels ({', '.join(found) or 'none'}): say which")
    if kernel is not None and kernel not in found:
        raise BinaryError(f"no kernel {kernel!r} in the cubin; it holds {', '.join(found) or 'none'}")
    one = found[kernel] if kernel is not None else next(iter(found.values()))
    if arch is not None and arch != one.arch:
        raise BinaryError(f"the cubin is for sm_{one.arch}, not sm_{arch}")
    return one


def all_facts(cubin: bytes) -> dict[str, Facts]:
    """Facts of every kernel of `cubin`, by symbol. Raises as `facts` does."""
    with _file(cubin) as path:
        usage = _run("cuobjdump", ["--dump-resource-usage", path])
        text = _disassemble(path)
    resources = _resources(usage)
    arch = _arch(text)
    out = {}
    for name, lines in _sections(text):
        if name not in resources:
            continue
        code, labels, targets = parse(lines)
        used = resources[name]
        opcodes = Counter(i.opcode for i in code)
        out[name] = Facts(
            kernel=name,
            arch=arch,
            registers=used["REG"],
            stack=max(used["STACK"], used["LOCAL"]),
            spill_stores=sum(n * width(o) // 8 for o, n in opcodes.items() if o.partition(".")[0] == "STL"),
            spill_loads=sum(n * width(o) // 8 for o, n in opcodes.items() if o.partition(".")[0] == "LDL"),
            shared=used["SHARED"] - _reserved(used["SHARED"], arch),
            constant=sum(v for k, v in used.items() if k.startswith("CONSTANT")),
            opcodes=dict(sorted(opcodes.items())),
            loop=hottest(code, labels, targets),
            before_wait=before_wait(code, labels, targets),
        )
    return out


def static_shared(cubin: bytes, arch: int) -> dict[str, int]:
    """`Facts.shared` of every kernel of `cubin`, by symbol, without reading its code. Raises as `facts` does."""
    with _file(cubin) as path:
        found = _resources(_run("cuobjdump", ["--dump-resource-usage", path]))
    return {name: used["SHARED"] - _reserved(used["SHARED"], arch) for name, used in found.items()}


def _reserved(shared: int, arch: int) -> int:
    """Of the bytes of shared memory that a kernel has, those that the system keeps."""
    return RESERVED_SHARED if arch >= 90 and shared >= RESERVED_SHARED else 0


def sass(cubin: bytes, kernel: str | None = None) -> str:
    """The listing of one kernel (by symbol) or of all, as nvdisasm prints it: a line an instruction, labels between.

    Raises as `facts` does.
    """
    with _file(cubin) as path:
        text = _disassemble(path)
    if kernel is None:
        return text
    for name, lines in _sections(text):
        if name == kernel:
            return "\n".join(lines) + "\n"
    raise BinaryError(f"no kernel {kernel!r} in the cubin; it holds {', '.join(n for n, _ in _sections(text))}")


def unmet(found: Facts, demands: Mapping[str, Any]) -> list[str]:
    """The demands that the binary does not meet, as sentences; none when it meets all.

    `has` and `lacks` list opcodes with modifiers (see `matches`); `spills` is the most bytes of local memory a thread
    may use, 0 when absent. `waits_last` is for `dependent_launch.faults`. Raises ValueError for any other key.
    """
    unknown = sorted(set(demands) - {"has", "lacks", "spills", "waits_last"})
    if unknown:
        raise ValueError(f"demands: unknown {', '.join(unknown)}; accepted are has, lacks, spills, waits_last")
    out = []
    for wanted in demands.get("has", ()):
        if not count(found.opcodes, wanted):
            near = sorted(o for o in found.opcodes if matches(o, wanted.partition(".")[0]))
            out.append(f"{found.kernel} has no {wanted}" + (f" (it has {', '.join(near)})" if near else ""))
    for unwanted in demands.get("lacks", ()):
        if n := count(found.opcodes, unwanted):
            out.append(f"{found.kernel} must not have {unwanted}, and has {n}")
    allowed = int(demands.get("spills", 0))
    if found.stack > allowed:
        out.append(
            f"{found.kernel} uses {found.stack} bytes of local memory a thread, {allowed} allowed "
            f"(stores {found.spill_stores}, loads {found.spill_loads} bytes)"
        )
    return out


def tool(name: str) -> Path:
    """Where `cuobjdump` or `nvdisasm` is: NVIDIA's wheel, then Triton's, then PATH. Raises ToolchainError."""
    for path in _candidates(name):
        return path
    raise ToolchainError(
        f"{name} is not installed: looked in the wheel nvidia-cuda-{name}, in the triton wheel and in PATH. "
        f"`pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm` brings both, with no CUDA toolkit"
    )


def _candidates(name: str) -> Iterator[Path]:
    # Wheels for CUDA 13 share the folder nvidia/cu13; those for CUDA 12 have one each, as nvidia/cuda_nvdisasm.
    for package, pattern in (("nvidia", "cu*/bin"), ("triton", "backends/nvidia/bin")):
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            yield from sorted(Path(root).glob(f"{pattern}/{name}"))
    if found := settings.tool_path(name):
        yield found


_ELF = b"\x7fELF"


@contextmanager
def _file(cubin: bytes) -> Iterator[str]:
    """The cubin as a file for as long as the tools read it: they take no standard input."""
    if cubin[:4] != _ELF:
        raise BinaryError(f"not a cubin: it starts with {cubin[:4]!r}, an ELF file with {_ELF!r}")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        yield file.name


def _run(name: str, arguments: Sequence[str]) -> str:
    """A tool's standard output. Where one fails the next candidate is asked: an old one does not know a new chip."""
    tool(name)
    said = []
    for path in _candidates(name):
        done = subprocess.run([path, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return done.stdout
        said.append(f"{path}: {(done.stderr or done.stdout).strip() or f'exit status {done.returncode}'}")
    raise BinaryError("the cubin cannot be read\n" + "\n".join(said))


def _disassemble(path: str) -> str:
    try:
        return _run("nvdisasm", ["--print-code", path])
    except BinaryError:  # its analysis of indirect branches can fail where the disassembly itself does not
        return _run("nvdisasm", ["--print-code", "--no-dataflow", path])


def _resources(text: str) -> dict[str, dict[str, int]]:
    """Kernel to its resources, as `{"REG": 32, "SHARED": 3072, "CONSTANT[0]": 556, ...}`."""
    pairs = re.findall(r"^ Function (\S+):\n(.*)$", text, re.M)
    return {name: {k: int(v) for k, v in re.findall(r"(\S+):(\d+)", line)} for name, line in pairs}


def _arch(text: str) -> int:
    found = re.search(r"\.target\s+sm_(\d+)|EF_CUDA_SM(\d+)", text)
    if found is None:
        raise BinaryError("nvdisasm did not say which architecture the cubin is for")
    return int(found[1] or found[2])


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """The kernels of a disassembly: the symbol and the lines of its section."""
    parts = re.split(r"^\s*\.section\s+\.text\.([^,\s]+),.*$", text, flags=re.M)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        lines = body.split("\n")
        while lines and (not lines[-1].strip() or lines[-1].startswith("//---")):
            lines.pop()  # the heading of the next section
        yield name, lines
