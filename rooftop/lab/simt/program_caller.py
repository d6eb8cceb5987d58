"""A main() for a file that has none: it calls `extern "C" void solve(...)` or whatever functions of the host's take arrays and launch
kernels, or the functions of torch's tensors that the file offers, with inputs of sizes that are assumed and said. `--arg` gives others."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rooftop.lab.interpret import guesses
from rooftop.lab.simt import host
from rooftop.lab.simt.ordinary import Parameter, parameters
from rooftop.lab.simt.tokens import Token, tokenise

LEADING = re.compile(r"^ld_?[a-d]$|^ld$", re.I)  # of leading dimensions, as large as the largest size
SHAPE = re.compile(r"shape|^n?dims$|extents", re.I)  # names of arrays that hold sizes
DIMS = 8, 12, 10  # what such an array holds
NDIM = re.compile(r"^(?:n|num)_?dims?$|^rank$", re.I)  # how many there are
VALUES = {"beta": "0", "eps": "1e-5f", "epsilon": "1e-5f"}  # of real numbers by their names; others are 1
ROUND = 128  # a size that tiles divide
SQUARE = 100  # the one size of a function whose source indexes rows
_ROWS = re.compile(r"\[\s*[\w.]+\s*\*\s*\w+\s*\+")  # of a matrix: [row * n + column]
TYPES = {
    "f32": "kFloat", "f16": "kHalf", "bf16": "kBFloat16", "i32": "kInt", "f64": "kDouble", "i8": "kChar", "i64": "kLong", "u8": "kByte"
}
TESTED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]gtest/gtest\.h", re.M)
TESTS = "SIMT_MAIN int main() { return RUN_ALL_TESTS(); }\n"  # of a file of tests without a main()
_TENSOR = re.compile(r"(?:torch|at)::Tensor")
WHOLE = re.compile(r"(?:const)?(?:unsigned|signed|int|long|short|size_t|u?int\d+_t|uint|ulong|clock_t|ptrdiff_t)(?:int|long|unsigned)*&?")
REAL = re.compile(r"(?:const)?(?:float|double|half|__half)&?")


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[Parameter, ...]
    line: int
    words: frozenset[str] = frozenset()  # of its body
    scalars: frozenset[str] = frozenset()  # its pointers that the host's code itself reads one value of, as `*alpha`

    @property
    def base(self) -> str:
        return self.name.partition("<")[0]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p.text} {p.name}' for p in self.parameters)})"


def functions(text: str) -> Iterator[Function]:
    """The host's functions that a text defines, at the level of the file or a namespace; of a template the first explicit
    instantiation."""
    tokens = tokenise(text)
    marks = host.marks([text])
    at = 0
    templates: dict[str, Function] = {}
    while at < len(tokens):
        try:
            end, opens = host.declaration(tokens, at)
        except host.UnreadableError:
            return
        part = tokens[at:end]
        if not opens and (body := host.body(part)) is not None:
            code = [t for t in part[:body] if t.kind in ("word", "symbol", "string", "number")]
            if not any(t.text in marks for t in code) and (function := _function(code)) is not None:
                does = [t.text for t in part[body:] if t.kind in ("word", "symbol")]
                three = zip(does, does[1:], does[2:], strict=False)
                read = frozenset(name for before, star, name in three if star == "*" and before in ("(", ",", "=", "return"))
                function = replace(function, words=frozenset(does), scalars=read)
                if code[0].text == "template":
                    templates[function.name] = function
                else:
                    yield function
        elif not opens:
            code = [t for t in part if t.kind in ("word", "symbol", "string", "number")]
            named = _function(code) if [t.text for t in code[:1]] == ["template"] else None
            if named is not None and (of := templates.pop(named.base, None)) is not None:
                yield replace(named, words=of.words, scalars=of.scalars)
        at = end


def _function(code: Sequence[Token]) -> Function | None:
    """The function that is declared; an instance of a template is named with its arguments."""
    words = [t.text for t in code]
    at = _closed(words, 1) + 1 if words[:2] == ["template", "<"] else 0
    for i in range(at, len(code) - 1):
        opened = _closed(words, i + 1) + 1 if words[:1] == ["template"] and not at and words[i + 1] == "<" else i + 1
        if code[i].kind == "word" and words[opened : opened + 1] == ["("]:
            close = _closed(words, opened)
            taken = tuple(p for p in parameters(code[opened + 1 : close]) if p.text != "void" or p.pointer)
            return Function(" ".join([code[i].text, *words[i + 1 : opened]]).replace(" ", ""), taken, code[i].line)
    return None


def _closed(words: Sequence[str], opened: int) -> int:
    """Where the bracket at `opened` is closed."""
    depth = 0
    for i in range(opened, len(words)):
        depth += {"(": 1, "<": 1, ")": -1, ">": -1, ">>": -2}.get(words[i], 0)
        if depth <= 0:
            return i
    return len(words) - 1


def of_arrays(text: str) -> list[Function]:
    """`solve` where there is one; else those that take arrays and launch kernels, but for those that others of them call."""
    every = [f for f in functions(text) if any(p.pointer for p in f.parameters)]
    launching = [f for f in every if f.words & {"<<<", "cudaLaunchKernel", "cudaLaunchCooperativeKernel"}]
    called = {w for f in launching for w in f.words}
    return [f for f in every if f.name == "solve"] or [f for f in launching if f.base not in called]


def torch_functions(text: str) -> list[Function]:
    """Those that take a tensor: the exported ones, if any are."""
    every = [f for f in functions(text) if any(_TENSOR.search(p.text) for p in f.parameters)]
    exported = set(re.findall(r"\.def\(\s*\"[^\"]*\"\s*,\s*&?\s*(?:\w+::)*(\w+)", text)) | set(
        re.findall(r"\b[A-Z_]*BINDING\w*\((\w+)\)", text)
    )
    return [f for f in every if f.name in exported] or every


def sizes_of(function: Function, given: Mapping[str, str], text: str = "") -> dict[str, int]:
    """The whole numbers that a function of arrays is called with. `text`: its source."""
    sizes = _sizes(function)
    if squares(function, text):
        sizes = {n: min(size, SQUARE) for n, size in sizes.items()}
    if _lists(function):
        sizes = {n: len(DIMS) if NDIM.search(n) else min(size, 1) if guesses.SMALL.search(n) else size for n, size in sizes.items()}
    return sizes | {n: int(given[n]) for n in sizes if n in given}


def numbers_of(function: Function, given: Mapping[str, str], text: str = "") -> dict[str, float]:
    """The numbers that a function of arrays is called with: whole ones, and real ones."""
    real = [p.name for p in function.parameters if not p.pointer and REAL.fullmatch(p.text.replace(" ", ""))]
    return {**sizes_of(function, given, text), **{n: float(given.get(n, VALUES.get(n, "1")).rstrip("f")) for n in real}}


def arrays_of(function: Function) -> list[str]:
    """Its parameters that are arrays of data."""
    lists = {*_lists(function), *function.scalars}
    return [p.name for p in function.parameters if p.pointer and p.name not in lists]


def squares(function: Function, text: str) -> bool:
    """Whether its one size is that of a square matrix."""
    return sum(n > 3 for n in _sizes(function).values()) == 1 and not _lists(function) and _ROWS.search(text) is not None


def _lists(function: Function) -> list[str]:
    """Its parameters that are arrays of sizes."""
    types = {p.name: p.text.replace(" ", "").replace("*", "").replace("__restrict__", "") for p in function.parameters if p.pointer}
    return [n for n, kind in types.items() if SHAPE.search(n) and WHOLE.fullmatch(kind)]


def _sizes(function: Function) -> dict[str, int]:
    whole = [p.name for p in function.parameters if not p.pointer and WHOLE.fullmatch(p.text.replace(" ", ""))]
    product = {"m", "n", "k"} <= {n.lower() for n in whole}  # of matrices, whose k is no small number
    large = [n for n in whole if not (LEADING.search(n) or (guesses.SMALL.search(n) and not (n.lower() == "k" and product))) or len(whole) == 1]
    sizes = guesses.whole_numbers(whole, large)
    return {n: max((sizes[m] for m in large), default=8) if LEADING.search(n) and n not in large else size for n, size in sizes.items()}


class Unknown(ValueError):
    """A parameter that no caller can be made for; the text names it."""


def round_sizes(every: Sequence[Function], given: Mapping[str, str]) -> dict[str, str]:
    """`given`, and for the sizes that it does not give one that tiles divide."""
    return {**{n: str(ROUND) for f in every for n, size in _sizes(f).items() if size > 3}, **given}


def call_of_arrays(every: Sequence[Function], given: Mapping[str, str], text: str = "") -> tuple[str, str]:
    """C++ with a main() that calls each, and what is assumed. `text`: the source; where it copies from the host itself, arrays are both
    sides'.

    Raises Unknown where none can be called."""
    calls: list[tuple[str, str]] = []
    unknown: Unknown | None = None
    for function in every:
        try:
            calls.append(_call(function, given, text))
        except Unknown as error:
            unknown = error
    if unknown is not None and not calls:
        raise unknown
    return main_of([code for code, _ in calls], "return 0"), "; ".join(said for _, said in calls)


def _call(function: Function, given: Mapping[str, str], text: str) -> tuple[str, str]:
    allocate = "cudaMallocManaged" if "cudaMemcpyHostToDevice" in text else "cudaMalloc"
    lists = _lists(function)
    sizes = sizes_of(function, given, text)
    power = 2 if squares(function, text) else 1
    counted = [
        max(n, 1) ** (power if n > 3 else 1) for name, n in sizes.items()
        if not (LEADING.search(name) or (lists and (NDIM.search(name) or guesses.SMALL.search(name))))
    ]
    product = max(math.prod(counted) * (math.prod(DIMS) if lists else 1), 64)
    product = product if any(n in given for n in sizes) else min(product, guesses.MOST)
    lines, names, said, arrays = [], [], [], []
    for i, p in enumerate(function.parameters):
        text = p.text.replace("__restrict__", "").replace("__restrict", "")
        if p.name in lists and p.name not in given:
            kind = re.sub(r"\bconst\b|\*|\[\d*\]", "", text).strip()
            held = ", ".join(map(str, DIMS))
            lines.append(f"    {kind}* {p.name}; {allocate}(&{p.name}, {len(DIMS)} * sizeof({kind}));")
            lines.append(
                f"    {{ const {kind} simt_v[] = {{{held}}}; cudaMemcpy({p.name}, simt_v, sizeof simt_v, cudaMemcpyHostToDevice); }}"
            )
            names.append(p.name)
            said.append(f"{p.name}: {held}")
        elif p.pointer and p.name in function.scalars and p.name not in given:
            value = VALUES.get(p.name, "1")
            kind = re.sub(r"\bconst\b|\*", "", text).strip()
            lines.append(f"    {kind} simt_{p.name} = ({kind}){value};")
            names.append(f"&simt_{p.name}")
            said.append(f"*{p.name} = {value}")
        elif p.pointer:
            kind = re.sub(r"\bconst\b|\*|\[\d*\]", "", text).strip()
            numbers = re.findall(r"\d+", given[p.name].partition(":")[2]) if p.name in given else [str(product)]
            count = math.prod(map(int, numbers))
            lines.append(f"    {kind}* {p.name}; {allocate}(&{p.name}, {count} * sizeof({kind})); simt_made::fill({p.name}, {count}, {i});")
            names.append(p.name)
            arrays.append((p.name, "x".join(numbers)))
            said.append(f"{p.name}: {count:,} elements")
        elif p.name in sizes:
            names.append(str(sizes[p.name]))
            said.append(f"{p.name} = {sizes[p.name]}")
        elif REAL.fullmatch(text.replace(" ", "")) or text in ("bool", "char"):
            value = given.get(p.name, VALUES.get(p.name, "1"))
            names.append(f"({text.replace('&', '').replace('const', '')}){value}")
            said.append(f"{p.name} = {value}")
        elif text == "cudaStream_t":
            names.append("0")
        else:
            raise Unknown(f"the parameter {p.text} {p.name} of {function.name}")
    frees = "".join(f" cudaFree({p.name});" for p in function.parameters if p.pointer and f"&simt_{p.name}" not in names)
    call = f"\n    {function.name}({', '.join(names)});\n    cudaDeviceSynchronize();"
    body = [*lines, shown("before", arrays, function.name) + call + shown("after", arrays) + frees]
    return "\n".join(body), f"{function.name}({', '.join(said)})"


def shown(when: str, arrays: Sequence[tuple[str, str]], name: str = "") -> str:
    """C++ that shows arrays to who compares them (rooftop/lab/check/like.py); nothing where nobody does."""
    call = f'printf("%s call %s\\n", SIMT_SHOWN, "{name}"); ' if name else ""
    each = " ".join(f'simt_made::shown("{when}", "{n}", {n}, "{shape}");' for n, shape in arrays)
    return f"\n#ifdef SIMT_SHOWN\n    {call}{each}\n#endif\n"


_FILL = """
namespace simt_made {
template <class T> const char* kind_of() {
    if (std::is_same_v<T, float>) return "float";
    if (std::is_same_v<T, double>) return "double";
    if (std::is_same_v<T, __half>) return "half";
    if (std::is_same_v<T, __nv_bfloat16>) return "bf16";
    return sizeof(T) == 1 ? (std::is_signed_v<T> ? "i8" : "u8") : sizeof(T) == 2 ? "i16" : sizeof(T) == 4 ? "i32" : "i64";
}
template <class T> void shown(const char* when, const char* name, const T* p, const char* shape) {
#ifdef SIMT_SHOWN
    size_t n = 1;
    for (const char* s = shape; *s;) { n *= strtoul(s, const_cast<char**>(&s), 10); if (*s) ++s; }
    std::vector<unsigned char> bytes(n * sizeof(T));
    cudaMemcpy(bytes.data(), p, bytes.size(), cudaMemcpyDeviceToHost);
    std::string text = std::string(SIMT_SHOWN) + " " + when + " " + name + " " + kind_of<T>() + " " + shape + " ";
    for (const unsigned char b : bytes) text += "0123456789abcdef"[b >> 4], text += "0123456789abcdef"[b & 15];
    std::cout << text << std::endl;
#endif
}
template <class T> void fill(T* p, size_t n, int seed) {      // small whole numbers, or numbers between -1 and 1
    std::vector<T> v(n);
    std::mt19937 drawn(seed + 1);
    size_t at = 0;
    for (T& x : v) {
        if (at++ >= 1 << 20) { x = v[at - (1 << 20)]; continue; }
        const float f = static_cast<float>(drawn() >> 8) / 8388608.0f - 1.0f;
        if constexpr (std::is_integral_v<T>) x = static_cast<T>((f + 1) * 8);
        else if constexpr (std::is_constructible_v<T, float>) x = T(f);
    }
    cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice);
}
template <class T> void rows(T** to, T* all, size_t many, size_t length) {
    std::vector<T*> v;
    for (size_t i = 0; i < many; ++i) v.push_back(all + i * length);
    cudaMemcpy(to, v.data(), many * sizeof(T*), cudaMemcpyHostToDevice);
}
}
"""


def main_of(calls: Sequence[str], end: str = "exit(0)") -> str:
    """A main() of some calls, of which none suffers from the faults of another."""
    body = "".join(f"    {{\n    simt_fresh();\n{code}\n    }}\n" for code in calls)
    return f"{_FILL}SIMT_MAIN int main() {{\n{body}    {end};\n}}\n"


def offers(text: str) -> bool:
    """Whether a text hands functions to Python, by torch's macros."""
    return re.search(r"^[ \t]*(?:PYBIND11_MODULE|TORCH_LIBRARY(?:_IMPL|_FRAGMENT)?)\s*\(", text, re.M) is not None


