"""The planted faults: each file of bugs/ with the case that shows it, where it may be reported, and its corrected twin.

In a file, a line that ends in `// BUG: kind, kind ...` is one at which the fault is to be reported, by the first of the kinds; the others may be
reported there as well, since they follow from it (who reads what a missing barrier should have ordered may read it before it is written). A line
that ends in `// MAY: kind, ...` may be reported, and need not be. Every other report is a false alarm. The twin is the same file with
FIXED (and a constant `fixed` of the head) 1 in place of 0: it has the same lines, and must come out clean and right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rooftop.core import head_text, registry
from rooftop.core.backends.cuda import CudaImplementation
from rooftop.core.spec import Case, Input, case
from rooftop.lab.candidates import Subject

FOLDER = Path(__file__).parent / "bugs"
KINDS = (
    "out-of-bounds", "misaligned", "uninitialised", "shared-race", "warp-race", "global-race", "barrier-divergence", "deadlock", "absent-lane",
    "const-write", "missing-wait", "assert",
)
_MARK = re.compile(r"//\s*(BUG|MAY):\s*([\w-]+(?:,\s*[\w-]+)*)\s*$")


def _add(n: int, layout: str = "contiguous") -> Case:
    return case(f"{n} {layout}", x=Input((n,), "f32", "normal", layout), y=Input((n,), "f32", "normal", layout))


def _rows(r: int, c: int) -> Case:
    return case(f"rows {r}x{c}", x=Input((r, c)), residual=None, weight=None, bias=None, dims=1, eps=1e-6)


def _product(m: int, n: int, k: int, fill: str = "normal") -> Case:
    return case(f"{m}x{n}x{k}", a=Input((m, k), "f32", fill), b=Input((k, n), "f32", fill), c=None, alpha=1.0, beta=0.0)


CASES: Mapping[str, Case] = {  # op -> the case of files that name none below
    "add": _add(1003), "rms_norm": _rows(3, 100), "matmul": _product(33, 20, 17), "square": case("200 f16", x=Input((200,), "f16")),
}
OWN: Mapping[str, Case] = {  # file -> case
    "index_overflow": _add(70001),  # 70000 * 33331 does not fit 32 bits
    "misaligned_float4": _add(1003, "offset"),
    "misaligned_rows": _rows(4, 101),
    "shuffle_after_exit": _rows(3, 20),
    "wmma_misaligned": _product(32, 48, 24, "integers"),  # exact in TF32
}


@dataclass(frozen=True)
class Bug:
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    def text(self, fixed: bool) -> str:
        text = self.path.read_text(encoding="utf-8")
        return re.sub(r"^(#define FIXED|fixed =) 0$", r"\1 1", text, flags=re.M) if fixed else text

    def subject(self, fixed: bool = False) -> Subject:
        text = self.text(fixed)
        op = head_text.parse(text, self.path).op
        assert op is not None
        implementation = CudaImplementation(self.path, op, self.name, text=text)
        return Subject(self.name, registry.op(op), implementation)

    @property
    def case(self) -> Case:
        return OWN.get(self.name) or CASES[self.subject().op.name]

    def marks(self, word: str) -> dict[int, tuple[str, ...]]:
        """Line -> kinds of the lines marked with BUG or MAY."""
        found: dict[int, tuple[str, ...]] = {}
        for number, line in enumerate(self.text(False).splitlines(), 1):
            if (match := _MARK.search(line)) and match[1] == word:
                found[number] = tuple(k.strip() for k in match[2].split(","))
        return found


CLEAN = tuple(Bug(p) for p in sorted((FOLDER.parent / "clean").glob("*.cu")))  # right as they are, though a rough checker would complain
BUGS = tuple(Bug(p) for p in sorted(FOLDER.glob("*.cu")))
