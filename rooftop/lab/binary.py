"""What a compiled kernel holds, read from its cubin with no GPU.

Two of NVIDIA's binary utilities are asked, once each: `cuobjdump --dump-resource-usage` for registers, stack,
shared and constant memory, and `nvdisasm` for the instructions. NVIDIA's *CUDA Binary Utilities*,
https://docs.nvidia.com/cuda/cuda-binary-utilities/, describes what they print. Nothing is cached here: the caller
caches by the hash of the cubin. The file is long because facts, text and flow graph of one listing belong together.
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

from rooftop.lab import settings
from rooftop.lab.compile import ToolchainError

# From sm_90 on the first KiB of a block's shared memory is the system's. The kernel's own variables are placed behind
# it, so that cuobjdump's SHARED is 1024 more than what `ptxas -v` and the source say (tests compare the two).
RESERVED_SHARED = 1024

#: Loads and stores, counted by width, as `LDG.128` (bits a thread).
BY_WIDTH = frozenset({"LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL", "LDGSTS"})

#: The other instructions that are counted. HGMMA, IGMMA and QGMMA are wgmma on 16-bit floats and tf32, int8 and fp8.
FAMILIES = frozenset(
    {
        *("FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2", "HFMA2", "HADD2", "HMUL2", "DFMA", "DADD", "DMUL", "MUFU"),
        *("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA"),
        *("LDSM", "STSM", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "SYNCS", "ATOM", "ATOMS", "RED"),
        *("BAR", "SHFL", "REDUX", "VOTE", "BRA", "CALL"),
    }
)
_SAME = {"FFMA32I": "FFMA", "FADD32I": "FADD", "FMUL32I": "FMUL", "HFMA2_32I": "HFMA2", "ATOMG": "ATOM", "REDG": "RED"}

# What tells a hot loop from others.
_TENSOR = frozenset({"HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA"})
_WORK = frozenset({"FFMA", "FFMA2", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2", "DFMA", "MUFU", "LDG", "STG", "LDGSTS"})


class BinaryError(RuntimeError):
    """A cubin that cannot be read."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a kernel: the instructions of its body, loops inside it included, each counted once."""

    start: int  # byte offset of its first instruction in the kernel's code
    end: int  # byte offset of its last instruction
    depth: int  # 1: in no other loop
    opcodes: Mapping[str, int]

    @property
    def counts(self) -> dict[str, int]:
        """Instructions by family, as `{"FFMA": 64, "LDS.128": 4}`; families with none are left out."""
        return _by_family(self.opcodes)

    @property
    def instructions(self) -> int:
        return sum(self.opcodes.values())

    def share(self, wanted: str) -> float:
        """The part, 0 to 1, of the loop's instructions that match `wanted` (see `matches`)."""
        return count(self.opcodes, wanted) / self.instructions


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

    @property
    def counts(self) -> dict[str, int]:
        """Instructions by family, as `{"FFMA": 64, "LDG.128": 4}`; families with none are left out."""
        return _by_family(self.opcodes)

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
        }  # fmt: skip
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """The inverse of `to_json`. Raises `KeyError` where a fact is missing."""
        body = data["loop"]
        fields: dict[str, Any] = {name: data[name] for name in cls.__slots__}
        fields["loop"] = body and Loop(body["start"], body["end"], body["depth"], body["opcodes"])
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of SASS."""

    offset: int  # bytes from the start of the kernel's code
    predicate: str  # `P0`, `!UP1`, or nothing
    opcode: str  # with its modifiers, as `LDG.E.128`
    operands: str


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
        reserved = RESERVED_SHARED if arch >= 90 and used["SHARED"] >= RESERVED_SHARED else 0
        out[name] = Facts(
            kernel=name,
            arch=arch,
            registers=used["REG"],
            stack=max(used["STACK"], used["LOCAL"]),
            spill_stores=sum(n * _width(o) // 8 for o, n in opcodes.items() if o.partition(".")[0] == "STL"),
            spill_loads=sum(n * _width(o) // 8 for o, n in opcodes.items() if o.partition(".")[0] == "LDL"),
            shared=used["SHARED"] - reserved,
            constant=sum(v for k, v in used.items() if k.startswith("CONSTANT")),
            opcodes=dict(sorted(opcodes.items())),
            loop=hottest(code, labels, targets),
        )
    return out


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


def matches(opcode: str, wanted: str) -> bool:
    """Whether `opcode` is of the kind `wanted`: the same name, and `wanted`'s modifiers among its own, in order.

    `LDG.E.128` fits `LDG`, `LDG.E.128` and `LDG.128`; so does `LDG.E.EF.128.CONSTANT`. `LDGSTS.E.128` fits none.
    """
    name, *modifiers = wanted.split(".")
    have, *rest = opcode.split(".")
    left = iter(rest)
    return name == have and all(m in left for m in modifiers)


def count(opcodes: Mapping[str, int], wanted: str) -> int:
    """How many instructions of `opcodes` match `wanted`."""
    return sum(n for opcode, n in opcodes.items() if matches(opcode, wanted))


def unmet(found: Facts, demands: Mapping[str, Any]) -> list[str]:
    """The demands that the binary does not meet, as sentences; none when it meets all.

    `has` and `lacks` list opcodes with modifiers (see `matches`); `spills` is the most bytes of local memory a thread
    may use, 0 when absent. Raises ValueError for any other key.
    """
    unknown = sorted(set(demands) - {"has", "lacks", "spills"})
    if unknown:
        raise ValueError(f"demands: unknown {', '.join(unknown)}; accepted are has, lacks, spills")
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


_LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?PT?\d*)\s+)?([A-Z][\w.]*)\s*([^;]*)")
_LABEL = re.compile(r"^([^\s:]+):\s*$")
_TARGET = re.compile(r"`\(([^)]+)\)")
_INDIRECT = re.compile(r'BRANCH_TARGETS ([^"]*)"')
_JUMPS = ("BRX", "BRXU", "JMX", "JMXU")


def parse(lines: Sequence[str]) -> tuple[list[Instruction], dict[str, int], dict[int, list[str]]]:
    """Instructions, labels (to an instruction's index) and the labels that each branch may go to (by index).

    Left out: the padding behind the code, and instructions whose predicate is never true.
    """
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    targets: dict[int, list[str]] = {}
    indirect: list[int] = []
    for line in lines:
        if (label := _LABEL.match(line)) is not None:
            labels[label[1]] = len(code)
        elif (found := _LINE.match(line)) is not None:
            offset, predicate, opcode, operands = found.groups(default="")
            if predicate in ("!PT", "!UPT"):
                continue
            # A constant 0 made by an idle half-precision pipe: a move, not arithmetic.
            if opcode.startswith("HFMA2") and "-RZ, RZ," in operands:
                opcode = "MOV.HFMA2"
            if (to := _TARGET.findall(operands)) and not opcode.startswith(("RET", "BSSY")):
                targets[len(code)] = to
            elif (named := _INDIRECT.search(line)) is not None:
                targets[len(code)] = named[1].split(",")
            elif opcode in _JUMPS:
                indirect.append(len(code))
            predicate = "" if predicate in ("PT", "UPT") else predicate
            code.append(Instruction(int(offset, 16), predicate, opcode, operands.strip()))
    used = {name for names in targets.values() for name in names}
    for at in indirect:  # no analysis of where it may go: every label that nothing else goes to
        targets[at] = [name for name, i in labels.items() if name not in used and at < i < len(code)]
    while code and (code[-1].opcode == "NOP" or _endless(code, labels, targets)):
        targets.pop(len(code) - 1, None)
        code.pop()
    return code, labels, targets


def _endless(code: list[Instruction], labels: dict[str, int], targets: dict[int, list[str]]) -> bool:
    """Whether the last instruction is the branch to itself that the compiler puts behind every kernel."""
    at = len(code) - 1
    return code[at].opcode == "BRA" and [labels.get(t) for t in targets.get(at, [])] == [at]


def hottest(code: Sequence[Instruction], labels: Mapping[str, int], targets: Mapping[int, Sequence[str]]) -> Loop | None:
    """The loop that most of the time is likely spent in.

    Loops are the natural ones: a branch back to a block that every path to it passes (Aho, Lam, Sethi and Ullman,
    *Compilers*, 9.6). Taken is the one with the most work in its own blocks, those of loops inside it apart, each
    level of nesting weighing ten (the usual estimate, as in Chaitin's spill costs, 1982). Work is tensor-core
    instructions; among loops with equally many, floating-point arithmetic and global memory accesses. A loop with
    neither, such as a wait, is never it. Where it stands in a function that is called, its depth is counted there.
    """
    starts, follow = _blocks(code, labels, targets)
    ends = [*starts[1:], len(code)]
    bodies = _loops(follow)
    depth = Counter(block for body in bodies.values() for block in body)
    best: tuple[tuple[int, int, int], int] | None = None
    for head, body in bodies.items():
        own = [b for b in body if depth[b] == depth[head]]
        names = [code[i].opcode.partition(".")[0] for b in own for i in range(starts[b], ends[b])]
        scale = 10 ** (depth[head] - 1)
        tensor = sum(n in _TENSOR for n in names) * scale
        work = sum(n in _WORK for n in names) * scale
        score = (tensor, work, -starts[head])
        if tensor + work and (best is None or score > best[0]):
            best = score, head
    if best is None:
        return None
    inside = sorted(bodies[best[1]])
    opcodes = Counter(code[i].opcode for b in inside for i in range(starts[b], ends[b]))
    last = code[ends[inside[-1]] - 1]
    return Loop(code[starts[inside[0]]].offset, last.offset, depth[best[1]], dict(sorted(opcodes.items())))


def _blocks(code: Sequence[Instruction], labels: Mapping[str, int], targets: Mapping[int, Sequence[str]]) -> tuple[list[int], list[list[int]]]:
    """The basic blocks (index of the first instruction of each) and the blocks that may follow each."""
    first = {0} | {i for i in labels.values() if i < len(code)}
    first |= {i + 1 for i, ins in enumerate(code) if (i in targets or _ends(ins)) and i + 1 < len(code)}
    starts = sorted(first) if code else []
    block = {start: n for n, start in enumerate(starts)}
    follow: list[list[int]] = []
    for n, end in enumerate([*starts[1:], len(code)] if starts else []):
        last = code[end - 1]
        to = [block[labels[t]] for t in targets.get(end - 1, ()) if labels.get(t, len(code)) < len(code)]
        if n + 1 < len(starts) and not _ends(last):
            to.append(n + 1)
        follow.append(to)
    return starts, follow


def _ends(ins: Instruction) -> bool:
    """Whether no thread goes on to the next instruction."""
    name, _, modifiers = ins.opcode.partition(".")
    if name in ("BRA", "JMP"):  # `BRA.U UP0, ...` and `BRA P1, ...` have their condition among the operands
        conditional = modifiers.startswith(("DIV", "CONV")) or re.match(r"!?U?P[\dT]", ins.operands)
        return not (ins.predicate or conditional)
    return name in ("EXIT", "RET", "KILL", *_JUMPS) and not ins.predicate


def _loops(follow: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """Natural loops of a flow graph that starts in block 0: header to body. Loops of one header are one."""
    order: list[int] = []  # post-order of what can be reached
    seen = {0} if follow else set()
    stack = [(0, iter(follow[0]))] if follow else []
    while stack:
        at, rest = stack[-1]
        ahead = next((b for b in rest if b not in seen), None)
        if ahead is None:
            order.append(at)
            stack.pop()
        else:
            seen.add(ahead)
            stack.append((ahead, iter(follow[ahead])))
    rank = {b: i for i, b in enumerate(order)}
    before: dict[int, list[int]] = {b: [] for b in order}
    for b in order:
        for to in follow[b]:
            before[to].append(b)
    # Immediate dominators after Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm, 2001.
    above = {0: 0}
    changed = True
    while changed:
        changed = False
        for b in reversed(order[:-1]):
            known = [p for p in before[b] if p in above]
            new = known[0]
            for p in known[1:]:
                while new != p:
                    if rank[new] < rank[p]:
                        new = above[new]
                    else:
                        p = above[p]
            if above.get(b) != new:
                above[b], changed = new, True
    bodies: dict[int, set[int]] = {}
    for latch in order:
        for head in follow[latch]:
            up = latch
            while up != head and up != 0:
                up = above[up]
            if up != head:
                continue
            body = bodies.setdefault(head, {head})
            todo = [latch]
            while todo:
                b = todo.pop()
                if b not in body:
                    body.add(b)
                    todo += before[b]
    return bodies


def _width(opcode: str) -> int:
    """Bits a thread that a load or store moves."""
    for part in opcode.split(".")[1:]:
        if part in ("64", "128", "256"):
            return int(part)
        if part in ("U8", "S8"):
            return 8
        if part in ("U16", "S16"):
            return 16
    return 32


def _by_family(opcodes: Mapping[str, int]) -> dict[str, int]:
    out: Counter[str] = Counter()
    for opcode, n in opcodes.items():
        name = opcode.partition(".")[0]
        name = _SAME.get(name, name)
        if name in BY_WIDTH:
            out[f"{name}.{_width(opcode)}"] += n
        elif name in FAMILIES:
            out[name] += n
    return dict(sorted(out.items()))
