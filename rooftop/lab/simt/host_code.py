"""What the host's compiler made of a source: the accesses, the arithmetic and the branches of a built library, read off its machine code
and kept beside it.

Counting libraries call a mark where each piece of straight code begins. What stands between one mark and the next is done by each lane that
passes the first: so arithmetic is counted without stopping for it. Calls of the engine's `maths` are one operation each; its other
functions are none."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from rooftop.core import settings
from rooftop.lab.simt.build import NoCompilerError
from rooftop.lab.simt.lines import Place, outright, places
from rooftop.lab.simt.tools import said

_FMA = re.compile(r"v?fn?m(?:add|sub)\d*[sp][sd]|fn?m(?:add|sub)")
_FLOP = re.compile(r"v?(?:add|sub|mul|div|sqrt|min|max)s[sd]|f(?:add|sub|mul|div|sqrt|min|max)(?:nm)?")
_MATHS = re.compile(r"\b(?:exp|log|sin|cos|tan|pow|erf|cbrt|gamma|fmod|fmax|fmin|round|fma|sqrt)\w*@plt|_ZN4simt5maths")
_JUMP = re.compile(r"j(?!mp)[a-z]+|b\.\w+|cbn?z|tbn?z")
_ACCESS = re.compile(r"__tsan_(?:unaligned_)?(volatile_)?(read|write)(\d+)|simt\d+(copy)_async")
_CONST = re.compile(  # what touches no memory
    r"_ZN4simt(?:5maths|\d+(?:(?:thread|block|lane|warp)_index|(?:block|grid)_extent|\w+_to_\w+|fp8_of|to_odd|nth_lane|gather_bits))"
)


@dataclass(frozen=True)
class Site:
    """An access that the compiler instruments, or an asynchronous copy. `again`: a read of what the lane has read since memory last
    changed."""

    address: int  # the call's return address, from the library's first byte
    op: str  # read | write | copy
    bytes: int
    place: Place
    again: bool = False


@dataclass(frozen=True)
class Piece:
    """What a lane does from one mark to the next: operations by line, and the line of the branch that ends it, where it is the user's
    own."""

    fma: Mapping[Place, int] = field(default_factory=dict)
    flops: Mapping[Place, int] = field(default_factory=dict)
    branch: Place | None = None


@dataclass(frozen=True)
class HostCode:
    """`pieces`: by the return address of their mark."""

    sites: tuple[Site, ...]
    pieces: Mapping[int, Piece]


@lru_cache(maxsize=64)
def of(library: Path) -> HostCode:
    """The machine code of a built library. Raises NoCompilerError where binutils is absent."""
    kept = library.with_suffix(f".{_form()}.json")
    try:
        return _from_json(json.loads(kept.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):  # absent, or not what is written below
        pass
    found = _read(library)
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(_to_json(found)), encoding="utf-8")
    os.replace(part, kept)
    return found


@cache
def _form() -> str:
    """Of what is kept: a digest of the files that it follows from."""
    files = (Path(__file__), Path(__file__).with_name("lines.py"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()[:12]


def _to_json(code: HostCode) -> dict[str, Any]:
    def counted(of_line: Mapping[Place, int]) -> list[Any]:
        return [[*place, n] for place, n in of_line.items()]

    return {
        "sites": [[s.address, s.op, s.bytes, *s.place, s.again] for s in code.sites],
        "pieces": [[at, counted(p.fma), counted(p.flops), p.branch] for at, p in code.pieces.items()],
    }


def _from_json(data: Mapping[str, Any]) -> HostCode:
    def counted(of_line: list[Any]) -> dict[Place, int]:
        return {(file, line): n for file, line, n in of_line}

    return HostCode(
        tuple(Site(at, op, size, (file, line), again) for at, op, size, file, line, again in data["sites"]),
        {at: Piece(counted(fma), counted(flops), tuple(branch) if branch else None) for at, fma, flops, branch in data["pieces"]},
    )


@dataclass
class _Raw:
    """A piece as it is read: addresses of its operations and of the conditional jump that ends it."""

    fma: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)
    jump: int = 0


def _read(library: Path) -> HostCode:
    sites: list[tuple[int, str, int, bool]] = []
    pieces: dict[int, _Raw] = {}
    piece = _Raw()
    values = _Values()
    seen: set[tuple[object, int]] = set()  # what has been read since the last mark or write
    pending: tuple[str, int, bool] | None = None  # an access whose return address is that of the next instruction
    marked, before = False, ""
    for address, name, operands in _instructions(library):
        if not name:  # a function begins
            piece, pending, marked = _Raw(), None, False
            values, seen = _Values(), set()
            continue
        if pending:
            sites.append((address, *pending))
            pending = None
        if marked:
            piece = pieces[address] = _Raw()
            marked = False
        call = name.startswith(("call", "bl"))
        if call and (match := _ACCESS.search(operands)):
            op, size = match[2] or match[4], int(match[3] or 0)
            read = (values.of("rdi"), size)
            again = op == "read" and not match[1] and read in seen
            if op != "read":
                seen = set()
            elif not match[1]:
                seen.add(read)
            pending = (op, size, again)
        elif call and "__sanitizer_cov_trace_pc" in operands:
            marked, seen = True, set()
        elif call or (name == "jmp" and "__sanitizer_cov_trace_pc" in operands):
            marked = name == "jmp"
            if _MATHS.search(operands):
                piece.flops.append(address)
            if not (_CONST.search(operands) or _MATHS.search(operands)):
                seen = set()
        elif _FMA.fullmatch(name):
            piece.fma.append(address)
        elif _FLOP.fullmatch(name):
            # a large integer's conversion
            if not (name.startswith("vadd") and before.startswith("vcvtsi2s") and len(set(operands.split(","))) == 1):
                piece.flops.append(address)
        elif _JUMP.fullmatch(name):
            piece.jump = address
        values.after(name, operands, call)
        before = name
    return _placed(library, sites, pieces)


def _placed(library: Path, sites: list[tuple[int, str, int, bool]], pieces: Mapping[int, _Raw]) -> HostCode:
    # An instruction's place is asked for by the address behind its first byte, as a call's by its return address.
    done = [at + 1 for p in pieces.values() for at in (*p.fma, *p.flops)]
    jumps = [p.jump + 1 for p in pieces.values() if p.jump]
    where = places(library, [*(s[0] for s in sites), *done, *jumps])
    own = outright(library, jumps)

    def lines(addresses: list[int]) -> dict[Place, int]:
        return dict(Counter(where[at + 1] for at in addresses))

    made = {at: Piece(lines(p.fma), lines(p.flops), where[p.jump + 1] if p.jump + 1 in own else None) for at, p in pieces.items()}
    return HostCode(tuple(Site(at, op, size, where[at], again) for at, op, size, again in sites), made)


def _instructions(library: Path) -> Iterator[tuple[int, str, str]]:
    """Address, name, operands; where a function begins, the name is empty."""
    tool = settings.tool_path("objdump")
    if tool is None:
        raise NoCompilerError("objdump is not on PATH: counting needs binutils (apt install binutils)")
    text = said(tool, library, "-d", "--no-show-raw-insn")
    for line in text.splitlines():
        if line.endswith(">:"):
            yield 0, "", ""
            continue
        address, colon, rest = line.partition(":\t")
        if colon:
            name, _, operands = rest.partition(" ")
            yield int(address, 16), name, operands.partition("#")[0].strip()


# -- the same address again -------------------------------------------------------------------------------------------

_REGISTER = re.compile(r"%(r\d+|[a-z]+)[bwd]?\b")
_SPILLED = re.compile(r"-?(?:0x[0-9a-f]+)?\(%rsp\)")
# of their operands alone
_PLAIN = frozenset(("mov", "movq", "movl", "movslq", "lea", "add", "addq", "sub", "shl", "sal", "imul", "and", "or", "neg"))
# that change no register
_KEEPS = ("cmp", "test", "ucomi", "vucomi", "comi", "vcomi", "bt", "j", "nop", "data16", "cs", "ret", "push", "prefetch")
_WIDE = {f"{a}{b}{c}": f"r{b}{c}" for a in ("e", "r", "") for b, c in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp")}
_KEPT = frozenset(("rbx", "rbp", "rsp", "r12", "r13", "r14", "r15"))  # by calls


class _Values:
    """What is in registers of an x86-64 processor and in spilled ones, as terms that are equal only where the values are. Elsewhere nothing
    is."""

    def __init__(self) -> None:
        self.held: dict[str, object] = {}
        self.spilled: dict[str, object] = defaultdict(object)

    def of(self, register: str) -> object:
        return self.held.setdefault(register, object())

    def after(self, name: str, operands: str, call: bool) -> None:
        if call:
            self.held = {r: v for r, v in self.held.items() if r in _KEPT}
            return
        if name.startswith(_KEEPS):
            if name == "push":
                self.spilled.clear()
            return
        parts = _split(operands)
        to = parts[-1] if parts else ""
        if _SPILLED.fullmatch(to):
            self.spilled[to] = self.of(_wide(parts[0][1:])) if name.startswith("mov") and parts[0].startswith("%r") else object()
        elif to.endswith(")"):
            self.spilled.clear()  # who knows where that lies
        elif to.startswith("%"):
            self.held[_wide(to[1:])] = self._term(name, parts)
        if name in ("pop", "xchg", "xadd", "div", "idiv", "mul", "cqto", "cltd", "cltq", "cwtl") or (name == "imul" and len(parts) == 1) or not parts:
            self.held = {r: v for r, v in self.held.items() if r in _KEPT - {_wide(p[1:]) for p in parts}}
            self.spilled.clear() if name == "pop" else None
        if to == "%rsp":
            self.spilled.clear()

    def _term(self, name: str, parts: list[str]) -> object:
        if name not in _PLAIN or "%rip" in parts[0]:
            return object()
        if name.startswith("mov") and _SPILLED.fullmatch(parts[0]):
            return self.spilled[parts[0]] if name in ("mov", "movq") and parts[-1].startswith("%r") else object()
        if name != "lea" and "(" in parts[0]:
            return object()
        if name in ("mov", "movq") and parts[0].startswith("%r"):
            return self.of(_wide(parts[0][1:]))
        used = parts if name not in ("mov", "movl", "movslq", "lea") and len(parts) == 2 else parts[:-1]
        text = ",".join(_REGISTER.sub("%", p) for p in used)
        return (name, text, *(self.of(_wide(m[0][1:])) for p in used for m in _REGISTER.finditer(p)))


def _wide(register: str) -> str:
    """The whole register that one is a part of."""
    if register in _WIDE:
        return _WIDE[register]
    if match := re.fullmatch(r"(r\d+)[bwd]?", register):
        return match[1]
    return (
        f"r{register[0]}x" if re.fullmatch(r"[abcd][hl]", register) else f"r{register[:-1]}" if register in ("sil", "dil", "bpl", "spl")
        else register
    )


def _split(operands: str) -> list[str]:
    """Operands at the commas that stand outside parentheses."""
    return [p.strip() for p in re.split(r",(?![^(]*\))", operands)] if operands else []
