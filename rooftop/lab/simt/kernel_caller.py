"""A main() for kernels alone: it launches one as `--arg` and the like say, or each as is assumed from its code and said."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from rooftop.lab.interpret import guesses
from rooftop.lab.simt import ordinary
from rooftop.lab.simt.ordinary import Kernel, Parameter
from rooftop.lab.simt.program_caller import REAL, WHOLE, Unknown, main_of, shown

FLOATS = {"f32": "float", "f64": "double", "f16": "__half", "bf16": "__nv_bfloat16"}
ARRAYS = {
    "half": "f16", "nv_bfloat16": "bf16", "int": "i32", "unsigned int": "u32", "unsigned": "u32", "uint": "u32", "char": "i8", "signed char": "i8",
    "unsigned char": "u8", "short": "i16", "unsigned short": "u16", "long": "i64", "unsigned long": "u64", "size_t": "u64"
}
VECTOR = re.compile(r"(float|double|u?int|u?short|u?char|half|__half|__nv_bfloat16)([1-4])")  # CUDA's types of several numbers
ZEROS = re.compile(r"curandState\w*|cu\w*Complex")  # of its libraries: zeros stand for them
DYNAMIC = 48 << 10  # bytes of dynamic shared memory where nothing says them: what a launch may have without asking for more
CTYPES = {
    **FLOATS, "bool": "bool", "longlong": "long long", "ulonglong": "unsigned long long",
    **{f"{s}{b}": f"{'u' if s == 'u' else ''}int{b}_t" for s in "iu" for b in (8, 16, 32, 64)}
}


def call_of_kernel(
    entry: str, grid: Sequence[int], block: Sequence[int], shared: int, cooperative: bool, given: Mapping[str, str]
) -> tuple[str, str]:
    """C++ with a main() that launches a kernel with arguments in the order in which they are given: as `--arg` writes them."""
    return main_of([_launch(entry, grid, block, shared, cooperative, given)]), ""


def _launch(entry: str, grid: Sequence[int], block: Sequence[int], shared: int, cooperative: bool, given: Mapping[str, str]) -> str:
    lines, names, arrays = [], [], []
    for i, (name, text) in enumerate(given.items()):
        kind, colon, rest = text.partition(":")
        sizes, _, contents = rest.partition(":")
        if colon and re.fullmatch(r"\w+\*", kind) and re.fullmatch(r"\d+x\d+", sizes):  # pointers to arrays of one length
            own, (many, length) = CTYPES.get(kind[:-1], kind[:-1]), sizes.split("x")
            lines += [
                f"    {own} *{name}_all, **{name}; cudaMalloc(&{name}_all, {many} * {length} * sizeof({own}));",
                f"    cudaMalloc(&{name}, {many} * sizeof({own}*)); simt_made::fill({name}_all, {many} * {length}, {i});",
                f"    simt_made::rows({name}, {name}_all, {many}, {length});",
            ]
            names.append(name)
        elif colon and re.fullmatch(r"\w+", kind) and re.fullmatch(r"\d+(x\d+)*", sizes):
            passed, name = "." not in name, name.replace(".", "_")  # a struct hands its pointers over
            count = math.prod(map(int, sizes.split("x")))
            vector = VECTOR.fullmatch(kind)
            random = f"simt_made::fill(({vector[1]}*){name}, {count} * {vector[2]}, {i});" if vector else f"simt_made::fill({name}, {count}, {i});"
            fill = {"": random, "random": random, "empty": "", "zeros": f"cudaMemset({name}, 0, {count} * sizeof *{name});"}.get(contents)
            if fill is None:
                raise ValueError(f"--arg {name}={text}: of this kernel the contents may be random, zeros or empty")
            own = CTYPES.get(kind, kind)
            lines.append(f"    {own}* {name}; cudaMalloc(&{name}, {count} * sizeof({own})); {fill}")
            names += [name] * passed
            arrays += [(name, sizes)] * (kind in CTYPES)
        elif text.endswith(".npy"):
            raise ValueError(f"--arg {name}={text}: of this kernel tensors are given as TYPE:SIZE")
        else:
            names.append("nullptr" if text in ("null", "nullptr") else text)
    extents = ", ".join(f"dim3({', '.join(map(str, e))})" for e in (grid, block))
    launch = f'simt::Launching simt_l("{entry}", {extents}, {shared}); simt_l.given.cooperative = {str(cooperative).lower()};'
    call = f"simt_l.run([=](auto... simt_a) {{ {entry}(simt_a...); }}{''.join(f', {n}' for n in names)});"
    call_text = f"\n    {launch} {call}\n    cudaDeviceSynchronize();"
    return "\n".join([*lines, shown("before", arrays, entry.replace(" ", "")) + call_text + shown("after", arrays)])


_SIDE = re.compile(
    r"^[ \t]*(?:#[ \t]*define|(?:static |const |constexpr )+int)[ \t]+(\w*(?:TILE|BLOCK|THREADS|Tile|BM|BS)\w*)[ \t]*=?[ \t]*(\d+)", re.M
)
SIDE = 64  # of an array of assumed size, in a kernel of which nothing says how it is launched
_TILE = re.compile(r"\bblockIdx\.([xy])\s*\*\s*(\w+)|\b(\w+)\s*\*\s*blockIdx\.([xy])")  # a block's part of the rows or columns
_OF_A_WARP = re.compile(r"\bmma\.sync|\bldmatrix|\bload_matrix_sync|\b__shfl|\bmma\w*\(")
_COARSE = re.compile(r"threadIdx\.([xy])\s*\*\s*(\w+)")  # elements of a thread, beside each other


def call_of_kernels(
    source_text: str, instances: Sequence[tuple[Kernel, str]], own: Mapping[str, str], headers: str = "", spare: int = 1, coarse: bool = False
) -> tuple[str, str]:
    """C++ with a main() that launches each kernel (its name expression beside it) as is assumed from its code, and what is assumed. `own`:
    arguments that `--arg` gives, by their names; `headers`: the text that may define structs; `spare`: how much longer arrays are than the
    sizes ask for; `coarse`: blocks are smaller by the elements that each thread takes, where nothing says what part a block has.

    Raises Unknown where none can be launched."""
    lines = source_text.split("\n")
    starts = sorted({k.line for k, _ in instances} | {n for n, line in enumerate(lines, 1) if "__global__" in line})
    launches, said, unknown = [], [], []
    for kernel, entry in instances:
        end = next((n for n in starts if n > kernel.line), len(lines) + 1)
        try:
            body = "\n".join(lines[kernel.line - 1 : end - 1])
            grid, block, shared, values = _assumed(kernel, entry, body, source_text, own, headers, spare, coarse)
        except Unknown as error:
            unknown.append(str(error))
            continue
        launches.append(_launch(entry, grid, block, shared, False, values))
        words = ", ".join(f"{n}={v}" for n, v in values.items())
        more = f", {shared} B shared" if shared else ""
        said.append(f"{entry}<<<{'x'.join(map(str, grid))}, {'x'.join(map(str, block))}{more}>>>({words})")
    if not launches:
        raise Unknown("; ".join(dict.fromkeys(unknown)) or "a kernel: it has none of its own")
    said += [f"not launched, as no caller can be made for {'; '.join(dict.fromkeys(unknown))}"] * bool(unknown)
    return main_of(launches), "; ".join(said)


def _placed(body: str) -> str:
    """A kernel's code with the places of thread and block by their own names, not by ones such as `tx`."""
    short = dict(re.findall(r"\b(\w+)\s*=\s*((?:block|thread)Idx\.[xy])\s*[;,]", body))
    return re.sub(r"\b\w+\b", lambda word: short.get(word[0], word[0]), body)


