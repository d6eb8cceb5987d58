"""Machine code of a file without a head: its kernels as they stand, without its host code, whatever else the file holds.

NVRTC is given the declarations of the file and of its headers, without the functions of the host's. Where it refuses one, that one is left
out and the rest is tried again: so a struct of the host's or one broken kernel keeps no other kernel from its machine code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from rooftop.core.compile import Binary, CompileError, compile_cuda, cuda_include
from rooftop.core.helpers import SHARED
from rooftop.core.spec import Device
from rooftop.lab.inspect.inspector import Facts, cached_facts, symbols
from rooftop.lab.inspect.occupancy import occupancy
from rooftop.lab.simt import build, host, program_build, program_headers, program_text
from rooftop.lab.simt.instances import Instance, Templates
from rooftop.lab.simt.program_build import Source
from rooftop.lab.simt.tokens import Token, tokenise

# What NVRTC does not declare by itself and headers of the host's do.
_LIMITS = {
    "INFINITY": "__int_as_float(0x7f800000)", "NAN": "__int_as_float(0x7fffffff)", "NULL": "0", "FLT_MAX": "3.402823466e+38F",
    "FLT_MIN": "1.175494351e-38F", "__FLT_MAX__": "3.402823466e+38F", "__DBL_MAX__": "1.7976931348623157e+308",
    "FLT_EPSILON": "1.192092896e-07F", "DBL_MAX": "1.7976931348623158e+308", "DBL_MIN": "2.2250738585072014e-308", "INT_MAX": "2147483647",
    "INT_MIN": "(-INT_MAX - 1)", "UINT_MAX": "4294967295U", "UINT32_MAX": "4294967295U", "LLONG_MAX": "9223372036854775807LL",
    "CHAR_BIT": "8", "CHAR_MAX": "127", "SCHAR_MAX": "127", "UCHAR_MAX": "255", "SHRT_MAX": "32767", "SHRT_MIN": "(-32767 - 1)", "USHRT_MAX": "65535",
    "LONG_MAX": "9223372036854775807L", "ULONG_MAX": "18446744073709551615UL", "LLONG_MIN": "(-LLONG_MAX - 1)", "ULLONG_MAX": "18446744073709551615ULL",
    "DBL_EPSILON": "2.2204460492503131e-16",
    "M_PI": "3.14159265358979323846", "M_PI_F": "3.14159265358979323846f", "M_SQRT1_2": "0.70710678118654752440",
    "M_SQRT2": "1.41421356237309504880",
    "M_E": "2.71828182845904523536",
    "M_LOG2E": "1.44269504088896340736", "M_LN2": "0.69314718055994530942", "M_PI_2": "1.57079632679489661923",
    "M_2_SQRTPI": "1.12837916709551257390",
    "RAND_MAX": "2147483647",
}
# of them <cmath> takes the functions below as of doubles
_WHOLE = "int", "unsigned", "long", "unsigned long", "long long", "unsigned long long"
_OF_WHOLE = "ceil", "floor", "round", "sqrt", "cbrt", "exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "erf"
SHIM = "".join((
    '#line 1 "what rooftop declares"\n#define register\n', host.INTEGERS, *(f"typedef unsigned {t} u{t}; " for t in ("int", "short", "char", "long")),
    "typedef unsigned long long uint64_t; typedef long long int64_t; typedef uint64_t uintptr_t; typedef int64_t intptr_t; "
    "typedef unsigned long size_t; "
    "typedef struct _IO_FILE FILE; typedef unsigned long long CUtexObject; typedef unsigned long long CUsurfObject;\n",
    *(f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in _LIMITS.items()),
    "template <class T> struct rooftop_whole; ", *(f"template <> struct rooftop_whole<{t}> {{ typedef double type; }}; " for t in _WHOLE),
    *(f"template <class T> __device__ inline typename rooftop_whole<T>::type {f}(T x) {{ return {f}((double) x); }} " for f in _OF_WHOLE),
    *(f"template <class T{more}> __device__ inline typename rooftop_whole<{kind}>::type pow(T x, {u} y) {{ return pow((double) x, (double) y); }} "
      for u, kind, more in (("U", "decltype(T() * U())", ", class U"), ("float", "T", ""), ("double", "T", ""))), "\n",
))
BEFORE_VOLTA = {  # instructions of a warp without a mask, as sources written for older GPUs have them: of all lanes
    **{f"__shfl{n}": f"template <class T> __device__ T __shfl{n}(T v, int n, int w = 32) {{ return __shfl{n}_sync(0xffffffffu, v, n, w); }}\n"
       for n in ("", "_up", "_down", "_xor")},
    **{f"__{n}": f"__device__ inline {t} __{n}(int p) {{ return __{n}_sync(0xffffffffu, p); }}\n"
       for n, t in (("any", "int"), ("all", "int"), ("ballot", "unsigned"))},
}
HALVES = ("#include <cuda_fp16.h>\n", r"\b(?:half2?|__half\w*|__\w*half2?\w*)\b"), ("#include <cuda_bf16.h>\n", r"bfloat16")
STD = {  # parts of C++'s library, in namespace std: what speaks of them -> their header for a GPU
    r"numeric_limits": "limits",
    r"is_same|enable_if|conditional|is_integral|is_floating|decay|remove_|\w+_constant|true_type|false_type|is_convertible|void_t": "type_traits",
    r"min\b": "__algorithm/min.h", r"max\b": "__algorithm/max.h", r"array\b": "array",
    r"(?:move|forward|swap|pair|index_sequence|integer_sequence|make_index)": "utility", r"tuple": "tuple",
    r"(?:sqrt|exp|log|pow|abs|fabs|floor|ceil|isnan|isinf|fma|tanh?|sin|cos|erf|round|isfinite)": "cmath", r"u?int\d+_t": "cstdint",
    r"complex": "complex",
}
CUB = "".join(f"#include <cub/{n}.cuh>\n" for n in (
    *(
        f"block/block_{b}"
        for b in ("reduce", "scan", "load", "store", "radix_sort", "exchange", "histogram", "discontinuity", "merge_sort")
    ),
    *(f"warp/warp_{w}" for w in ("reduce", "scan", "load", "store", "merge_sort")),
))  # of <cub/cub.cuh>, what a kernel may use
_GIVEN = re.compile(r"cuda/.*|cooperative_groups(?:/.*|\.h)|cuda_(?:fp\d+|bf16|pipeline\w*|awbarrier\w*)\.h(?:pp)?|mma\.h|math_constants\.h|cub/.*|nv/target")
_ERROR = re.compile(r"^(.*)\((\d+)\): (?:catastrophic )?error: (.*)$")
_FROM = re.compile(r"at line (\d+)(?: of (.*))?$")
_NAMED = re.compile(
    r'(?:identifier|template|class|struct|namespace|name) "?([\w:]+)"? (?:is undefined|is not)|no instance of .* "(?:\w+::)*(\w+)'
)
_ABSENT = re.compile(r"kernel '(.*)' is not in the file: (.*)$")
_INCLUDE = re.compile(r"[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]")
ROUNDS = 24
DEFAULT_THREADS = 256  # of a block, where the source says nothing of it


def _cudas(name: str) -> bool:
    """Whether it is a header of CUDA's that is here."""
    return any((Path(folder) / name).is_file() for folder in cuda_include())


