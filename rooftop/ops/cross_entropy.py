"""Cross-entropy loss of given logits. The gradient can be written in place of the logits.

    z = softcap · tanh(x / softcap),  or x
    loss_i = lse_i - (1 - s) · z_i,target - s · mean(z_i) + lse_square_scale · lse_i²,   lse_i = log sum_j exp(z_ij)

s is the label smoothing. Sources: Szegedy et al. 2015 (arXiv 1512.00567) for the smoothing; de Brébisson & Vincent 2015 (arXiv 1511.05042)
for the square of the log-normaliser ("z-loss"); the soft cap as in Gemma 2 (arXiv 2408.00118)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rooftop.core.argument_checks import number
from rooftop.core.layouts import widen
from rooftop.core.op import Calls, Grad, Judged, Judging, Op, Sizes, Tolerance, first_of, like
from rooftop.core.spec import Case, Input, Meta, Problem, Work, case
from rooftop.ops._peers import compiled

if TYPE_CHECKING:
    from torch import Tensor

REDUCTIONS = ("mean", "sum", "none")
LONG = 32768  # columns from which torch's own sums on the CPU may err more than is allowed


def cross_entropy(
    input: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    lse_square_scale: float = 0.0,
    softcap: float | None = None,
    inplace_backward: bool = False,
    implementation: str | None = None,
) -> Tensor:
    """Cross-entropy between logits and class indices, as `torch.nn.functional.cross_entropy`, computed in float32.

    Args:
        input: logits [N, C] or [C], float32, float16 or bfloat16. With more dimensions the classes come last, [..., C] for a target [...],
            or second, as in torch, [N, C, ...] for a target [N, ...]; shapes that fit both are refused.
        target: int64 class indices [N] or [], 0 to C - 1 or `ignore_index`. Any other value raises IndexError on the CPU; on a GPU it makes
            that row's loss and gradient NaN, and raises under `rooftop.debug()`.
        ignore_index: rows with this target have loss and gradient 0 and do not count in the mean.
        reduction: `"mean"` over the rows that count, `"sum"` or `"none"`.
        label_smoothing: 0 to 1, the share of the target spread evenly over all classes.
        lse_square_scale: factor of the squared log-normaliser, added to each row's loss (Liger's name for it).
        softcap: logits are first bounded smoothly to ± this. None: no cap. On a GPU, with 16-bit logits of 1024 classes or more, the capped
            logits have an error of at most 2e-7 of the cap. In the worst case, when all logits of a row are equal, the loss has this error
            too.
        inplace_backward: the backward overwrites `input` with the gradient (on CUDA, in eager mode), which saves its memory. `input` must
            not be used afterwards; a second backward through it raises.
        implementation: name of a kernel (`"triton"`), which runs or raises. None selects the best one that supports the input.

    Returns float32: a scalar, or the shape of `target` without a reduction. The mean over no rows is NaN, as torch's.

    Raises TypeError for other dtypes or options that are not numbers, ValueError for shapes, devices or options that are not accepted."""
    _validate(input, target, ignore_index, reduction, label_smoothing, lse_square_scale, softcap)
    if input.dim() > 2 and target.shape != input.shape[:-1]:
        input = input.movedim(1, -1)
    x, t = (input, target) if input.dim() == 2 else (input.reshape(-1, input.shape[-1]), target.reshape(-1))
    cap = 0.0 if softcap is None else float(softcap)
    loss, _, _ = OP(
        x, t, int(ignore_index), reduction, float(label_smoothing), float(lse_square_scale), cap, inplace_backward,
        implementation=implementation
    )
    return loss.view(target.shape) if reduction == "none" else loss


def _validate(
    input: Tensor, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float, lse_square_scale: float, softcap: float | None
) -> None:
    import torch

    for name, t in (("input", input), ("target", target)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"cross_entropy: {name} is a {type(t).__name__}; it must be a tensor")
    if input.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"cross_entropy: input is {input.dtype}; accepted are torch.float32, torch.float16, torch.bfloat16")
    if target.dtype != torch.int64:
        raise TypeError(f"cross_entropy: target is {target.dtype}; accepted is torch.int64 (class indices; probabilities are not)")
    last = input.dim() > 0 and target.shape == input.shape[:-1]
    second = input.dim() > 2 and target.shape == (*input.shape[:1], *input.shape[2:])
    if not last and not second:
        accepted = "[N, C] and [N], [C] and [], [..., C] and [...], or [N, C, ...] and [N, ...]"
        raise ValueError(f"cross_entropy: input has shape {tuple(input.shape)} and target {tuple(target.shape)}; they must be {accepted}")
    if last and second:
        raise ValueError(
            f"cross_entropy: input has shape {tuple(input.shape)} and target {tuple(target.shape)}: the classes may be the last dimension "
            f"or the second; "
            "give input.flatten(0, -2) and target.flatten(), or input.movedim(1, -1).flatten(0, -2)"
        )
    if input.shape[-1 if last else 1] == 0:
        raise ValueError("cross_entropy: input has no classes")
    if target.device != input.device:
        raise ValueError(f"cross_entropy: input lies on {input.device} and target on {target.device}; they must be on one device")
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy: reduction is {reduction!r}; it must be 'mean', 'sum' or 'none'")
    number("cross_entropy", "ignore_index", ignore_index, "a whole number", whole=True)
    number("cross_entropy", "lse_square_scale", lse_square_scale, "a finite number", finite=True)
    number("cross_entropy", "label_smoothing", label_smoothing, "0 to 1")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing is {label_smoothing}; it must be 0 to 1")
    if softcap is not None:
        number("cross_entropy", "softcap", softcap, "a finite number above 0, or None", finite=True)
        if not softcap > 0:
            raise ValueError(f"cross_entropy: softcap is {softcap}; it must be a finite number above 0, or None")


def reference(
    input: Tensor, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float, lse_square_scale: float, softcap: float,
    inplace: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, normaliser, the number that the losses are divided by). The normaliser [N, 2] is a shift m, near the row's maximum, and the
    sum of
    exp(z - m): lse = m + log(sum). As one number it would be rounded at the size of the logits, and the gradient with it."""
    import torch

    z = softcap * (input / softcap).tanh() if softcap else input
    most = z.amax(-1)
    total = (z - most[:, None]).exp().sum(-1)
    above, picked = total.log(), z.gather(-1, target.clamp(0, z.shape[-1] - 1)[:, None])[:, 0]
    loss = above + (most - picked)
    if label_smoothing:
        loss = above + (1 - label_smoothing) * (most - picked) + label_smoothing * (most - z.mean(-1))
    if lse_square_scale:
        loss = loss + lse_square_scale * (most + above).square()
    loss = loss.where((target >= 0) & (target < z.shape[-1]), float("nan")).where(target != ignore_index, 0.0)
    divisor = (target != ignore_index).sum().to(total.dtype) if reduction == "mean" else total.new_ones(())
    return loss if reduction == "none" else loss.sum() / divisor, torch.stack((most, total), -1), divisor


