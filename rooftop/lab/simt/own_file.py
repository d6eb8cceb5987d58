"""Machine code of a file without a head: its kernels as they stand, without its host code, whatever else the file holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rooftop.core.compile import CompileError, compile_cuda
from rooftop.core.spec import Device
from rooftop.lab.inspect.inspector import Facts, cached_facts
from rooftop.lab.inspect.occupancy import occupancy
from rooftop.lab.simt import ordinary, program_build, program_text
from rooftop.lab.simt.program_build import Source
from rooftop.lab.simt.tokens import tokenise
from rooftop.lab.simt.translate import device_code

# What NVRTC does not declare by itself and headers of the host's do.
SHIM = (
    "typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar; typedef unsigned long ulong; "
    "typedef unsigned long long uint64_t; typedef long long int64_t; typedef unsigned long size_t; typedef unsigned long long uintptr_t;\n"
    "#define INFINITY __int_as_float(0x7f800000)\n#define NAN __int_as_float(0x7fffffff)\n#define NULL 0\n#define FLT_MAX 3.402823466e+38F\n"
    "#define FLT_MIN 1.175494351e-38F\n#define FLT_EPSILON 1.192092896e-07F\n#define DBL_MAX 1.7976931348623158e+308\n#define INT_MAX 2147483647\n"
    "#define INT_MIN (-INT_MAX - 1)\n#define UINT_MAX 4294967295U\n#define CHAR_BIT 8\n"
    "#define M_PI 3.14159265358979323846\n#define M_PI_F 3.14159265358979323846f\n"
    "namespace std {}\n#define UINT32_MAX 4294967295U\n"
)
_HOSTS = re.compile(  # names of the host's library
    r"^[ \t]*using[ \t]+(?:std::\w+(?:::\w+)*|\w+[ \t]*=[ \t]*std::(?:vector|string|map|function|chrono)\b[^;]*);", re.M,
)  # fmt: skip
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
DEFAULT_THREADS = 256  # of a block, where the source says nothing of it


def whole(source: Source) -> str:
    """The device's code of a file and of its own headers, as NVRTC takes it."""
    own = {name: source.texts[shown] for of in source.includes.values() for name, shown in of.items()}
    text = device_code(source.texts[source.shown], source.shown, own)
    text = _HOSTS.sub("", text)
    halves = re.search(r"\b(half|half2|__half)\b", source.whole) is not None
    uses = [line for line in HEADERS.splitlines(keepends=True) if line.strip() in source.whole or (halves and "fp16" in line)]
    if "mma.h" in source.whole and not uses:
        uses = HEADERS.splitlines(keepends=True)[:1]
    return "".join(uses) + SHIM + text


def entries(source: Source) -> tuple[list[str], list[str]]:
    """Name expressions of the kernels: those that are no templates, and templates as they are launched or instantiated. And those of which nothing says
    with which arguments."""
    every = [k for text in source.texts.values() for k in ordinary.kernels(text)]
    plain = [k.name for k in every if not k.template]
    templates = {k.name.rpartition("::")[2]: k.name for k in every if k.template}
    numbers = dict(re.findall(r"\b(?:constexpr|const)\s+(?:static\s+)?(?:unsigned\s+)?(?:int|size_t|uint|bool)\s+(\w+)\s*=\s*([\w*+\-/() ]+);", source.whole))
    found: list[str] = []
    for text in source.texts.values():
        tokens = [t for t in tokenise(text) if t.kind in ("word", "number", "symbol")]
        for i, t in enumerate(tokens[:-1]):
            if t.kind == "word" and t.text in templates and tokens[i + 1].text == "<":
                depth, end = 0, i + 1
                while end < len(tokens):
                    depth += (tokens[end].text == "<") - (tokens[end].text == ">")
                    if not depth:
                        break
                    end += 1
                given = " ".join(numbers.get(x.text, x.text) for x in tokens[i + 2 : end])
                found.append(f"{templates[t.text]}<{given}>")
    named = {f.partition("<")[0] for f in found}
    return list(dict.fromkeys([*plain, *found])), [name for name in templates.values() if name not in named]


def facts(source: Source, device: Device, only: str | None = None) -> tuple[list[Facts], dict[str, str]]:
    """The facts of each kernel's machine code, and of those that do not compile the compiler's words."""
    text = whole(source)
    asked, open_ = entries(source)
    refused = dict.fromkeys(open_, "a template: --kernel 'NAME<...>' says with which arguments")
    if only is not None:
        asked = [only] if "<" in only else [a for a in asked if a.partition("<")[0] == only or a.partition("<")[0].endswith(f"::{only}")] or [only]
        refused = {}
    found: list[Facts] = []
    for name in asked:
        try:
            binary = compile_cuda(text, name=source.shown, target=device.target, kernels=[name])
        except CompileError as error:
            refused[name] = str(error)
            continue
        known = cached_facts(binary.cubin, binary.names[name])
        threads = _threads(source, name)
        limit = occupancy(device.arch, registers=known.registers, threads=threads, static_shared=known.shared, dynamic_shared=0, cluster=1)
        found.append({
            "kernel": name, "registers": known.registers, "spills": known.stack, "shared": known.shared, "threads": threads, "counts": known.counts,
            "occupancy": {"percent": limit.percent, "limiter": limit.limiter, "blocks": limit.blocks, "refused": limit.refused},
            "opcodes": dict(known.opcodes), "unmet": [],
        })  # fmt: skip
    compiled = {k["kernel"].partition("<")[0] for k in found}  # a name inside the template itself is no instantiation
    return found, {name: why for name, why in refused.items() if name.partition("<")[0] not in compiled}


def _threads(source: Source, name: str) -> int:
    """Of a block: what `__launch_bounds__` says."""
    base = re.escape(name.partition("<")[0].rpartition("::")[2])
    bound = re.search(rf"__launch_bounds__\s*\(\s*(\d+)[^)]*\)[^;{{}}]*\b{base}\s*\(", source.whole)
    return min(int(bound[1]), 1024) if bound else DEFAULT_THREADS


def read(path: Path, folders: Sequence[Path] = ()) -> Source:
    """Raises ValueError for a file without kernels."""
    source = program_build.read(path, folders)
    if not entries(source)[0] and not entries(source)[1]:
        n = sum(program_text.launches(t) for t in source.texts.values())
        raise ValueError(f"{path} has no kernel of its own" + (f", though it has {n} launches: a header is missing?" if n else ""))
    return source