def call_of_torch(every: Sequence[Function], offered: bool, given: Mapping[str, str], larger: bool = False) -> tuple[str, str]:
    """C++ with a main() that calls each function, or all that the file offers, with the first tensors that it takes, `larger` ones or
    not; and what is assumed."""
    calls = []
    for f in every:
        if offered and not any(p.name in given for p in f.parameters):
            continue
        args = []
        for i, p in enumerate(f.parameters):
            kind = p.text.replace(" ", "")
            if _TENSOR.search(kind) and p.name in given:
                args.append(_tensor(given[p.name], i))
            elif p.name in given:
                args.append(given[p.name])
            else:
                one = f"made.template of<std::decay_t<{p.text}>>()"
                args.append(f"simt::lasting({one})" if "&" in kind and "const" not in kind else one)
        calls.append(f'    simt::attempt("{f.name}", [](auto& made) {{ (void)made; {f.name}({", ".join(args)}); }});')
    if offered and not calls:
        calls.append("    SimtOffer::call();")
    code = "SIMT_MAIN int main() {\n    /*simt_shown*/\n" + "    simt::larger = true;\n" * larger + "\n".join(calls) + "\n    return 0;\n}\n"
    return code, f"each function with tensors of the first type and {'larger ' * larger}shape that it takes" if not given else "as given"


def _tensor(text: str, seed: int) -> str:
    kind, _, sizes = text.partition(":")
    if kind not in TYPES or not re.fullmatch(r"\d+(x\d+)*", sizes):
        raise ValueError(f"--arg {text}: a tensor is written TYPE:SIZExSIZE, as in f32:128x128, of the types {', '.join(TYPES)}")
    return f"simt::made_tensor(torch::{TYPES[kind]}, {{{sizes.replace('x', ', ')}}}, {seed})"