@dataclass
class Part:
    """A declaration: of which file, from line to line."""

    shown: str
    first: int
    last: int
    tokens: list[Token]
    error: str = ""  # why it is left out
    names: tuple[str, ...] = ()  # of the kernel that it is

    @property
    def kernel(self) -> bool:
        return bool(self.names)


@dataclass
class Code:
    """What NVRTC is given of a source. `absent`: headers that are not here, as the user's file has them; `stands_in`: those that others
    stand for."""

    source: Source
    absent: list[str] = field(default_factory=list)
    stands_in: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    order: list[tuple[str, object]] = field(default_factory=list)  # of text and parts

    def __post_init__(self) -> None:
        self.marks = host.marks(list(self.source.texts.values()))
        self._add(self.source.shown, set())

    def _add(self, shown: str, seen: set[str]) -> None:
        seen.add(shown)
        tokens = tokenise(self.source.texts[shown])
        try:
            remaining = host.left_out(tokens, self.marks)
        except host.UnreadableError:
            remaining = tokens
        self.order.append((f'\n#line 1 "{shown}"\n', None))
        at = 0
        while at < len(remaining):
            try:
                end, _ = host.declaration(tokens, at)
            except host.UnreadableError:
                end = len(tokens)
            piece = remaining[at:end]
            at = end
            if all(t.kind in ("space", "newline", "comment") for t in piece):
                self.order.append(("".join("\n" * t.text.count("\n") for t in piece), None))
                continue
            code = [t for t in piece if t.kind not in ("space", "newline", "comment")]
            directives = [t for t in piece if t.kind == "directive"]
            if len(code) == 1 and directives:
                self.order.append(("".join("\n" * t.text.count("\n") for t in piece[: piece.index(code[0])]), None))
                self._directive(shown, directives[0], seen)
                continue
            for i, t in enumerate(piece):
                if t.kind == "directive" and (m := _INCLUDE.match(t.text)):
                    piece[i] = Token("directive", self._included(shown, t, m[1]), t.line)
            part = Part(shown, code[0].line, piece[-1].line + piece[-1].text.count("\n"), piece, names=self._kernel(code))
            self.parts.append(part)
            self.order.append(("", part))

    def _kernel(self, code: Sequence[Token]) -> tuple[str, ...]:
        words = [t.text for t in code]
        if "__global__" not in words:
            return ()
        after = words[words.index("__global__") :]
        return tuple(a for a, b in pairwise(after) if b == "(" and a.isidentifier() and not a.startswith("__"))[:1]

    def _directive(self, shown: str, token: Token, seen: set[str]) -> None:
        if (match := _INCLUDE.match(token.text)) is None:
            self.order.append((token.text, None))
        elif (own := self.source.includes.get(shown, {}).get(match[1])) is not None:
            if own not in seen:
                self._add(own, seen)
                self.order.append((f'\n#line {token.line} "{shown}"\n', None))
        else:
            self.order.append((self._included(shown, token, match[1]), None))

    def _included(self, shown: str, token: Token, name: str) -> str:
        if name == "curand_kernel.h" and not _cudas(name):
            self.stands_in.append(f"{shown}:{token.line}: <{name}>")
            text = (build.RUNTIME / "include" / name).read_text(encoding="utf-8").replace("SIMT_INLINE", "__device__ inline").replace("#pragma once\n", "")
            return f'#line 1 "{name}"\n{text}#line {token.line} "{shown}"\n'
        if name == "cub/cub.cuh":
            return CUB + f'#line {token.line} "{shown}"\n'
        if (_GIVEN.fullmatch(name) and _cudas(name)) or (SHARED / name).is_file():
            return token.text
        if not program_headers.HOSTS.fullmatch(name) or _GIVEN.fullmatch(name):
            self.absent.append(f"{shown}:{token.line}: <{name}>")
        return ""

    @cached_property
    def begin(self) -> str:
        shared = "".join(t.text for p in self.parts for t in p.tokens if t.kind != "comment")
        headers = [line for line, words in HALVES if re.search(words, self.source.whole) or "mma.h" in self.source.whole]
        used = [f"cuda/std/{header}" for words, header in STD.items() if re.search(rf"\bstd::(?:{words})", shared)]
        standard = [f"#include <{name}>\n" for name in used if _cudas(name)]
        using = "".join(standard) + ("namespace std { using namespace cuda::std; }\n" if standard else "namespace std {}\n")
        old = "".join(text for name, text in BEFORE_VOLTA.items() if re.search(rf"\b{name}\s*\(", self.source.whole))
        return "".join(headers) + using + SHIM + old

    def text(self) -> str:
        parts = [self.begin]
        for text, part in self.order:
            if not isinstance(part, Part):
                parts.append(text)
            elif part.error:
                parts += [t.text if t.kind == "directive" else "\n" * t.text.count("\n") for t in part.tokens]
            else:
                parts += [t.text for t in part.tokens]
        return "".join(parts)

    def as_nvcc(self, errors: Sequence[tuple[str, int, str]]) -> bool:
        """Takes out what nvcc ignores and NVRTC refuses: `__restrict__` of a type that is no pointer. Whether there was any."""
        lines = {(shown, line) for shown, line, said in errors if said == '"restrict" is not allowed'}
        before = sum(len(t.text) for p in self.parts for t in p.tokens)
        for part in self.parts:
            part.tokens = [
                t._replace(text="") if (part.shown, t.line) in lines and t.text in ("__restrict__", "__restrict") else t for t in part.tokens
            ]
        return sum(len(t.text) for p in self.parts for t in p.tokens) < before

    def leave_out(self, errors: Sequence[tuple[str, int, str]]) -> bool:
        """Marks the declarations with errors; whether there are any more than before."""
        more = False
        for shown, line, said in errors:
            for part in self.parts:
                if part.shown == shown and part.first <= line <= part.last and not part.error:
                    part.error = f"{shown}:{line}: {said}"
                    more = True
        return more

    def reason(self, part: Part) -> str:
        """Why a kernel does not compile: its own error, or that of what it uses and what is left out; with the headers that are not
        here."""
        said, seen = part.error, {id(part)}
        while m := _NAMED.search(said):
            word = (m[1] or m[2]).rpartition("::")[2]
            cause = next((p for p in self.parts if p.error and id(p) not in seen and any(t.text == word for t in p.tokens)), None)
            if cause is None:
                break
            seen.add(id(cause))
            said = cause.error
        return said + (f"; not here: {', '.join(self.absent)}" if self.absent else "")