def cpu(
    input: Tensor, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float, lse_square_scale: float, softcap: float,
    inplace: bool
) -> Any:
    """The losses are torch's, their sum the reference's: torch adds them one after another. On a CPU of short vectors its sums in LONG rows
    err too much, so these are `torch.logsumexp`'s, and gradients of smoothed losses do."""
    if lse_square_scale or (label_smoothing and input.requires_grad):
        return NotImplemented
    try:
        of = _by_logsumexp if input.shape[-1] > LONG else _plain
        loss = of(widen(input), target, ignore_index, "none", label_smoothing, lse_square_scale, softcap)
        if reduction == "none":
            return loss, None, None
        return loss.sum() / (target != ignore_index).sum() if reduction == "mean" else loss.sum(), None, None
    except IndexError:  # a target out of range, of which the checks of the reference say more
        return NotImplemented


def _by_logsumexp(input: Tensor, target: Tensor, ignore_index: int, _reduction: str, smoothing: float, _scale: float, softcap: float) -> Tensor:
    from torch.nn.functional import nll_loss

    z = softcap * (input / softcap).tanh() if softcap else input
    rest = z.logsumexp(-1) - (smoothing * z.mean(-1) if smoothing else 0.0)
    return rest.where(target != ignore_index, 0.0) + (1 - smoothing) * nll_loss(z, target, ignore_index=ignore_index, reduction="none")


