"""How a simulation's library is laid out: the kernels' code apart from the engine's, and the source's own variables apart from each other.

`__device__` and `__constant__` variables are variables of the library, which all of its workers share. GNU ld (or lld) puts them behind
each other with a gap around each, by a script that adds to its own (https://sourceware.org/binutils/docs/ld/Miscellaneous-Commands.html,
INSERT). So an access is told from one of the engine's by its address, one past a variable's end is seen, and all of them are put back
before a run."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from rooftop.lab.simt.tools import said

GAP = 1 << 12  # bytes between variables, in which every access is a fault
ALIGN = 256
_SYMBOL = re.compile(r"([0-9a-f]+) ([0-9a-f]+) ([A-Za-z]) (.+)")
_NOT_THEIRS = re.compile(r"simt_site_|simt_kernel_|simt_type_|^_ZG|^_ZT|^_ZZ?N[KVR]?(?:4simt|St)|^_ZSt|^_ZL?__|^\.")
_WRITABLE = frozenset("bBdDuV")  # of nm's letters; a V may be constant: then no section below takes it


@dataclass(frozen=True)
class Variable:
    """A variable of the source: `at` bytes from the first place that the script keeps for them."""

    name: str
    at: int
    size: int
    constant: bool  # __constant__


@dataclass(frozen=True)
class _Symbol:
    raw: str
    address: int
    size: int
    name: str


def _symbols(nm: Path, file: Path, letters: Collection[str]) -> list[_Symbol]:
    """Of a file, with what the source calls them."""

    def asked(*options: str) -> list[tuple[str, str, str, str]]:
        return [(m[1], m[2], m[3], m[4]) for line in said(nm, file, "-p", "-S", *options).splitlines() if (m := _SYMBOL.fullmatch(line))]

    pairs = zip(asked(), asked("-C"), strict=True)
    return [_Symbol(raw[3], int(raw[0], 16), int(raw[1], 16), _short(shown[3])) for raw, shown in pairs if raw[2] in letters]


def _short(name: str) -> str:
    """A demangled name as the source has it: without the parameters of the function that it is local to."""
    return name.replace("(anonymous namespace)::", "").replace("simt_unnamed::", "").rpartition(")::")[2]


def script(nm: Path, kernel: Path, constants: Collection[str], *others: Path) -> tuple[str, dict[str, bool]]:
    """The linker's script for the object file `kernel`, and its variables by symbol: whether each is one of `constants`, names as the
    source has them.

    `others`: objects whose code lies beside the kernels'."""
    found = {
        s.raw: re.sub(r"<.*>$", "", s.name).rpartition("::")[2] in constants for s in _symbols(nm, kernel, _WRITABLE)
        if not _NOT_THEIRS.search(s.raw)
    }

    def sections(symbols: Sequence[str], *kinds: str) -> str:
        return "".join(f". += {GAP}; . = ALIGN({ALIGN}); *{kernel.name}({' '.join(f'{kind}.{s}' for kind in kinds)})\n" for s in symbols)

    data, bss = (".data", ".data.rel", ".data.rel.local"), (".bss",)
    held, plain = [s for s, c in found.items() if c], [s for s, c in found.items() if not c]
    order = (".text.unlikely", ".text.startup", ".text.hot", ".text")  # as the linker's own script has it
    text = " ".join(f"*{file.name}({s} {s}.*)" for file in (kernel, *others) for s in order)
    return (
        f"SECTIONS {{ .simt_text : {{ HIDDEN(simt_code = .); . += 16; {text} . += 16; HIDDEN(simt_code_end = .); }} }} INSERT AFTER .text;\n"
        f"SECTIONS {{\n.simt_constant : ALIGN(4096) {{ HIDDEN(simt_variables = .); . += 16;\n{sections(held, *data, *bss)}. += {GAP}; }}\n"
        f".simt_data : ALIGN(4096) {{ HIDDEN(simt_device = .); . += 16;\n{sections(plain, *data)}. += {GAP}; }}\n"
        f".simt_bss (NOLOAD) : ALIGN(4096) {{ HIDDEN(simt_zeroed = .); . += 16;\n{sections(plain, *bss)}. += {GAP}; HIDDEN(simt_variables_end = .); }}\n"
        "} INSERT AFTER .bss;\n"
    ), found


def written(nm: Path, library: Path, found: dict[str, bool]) -> str:
    """The variables of the library, as `variables` reads them."""
    if not found:
        return "[]"
    symbols = _symbols(nm, library, _WRITABLE)
    place = {s.raw: s.address for s in symbols_of_script(nm, library)}
    first, end = place["simt_variables"], place["simt_variables_end"]
    there = sorted((s for s in symbols if s.raw in found and first <= s.address < end), key=lambda s: s.address)
    return json.dumps([asdict(Variable(s.name, s.address - first, s.size, found[s.raw])) for s in there])


def symbols_of_script(nm: Path, library: Path) -> list[_Symbol]:
    """What the script itself names: these have no size."""
    parts = [line.split() for line in said(nm, library, "-p").splitlines()]
    return [_Symbol(p[2], int(p[0], 16), 0, p[2]) for p in parts if len(p) == 3 and p[2].startswith("simt_variables")]


@lru_cache(maxsize=256)
def variables(library: Path) -> tuple[Variable, ...]:
    """The `__device__` and `__constant__` variables of a built library, in the order of their addresses."""
    return tuple(Variable(**v) for v in json.loads(library.with_suffix(".variables").read_text(encoding="utf-8")))
