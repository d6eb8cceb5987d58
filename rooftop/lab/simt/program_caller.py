"""A main() for a file that has none: it calls `extern "C" void solve(...)`, or the functions of torch's tensors that the file offers, with inputs of
sizes that are assumed and said. `--arg` gives others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rooftop.lab.simt import host
from rooftop.lab.simt.ordinary import Parameter, parameters
from rooftop.lab.simt.tokens import Token, tokenise

SIZES = {1: (1000,), 2: (48, 40), 3: (48, 40, 56), 4: (12, 20, 16, 24)}  # of whole numbers among the parameters, by how many there are
SMALL = re.compile(r"[Kk]ernel|[Rr]adius|[Ww]indow|[Ss]tride|[Pp]ad|^k$|[Kk](er)?_?[Ss]ize|[Ii]ter|[Ss]teps|[Hh]ead|[Cc]lass")  # names of numbers that are small
MOST = 1 << 20  # elements of an array of assumed size
SHAPES = ((128, 128), (4096,), (2, 64, 64), (1, 2, 128, 64))  # of torch's tensors, in the order in which they are tried
TYPES = {"f32": "kFloat", "f16": "kHalf", "bf16": "kBFloat16", "i32": "kInt", "f64": "kDouble", "i8": "kChar", "i64": "kLong", "u8": "kByte"}
_TENSOR = re.compile(r"(?:torch|at)::Tensor")
_WHOLE = re.compile(r"(?:const)?(?:unsigned|signed|int|long|short|size_t|std::size_t|u?int\d+_t|uint|ulong)(?:int|long|unsigned)*&?")
_REAL = re.compile(r"(?:const)?(?:float|double|half|__half)&?")


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[Parameter, ...]
    line: int

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{p.text} {p.name}' for p in self.parameters)})"


def functions(text: str) -> Iterator[Function]:
    """The host's functions that a text defines, at the level of the file or a namespace."""
    tokens = tokenise(text)
    marks = host.marks([text])
    at = 0
    while at < len(tokens):
        try:
            end, opens = host.declaration(tokens, at)
        except host.UnreadableError:
            return
        part = tokens[at:end]
        if not opens and (body := host.body(part)) is not None:
            code = [t for t in part[:body] if t.kind in ("word", "symbol", "string", "number")]
            if not any(t.text in marks for t in code) and (found := _function(code)) is not None:
                yield found
        at = end


def _function(code: Sequence[Token]) -> Function | None:
    if code and code[0].text == "template":
        return None
    for i, t in enumerate(code[:-1]):
        if t.kind == "word" and code[i + 1].text == "(":
            depth = 0
            for close in range(i + 1, len(code)):
                depth += (code[close].text == "(") - (code[close].text == ")")
                if not depth:
                    return Function(t.text, tuple(p for p in parameters(code[i + 2 : close]) if p.text != "void" or p.pointer), t.line)
    return None


def solve(text: str) -> Function | None:
    return next((f for f in functions(text) if f.name == "solve" and f.parameters and any(p.pointer for p in f.parameters)), None)


def torch_functions(text: str) -> list[Function]:
    """Those that take a tensor: the exported ones, if any are."""
    every = [f for f in functions(text) if any(_TENSOR.search(p.text) for p in f.parameters)]
    exported = set(re.findall(r"\.def\(\s*\"[^\"]*\"\s*,\s*&?\s*(?:\w+::)*(\w+)", text)) | set(re.findall(r"\b[A-Z_]*BINDING\w*\((\w+)\)", text))
    return [f for f in every if f.name in exported] or every


def _sizes(function: Function) -> dict[str, int]:
    whole = [p.name for p in function.parameters if not p.pointer and _WHOLE.fullmatch(p.text.replace(" ", ""))]
    large = [n for n in whole if not SMALL.search(n) or len(whole) == 1]
    sizes = SIZES.get(len(large), (8,) * len(large))
    return {**dict.fromkeys(whole, 3), **dict(zip(large, sizes, strict=False))}


class Unknown(ValueError):
    """A parameter that no caller can be made for; the text names it."""


