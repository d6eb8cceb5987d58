"""The public names of the package, found by file name, and the stub that tells type checkers and editors where they come from."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooftop.core import settings
from rooftop.core.tensor_kinds import refusing

if TYPE_CHECKING:
    from torch import Tensor

OWN = ("linear", "linear_logp", "load", "register", "explain", "debug", "invariant")
STUB = settings.PACKAGE / "__init__.pyi"


def names() -> list[str]:
    """Every public name: the functions of the op files, the namespaces, and the package's own functions."""
    return [*_op_names(), *namespaces(), *(n for n, space in LIFTED.items() if space in namespaces()), *OWN]


CALLS = {  # the ops that a function calls, where that is not the one of its name: one of them
    "attention": ("attention", "latent_attention"), "linear": ("matmul",), "linear_logp": ("linear_cross_entropy",),
}
NAMESPACES = ("sparse", "codecs", "comm", "drop_in", "quant")  # classes and helpers over ops, each a package of that name
LIFTED = {  # names that the package also has, and their namespace
    "generate": "drop_in", "generate_batch": "drop_in", "patch": "drop_in", "prove": "drop_in", "unpatch": "drop_in",
    "QuantLinear": "quant", "quantize_model": "quant",
}


def namespaces() -> list[str]:
    return [name for name in NAMESPACES if (settings.PACKAGE / name / "__init__.py").is_file()]


def _op_names() -> list[str]:
    return sorted(p.stem for p in (settings.PACKAGE / "ops").glob("*.py") if not p.stem.startswith("_"))


def public(name: str) -> Any:
    """Loads a public name and makes it an ordinary attribute, so that it is looked up only once. Raises AttributeError like any module."""
    if name in OWN:
        found = globals()[name]
    elif name in namespaces():
        return importlib.import_module(f"rooftop.{name}")
    elif name in LIFTED and LIFTED[name] in namespaces():
        found = getattr(importlib.import_module(f"rooftop.{LIFTED[name]}"), name)
    elif name in _op_names():
        module = importlib.import_module(f"rooftop.ops.{name}")
        found = refusing(getattr(module, name))
        setattr(module, name, found)  # one object, by whatever way it is reached: pickle asks for that
    else:
        raise AttributeError(f"module 'rooftop' has no attribute {name!r}; it has {', '.join(names())}")
    vars(sys.modules["rooftop"])[name] = found
    return found


