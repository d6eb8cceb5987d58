"""The cases of `rooftop.ops.matmul`: what is timed, and what is easily got wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooftop.core.spec import Case, Input, Option, case

# (N, K) of language models
LAYERS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 28672), (128256, 4096))


def cases(activations: Sequence[str], precisions: Sequence[str]) -> list[Case]:
    def mm(m: int, n: int, k: int, **more: Input | Option | str | None) -> dict[str, Any]:
        layout, fill, dtype = str(more.pop("layout", "contiguous")), str(more.pop("fill", "normal")), str(more.pop("dtype", "f32"))
        inputs: dict[str, Any] = {"a": Input((m, k), dtype, fill, layout), "b": Input((k, n), dtype, fill, layout)}
        return {**inputs, "c": None, "alpha": 1.0, "beta": 0.0, **more}

    def of(dtype: str, m: int, n: int, k: int, *, t: str = "NN", batch: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
        """t: which of a and b are transposed in memory."""
        a, b = (
            Input((*batch, *shape), dtype, "normal", "contiguous" if x == "N" else "transposed") for x,
            shape in zip(t, ((m, k), (k, n)), strict=True)
        )
        return {"a": a, "b": b, "c": None, "alpha": 1.0, "beta": 0.0, **more}

    bench = [case(f"{n} cubed", tags="bench", **mm(n, n, n)) for n in (512, 1024, 2048, 4096, 8192)]
    bench += [
        case("odd K", tags="bench", why="rows of a start on no 16-byte boundary", **mm(4096, 4096, 4097)),
        case("with addend", tags="bench", **mm(4096, 4096, 4096, c=Input((4096, 4096)), alpha=0.5, beta=2.0)),
        case("tall 16384x128x4096", tags="bench", **mm(16384, 128, 4096)),
        case("deep 256x256x65536", tags="bench", **mm(256, 256, 65536)),
        case("projection 2048x11008x4096", tags="bench model", **mm(2048, 11008, 4096)),
    ]
    for dtype in ("bf16", "f16"):
        sizes = (1024, 2048, 4096, 8192, 16384) if dtype == "bf16" else (4096,)
        bench += [case(f"{n} cubed", tags="bench", **of(dtype, n, n, n, t="NT")) for n in sizes]
        for n, k in LAYERS if dtype == "bf16" else ():
            bench += [case(f"layer {m}x{n}x{k}", tags="bench model", **of(dtype, m, n, k, t="NT")) for m in (16, 64, 512, 4096)]
        bench.append(
            case(
                "bias and gelu 4096 cubed", tags="bench",
                **of(dtype, 4096, 4096, 4096, t="NT", bias=Input((4096,), dtype), activation="gelu")
            )
        )
    edge = [
        case("one element", tags="edge", **mm(1, 1, 1)),
        case("odd 7x3x5", tags="edge", **mm(7, 3, 5)),
        case("row by column", tags="edge", why="one sum, exact in any order", **mm(1, 1, 1000, fill="integers")),
        case(
            "parts 33x65x1000", tags="precision", why="cuBLAS sums in parts here: one long chain errs over 4 times as much",
            **mm(33, 65, 1000)
        ),
        case("column by row", tags="edge", **mm(130, 67, 1)),
        case("one more than a tile", tags="edge", **mm(129, 131, 130)),
        case("one less than a tile", tags="edge", **mm(255, 127, 63)),
        case("odd 255x1025x513", tags="edge", **mm(255, 1025, 513)),
        case("no rows", tags="edge", **mm(0, 5, 7)),
        case("K of zero", tags="edge", **mm(33, 65, 0)),
        case("K of zero with addend", tags="edge", **mm(33, 65, 0, c=Input((33, 65)), beta=0.5)),
        case("addend", tags="edge", **mm(70, 90, 50, c=Input((70, 90)), alpha=-1.5, beta=0.75)),
        case("alpha of zero", tags="edge", **mm(70, 90, 50, c=Input((70, 90)), alpha=0.0, beta=0.75)),
        case("beta of zero, c of NaN", tags="edge", **mm(70, 90, 50, c=Input((70, 90), fill="nan"), alpha=1.5, beta=0.0)),
        case("leading dimensions", tags="edge", **mm(90, 70, 50, layout="padded", c=Input((90, 70), layout="padded"), beta=1.0)),
        case("odd leading dimensions", tags="edge", **mm(90, 70, 50, layout="sliced", c=Input((90, 70), layout="sliced"), beta=1.0)),
        case("addresses misaligned", tags="edge", **mm(64, 64, 64, layout="offset")),
        case("transposed", tags="edge", **mm(64, 48, 80, layout="transposed")),
        case(
            "expanded", tags="edge", why="equal rows are one sum in effect: exact in any order",
            **mm(64, 48, 80, layout="expanded", fill="integers")
        ),
        case("every second element", tags="edge", **mm(40, 48, 36, layout="strided")),
        case("NaN", tags="edge", **mm(65, 65, 65, fill="nan")),
        case("+inf", tags="edge", **mm(65, 65, 65, fill="inf")),
        case("-0.0", tags="edge", **mm(65, 65, 65, fill="-0.0")),
        case("denormals", tags="edge", **mm(65, 65, 65, fill="tiny")),
    ]
    everything: dict[str, Any] = {"alpha": 0.5, "beta": 2.0, "activation": "silu"}
    for dtype in ("bf16", "f16"):
        edge += [case(f"aligned {t}", tags="edge", **of(dtype, 264, 328, 136, t=t)) for t in ("NN", "NT", "TN", "TT")]
        edge += [case(f"batch {t}", tags="edge", **of(dtype, 72, 136, 200, t=t, batch=(3,))) for t in ("NN", "NT", "TN", "TT")]
        edge += [
            case(f"{act} and bias", tags="edge", **of(dtype, 70, 136, 64, bias=Input((136,), dtype), activation=act))
            for act in activations[1:]
        ]
        edge += [
            case(f"all of it, {name}", tags="edge", **of(
                dtype, x.shape[0], x.shape[1], 520, t="NT", c=x, bias=Input(x.shape[1:], dtype), gate=x, residual=x, **everything))
            for name,
            x in (("wide", Input((300, 264), dtype)), ("few rows", Input((13, 1032), dtype)), ("odd columns", Input((33, 131), dtype)))
        ]
        edge += [
            case("few rows, deep", tags="edge", **of(dtype, 16, 264, 8200, t="NT")),
            case("result of float32", tags="edge", **of(dtype, 70, 136, 64, to="f32")),
            case("one element", tags="edge", **mm(1, 1, 1, dtype=dtype)),
            case("odd 7x3x5", tags="edge", **mm(7, 3, 5, dtype=dtype)),
            case("odd 255x1025x513", tags="edge", **mm(255, 1025, 513, dtype=dtype)),
            case("K of zero with addend", tags="edge", **mm(33, 65, 0, dtype=dtype, c=Input((33, 65), dtype), beta=0.5)),
            case(
                "beta of zero, c of NaN", tags="edge",
                **mm(72, 88, 56, dtype=dtype, c=Input((72, 88), dtype, fill="nan"), alpha=1.5, beta=0.0)
            ),
            case(
                "leading dimensions", tags="edge",
                **mm(90, 72, 56, dtype=dtype, layout="padded", c=Input((90, 72), dtype, layout="padded"), beta=1.0)
            ),
            case("odd leading dimensions", tags="edge", **mm(90, 70, 50, dtype=dtype, layout="sliced")),
            case("addresses misaligned", tags="edge", **mm(64, 64, 64, dtype=dtype, layout="offset")),
            case("every second element", tags="edge", **mm(40, 48, 36, dtype=dtype, layout="strided")),
            case("NaN", tags="edge", **mm(65, 72, 64, dtype=dtype, fill="nan")),
            case("+inf", tags="edge", **mm(65, 72, 64, dtype=dtype, fill="inf")),
        ]
    edge += [
        case("all of it", tags="edge", **of(
            "f32", 33, 65, 40, c=Input((33, 65)), bias=Input((65,)), gate=Input((33, 65)), residual=Input((33, 65)), **everything)),
        case("batch", tags="edge", **of("f32", 33, 65, 40, batch=(3,))),
    ]
    for precision in precisions[1:]:
        bench += [case(f"{precision} {n} cubed", tags="bench", precision=precision, **mm(n, n, n)) for n in (1024, 2048, 4096, 8192)]
        bench += [
            case(f"{precision} NT 4096 cubed", tags="bench", precision=precision, **of("f32", 4096, 4096, 4096, t="NT")),
            case(
                f"{precision} projection 2048x11008x4096", tags="bench model", precision=precision, **of("f32", 2048, 11008, 4096, t="NT")
            ),
            case(f"{precision} few rows 16x4096x4096", tags="bench model", precision=precision, **of("f32", 16, 4096, 4096, t="NT")),
        ]
        edge += [
            case(f"{precision} {t}", tags="edge precision", precision=precision, **of("f32", 136, 200, 264, t=t))
            for t in ("NN", "NT", "TN", "TT")
        ]
        edge += [
            case(f"{precision} odd 7x3x5", tags="edge", precision=precision, **mm(7, 3, 5)),
            case(f"{precision} column by row", tags="edge", precision=precision, **mm(130, 67, 1)),
            case(f"{precision} odd 255x1025x513", tags="edge", precision=precision, **mm(255, 1025, 513)),
            case(
                f"{precision} deep 33x65x5000", tags="edge precision", why="tensor cores cut their sums", precision=precision,
                **mm(33, 65, 5000)
            ),
            case(f"{precision} deep 128x256x16384", tags="edge precision", why="pieces of K", precision=precision, **mm(128, 256, 16384)),
            case(f"{precision} K of zero", tags="edge", precision=precision, **mm(33, 65, 0, c=Input((33, 65)), beta=0.5)),
            case(f"{precision} addresses misaligned", tags="edge", precision=precision, **mm(64, 64, 64, layout="offset")),
            case(f"{precision} NaN", tags="edge", precision=precision, **mm(65, 65, 65, fill="nan")),
            case(f"{precision} batch", tags="edge", precision=precision, **of("f32", 33, 65, 40, batch=(3,), t="NT")),
            case(f"{precision} all of it", tags="edge", precision=precision, **of(
                "f32", 133, 165, 140, c=Input((133, 165)), bias=Input((165,)), gate=Input((133, 165)), residual=Input((133, 165)),
                **everything)),
        ]
    huge = [case("over 2^31 elements", tags="edge huge", why="offsets need 64 bits", **mm(65600, 32768, 16))]
    return bench + edge + huge


def swept(dtype: str, M: int, N: int, K: int, order: int = 1) -> dict[str, Any]:
    """`order` 1: rows of b are contiguous; 2: its columns, as of a layer's weight [N, K]."""
    b = Input((K, N), dtype, layout="contiguous" if order == 1 else "transposed")
    return {"a": Input((M, K), dtype), "b": b, "c": None, "alpha": 1.0, "beta": 0.0}
