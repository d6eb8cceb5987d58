"""The public names of the package, found by file name, and the stub that tells editors their types."""

from __future__ import annotations

import ast
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import settings

if TYPE_CHECKING:
    from rooftop.core.contract import Contract

_EXPLAINING = threading.RLock()  # explain exchanges what an op calls, for its own thread
OWN = ("load", "register", "explain", "debug")
STUB = settings.PACKAGE / "__init__.pyi"


def names() -> list[str]:
    """Every public name: the functions of the op files, the namespaces, then the package's own."""
    return [*_op_names(), *namespaces(), *(n for n, space in LIFTED.items() if space in namespaces()), *OWN]


NAMESPACES = ("sparse", "codecs", "comm", "drop_in", "quant")  # classes and helpers over ops, each a package of that name
LIFTED = {"QuantLinear": "quant", "quantize_model": "quant"}  # names of a namespace that the package has as well


def namespaces() -> list[str]:
    return [name for name in NAMESPACES if (settings.PACKAGE / name / "__init__.py").is_file()]


def _op_names() -> list[str]:
    return sorted(p.stem for p in (settings.PACKAGE / "ops").glob("*.py") if not p.stem.startswith("_"))


def public(name: str) -> Any:
    """A public name, loaded, and from now on an attribute like any other: the next use looks nothing up. Raises AttributeError as any module does."""
    if name in OWN:
        found = globals()[name]
    elif name in namespaces():
        return importlib.import_module(f"rooftop.{name}")
    elif name in LIFTED and LIFTED[name] in namespaces():
        found = getattr(importlib.import_module(f"rooftop.{LIFTED[name]}"), name)
    elif name in _op_names():
        found = getattr(importlib.import_module(f"rooftop.ops.{name}"), name)
    else:
        raise AttributeError(f"module 'rooftop' has no attribute {name!r}; it has {', '.join(names())}")
    vars(sys.modules["rooftop"])[name] = found
    return found


def register() -> None:
    """Register every op with `torch.library`, as an exported program that is loaded in a new process needs."""
    from rooftop.core import dispatch, registry

    for name in registry.op_names():
        found = registry.op(name)
        dispatch.register(found)
        if found.bwd is not None:
            dispatch.register(found.bwd)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `function(*args, **kwargs)` would run, and why not the others: ``print(rooftop.explain(rooftop.softmax, x))``.

    `function` is a public op. Returns an Explanation; its text names the implementation, config, launches and rejected ones."""
    from rooftop.core import dispatch, registry

    found = registry.op(getattr(function, "__name__", str(function)))
    return dispatch.explain(found, arguments_of(found, function, *args, **kwargs))


def arguments_of(found: Contract, function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """What the public function `function` of the op `found` hands on to its kernels for these arguments, in the contract's order. Nothing runs.

    Raises what the function raises for arguments that it does not take."""
    from rooftop.core.op import Op

    captured: list[tuple[Any, ...]] = []

    class Stop(Exception):
        """Ends the public function once its validated arguments are known."""

    assert isinstance(found, Op)
    mine = threading.get_ident()
    with _EXPLAINING:
        present = found.caller()

        def capture(*given: Any, implementation: str | None = None) -> Any:
            if threading.get_ident() != mine:  # another thread's call in the meantime is a call as any other
                return present(*given, implementation=implementation)
            captured.append(given)
            raise Stop

        found._call = capture
        try:
            function(*args, **kwargs)
        except Stop:
            pass
        finally:
            found._call = present
    return captured[0]


def debug(enabled: bool = True) -> AbstractContextManager[None]:
    """Check what only the device can see, and wait for every kernel: ``with rooftop.debug(): loss = rooftop.cross_entropy(x, target)``.

    Indices, offsets and page tables that are out of range give a harmless result, which each op's docstring states, and never a write outside the
    output. Under `debug` they are an IndexError that names the op, and what the driver reports is raised by the call that caused it. Applies to the
    whole process until the block ends. Every call synchronises with the device: for finding faults, not for production."""
    from rooftop.core import debugging

    return debugging.debug(enabled)


def load(path: str | Path, *, source: str | None = None) -> Any:
    """A `.cu` file with a head (docs/head.md) as a callable on tensors: ``y = rooftop.load("my.cu")(x, dim=1)``.

    Args:
        path: the file. `source` gives its text where it is not on disk; `path` then only names it.

    Returns a callable that takes the op's tensors and options by name or in the contract's order and returns its outputs; options have
    the public function's defaults. On a GPU it is compiled by NVRTC at the first call and cached on disk; on CPU tensors it runs in the simulator, thread
    by thread, and a race or an access out of bounds is raised with its line.

    Raises HeadError for a missing or malformed head, CompileError with the compiler's text and your line, UnsupportedError for an input that
    the head's `requires` refuse, RuntimeError for an input that requires a gradient while gradients are on: what was loaded has none."""
    from rooftop.core.user_kernel import Loaded

    return Loaded(Path(path), source)


def stub() -> str:
    """The text of `__init__.pyi`: each op's signature and docstring, read from its file without importing it."""
    lines = [
        '"""rooftop. This file is generated by `rooftop stub`; a test holds it against the op files."""',
        "",
        "from collections.abc import Callable, Sequence",
        "from contextlib import AbstractContextManager",
        "from pathlib import Path",
        "from typing import Any",
        "",
        "import torch",
        "from torch import Tensor",
        "",
        *(f"from rooftop import {name} as {name}" for name in sorted(namespaces())),
        *(f"from rooftop.{space} import {name} as {name}" for name, space in LIFTED.items() if space in namespaces()),
        *([""] if namespaces() else []),
        "__version__: str",
        "",
    ]
    folder = settings.PACKAGE
    for name in _op_names():
        lines += _signature(ast.parse((folder / "ops" / f"{name}.py").read_text(encoding="utf-8")), name)
    own = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    for name in OWN:
        lines += _signature(own, name)
    return "\n".join(lines).rstrip() + "\n"


def _signature(tree: ast.Module, name: str) -> Sequence[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            doc = ast.get_docstring(node, clean=False) or ""
            returns = ast.unparse(node.returns) if node.returns else "Any"
            return [f"def {name}({ast.unparse(node.args)}) -> {returns}:", f'    """{doc}"""', ""]
    raise ValueError(f"ops/{name}.py defines no function {name}")
