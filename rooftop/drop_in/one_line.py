"""`rooftop.patch(model)`, and its proof."""

from __future__ import annotations

from torch import nn

from rooftop.drop_in import patching
from rooftop.drop_in.proving import proven


def patch(
    model: nn.Module, *, attention: bool = True, rms_norm: bool = True, layer_norm: bool = True, rope: bool = True, mlp: bool = True,
    activation: bool = True, fused_linear_cross_entropy: bool = True, experts: bool = True, residual: bool = False, linear: bool = False,
    check: bool = True, prove: bool = False, memory: str = "fast", decompose: tuple[str, ...] | None = None, **aliases: bool,
) -> patching.Report:
    """Have `model` compute with the functions of this package: ``rooftop.patch(model)``. In place, and this instance alone: neither its
    classes nor Transformers change. Nothing is known by name: a module is replaced if a small random copy of it gives the same as ours,
    against float64.

    Args:
        model: a model of Hugging Face Transformers; of any other module norms, gated MLPs and activations are replaced.
        attention: `rooftop.attention` through ``attn_implementation="rooftop"`` (`rooftop.drop_in`), and its masks.
        rms_norm, layer_norm: norms; 1 + weight where a model stores the difference.
        rope: the rotation of queries and keys.
        mlp: MLPs with a gate: silu or gelu, two products or a packed one. Also swiglu= and geglu=.
        activation: silu and gelu that stand alone. Also gelu=.
        fused_linear_cross_entropy: lm_head and loss in one, without logits, where labels are given in training mode (in evaluation with
            skip_logits=True; skip_logits=False gives logits in training). The result's `logits` are then None. Also cross_entropy=.
        experts: experts of a mixture, through ``experts_implementation="rooftop"``.
        residual: the addition within a decoder layer goes into the norm after it.
        linear: `nn.Linear` by `rooftop.linear`, so that `rooftop.invariant()` holds for a whole model; adapters and quantised layers stay.
        check: compare the gradients of the copies too.
        prove: afterwards run `rooftop.prove` on random tokens; a model that is not equal is restored, and a ValueError says where.
        memory: of `rooftop.linear_cross_entropy`.
        decompose: parts whose own forward runs under torch.compile, which fuses it with what is around. None: norms, activations, gated
            MLPs, residual, and rotations of few elements; (): none.

    Returns a `Report`. What others have hung on (hooks, adapters on linear layers) goes on; a module whose forward they have replaced is
    left.

    Raises TypeError for what is no module or an unknown part, ValueError for a model that is patched already, on the meta device or wrapped
    by FSDP, or in which nothing can be replaced. The model is then as it was."""
    if not isinstance(prove, bool):
        raise TypeError(f"patch: prove is {prove!r}; it must be True or False")
    parts = dict(
        attention=attention, rms_norm=rms_norm, layer_norm=layer_norm, rope=rope, mlp=mlp, activation=activation,
        fused_linear_cross_entropy=fused_linear_cross_entropy, experts=experts, residual=residual, linear=linear, **aliases,
    )
    report = patching.apply(model, parts, check=check, memory=memory, decompose=decompose)
    if prove:
        try:
            proven(model)
        except BaseException:
            patching.unpatch(model)
            raise
    return report