def register() -> None:
    """Register every op with `torch.library`. An exported program that is loaded in a new process needs this."""
    from rooftop.core import dispatch, registry

    for name in registry.op_names():
        found = registry.op(name)
        dispatch.register(found)
        if found.bwd is not None:
            dispatch.register(found.bwd)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `function(*args, **kwargs)` would run, and why not the others: ``print(rooftop.explain(rooftop.softmax, x))``.

    `function` is a public op, `rooftop.linear` or `rooftop.linear_logp`. Returns an Explanation; its text names the implementation, its
    config and launches, and the implementations that were not chosen."""
    from rooftop.core import dispatch, registry
    from rooftop.core.public_arguments import arguments_of

    name = getattr(function, "__name__", str(function))
    ops = [registry.op(n) for n in CALLS.get(name, (name,))]
    return dispatch.explain(*arguments_of(ops, function, *args, **kwargs))


def debug(enabled: bool = True) -> AbstractContextManager[None]:
    """Check values that only the device can see, and wait for every kernel: ``with rooftop.debug(): loss = rooftop.cross_entropy(x,
    target)``.

    Indices, offsets and page tables that are out of range give a harmless result, which each op's docstring states, and never a write
    outside the output. Under `debug` they raise an IndexError that names the op, and errors that the driver reports are raised by the call
    that caused them. Applies to the whole process until the block ends. Every call synchronises with the device: for debugging, not for
    production."""
    from rooftop.core import argument_checks, debugging

    argument_checks.flag("debug", "enabled", enabled)
    return debugging.debug(enabled)


def invariant(enabled: bool = True) -> AbstractContextManager[None]:
    """The result of a row has the same bits, whatever else is in the call: ``with rooftop.invariant(): y = rooftop.linear(x, w)``.

    The kernel and with it the order of sums are those of a fixed number of rows, so that few rows are slower than without. A token's
    attention has the same
    bits in a prefill, in a chunk of it and in decoding. What cannot promise it raises `rooftop.core.invariance.InvarianceError`, which
    names the op, the
    dimension and the reason (docs/invariance.md). Applies to the whole process until the block ends, of several threads the last, also to
    graphs that
    torch.compile has made before; a CUDA graph keeps what was captured. Tensors of the CPU are computed row by row, slowly.
    ``ROOFTOP_INVARIANT=1``: from the start. Raises TypeError for an `enabled` that is not a bool."""
    from rooftop.core import argument_checks, invariance

    argument_checks.flag("invariant", "enabled", enabled)
    return invariance.invariant(enabled)


@refusing
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str = "none", residual: Tensor | None = None,
    out_dtype: Any = None,
    precision: str = "ieee", implementation: str | None = None,
) -> Tensor:
    """act(x weightᵀ + bias) + residual, as `torch.nn.functional.linear` with what follows it: `rooftop.matmul` of `x` and `weight.T`.

    Args:
        x: [..., K], float32, float16 or bfloat16.
        weight: [N, K], in the dtype of `x`.
        bias: [N], or None.
        activation: "none", "relu", "silu", "gelu" or "gelu_tanh".
        residual: [..., N], or None.
        out_dtype, precision, implementation: as `rooftop.matmul`'s.

    Returns [..., N].

    Raises TypeError for other dtypes, ValueError for shapes, devices or options that do not fit."""
    from rooftop.ops import _linear_layer

    return _linear_layer.linear(x, weight, bias, activation, residual, out_dtype, precision, implementation)


@refusing
def linear_logp(
    x: Tensor, weight: Tensor, tokens: Tensor, *, bias: Tensor | None = None, temperature: float = 1.0, softcap: float | None = None,
    ignore_index: int = -100, return_entropy: bool = False, memory: str = "fast", group: Any = None, implementation: str | None = None,
) -> Any:
    """log softmax((x weightᵀ + bias) / temperature) of given tokens, without the logits: what DPO, KTO, PPO and GRPO train on. It is
    `rooftop.linear_cross_entropy` of each token with the sign changed, and has its gradients and its memory.

    Args:
        x: [..., H], float32, float16 or bfloat16.
        weight: [V, H], in the dtype of `x`: the last layer's.
        tokens: int64 [...], 0 to V - 1 or `ignore_index`, whose log-probability is 0, without a gradient.
        bias: [V], of the dtype of `x` or float32.
        temperature: above 0.
        return_entropy: return (log-probabilities, entropies) of each token's distribution, in nats. Gradients flow through both.
        softcap, memory, group, implementation: as `rooftop.linear_cross_entropy`'s.

    Returns float32 [...], or two of them.

    Raises TypeError for other dtypes, ValueError for shapes, devices or options that do not fit, IndexError for a token out of range on
    the CPU.

    Source: Rafailov et al. 2023 (DPO); Shao et al. 2024 (GRPO)."""
    from rooftop.ops.linear_cross_entropy import linear_cross_entropy

    try:
        loss = linear_cross_entropy(
            x, weight, tokens, bias=bias, ignore_index=ignore_index, softcap=softcap, temperature=temperature, reduction="none",
            return_entropy=return_entropy, memory=memory, group=group, implementation=implementation,
        )
    except (TypeError, ValueError, IndexError) as error:
        if str(error).startswith("linear_cross_entropy: "):  # in the words of this function
            raise type(error)(str(error).replace("linear_cross_entropy: ", "linear_logp: ", 1).replace("target", "tokens")) from error
        raise
    return (-loss[0], loss[1]) if return_entropy else -loss


def load(path: str | Path, *, source: str | None = None) -> Any:
    """Load a `.cu` file with a head (docs/head.md) as a callable on tensors: ``y = rooftop.load("my.cu")(x, dim=1)``.

    Args:
        path: the file. `source` gives its text if it is not on disk; `path` is then only a name.

    Returns a callable that takes the op's tensors and options, by name or in the contract's order, and returns its outputs; options have
    the public function's defaults. On a GPU it is compiled by NVRTC at the first call and cached on disk. On CPU tensors it runs in the
    simulator, thread by thread, which raises an error with the source line for a race or an access out of bounds.

    Raises HeadError for a missing or malformed head, CompileError with the compiler's text and the source line, UnsupportedError for an
    input that violates the head's `requires`, RuntimeError for an input that requires a gradient while gradients are enabled: loaded
    kernels have none."""
    from rooftop.core.user_kernel import Loaded

    def on_cpu(*call: Any) -> Any:
        from rooftop.lab.simt.called import run

        return run(*call)

    return Loaded(Path(path), source, on_cpu)


def home(name: str) -> str:
    """The module that defines a public name."""
    if name in OWN:
        return __name__
    return f"rooftop.{LIFTED[name]}" if name in LIFTED else "rooftop" if name in namespaces() else f"rooftop.ops.{name}"


def stub() -> str:
    """The text of `__init__.pyi`: where each public name comes from. Signatures and docstrings stand there alone."""
    lines = sorted(f"from {home(name)} import {name} as {name}" for name in names())
    return "\n".join(
        ['"""rooftop. This file is generated by `rooftop stub`; a test holds it against the op files."""', "", *lines, "", "__version__: str", ""]
    )