def _value(word: str, entry: str, kernel: Kernel, source_text: str) -> int:
    """The number that a word of a kernel's stands for: its own argument, or a constant of the source. 1 where nothing says it."""
    named = _arguments(entry, kernel, source_text).get(word, word)
    return ordinary.number(named.strip(" ()"), source_text) or 1


def _arguments(entry: str, kernel: Kernel, source_text: str) -> dict[str, str]:
    """The arguments of a template's instance by the names of its parameters."""
    head = re.search(rf"template\s*<([^;{{}}]*)>[^;{{}}]*\b{re.escape(kernel.name.rpartition('::')[2])}\s*\(", source_text)
    if head is None or "<" not in entry:
        return {}
    return dict(zip(re.findall(r"\w+(?=\s*(?:=|,|$))", head[1]), entry[entry.index("<") + 1 : -1].split(", "), strict=False))


def _assumed(
    kernel: Kernel, entry: str, body: str, source_text: str, own: Mapping[str, str], headers: str, spare: int, coarse: bool
) -> tuple[list[int], list[int], int, dict[str, str]]:
    """Grid, block, dynamic shared memory and arguments of a kernel: block and shared memory as a launch in the source has them, else sizes
    that blocks divide, and a thread an element or, where blocks are rows, a row."""
    stated, shared = ordinary.stated(kernel, source_text)
    if shared is None and re.search(r"\bextern\s+(?:\w+\s+)*__shared__", body):
        shared = DYNAMIC
    parameters = [f for p in kernel.parameters for f in ([p] if p.pointer else _fields(p, headers) or [p])]
    whole = [p.name for p in parameters if not p.pointer and WHOLE.fullmatch(p.text.replace(" ", ""))]
    product = {"m", "n", "k"} <= {n.lower() for n in whole}
    large = [n for n in whole if not guesses.SMALL.search(n) or len(whole) == 1 or (product and n.lower() == "k")]
    parts = {a or b: _value(before or after, entry, kernel, headers or source_text) for a, before, after, b in _TILE.findall(_placed(body))}
    side = max([SIDE, *(n for n in parts.values() if n <= 256)])
    sizes = {**dict.fromkeys(whole, 3), **dict.fromkeys(large, side if len(large) > 1 or "threadIdx.y" in body else 16 * SIDE)}
    sides = [int(n) for name, n in _SIDE.findall(headers or source_text) if re.search(rf"\b{name}\b", body)]
    bound = re.search(r"__launch_bounds__\s*\(\s*(\d+)", body) or re.search(r"\bcub::Block\w+\s*<[^<>;]*?,\s*(\d+)", body)
    rows = 1  # that blocks are, of a size each
    if "threadIdx.y" in body:
        square = next((n for n in sides if 1 < n <= 32), 16)
        block = stated if len(stated) > 1 else [square, square]
        grid = [-(-side // max(n, parts.get(way, 1))) for way, n in zip("xy", block, strict=False)]
    else:
        block = stated or [next((n for n in ([int(bound[1])] if bound else []) + sides if 32 <= n <= 1024), 256)]
        whole_block = "|".join([r"blockDim\.x", *(re.escape(name) for name, _ in _SIDE.findall(source_text)), r"\d+"])
        elements = re.search(rf"blockIdx\.x\s*\*\s*\(?(?:{whole_block})\b|\b(?:{whole_block})\s*\*\s*blockIdx\.x", body) is not None
        rows = SIDE if "blockIdx" in body and not elements else 1
        grid = [-(-(SIDE * SIDE if len(large) > 1 else 16 * SIDE) // block[0]) if elements else -(-side // parts.get("x", 1))]
        grid += [-(-side // parts.get("y", 1))] if "blockIdx.y" in body else []
    if "blockIdx" not in body:  # of one block
        grid = [1]
        if coarse and not stated and len(block) == 1 and _OF_A_WARP.search(body):
            block = [32]
    for way, word in _COARSE.findall(_placed(body)) if not stated else ():
        number, at = _value(word, entry, kernel, headers or source_text), "xy".index(way)
        if at < len(block) and number > 1 and (way in parts or coarse):
            block[at] = max(parts.get(way, block[at]) // number, 1 if len(block) > 1 else 32)  # of one extent at least a warp
    values: dict[str, str] = {}
    names = {v: n for n, v in CTYPES.items()} | ARRAYS
    types = _arguments(entry, kernel, source_text)
    square = min(spare * max(side ** max(len(large), 2), rows * max(sizes.values(), default=1)), guesses.LONGEST)
    for p in parameters:
        kind = re.sub(r"\bconst\b|\b__restrict(?:__)?\b|[*&]|\[\d*\]", "", p.text).strip()
        kind = types.get(kind, kind)
        own_name = re.escape(kind)
        ways = rf"\busing\s+{own_name}\s*=\s*([\w ]+);|\btypedef\s+([\w ]+?)\s+{own_name}\s*;|#[ \t]*define[ \t]+{own_name}[ \t]+([\w ]+)"
        meant = {(alias[1] or alias[2] or alias[3]).strip() for alias in re.finditer(ways, source_text)}
        kind = next(iter(meant)) if len(meant) == 1 else kind
        if p.name in own:
            values[p.name] = own[p.name]
        elif p.pointer and p.text.count("*") < 2 and kind in names:
            values[p.name] = f"{names[kind]}:{square}"
        elif p.pointer and p.text.count("*") < 2 and (VECTOR.fullmatch(kind) or ZEROS.fullmatch(kind) or _numbers_alone(kind, source_text)):
            values[p.name] = f"{kind}:{square}" + ":zeros" * (VECTOR.fullmatch(kind) is None)
        elif p.pointer and p.text.count("*") < 2 and meant and meant <= {*names, *CTYPES.values()}:  # a type that a macro decides
            values[p.name] = f"{kind}:{square}"
        elif p.pointer and p.text.count("*") == 2 and kind in names:
            values[p.name] = f"{names[kind]}*:{SIDE}x{SIDE * SIDE}"
        elif not p.pointer and (vector := VECTOR.fullmatch(kind)):
            values[p.name] = f"{kind}{{{', '.join(['1'] * int(vector[2]))}}}"
        elif p.name in sizes:
            values[p.name] = str(sizes[p.name])
        elif not p.pointer and REAL.fullmatch(kind.replace(" ", "")):
            values[p.name] = "1.0f" if kind == "float" else f"({kind})1.0f"
        elif not p.pointer and WHOLE.fullmatch(kind.replace(" ", "")):
            values[p.name] = str(SIDE)
        elif not p.pointer and kind in ("bool", "char"):
            values[p.name] = "1"
        else:
            raise Unknown(f"the parameter {p.text} {p.name} of {kernel.name}")
    for p in kernel.parameters:  # of a struct: what its fields are, in order
        if fields := [] if p.name in values else [(n, v) for n, v in values.items() if n.startswith(f"{p.name}.")]:
            kind = re.sub(r"\bconst\b|&", "", p.text).strip()
            arrays = {f.name for f in parameters if f.pointer}
            values[p.name] = f"{kind}{{{', '.join(n.replace('.', '_') if n in arrays else v for n, v in fields)}}}"
            for n in [n for n, _ in fields if n not in arrays]:
                del values[n]
    order = [p.name for p in kernel.parameters]
    return grid, block, shared or 0, dict(sorted(values.items(), key=lambda item: order.index(item[0]) if item[0] in order else -1))


_FIELD = re.compile(
    r"\s*((?:(?:const|unsigned|signed|struct|__restrict__|[\w:]+)\s+)*?[\w:]+)((?:\s*\*\s*(?:const\s*|__restrict__\s*)?)?)\s*(\w+)\s*"
)


def _fields(p: Parameter, text: str) -> list[Parameter]:
    """Of a parameter that is a struct of pointers and numbers its fields, as parameters of their own: `p.field`."""
    kind = re.escape(re.sub(r"\bconst\b|&", "", p.text).strip())
    match = re.search(rf"\bstruct\s+{kind}\s*\{{([^{{}}]*)\}}|\bstruct\s*\w*\s*\{{([^{{}}]*)\}}\s*{kind}\s*;", text)
    fields = []
    for line in re.sub(r"//[^\n]*|/\*.*?\*/", "", (match[1] or match[2]) if match else "", flags=re.S).split(";"):
        if not line.strip():
            continue
        field = _FIELD.fullmatch(line)
        if field is None:
            return []
        fields.append(Parameter(f"{p.name}.{field[3]}", f"{field[1]}{'*' * ('*' in field[2])}"))
    return fields if any(f.pointer for f in fields) else []


def _numbers_alone(kind: str, text: str) -> bool:
    """Whether a text defines a struct of this name that holds neither pointers nor functions: zeros may stand for it."""
    match = re.search(rf"\bstruct\s+(?:\w+\([^)]*\)\s*)?{re.escape(kind)}\s*\{{([^}}]*)\}}|\bstruct\s*\{{([^}}]*)\}}\s*{re.escape(kind)}\s*;", text)
    return match is not None and not re.search(r"[*(&]", match[1] or match[2] or "")