def backward(
    dloss: Tensor, input: Tensor, target: Tensor, normaliser: Tensor, divisor: Tensor, ignore_index: int, reduction: str,
    label_smoothing: float, lse_square_scale: float, softcap: float, inplace: bool,
) -> Tensor:
    """dz = (exp(z - lse) · (1 + 2 · lse_square_scale · lse) - s / C - (1 - s) · [target]) · dloss / divisor, dx = dz · (1 - (z / softcap)²)

    with exp(z - lse) = exp(z - m) / sum."""
    z = softcap * (input / softcap).tanh() if softcap else input
    most, total = normaliser.unbind(-1)
    count, share = z.shape[-1], (dloss / divisor).expand(target.shape)
    share = share.where((target >= 0) & (target < count), float("nan"))
    each = (1 + 2 * lse_square_scale * (most + total.log())) / total if lse_square_scale else 1 / total
    d = (z - most[:, None]).exp() * each[:, None] - label_smoothing / count
    d = d.scatter_add(
        -1, target.clamp(0, count - 1)[:, None], d.new_full((1, 1), label_smoothing - 1).expand(target.shape[0], 1)
    ) * share[:, None]
    d = d * (1 - (z / softcap).square()) if softcap else d
    return d.where((target != ignore_index)[:, None], 0.0)


def outputs(input: Meta, target: Meta, reduction: str, **_: Any) -> dict[str, Meta]:
    rows = Meta(input.shape[:-1], "f64" if input.dtype == "f64" else "f32")
    single = Meta((), rows.dtype)
    return {"loss": rows if reduction == "none" else single, "normaliser": Meta((*rows.shape, 2), rows.dtype), "divisor": single}


def _rows(p: Problem) -> dict[str, int]:
    return dict.fromkeys(("input", "target", "normaliser", *(["loss"] if p.option("reduction") == "none" else [])), 0)


def outputs_bwd(dloss: Meta, input: Meta, **_: Any) -> dict[str, Meta]:
    return {"dinput": like(input)}


def canonical(p: Problem) -> Problem | None:
    """As they are: logits with neighbouring classes in a row, all else without gaps (dloss at any step)."""
    for name, m in p.tensors:
        if m is None:
            continue
        if name in ("input", "dinput"):
            if m.shape[1] > 1 and m.strides[1] != 1:
                return None
        elif name != "dloss" and not m.contiguous:
            return None
    return p


def work(p: Problem) -> Work:
    """Read every logit once; one exponential, a maximum and two FMAs each."""
    n = p["input"].numel
    return Work(p["input"].nbytes + p["target"].nbytes, p["loss"].nbytes + p["normaliser"].nbytes, {"exp": 1.0 * n, "fma32": 3.0 * n})


def work_bwd(p: Problem) -> Work:
    n = p["input"].numel
    read = sum(p[name].nbytes for name in ("dloss", "input", "target", "normaliser", "divisor"))
    return Work(read, p["dinput"].nbytes, {"exp": 1.0 * n, "fma32": 3.0 * n})


def _plain(
    input: Tensor, target: Tensor, ignore_index: int, reduction: str, label_smoothing: float, lse_square_scale: float, softcap: float
) -> Tensor:
    import torch

    z = softcap * (input / softcap).tanh() if softcap else input
    loss = torch.nn.functional.cross_entropy(z, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing)
    if lse_square_scale:
        raise ValueError("torch's cross_entropy has no term of the log-normaliser")
    return loss


def _eager(input: Tensor, target: Tensor, *options: Any) -> tuple[Tensor, None, None]:
    return _plain(input, target, *options[:-1]), None, None


def _liger() -> Callable[..., Any]:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    def run(input: Tensor, target: Tensor, ignore: int, reduction: str, smoothing: float, scale: float, cap: float, inplace: bool) -> Any:
        loss, *_ = LigerCrossEntropyFunction.apply(input, target, None, ignore, scale, smoothing, reduction, cap or None, False)
        return loss, None, None

    return run