@dataclass(frozen=True)
class Kernels:
    """What came of a source on one target. `refused`: by kernel why not; `needs`: whether that is for something that is not here, or that
    nothing says."""

    found: list[Facts]
    refused: dict[str, str]
    needs: bool
    left_out: list[str] = field(default_factory=list)  # of the device's code, what does not compile: "file:line: error"
    stands_in: list[str] = field(default_factory=list)  # headers of the file that others stand for


def facts(source: Source, device: Device, only: str | None = None) -> Kernels:
    """The facts of each kernel's machine code, and of those that do not compile the compiler's words."""
    code = Code(source)
    templates = Templates(list(source.texts.values()))
    wanted, opened = templates.instances()
    refused = dict.fromkeys(opened, "a template, and nothing says with which arguments: --kernel 'NAME<...>' does")
    if only is not None:
        wanted, refused = _chosen(code, templates, wanted, only), {}
    binary, said = _compiled(code, wanted, device.target)
    broken = {p.names[0]: code.reason(p) for p in code.parts if p.error and p.kernel}
    refused |= broken | {n: why for n, why in said.items() if _base(n) not in broken and (n != source.shown or not broken)}
    results: list[Facts] = []
    if binary is not None:
        wanted_symbols = {s: i for i in wanted if (s := binary.names.get(i.name)) is not None}
        names = _names(symbols(binary.cubin))
        for symbol in symbols(binary.cubin):
            name = wanted_symbols[symbol].name if symbol in wanted_symbols else names[symbol]
            if only is None or symbol in wanted_symbols or (not wanted_symbols and _base(name) == _base(only)):
                results.append(_facts(source, device, binary, symbol, name, wanted_symbols[symbol].assumed if symbol in wanted_symbols else ""))
    if only is not None and not results and not refused:
        have = "; ".join(map(str, [*templates.plain, *templates.kernels.values()]))
        raise ValueError(f"--kernel {only}: {source.shown} has no such kernel; it has {have}")
    needs = bool(code.absent) or bool(opened)
    left = [p.error for p in code.parts if p.error and not p.kernel and any(t.text in code.marks for t in p.tokens)]
    return Kernels(results, refused, needs, left, code.stands_in)