def call_of_solve(function: Function, given: Mapping[str, str]) -> tuple[str, str]:
    """C++ with a main() that calls it, and what is assumed."""
    sizes = _sizes(function)
    sizes |= {n: int(given[n]) for n in sizes if n in given}
    product = 1
    for n in sizes.values():
        product *= max(n, 1)
    product = min(max(product, 64), MOST)
    lines, names, said = [], [], []
    for i, p in enumerate(function.parameters):
        text = p.text.replace("__restrict__", "").replace("__restrict", "")
        if p.pointer:
            kind = re.sub(r"\bconst\b|\*|\[\d*\]", "", text).strip()
            count = product
            if p.name in given:
                numbers = re.findall(r"\d+", given[p.name].partition(":")[2])
                count = 1
                for n in numbers:
                    count *= int(n)
            lines.append(f"    {kind}* {p.name}; cudaMalloc(&{p.name}, {count} * sizeof({kind})); simt_made::fill({p.name}, {count}, {i});")
            names.append(p.name)
            said.append(f"{p.name}: {count:,} elements")
        elif p.name in sizes:
            names.append(str(sizes[p.name]))
            said.append(f"{p.name} = {sizes[p.name]}")
        elif _REAL.fullmatch(text.replace(" ", "")) or text in ("bool", "char"):
            value = given.get(p.name, "1")
            names.append(f"({text.replace('&', '').replace('const', '')}){value}")
            said.append(f"{p.name} = {value}")
        else:
            raise Unknown(f"the parameter {p.text} {p.name} of {function.name}")
    frees = "".join(f" cudaFree({p.name});" for p in function.parameters if p.pointer)
    code = _FILL + "int main() {\n" + "\n".join(lines) + f"\n    {function.name}({', '.join(names)});\n    cudaDeviceSynchronize();{frees}\n    return 0;\n}}\n"
    return code, f"{function.name}({', '.join(said)})"


_FILL = """
namespace simt_made {
template <class T> void fill(T* p, size_t n, int seed) {      // small whole numbers, or numbers between -1 and 1
    std::vector<T> v(n);
    std::mt19937 drawn(seed + 1);
    for (T& x : v) {
        const float f = static_cast<float>(drawn() >> 8) / 8388608.0f - 1.0f;
        if constexpr (std::is_integral_v<T>) x = static_cast<T>((f + 1) * 8);
        else if constexpr (std::is_constructible_v<T, float>) x = T(f);
    }
    cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice);
}
}
"""


def call_of_torch(every: Sequence[Function], given: Mapping[str, str]) -> tuple[str, str]:
    """C++ with a main() that calls each function with the first tensors that it takes, and what is assumed."""
    calls = []
    for f in every:
        args = []
        for i, p in enumerate(f.parameters):
            plain = p.text.replace(" ", "")
            if "optional" in plain:
                args.append("c10::nullopt")
            elif re.search(r"vector<|List|ArrayRef", plain):
                break
            elif _TENSOR.search(plain):
                args.append(_tensor(given[p.name], i) if p.name in given else f"made({i})")
            elif p.name in given:
                args.append(given[p.name])
            elif _WHOLE.fullmatch(plain):
                args.append("3" if SMALL.search(p.name) else "size")
            else:
                args.append("true" if plain == "bool" else "1.0f" if _REAL.fullmatch(plain) else "{}")
        else:
            lambda_ = f"[](auto&& made, int64_t size) {{ (void)made, (void)size; {f.name}({', '.join(args)}); }}"
            calls.append(f'    simt_made::attempt("{f.name}", {lambda_});')
    if not calls:
        raise Unknown("its functions take lists of tensors")
    shapes = ", ".join("{" + ", ".join(map(str, s)) + "}" for s in SHAPES)
    kinds = ", ".join(f"torch::{k}" for k in TYPES.values())
    code = _ATTEMPT.replace("SHAPES", shapes).replace("KINDS", kinds) + "int main() {\n" + "\n".join(calls) + "\n    return 0;\n}\n"
    return code, f"{', '.join(f.name for f in every)} with tensors of the first type and shape that it takes"


def _tensor(text: str, seed: int) -> str:
    kind, _, sizes = text.partition(":")
    if kind not in TYPES or not re.fullmatch(r"\d+(x\d+)*", sizes):
        raise ValueError(f"--arg {text}: a tensor is written TYPE:SIZExSIZE, as in f32:128x128, of the types {', '.join(TYPES)}")
    return f"simt_made::tensor(torch::{TYPES[kind]}, {{{sizes.replace('x', ', ')}}}, {seed})"


_ATTEMPT = """
namespace simt_made {
inline torch::Tensor tensor(torch::ScalarType kind, std::vector<int64_t> shape, int seed) {
    torch::Tensor t(shape, kind);
    std::mt19937 drawn(seed + 1);
    const bool whole = !t.is_floating_point();
    for (int64_t i = 0; i < t.numel(); ++i) t.set(i, whole ? drawn() % 16 : drawn() / 2147483648.0 - 1.0);
    return t;
}
template <class F> void attempt(const char* name, F call) {
    std::string why;
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{SHAPES})
        for (const torch::ScalarType kind : {KINDS}) {
            simt_fresh();
            const unsigned long long before = simt_launches();
            try {
                call([&](int seed) { return tensor(kind, shape, seed); }, shape.back());
                cudaDeviceSynchronize();
                if (simt_launches() == before) continue;
                std::cout << name << ": tensors of " << c10::toString(kind) << ", sizes";
                for (const int64_t n : shape) std::cout << ' ' << n;
                std::cout << std::endl;
                return;
            } catch (const std::exception& e) {
                why = e.what();
            }
        }
    std::cout << name << ": takes none of the tensors tried" << (why.empty() ? "" : ": ") << why << std::endl;
}
}
"""