def _quack() -> Callable[..., Any]:
    from quack.cross_entropy import cross_entropy_fwd

    def run(input: Tensor, target: Tensor, ignore: int, reduction: str, smoothing: float, scale: float, cap: float, inplace: bool) -> Any:
        if smoothing or scale or cap:
            raise ValueError("quack's cross-entropy has no smoothing, no z-loss and no cap")
        loss, _ = cross_entropy_fwd(input, target, ignore_index=ignore, return_lse=True)
        live = (target != ignore).sum()
        return (loss if reduction == "none" else loss.sum() / live if reduction == "mean" else loss.sum()), None, None

    return run


def _torch_backward() -> Callable[..., Any]:
    """What autograd runs after F.cross_entropy, from the log-probabilities that it saved: worked out once for each input."""
    import torch

    from rooftop.ops._peers import Kept

    kept = Kept(lambda x: x.log_softmax(-1))

    def run(dloss: Tensor, input: Tensor, target: Tensor, normaliser: Tensor, divisor: Tensor, *options: Any) -> Tensor:
        ignore, reduction, smoothing, scale, cap, _ = options
        if smoothing or scale or cap:
            raise ValueError("torch's backward of a smoothed or capped loss is several ops")
        logs = kept(input)
        code = {"none": 0, "mean": 1, "sum": 2}[reduction]
        d = torch.ops.aten.nll_loss_backward(dloss.to(input.dtype), logs, target, None, code, ignore, divisor.to(input.dtype))
        return torch.ops.aten._log_softmax_backward_data(d, logs, 1, input.dtype)

    return run


def _changed(**changes: Any) -> Callable[..., Any]:
    """The reference with options exchanged for others."""
    names = ("ignore_index", "reduction", "label_smoothing", "lse_square_scale", "softcap", "inplace")

    def run(input: Tensor, target: Tensor, *options: Any) -> Any:
        return reference(input, target, *(changes.get(n, v) for n, v in zip(names, options, strict=True)))

    return run


def _changed_backward(**changes: Any) -> Callable[..., Any]:
    names = ("ignore_index", "reduction", "label_smoothing", "lse_square_scale", "softcap", "inplace")

    def run(dloss: Tensor, input: Tensor, target: Tensor, normaliser: Tensor, divisor: Tensor, *options: Any) -> Any:
        return backward(dloss, input, target, normaliser, divisor, *(changes.get(n, v) for n, v in zip(names, options, strict=True)))

    return run


def _same_normaliser(judged: Judged) -> str | None:
    """Any shift will do that keeps lse: to 2^-21 of the exponentials, or two units in the last place of float32 where logits have 16 bits
    or are bounded, or four times what torch errs."""
    got, exact, same = (t["normaliser"].double() for t in (judged.got, judged.exact, judged.same))
    lse = [t[:, 0] + t[:, 1].log() for t in (got, exact, same)]
    if not bool((lse[0].isfinite() == lse[2].isfinite()).all()):
        return "lse is NaN or infinite elsewhere than at the same precision in plain torch"
    there = lse[2].isfinite()
    if not bool(there.any()):
        return None
    mine, theirs = ((t - lse[1])[there].abs().max() for t in (lse[0], lse[2]))
    cap = float(judged.options["softcap"])
    rough = bool(cap) or judged.tensors["input"].element_size() < 4
    allowed = max(4 * float(theirs), 2.0**-21 * (max(1.0, cap, float(lse[1][there].abs().max()) / 2) if rough else 1.0))
    return None if float(mine) <= allowed else f"lse = shift + log(sum) errs by {float(mine):.3g}; {allowed:.3g} is allowed"


def _no_maximum(input: Tensor, target: Tensor, *options: Any) -> Any:
    import torch

    loss, normaliser, divisor = reference(input, target, *options)
    total = input.exp().sum(-1)
    return loss, torch.stack((torch.zeros_like(total), total), -1) if not options[4] else normaliser, divisor


