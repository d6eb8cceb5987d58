"""How the package hangs together: what may import what, also inside functions, for types alone, and by name; how many parameters a function
has."""

from __future__ import annotations

import ast
import graphlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from rooftop.core import settings

# From the bottom up: a package imports packages of its own layer and of those before it, and no two packages import each other.
LAYERS = (
    ("core",), ("formats",), ("ranks",), ("ops",), ("kernels",), ("ladders",), ("quant", "sparse", "codecs", "comm", "drop_in"), ("lab",),
    ("face",)
)
FACE = ("rooftop", "rooftop.__main__", "rooftop.public_names")  # the public names and the command: above all
# Methods and functions that are, or return, something public of a layer above. They ask the package for it when they are called.
ASK_THE_FACE = {
    "rooftop.formats.quantized": "Quantized.dequantize is rooftop.dequantize",
    "rooftop.ops.prune_24": "returns rooftop.sparse.SparseTensor",
    "rooftop.sparse.tensor": "SparseTensor @ x is rooftop.sparse.matmul", "rooftop.sparse.products": "chooses among public ops",
    "rooftop.sparse.linear": "calls public ops",
}
FOUND_BY_FILE_NAME = {("rooftop.core.registry", f"rooftop.{found}") for found in ("ops", "kernels")}
COMPUTED = {  # modules that import by a name that is no text: of files of their own folder, or of packages of others
    "rooftop.kernels._device.tpu", "rooftop.lab.check.like",
    "rooftop.lab.cli", "rooftop.lab.doctor", "rooftop.lab.report.drawings", "rooftop.lab.report.reference",
    "rooftop.public_names", "rooftop.core.lazy_names",  # for packages, whose imports for type checkers say the same
}


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of the whole package; of a folder without `__init__.py` the folder."""
    found = {}
    for path in sorted(settings.PACKAGE.rglob("*.py")):
        name = ".".join(("rooftop", *path.relative_to(settings.PACKAGE).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = path
        for i in range(1, name.count(".")):
            found.setdefault(".".join(name.split(".")[: i + 1]), path.parent)
    return found


def docstrings(nodes: Sequence[ast.AST]) -> set[int]:
    bodies = (n.body for n in nodes if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
    return {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}


def by_name(call: ast.Call) -> str | None:
    """What `import_module(...)` imports, as far as its text says: "" if that is computed. None for other calls."""
    if getattr(call.func, "attr", getattr(call.func, "id", "")) not in ("import_module", "__import__") or not call.args:
        return None
    first = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
    return str(first.value).rstrip(".") if isinstance(first, ast.Constant) else ""


def imports(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The modules that a text imports, and perhaps others than this package's."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (name if name in modules() else node.module for alias in node.names for name in [f"{node.module}.{alias.name}"])
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and by_name(node) not in (None, "", "rooftop"):  # those of COMPUTED
            yield str(by_name(node))


def named(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """What may be a module: a process to start, or what something else imports."""
    skipped = docstrings(nodes)
    yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped)


@cache
def texts() -> dict[str, tuple[set[str], set[str], bool]]:
    """Of each module the modules that it imports and those that it names, and whether it imports by a computed name."""
    return {name: read(path.read_text(encoding="utf-8") if path.is_file() else "") for name, path in modules().items()}


def read(text: str) -> tuple[set[str], set[str], bool]:
    nodes = list(ast.walk(ast.parse(text)))
    computed = any(isinstance(node, ast.Call) and by_name(node) in ("", "rooftop") for node in nodes)
    return {name for name in imports(nodes) if name in modules()}, {
        name for name in named(nodes) if name in modules() and name.count(".") > 1
    }, computed


def arrows(**more: str) -> dict[str, set[str]]:
    """Module -> the modules that it imports, and those of other packages that it names. `more`: texts of further modules of
    rooftop.core."""
    found = {**texts(), **{f"rooftop.core.{name}": read(text) for name, text in more.items()}}
    return {
        name: {target for target in imported if target != name} | {target for target in said if package(target) != package(name)}
        for name, (imported, said, _) in found.items()
    }


def package(name: str) -> str:
    """`rooftop.core`, `rooftop.ops`, and of the workbench its packages and single modules."""
    if name in FACE:
        return "rooftop.face"
    parts = name.split(".")
    return ".".join(parts[:3] if parts[1] == "lab" else parts[:2])


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def allowed(name: str, target: str) -> bool:
    """Exceptions, each with its reason above."""
    asks = name in ASK_THE_FACE or name.startswith("rooftop.lab.")
    return (name, target) in FOUND_BY_FILE_NAME or (
        asks and (target in FACE or (name, target) == ("rooftop.ops.prune_24", "rooftop.sparse"))
    )


def layer(name: str) -> int:
    return next(i for i, packages in enumerate(LAYERS) if package(name).split(".")[1] in packages)


def upward(graph: Mapping[str, set[str]]) -> list[str]:
    return sorted(f"{n} -> {t}" for n, targets in graph.items() for t in targets if layer(t) > layer(n) and not allowed(n, t))


def between_packages(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, targets in graph.items():
        found.setdefault(package(name), set()).update(p for t in targets if (p := package(t)) != package(name) and not allowed(name, t))
    return found


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circle({n: {t for t in targets if not allowed(n, t)} for n, targets in arrows().items()}) == []


def test_no_package_imports_itself_by_a_detour() -> None:
    graph = between_packages(arrows())
    assert len(graph) < 38
    assert circle(graph) == []


def test_no_package_imports_one_of_a_layer_above() -> None:
    assert upward(arrows()) == []


def test_who_imports_by_a_computed_name_is_known() -> None:
    assert {name for name, (_, _, computed) in texts().items() if computed} == COMPUTED


@pytest.mark.parametrize("face", ["quant", "sparse", "codecs", "comm"])
def test_a_namespace_has_its_names_from_the_modules_that_it_says(face: str) -> None:
    import rooftop

    namespace, seen = getattr(rooftop, face), arrows()[f"rooftop.{face}"]
    for name in namespace.__all__:
        found = getattr(namespace, name)
        home = getattr(found, "__module__", None)
        assert home is None or not home.startswith("rooftop") or home in seen, name


@pytest.mark.parametrize("graph", [{"a": {"b"}, "b": {"a"}}, {"a": {"b"}, "b": {"c"}, "c": {"a"}}])
def test_a_circle_is_seen(graph: dict[str, set[str]]) -> None:
    assert circle(graph)


UP = ("from rooftop.lab.simt.called import run", "import rooftop.ops.add",
      "def f():\n    from rooftop import ops\n    from rooftop.quant import linear",
      "from importlib import import_module\nimport_module('rooftop.lab.simt.called')",
      "import importlib\nimportlib.import_module(f'rooftop.kernels.{1}')",
      "PROGRAM = ['-m', 'rooftop.lab.simt.called']", "from rooftop import public_names", "import rooftop")


@pytest.mark.parametrize("text", UP)
def test_an_arrow_up_is_seen(text: str) -> None:
    words = '"""rooftop.lab.simt.called is no arrow here."""\n'
    assert upward(arrows(mine=f"{words}from rooftop.core import settings\n")) == []
    found = upward(arrows(mine=f"{words}{text}\n"))
    assert found and all(arrow.startswith("rooftop.core.mine -> ") for arrow in found)


# -- parameters ---------------------------------------------------------------------------------------------------------

MOST, MOST_OF_KERNELS = 16, 40
# What has the signature of something public: public functions and commands, references, and functions of torch's and ours that are called
# as these are.
AS_PUBLIC = {
    "rooftop.ops.attention": {"attention", "reference", "backward", "_gradients"},
    "rooftop.ops.linear_cross_entropy": {"linear_cross_entropy", "reference", "cpu", "backward"},
    "rooftop.drop_in.torch_attention": {"forward", "backward"}, "rooftop.lab.cli.check": {"check"}, "rooftop.lab.cli.simt": {"simt"},
    "rooftop.lab.cli.measure": {"bench"}, "rooftop.lab.cli.diagnose": {"diagnose"},
}
# Attention has 15 optional tensors with up to four strides each. In tuples a launch would take the host as long (1.1 us without the driver,
# either way), but what prepares a launch, interprets it and knows its records again takes flat arguments alone.
MANY_OF_KERNELS = {
    "rooftop.kernels.attention.attention__triton": {"_forward": 55},
    "rooftop.kernels.attention.attention__splits__triton": {"_splits": 54}, "rooftop.kernels.attention._bwd_tiles": {"to_bias": 53},
    "rooftop.kernels.attention.attention_bwd__triton": {"_keys": 60, "_queries": 56},
}


def parameters(name: str, text: str) -> Iterator[tuple[str, bool, int]]:
    """Of each function of a module its name, whether it runs on the device, and how many parameters it has: on the device those that are no
    constexpr."""
    tiles = name.startswith("rooftop.kernels.") and any(f"__{language}_" in name for language in ("cutile", "cute"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            found = [a for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if a.arg not in ("self", "cls")]
            device = tiles or any("jit" in ast.unparse(d) for d in node.decorator_list)
            yield node.name, device, sum(not (device and a.annotation and "constexpr" in ast.unparse(a.annotation)) for a in found)


def too_many(sources: Mapping[str, str]) -> list[str]:
    found = []
    for name, text in sources.items():
        for function, device, n in parameters(name, text):
            most = MANY_OF_KERNELS.get(name, {}).get(function, MOST_OF_KERNELS) if device else MOST
            if n > most and (device or function not in AS_PUBLIC.get(name, ())):
                found.append(f"{name}.{function}: {n}")
    return found


def test_no_function_has_too_many_parameters() -> None:
    assert too_many({name: path.read_text(encoding="utf-8") for name, path in modules().items() if path.is_file()}) == []


@pytest.mark.parametrize("decorator", ["", "@triton.jit\n"])
def test_too_many_parameters_are_seen(decorator: str) -> None:
    most = MOST_OF_KERNELS if decorator else MOST
    for n in (most, most + 1):
        names = [f"a{i}" for i in range(n)]
        found = too_many({"rooftop.core.mine": f"{decorator}def f({', '.join(names)}, *rest, **more):\n    pass\n"})
        assert found == ([] if n == most else [f"rooftop.core.mine.f: {n}"])


def test_a_contract_takes_few_arguments() -> None:
    from rooftop.core.contract import Contract

    assert len(inspect.signature(Contract).parameters) <= MOST
