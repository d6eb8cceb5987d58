"""The API reference: every public name with its signature and docstring, from the files that define them (read, not imported) and the
namespaces themselves; and of an op how it is called, as a few lines that run."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from rooftop import public_names
from rooftop.core import settings
from rooftop.core.contract import Contract
from rooftop.core.op import Op
from rooftop.core.spec import DTYPES, Case, Input
from rooftop.lab import public_calls
from rooftop.lab.report import document

TRIED = 12  # cases of an op whose call is looked at
WIDE = 110  # columns of a signature on one line


@dataclass(frozen=True)
class Entry:
    """A public name. `space`: its module, "rooftop" or a namespace; `signature`: without `def`; "" for what is not called."""

    name: str
    space: str
    kind: str  # function, class, value
    signature: str
    doc: str

    @property
    def anchor(self) -> str:
        return f"{self.space}.{self.name}"

    @property
    def line(self) -> str:
        """The docstring's first sentence."""
        return sentence(self.doc)


def sentence(text: str) -> str:
    """The first sentence of a text, its white space single."""
    first = re.sub(r"\s+", " ", text.strip().partition("\n\n")[0])
    end = re.search(r"(?<!e\.g)(?<!i\.e)[.:](?= [A-Z`(]| rooftop/|$)", first)
    return f"{(first[: end.start()] if end else first).rstrip(':.')}." if first else ""