def _tail_dropped(input: Tensor, target: Tensor, *options: Any) -> Any:
    """The last classes, short of a multiple of 8, are not in the sum."""
    kept = max(input.shape[-1] // 8 * 8, 1)
    return reference(input[:, :kept], target.where(target >= 0, target).clamp_max(kept - 1).where(target != options[0], target), *options)


def _swept(dtype: str, rows: int, columns: int) -> dict[str, Any]:
    return {"input": Input((rows, columns), dtype), "target": Input((rows,), "i64", f"below {columns}"), "ignore_index": -100,
            "reduction": "mean", "label_smoothing": 0.0, "lse_square_scale": 0.0, "softcap": 0.0, "inplace": False}


def _cases() -> list[Case]:
    def call(x: Input, *, below: int | None = None, ignore: int = -100, reduction: str = "mean", smoothing: float = 0.0, scale: float = 0.0,
             cap: float = 0.0, inplace: bool = False) -> dict[str, Any]:
        target = Input(x.shape[:1], "i64", f"below {below or x.shape[1]}")
        return {"input": x, "target": target, "ignore_index": ignore, "reduction": reduction, "label_smoothing": smoothing,
                "lse_square_scale": scale, "softcap": cap, "inplace": inplace}

    bench = [
        case(f"{name} {r}x{c}", tags=f"bench {more}", **call(Input((r, c), d)))
        for name, r, c, d, more in (
            ("rows", 16384, 8192, "bf16", ""), ("rows", 4096, 32768, "bf16", ""), ("rows", 2048, 131072, "bf16", ""),
            ("rows", 1024, 262144, "bf16", ""), ("rows", 2048, 131072, "f32", ""), ("vocabulary", 4096, 128256, "bf16", "model"),
            ("vocabulary", 4096, 50257, "bf16", "model"), ("32 MiB", 512, 32768, "bf16", ""), ("4 MiB", 64, 32768, "bf16", ""),
            ("1 MiB", 512, 1024, "bf16", ""),
        )
    ]
    bench += [
        case("each row's 2048x131072", tags="bench", **call(Input((2048, 131072), "bf16"), reduction="none")),
        case("all options 2048x131072", tags="bench", **call(Input((2048, 131072), "bf16"), smoothing=0.1, scale=1e-4, cap=30.0)),
        case("in place 2048x131072", tags="bench", **call(Input((2048, 131072), "bf16"), inplace=True)),
    ]
    edges: dict[str, dict[str, Any]] = {
        "no rows": {"x": (0, 10)},
        "one class": {"x": (5, 1)},
        "one row": {"x": (1, 100)},
        "odd 7x33": {"x": (7, 33)},
        "each row's": {"x": (7, 1001), "reduction": "none"},
        "sum": {"x": (9, 1000), "reduction": "sum"},
        "two blocks 3x4097": {"x": (3, 4097)},
        "long 2x131080": {"x": (2, 131080), "reduction": "none"},
        "many rows": {"x": (300, 17)},
        "ignored": {"x": (60, 10), "ignore": 3},
        "all ignored": {"x": (4, 1), "ignore": 0},
        "out of range": {"x": (60, 10), "below": 13, "reduction": "none"},
        "smoothing": {"x": (20, 300), "smoothing": 0.1},
        "all smoothed": {"x": (20, 300), "smoothing": 1.0, "reduction": "none"},
        "square of the normaliser": {"x": (20, 300), "scale": 1e-2},
        "soft cap": {"x": (20, 300), "cap": 3.0, "reduction": "none"},
        "high soft cap": {"x": (40, 100), "cap": 70.0, "reduction": "none"},
        "high soft cap, 1023 classes": {"x": (6, 1023), "cap": 50.0, "reduction": "none"},
        "high soft cap, 1032 classes": {"x": (6, 1032), "cap": 70.0, "reduction": "none"},
        "everything": {"x": (20, 300), "ignore": 7, "smoothing": 0.2, "scale": 1e-2, "cap": 2.0},
        "everything, many classes": {"x": (20, 4100), "ignore": 7, "smoothing": 0.2, "scale": 1e-2, "cap": 2.0},
        "in place": {"x": (20, 300), "inplace": True},
        "in place, address misaligned": {"x": (9, 256), "inplace": True, "layout": "offset"},
        "in place with ignored": {"x": (40, 30), "inplace": True, "ignore": 4, "reduction": "none"},
        "rows padded": {"x": (9, 256), "layout": "padded"},
        "rows misaligned": {"x": (9, 256), "layout": "sliced", "inplace": True},
        "address misaligned": {"x": (9, 256), "layout": "offset"},
        "transposed": {"x": (20, 36), "layout": "transposed"},
        "expanded": {"x": (6, 64), "layout": "expanded"},
        "wide range": {"x": (8, 300), "fill": "wide"},
        "denormals": {"x": (4, 300), "fill": "tiny"},
        "NaN": {"x": (5, 300), "fill": "nan", "reduction": "none"},
        "+inf": {"x": (5, 300), "fill": "inf", "reduction": "none"},
        "-inf": {"x": (5, 300), "fill": "-inf", "reduction": "none"},
        "rows of -inf": {"x": (5, 300), "fill": "-inf rows", "reduction": "none"},
        "-0.0": {"x": (5, 300), "fill": "-0.0"},
        "all equal": {"x": (5, 300), "fill": "equal"},
    }
    edge = []
    for d in ("f32", "f16", "bf16"):
        for name, how in edges.items():
            more = {k: v for k, v in how.items() if k not in ("x", "fill", "layout")}
            edge.append(
                case(name, tags="edge", **call(Input(how["x"], d, how.get("fill", "normal"), how.get("layout", "contiguous")), **more))
            )
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **call(Input((8193, 262144), "bf16")))]
    return bench + edge + huge