def binary(source: Source, kernels: Sequence[str], target: str) -> Binary:
    """The machine code of some kernels of a source, by their name expressions. Raises CompileError with the compiler's words, for the first
    that it refuses."""
    code = Code(source)
    compiled, said = _compiled(code, [Instance(k) for k in kernels], target)
    broken = {p.names[0]: code.reason(p) for p in code.parts if p.error and p.kernel}
    for k in kernels:
        if compiled is None or k not in compiled.names:
            raise CompileError(
                f"{k} is not compiled: {broken.get(_base(k)) or said.get(k) or said.get(source.shown) or 'the source has no such kernel'}"
            )
    assert compiled is not None
    return compiled


def _base(name: str) -> str:
    return name.partition("<")[0].rpartition("::")[2].strip()


def _chosen(code: Code, templates: Templates, wanted: Sequence[Instance], only: str) -> list[Instance]:
    """The instances of one kernel; the others are left out of the code."""
    base = _base(only)
    for part in code.parts:
        if part.kernel and part.names[0] != base and base not in {t.text for t in part.tokens}:
            part.error, part.names = "not chosen", ()
    if "<" in only:
        full = templates.kernels[base].name + only[only.index("<") :] if base in templates.kernels else only
        return [Instance(full)]
    return [i for i in wanted if _base(i.name) == base]


