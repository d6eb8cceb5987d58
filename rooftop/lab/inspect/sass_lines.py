"""Where in the source each instruction of a cubin comes from, and which accesses the compiler made of a line: widened, merged, or none.

The line is that of the innermost function of the user's or the house's own files: what CUDA's headers put in (an asynchronous copy, a
conversion) belongs to the line that called it. Read with `nvdisasm`, which prints the whole chain of inlined calls; needs neither GPU nor
toolkit."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rooftop.core import settings
from rooftop.lab.inspect.binary import BinaryError, tool

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+),.*$", re.M)
_PLACE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+((?:@!?U?PT?\d*\s+)?[A-Z][^;]*;?)")
_NEVER = re.compile(r"^@!U?PT\s")
_OPCODE = re.compile(r"^(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
# What an opcode touches: (space, op). LDGSTS reads global memory and writes shared memory; LD, ST and ATOM take any address.
_ACCESS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "LDGSTS": (("global", "read"), ("shared", "write")), "LDG": (("global", "read"),), "STG": (("global", "write"),),
    "ATOMG": (("global", "atomic"),), "REDG": (("global", "atomic"),), "RED": (("global", "atomic"),), "LDS": (("shared", "read"),),
    "LDSM": (("shared", "read"),), "STS": (("shared", "write"),), "STSM": (("shared", "write"),), "ATOMS": (("shared", "atomic"),),
    "LDL": (("local", "read"),), "STL": (("local", "write"),), "LD": (("generic", "read"),), "ST": (("generic", "write"),),
    "ATOM": (("generic", "atomic"),),
}


def opcode(sass: str) -> str:
    """`LDG.E.128` of `@!P0 LDG.E.128 R4, desc[UR4][R2.64] ;`."""
    match = _OPCODE.match(sass.strip())
    return match[1] if match else "?"


def accesses(op: str) -> tuple[tuple[str, str], ...]:
    """The (space, read | write | atomic) that an opcode performs. Empty: none that is counted."""
    return _ACCESS.get(op.split(".")[0], ())


def width(op: str) -> int:
    """Bytes that a lane moves."""
    parts = op.split(".")
    if parts[0] == "LDSM" or parts[0] == "STSM":
        return 4 * max((int(p) for p in parts if p in ("2", "4")), default=1)
    sizes = {"U8": 1, "S8": 1, "8": 1, "U16": 2, "S16": 2, "16": 2, "64": 8, "128": 16, "256": 32}
    return next((sizes[p] for p in parts[1:] if p in sizes), 4)


_ADDRESS = re.compile(r"\[([^\[\]]*?)(?:\+?(-?0x[0-9a-f]+))?\]")


def address(sass: str) -> tuple[str, int]:
    """What an access adds its offset to, with its predicate, and the offset in bytes: `@P0 R24.64` and 4 of `@P0 STG.E
    desc[UR4][R24.64+0x4], R3`."""
    found = _ADDRESS.findall(sass)
    base, offset = found[-1] if found else ("", "")
    predicate = sass.split()[0] if sass.startswith("@") else ""
    return f"{predicate} {base.rstrip('+')}".strip(), int(offset, 16) if offset else 0


@dataclass(frozen=True)
class Instruction:
    offset: int  # bytes from the kernel's first
    sass: str
    file: str  # as the user knows it; "" where the machine code does not say
    line: int
    callers: tuple[tuple[str, int], ...] = ()  # (file, line) of the calls by which that line was inlined, innermost first

    @property
    def opcode(self) -> str:
        return opcode(self.sass)


def place(name: str, shown: str) -> str:
    """A file's name in records: the kernel's own by the path it was compiled under, shared headers relative to the checkout, CUDA's headers
    by the last two parts."""
    path = Path(name)
    if path.suffix == ".cu" or name.endswith(shown):
        return shown
    for n in range(1, len(path.parts)):  # a binary found in the cache may be of another checkout,
        if (settings.CHECKOUT / (tail := Path(*path.parts[n:]))).is_file():
            return str(tail)
    return "/".join(path.parts[-2:]) if foreign(name) else shown  # and its kernel, which is no header, have been called otherwise there


def foreign(name: str) -> bool:
    """Whether a file is one of CUDA's headers."""
    return bool(re.search(r"(^|/)include/|(^|/)(cccl|crt|nv|cuda)/|(^|/)cuda_\w+\.hp?p?$", name)) and not name.endswith((".cu", ".cuh"))


def instructions(cubin: bytes, symbol: str, shown: str) -> list[Instruction]:
    """The kernel's instructions in order, those that can never run left out. `shown`: the path under which it was compiled.

    Raises BinaryError for a cubin that nvdisasm cannot read or a symbol that it does not hold, ToolchainError where there is no
    nvdisasm."""
    sections = dict(_sections(_disassemble(cubin)))
    if symbol not in sections:
        raise BinaryError(f"the cubin holds no kernel {symbol}; it holds {', '.join(sections) or 'none'}")
    found: list[Instruction] = []
    chain: list[tuple[str, int]] = []
    fresh = True  # the next place begins a new chain: innermost first, then its callers
    for text in sections[symbol].splitlines():
        if match := _PLACE.match(text):
            if fresh:
                chain, fresh = [], False
            chain.append((match[1], int(match[2])))
        elif match := _CODE.match(text):
            fresh = True
            if not _NEVER.match(match[2]):
                own = [(place(file, shown), line) for file, line in chain if not foreign(file)]
                own = own or [(place(file, shown), line) for file, line in chain[:1]] or [("", 0)]
                found.append(Instruction(int(match[1], 16), match[2].strip(), *own[0], tuple(own[1:])))
    return found


def widths(cubin: bytes, symbol: str, shown: str) -> dict[tuple[str, int, str, str], Counter[int]]:
    """(file, line, space, op) -> bytes a lane -> how many such instructions stand in the machine code."""
    found: dict[tuple[str, int, str, str], Counter[int]] = {}
    for i in instructions(cubin, symbol, shown):
        for space, op in accesses(i.opcode):
            found.setdefault((i.file, i.line, space, op), Counter())[width(i.opcode)] += 1
    return found


@lru_cache(maxsize=2)  # kernel after kernel is asked of one cubin
def _disassemble(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([str(tool("nvdisasm")), "-gi", "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BinaryError(f"the cubin cannot be read: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _sections(text: str) -> Iterator[tuple[str, str]]:
    parts = _SECTION.split(text)
    yield from zip(parts[1::2], parts[2::2], strict=True)