def faults(input: Tensor, target: Tensor, ignore_index: int, *_: object) -> str | None:
    """What is wrong with the targets; they are read, so the device is waited for."""
    bad = (target != ignore_index) & ((target < 0) | (target >= input.shape[-1]))
    if not bool(bad.any()):
        return None
    row = int(bad.nonzero()[0])
    return f"target[{row}] is {int(target[row])}; accepted are 0 to {input.shape[-1] - 1} and ignore_index, {ignore_index}"


def _public(tensors: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    more = {n: v for n, v in options.items() if n not in ("softcap", "inplace")}
    return (tensors["input"], tensors["target"]), {**more, "softcap": options["softcap"] or None, "inplace_backward": options["inplace"]}


OP = Op(
    reference,
    calls=Calls(cpu=cpu, faults=faults, strict=True, public=_public),
    outputs=outputs,
    canonical=canonical,
    cases=_cases(),
    swept=Sizes(_swept, {"rows": (1, 1 << 26), "columns": (64, 1 << 22)}, rows="rows", models={"columns": "vocabulary"}, axis="columns"),
    work=work,
    tolerance=Tolerance(multiple=4.0),
    judging=Judging(compare={"normaliser": _same_normaliser}, rows=_rows),
    grad=Grad(
        wrt=("input",),
        saves=("input", "target", "normaliser", "divisor"),
        judging=Judging(rows=first_of("dloss", "input", "target", "normaliser", "dinput")),
        non_differentiable=("normaliser", "divisor"),
        into={"dinput": "input"},
        backward=backward,
        outputs=outputs_bwd,
        work=work_bwd,
        peers={"torch": _torch_backward, "torch.compile": compiled(backward)},
        wrong={
            "ignored rows have a gradient": _changed_backward(ignore_index=-1),
            "smoothing forgotten": _changed_backward(label_smoothing=0.0),
            "square forgotten": _changed_backward(lse_square_scale=0.0),
            "cap forgotten": _changed_backward(softcap=0.0),
            "not divided": lambda dloss, input, target, normaliser, divisor,
            *options: backward(dloss, input, target, normaliser, divisor * 0 + 1, *options),
        },
    ),
    peers={"torch": lambda: _eager, "torch.compile": compiled(_eager), "liger": _liger, "quack": _quack},
    wrong={
        "ignored rows count": _changed(ignore_index=-1),
        "smoothing forgotten": _changed(label_smoothing=0.0),
        "square forgotten": _changed(lse_square_scale=0.0),
        "cap forgotten": _changed(softcap=0.0),
        "no maximum subtracted": _no_maximum,
        "tail dropped": _tail_dropped,
    },
)
