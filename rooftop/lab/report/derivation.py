"""What a ladder's page opens with: why the kernel is as it is, step by step, with drawings, from the [[derivation]] tables of its
ladder.toml.

    [[derivation]]
    rung = 9                     # whose config and launch the names below are of, by number or by name; left out: there are none
    case = "8192 cubed"          # another than the ladder's headline
    text = "A thread's {TM} x {TN} results take {TM + TN} numbers for {TM * TN} FMAs."
    draw = { kind = "tile", levels = [["block", "=BM", "=BN"], ["warp", "=WM", "=WN"]], depth = "=BK" }

`{expression}` or `{expression:.1f}` in a text, and a value "=expression" of a drawing, are worked out (docs/head.md has the arithmetic)
from:

    x_0, x_1, ...            the sizes of the tensor x at the ladder's headline case
    k, dim, ...              its options that are numbers
    read, write, moved       its least bytes; of_fma32, of_tensor_bf16, ...: its operations
    sms, clock, bandwidth    of an H100's datasheet: multiprocessors, GHz, GB/s of memory
    registers, shared, l2    registers and bytes of shared memory of a multiprocessor; bytes of the L2
    BM, threads, ...         the fields of the rung's config
    block, grid, launches    of the rung: threads of a block and blocks of its largest launch; how many launches

So a figure on the page is that of the kernel as it stands. A paragraph that is indented by four spaces is a formula."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from rooftop.core import devices, registry
from rooftop.core.call import problem_for_kernels
from rooftop.core.expressions import ExpressionError, evaluate
from rooftop.core.names import RegistryError
from rooftop.core.spec import TARGETS, Problem
from rooftop.lab.report.drawings import draw
from rooftop.lab.report.ladder_cases import headline_of
from rooftop.lab.report.markup import number
from rooftop.lab.report.model import Step

KEYS = ("text", "rung", "case", "draw")


def steps(ladder: registry.Ladder, house: registry.House = registry.HOUSE) -> tuple[Step, ...]:
    """Raises RegistryError, with the place, for a table that cannot be read or worked out."""
    found = []
    for i, table in enumerate(ladder.derivation, 1):
        where = f"ladders/{ladder.name}/ladder.toml: derivation {i}"
        try:
            found.append(_step(ladder, table, house))
        except (ExpressionError, KeyError, RegistryError, TypeError, ValueError) as error:
            raise RegistryError(f"{where}: {error}") from None
    return tuple(found)


def _step(ladder: registry.Ladder, table: Mapping[str, Any], house: registry.House) -> Step:
    if extra := set(table) - set(KEYS):
        raise ValueError(f"unknown keys {', '.join(sorted(extra))}; it holds {', '.join(KEYS)}")
    names = names_of(ladder, table.get("rung"), table.get("case"), house)
    texts = re.split(r"\n\s*\n", str(table.get("text", "")).strip("\n"))
    paragraphs = tuple((_evaluated(" ".join(t.split()), names), t.startswith("    ")) for t in texts if t.strip())
    picture = None
    if "draw" in table:
        given = {k: _value(v, names) for k, v in table["draw"].items()}
        picture = draw(str(given.pop("kind")), given)
    rung = table.get("rung")
    return Step(paragraphs, picture, "" if rung is None else registry.rung(f"{ladder.name}/{rung}", house).name)


def names_of(
    ladder: registry.Ladder, rung: int | str | None, case: str | None = None, house: registry.House = registry.HOUSE
) -> dict[str, Any]:
    """What an expression may name. Raises RegistryError for no such case or rung, or a rung that does not take the case."""
    op = registry.op(ladder.op, house)
    sheet = devices.lookup(TARGETS["h100"].name)
    assert sheet is not None
    seen = op.problem(op.case(f"{case} {ladder.dtypes[0]}") if case else headline_of(ladder, op), TARGETS["h100"])
    names: dict[str, Any] = {f"{name}_{i}": extent for name, meta in seen.tensors if meta for i, extent in enumerate(meta.shape)}
    names |= {k: v for k, v in seen.options if isinstance(v, (int, float)) and not isinstance(v, bool)}
    work = op.work(seen)
    names |= {"read": int(work.read), "write": int(work.write), "moved": int(work.read + work.write)}
    names |= {f"of_{unit.replace('-', '_')}": int(count) for unit, count in work.ops.items()}
    names |= {"sms": sheet.sms, "clock": sheet.clock_mhz / 1000, "bandwidth": int(sheet.bandwidth_gbs)}
    names |= {"registers": 65536, "shared": sheet.shared_per_sm, "l2": sheet.l2_bytes}
    if rung is not None:
        names |= _of_rung(registry.rung(f"{ladder.name}/{rung}", house), problem_for_kernels(op, seen)[0])
    return names


def _of_rung(rung: registry.Rung, problem: Problem) -> dict[str, Any]:
    found = rung.implementation
    if found.platform != "gpu":
        problem = problem.on(found.stand_in(0))
    if why := found.supports(problem):
        raise RegistryError(f"{rung.name} does not take the case: {why}")
    config = found.choose(problem)
    names = {k: v for k, v in (found.config_dict(config) if config is not None else {}).items() if isinstance(v, (int, float, bool))}
    if found.backend in ("cuda", "triton", "gluon"):
        launches = found.launches(problem, config)
        most = max(launches, key=lambda one: prod(one.grid), default=None)
        names["launches"] = len(launches)
        if most is not None:
            names |= {"grid": prod(most.grid), "block": prod(most.block) if found.backend == "cuda" else 32 * most.warps}
    return names


def _value(given: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(given, str):
        if given.startswith("="):
            value = evaluate(given[1:], names)
            return value if isinstance(value, (int, str)) else float(value)
        return _evaluated(given, names)
    if isinstance(given, list):
        return [_value(v, names) for v in given]
    return {k: _value(v, names) for k, v in given.items()} if isinstance(given, dict) else given


def _evaluated(text: str, names: Mapping[str, Any]) -> str:
    def one(match: re.Match[str]) -> str:
        value = evaluate(match[1], names)
        if isinstance(value, str):
            return value
        if match[2]:
            return format(float(value), match[2])
        return str(int(value)) if value == int(value) else number(float(value), 3)

    return re.sub(r"\{([^{}:]+)(?::([^{}]*))?\}", one, text)