@cache
def functions() -> dict[str, Entry]:
    """The package's own functions, by name."""
    found = {}
    for home, names in groupby((n for n in public_names.names() if n not in (*public_names.namespaces(), *public_names.LIFTED)), key=public_names.home):
        wanted = set(names)
        path = settings.PACKAGE.parent.joinpath(*home.split(".")).with_suffix(".py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name in wanted:
                found[node.name] = Entry(node.name, "rooftop", "function", _signature(node), ast.get_docstring(node) or "")
    return found


def _signature(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return _laid_out(node.name, _split(arguments), result)


def _split(arguments: str) -> list[str]:
    """At the commas that are in no bracket and no string."""
    parts, depth, quote = [""], 0, ""
    for mark in arguments:
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "'\"":
            quote = mark
        depth += (mark in "([{") - (mark in ")]}") if not quote else 0
        if mark == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += mark
    return [part.strip() for part in parts if part.strip()]


def _argument(text: str) -> str:
    """As it is written in a file, `x: int = 1`, of `x: int=1` (`ast`) and `x: 'int' = 1` (`inspect`)."""
    name, colon, rest = text.partition(": ")
    if not colon:
        return text
    end = rest.find("'", 1) + 1 if rest.startswith("'") else (rest + "=").index("=")
    annotation, default = rest[:end].strip(" '"), rest[end:].lstrip(" =")
    return f"{name}: {annotation} = {default}" if default else f"{name}: {annotation}"


def _laid_out(name: str, arguments: list[str], result: str) -> str:
    arguments = [_argument(a) for a in arguments]
    line = f"{name}({', '.join(arguments)}){result}"
    return line if len(line) <= WIDE else "\n".join([f"{name}(", *(f"    {a}," for a in arguments), f"){result}"])


@cache
def namespaces() -> tuple[tuple[str, str, tuple[Entry, ...]], ...]:
    """(module, its docstring, its public names), the package itself first."""
    found = [("rooftop", importlib.import_module("rooftop").__doc__ or "", tuple(functions().values()))]
    for space in public_names.namespaces():
        module = importlib.import_module(f"rooftop.{space}")
        found.append(
            (f"rooftop.{space}", module.__doc__ or "", tuple(_of_module(module, name) for name in sorted(module.__all__, key=str.lower)))
        )
    return tuple(found)


def _of_module(module: Any, name: str) -> Entry:
    try:
        value = getattr(module, name)
    except ImportError as error:  # what it needs is not installed here
        return Entry(name, module.__name__, "value", "", f"Needs a package that is not installed: {error}.")
    if not callable(value):
        return Entry(
            name, module.__name__, "value", "", f"A {type(value).__name__}" + (f" of {len(value)}." if hasattr(value, "__len__") else ".")
        )
    kind = "class" if inspect.isclass(value) else "function"
    try:
        said = str(inspect.signature(value))
    except ValueError:
        said = "(...)"
    inside, _, result = said.rpartition(")")
    if kind == "class" and issubclass(value, Exception):
        inside, result = "(", ""
    shown = _laid_out(name, _split(inside[1:]), result.replace("'", ""))
    doc = inspect.getdoc(value) or ""
    # a dataclass without a docstring repeats its signature
    return Entry(name, module.__name__, kind, shown, "" if doc.startswith(f"{name}(") else doc)


# -- docstrings as HTML ---------------------------------------------------------------------------------------------------


def shown(doc: str) -> Markup:
    """A docstring: paragraphs, formulas (indented), and what follows `Args:` as a list of names."""
    return Markup("").join(Markup(part) for part in _blocks(inspect.cleandoc(doc)))


def _blocks(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if not lines:
            continue
        if re.fullmatch(r"(Args|Raises|Returns|Attributes):", lines[0]):
            yield '<dl class="arguments">'
            for name, words in _arguments(lines[1:]):
                yield f"<dt><code>{escape(name)}</code></dt><dd>{document.inline(words)}</dd>"
            yield "</dl>"
        elif all(line.startswith("    ") for line in lines):
            yield f'<pre class="formula">{escape(inspect.cleandoc(block))}</pre>'
        else:
            for indented, group in groupby(lines, key=lambda line: line.startswith("    ")):
                joined = list(group)
                yield (
                    f'<pre class="formula">{escape(inspect.cleandoc(chr(10).join(joined)))}</pre>' if indented
                    else f"<p>{document.inline(' '.join(joined))}</p>"
                )


def _arguments(lines: list[str]) -> Iterator[tuple[str, str]]:
    made: list[list[str]] = []
    for line in lines:
        named = re.match(r"    (\*{0,2}\w[\w, *]*): ?(.*)", line)
        if named:
            made.append([named[1], named[2]])
        elif made:
            made[-1][1] += " " + line.strip()
    yield from ((name, words) for name, words in made)


# -- how an op is called --------------------------------------------------------------------------------------------------

_RATIO = """x, bound = torch.randn(64, 1000), torch.tensor([1e-3], dtype=torch.float64)
words, table, total = rooftop.compress_ratio(x, bound)
y, damaged = rooftop.decompress_ratio(words[:total], table, 1e-3, x.shape, x.dtype)"""  # both ways

BY_HAND: Mapping[str, str] = {  # of ops that no case calls as one would, with plain tensors
    "adamw_8bit": """param, grad = torch.randn(4096), torch.randn(4096)
first, second = rooftop.quant.adamw_8bit_states(param)
rooftop.adamw_8bit(param, grad, first, second, step=1, lr=3e-4)""",
    "all_reduce_norm_ranks": """x, residual, weight = torch.randn(4, 16, 256), torch.randn(4, 16, 256), torch.ones(4, 256)  # of four ranks
y, s = rooftop.all_reduce_norm_ranks(x, residual, weight)""",
    "compress_ratio": _RATIO,
    "sample": """token = rooftop.sample(torch.randn(4, 32000), temperature=0.8, top_p=0.9)
token = rooftop.sample(torch.randn(4, 32000), seed=torch.arange(4))  # a seed for each row""",
    "append_kv": """k_cache, v_cache = torch.zeros(2, 64, 8, 128), torch.zeros(2, 64, 8, 128)
k, v = torch.randn(2, 1, 8, 128), torch.randn(2, 1, 8, 128)
rooftop.append_kv(k_cache, v_cache, k, v, lengths=torch.tensor([5, 17], dtype=torch.int32))""",
    "argsort": """places = rooftop.argsort(torch.randn(64, 1024), descending=True)""",
    "attention": """q, k, v = torch.randn(1, 64, 32, 128), torch.randn(1, 64, 8, 128), torch.randn(1, 64, 8, 128)  # tokens before heads
y = rooftop.attention(q, k, v, causal=True)""",
    "attention_mask": """mask = rooftop.attention_mask(64, 64, torch.tensor([64, 17]), window=(-1, 0))""",
    "bias_mask_scale_add": """x, residual = torch.randn(64, 512), torch.randn(64, 512)
y = rooftop.bias_mask_scale_add(x, torch.randn(512), residual, p=0.1, seed=7)""",
    "dequantize": """q = rooftop.quantize(torch.randn(64, 512), "int8", granularity="row")
x = rooftop.dequantize(q)""",
    "expert_rows_ranks": """x, counts = torch.randn(2, 16, 256), torch.full((2, 4), 3, dtype=torch.int32)  # of two ranks with two experts each
rows, routes, ends = rooftop.expert_rows_ranks(x, counts, rows=24)
back = rooftop.expert_rows_ranks(rows, counts, routes, rows=16)""",
    "grouped_matmul": """a, b = torch.randn(256, 128), torch.randn(4, 128, 64)
ends = torch.tensor([64, 64, 192, 256], dtype=torch.int32)  # of the rows of four experts
y = rooftop.grouped_matmul(a, b, ends)""",
    "hadamard_quantize": """q = rooftop.hadamard_quantize(torch.randn(64, 512), 128, "int8")""",
    "int_matmul": """a, b = torch.randint(-8, 8, (64, 128), dtype=torch.int8), torch.randint(-8, 8, (32, 128), dtype=torch.int8)
y = rooftop.int_matmul(a, b.t())""",
    "layer_norm": """x, weight, bias = torch.randn(64, 512), torch.randn(512), torch.randn(512)
y = rooftop.layer_norm(x, (512,), weight, bias)""",
    "linear_cross_entropy": """x, weight, target = torch.randn(64, 128), torch.randn(1000, 128), torch.randint(1000, (64,))
loss = rooftop.linear_cross_entropy(x, weight, target)""",
    "linear_jsd": """x, weight = torch.randn(16, 64), torch.randn(100, 64)
loss = rooftop.linear_jsd(x, weight, torch.randn(16, 128), torch.randn(100, 128))""",
    "matmul": """a, b, bias = torch.randn(256, 512), torch.randn(512, 128), torch.randn(128)
y = rooftop.matmul(a, b, bias=bias, activation="gelu")""",
    "quantize": """q = rooftop.quantize(torch.randn(64, 512), "int4", group=128)  # q.codes, q.scale""",
    "quantize_both": """by_rows, by_columns = rooftop.quantize_both(torch.randn(256, 512), "e4m3")""",
    "quantized_matmul": """x, weight = torch.randn(4, 512), torch.randn(256, 512)
packed = rooftop.quant.pack_weight(rooftop.quantize(weight, "int4", group=128))
y = rooftop.quantized_matmul(x, packed)""",
    "rms_norm": """x, residual, weight = torch.randn(64, 512), torch.randn(64, 512), torch.randn(512)
y, summed = rooftop.rms_norm(x, 512, weight, residual=residual)
y = rooftop.rms_norm(x, 512, weight, addend=residual)  # residual + norm(x)""",
    "rms_norm_quantize": """q = rooftop.rms_norm_quantize(torch.randn(64, 512), torch.randn(512), format="int8")""",
    "scaled_matmul": """a, b = torch.randn(64, 128).to(torch.float8_e4m3fn), torch.randn(32, 128).to(torch.float8_e4m3fn)
y = rooftop.scaled_matmul(a, b.t(), torch.tensor(0.5), torch.tensor(2.0))""",
    "softmax_quantize": """q = rooftop.softmax_quantize(torch.randn(64, 512), "int8")""",
    "decompress_ratio": _RATIO,
    "sort": """values, places = rooftop.sort(torch.randn(64, 1024), descending=True)""",
    "spmm_24": """kept, rest = rooftop.prune_24(torch.randn(64, 256, dtype=torch.bfloat16))
y = rooftop.sparse.matmul(kept, torch.randn(256, 32, dtype=torch.bfloat16))""",
    "spmm_csr": """a = rooftop.sparse.SparseTensor.from_dense(torch.randn(64, 128) * (torch.rand(64, 128) < 0.1), "csr")
y = rooftop.sparse.matmul(a, torch.randn(128, 32))""",
    "swiglu_quantize": """q = rooftop.swiglu_quantize(torch.randn(64, 512), torch.randn(64, 512))""",
    "topk": """values, places = rooftop.topk(torch.randn(64, 1024), 8)""",
    "topk_mask": """mask = rooftop.topk_mask(torch.randn(64, 1024), 8)""",
}


def usage(op: Contract) -> str:
    """Lines of Python that call the op as a bench case does, without the options that a call has anyway; "" where its arguments are no
    plain tensors."""
    if op.name not in functions() or op.forward is not None:
        return ""
    head = "import torch\nimport rooftop\n\n"
    if op.name in BY_HAND:
        return head + BY_HAND[op.name]
    cases = sorted(op.cases, key=lambda case: ("bench" not in case.tags, "edge" in case.tags))
    lines = next((lines for case in cases[:TRIED] if (lines := _call(op, case))), None)
    return head + "\n".join(lines) if lines else ""


def _call(op: Contract, case: Case) -> list[str] | None:
    import torch

    specs = dict(case.tensors())
    if any(_made(x) is None for x in specs.values()) or not isinstance(op, Op):
        return None
    tensors: dict[str, Any] = {
        n: torch.empty(x.shape, dtype=getattr(torch, DTYPES[x.dtype].torch), device="meta") for n, x in specs.items()
    }
    try:
        args, kwargs = public_calls.arguments(op, tensors, op.options(case))
        kwargs = _needed(op, args, {n: v for n, v in kwargs.items() if v is not None and not _default(op, n, v)})
    except Exception:  # the call is made from the tensors' values, which these have not
        return None
    names = {id(t): n for n, t in tensors.items()}

    def word(value: Any) -> str:
        return names.get(id(value)) or repr(value)

    given = inspect.signature(public_calls.function(op)).parameters
    plain = list(
        itertools.takewhile(
            lambda n: n in kwargs and given[n].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and id(kwargs[n]) in names, given
        )
    )
    words = [word(a) for a in args] + [word(kwargs[n]) for n in plain] + [f"{n}={word(v)}" for n, v in kwargs.items() if n not in plain]
    if any("tensor(" in w or "object at" in w for w in words):
        return None
    used = [n for n in specs if any(re.search(rf"\b{n}\b", w) for w in words)]
    call = f"rooftop.{op.name}({', '.join(words)})"
    return [*(f"{n} = {_made(specs[n])}" for n in used), call if op.mutates else f"y = {call}"]


def _default(op: Op, name: str, value: Any) -> bool:
    """Whether an option has its default without being named."""
    given = inspect.signature(public_calls.function(op)).parameters
    return name in given and isinstance(value, bool | int | float | str) and value == given[name].default


def _needed(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name without those that the call has anyway: left out, the op is handed the same."""

    def handed(kwargs: dict[str, Any]) -> Any:
        tensors, options = public_calls.given(op, args, kwargs)
        return {n: id(t) for n, t in tensors.items()}, options

    kept = dict(kwargs)
    whole = handed(kept)
    for name in kwargs:
        fewer = {n: v for n, v in kept.items() if n != name}
        with contextlib.suppress(TypeError, ValueError):
            if handed(fewer) == whole:
                kept = fewer
    return kept


def _made(x: Input) -> str | None:
    """An expression that makes such a tensor; None where the case wants values of its own."""
    if x.layout != "contiguous":
        return None
    shape, dtype = ", ".join(map(str, x.shape)), DTYPES[x.dtype]
    if below := re.fullmatch(r"below (\d+)", x.fill):
        return (
            f"torch.randint({below[1]}, ({shape},))" if x.dtype == "i64"
            else f"torch.randint({below[1]}, ({shape},), dtype=torch.{dtype.torch})"
        )
    if x.fill != "normal" or not dtype.floating or dtype.bytes < 2:
        return None
    return f"torch.randn({shape})" if x.dtype == "f32" else f"torch.randn({shape}, dtype=torch.{dtype.torch})"


def first_paragraph(text: str) -> str:
    """The first paragraph of a Python file's docstring, on one line."""
    if plain := re.match(r'"""([^"\\]*)"""', text):  # as most begin: to read the whole file takes longer
        return " ".join(plain[1].strip().split("\n\n")[0].split())
    try:
        found = ast.get_docstring(ast.parse(text)) or ""
    except SyntaxError:
        return ""
    return " ".join(found.split("\n\n")[0].split())