def _compiled(code: Code, wanted: list[Instance], target: str) -> tuple[Binary | None, dict[str, str]]:
    """The machine code of all that compiles, and of instances that do not why. `wanted` loses these."""
    refused: dict[str, str] = {}
    options: tuple[str, ...] = ()
    for _ in range(ROUNDS):
        try:
            return compile_cuda(code.text(), name=code.source.shown, target=target, kernels=[i.name for i in wanted], options=options), refused
        except CompileError as error:
            said = str(error)
        if "device-side kernel launch" in said and not options:
            options = ("relocatable",)  # kernels that launch kernels are linked with CUDA's device runtime
            continue
        absent = {m[1].strip(): m[2] for line in said.splitlines() if (m := _ABSENT.search(line))}
        if absent:
            refused |= {n: why for n, why in absent.items() if not any(p.error and p.kernel and p.names[0] == _base(n) for p in code.parts)}
            gone = {re.sub(r"\s", "", n) for n in absent}  # NVRTC writes names with spaces of its own
            remaining = [i for i in wanted if re.sub(r"\s", "", i.name) not in gone]
            wanted[:] = remaining if len(remaining) < len(wanted) else []
        elif not code.as_nvcc(errors := list(_errors(said))) and not code.leave_out(errors):
            return None, {**refused, code.source.shown: said}
    return None, {**refused, code.source.shown: said}


def _errors(said: str) -> Iterator[tuple[str, int, str]]:
    """File, line and text of each error; of one in a header of CUDA's, also the lines that led to it."""
    now: tuple[str, int, str] | None = None
    for line in said.splitlines():
        if (m := _ERROR.match(line)) is not None:
            now = m[1], int(m[2]), m[3]
            yield now
        elif now is not None and (m := _FROM.search(line.strip())) is not None:
            yield m[2] or now[0], int(m[1]), now[2]


def _names(symbols: Sequence[str]) -> dict[str, str]:
    """Names of functions as the source has them, but for their parameters; these too where a name is that of several."""
    demangled = {s: _demangled(s) for s in symbols}
    every = list(demangled.values())
    return {s: name if every.count(name) == 1 else f"{name} [{s}]" for s, name in demangled.items()}


def _demangled(symbol: str) -> str:
    if not symbol.startswith("_Z"):
        return symbol
    rest, parts = symbol[2:].lstrip("NL"), []
    while m := re.match(r"L?(\d+)", rest):
        n = int(m[1])
        parts.append(rest[m.end() : m.end() + n])
        rest = rest[m.end() + n :]
    arguments = "<...>" if rest.startswith("I") else ""
    return "::".join(p for p in parts if not p.startswith("_GLOBAL__N_")) + arguments


def _facts(source: Source, device: Device, binary: Binary, symbol: str, name: str, assumed: str) -> Facts:
    stored = cached_facts(binary.cubin, symbol)
    threads = _threads(source, name)
    limit = occupancy(device.arch, registers=stored.registers, threads=threads, static_shared=stored.shared, dynamic_shared=0, cluster=1)
    return {
        "kernel": name, "assumed": assumed, "registers": stored.registers, "spills": stored.stack, "shared": stored.shared, "threads": threads,
        "counts": stored.counts, "instructions": stored.instructions, "loop": stored.loop.counts if stored.loop else {},
        "occupancy": {"percent": limit.percent, "limiter": limit.limiter, "blocks": limit.blocks, "refused": limit.refused},
        "opcodes": dict(stored.opcodes), "unmet": [],
    }


def _threads(source: Source, name: str) -> int:
    """Of a block: what `__launch_bounds__` says."""
    bound = re.search(rf"__launch_bounds__\s*\(\s*(\d+)[^)]*\)[^;{{}}]*\b{re.escape(_base(name))}\s*\(", source.whole)
    return min(int(bound[1]), 1024) if bound else DEFAULT_THREADS


def read(path: Path, folders: Sequence[Path] = ()) -> Source:
    """Raises ValueError for a file without kernels."""
    source = program_build.read(path, folders)
    if "__global__" not in source.whole:
        n = sum(program_text.launches(t) for t in source.texts.values())
        calls = sorted(
            {m[1] for m in re.finditer(r"\b((?:cublas|curand|cufft|cusolver|cudnn|thrust|nccl)\w*)(?:::\w+)?\s*[(<]", source.whole)}
        )
        why = (
            f", though it has {n} launches: a header is missing, or they are another file's" if n else f"; it calls {', '.join(calls[:4])}"
            if calls else ""
        )
        raise NoKernelError(f"{path} has no kernel of its own{why}")
    return source


class NoKernelError(ValueError):
    """A file has no kernel."""
