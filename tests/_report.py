"""A small house, records for it and a strict reader of pages, for the tests of the report."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rooftop.core import registry
from rooftop.lab.check.proofs import device_of
from rooftop.lab.records.record import Record, Table
from rooftop.lab.report import site
from rooftop.lab.report.data import Gatherer, LadderPage, RungRow, gather
from rooftop.lab.timing import roofline

NOW = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
H100 = {"name": "NVIDIA H100 80GB HBM3", "arch": 90, "sms": 132, "l2_bytes": 50 << 20}
H200 = {**H100, "name": "NVIDIA H200"}
BANDWIDTH = 3e12  # bytes/s of the made-up ceilings, at every size
FMA = 3e13  # FMAs/s

CONTRACT = '''"""A tensor times a number & <nothing> else."""
from __future__ import annotations

from rooftop.core.op import Op
from rooftop.lab.check.proofs import device_of
from rooftop.lab.check.proofs import device_of
from rooftop.core.spec import Input, Meta, Work, case


def reference(x: Tensor, factor: float) -> Tensor:
    return x * factor


OP = Op(
    reference,
    name="scale",
    outputs=lambda x, factor: {"y": Meta(x.shape, x.dtype)},
    cases=[
        case("big", x=Input((4096, 8192)), factor=2.0, tags="bench"),
        case("big", x=Input((4096, 8192), "bf16"), factor=2.0, tags="bench"),
        case("odd", x=Input((4095, 8191)), factor=2.0, tags="bench"),
        case("tiny", x=Input((3,)), factor=2.0, tags="edge"),
        case("small", x=Input((3, 5)), factor=2.0, tags="edge"),
    ],
    work=lambda p: Work(p["x"].nbytes, p["y"].nbytes, {"fma32": float(p["x"].numel)}),
    peers={"torch": lambda: reference, "other": lambda: reference},
)
'''
KERNEL = """/* rooftop
idea    = "{idea}"
{predict}limit   = "{limit}"
dtypes  = ["f32", "bf16"]
args    = ["n: i64 = numel(x)", "x: T[R, C]", "y: T[R, C]", "factor: f32"]
{more}
[config]
threads = {threads}

[[launch]]
kernel = "scale<{{T}}>"
grid   = ["ceil(R * C / threads)"]
block  = ["threads"]
*/
template <typename T>
__global__ void scale(long long n, const T* x, T* y, float factor) {{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    {body}
}}
"""


BODY = "if (i < n) y[i] = x[i] * factor;"


def kernel(idea: str, *, predict: str = "", limit: str = "bytes", threads: int = 128, more: str = "", body: str = BODY) -> str:
    said = f"predict = {{ {predict} }}\n" if predict else ""
    return KERNEL.format(idea=idea, predict=said, limit=limit, threads=threads, more=more, body=body)


_TAG = re.compile(r"<[a-zA-Z][^<>\"]*(?:\"[^\"]*\"[^<>\"]*)*>")


def quoted(path: Path) -> str:
    """A page with quotes around every value of an attribute, which it leaves out where it may."""
    page = path.read_text(encoding="utf-8")
    return _TAG.sub(lambda tag: re.sub(r"=([^\s\"'=<>`]+?)(?=\s|/?>)", r'="\1"', tag[0]) if "=" in tag[0] else tag[0], page)


@dataclass
class Made:
    """A house with one op and one ladder, and records for it."""

    house: registry.House
    out: Path

    def __post_init__(self) -> None:
        self.gatherer = Gatherer([], self.house)

    def bench(self, subject: str, seconds: float, case: str = "big f32", device: dict[str, Any] = H100, stale: bool = False, **more: Any) -> Table:
        found = self.gatherer.subject("scale", subject)
        assert found is not None
        c = found.op.case(case)
        work = found.op.work(found.op.problem(c))
        record: Table = {
            "kind": "bench", "op": "scale", "case": c.id, "subject": subject, "device": device, "at": "2026-01-01T10:00:00+00:00", "run": "one",
            "work": {"read": work.read, "write": work.write, "ops": dict(work.ops)},
            "clocks": {"kernel": {"median": seconds, "low": seconds * 0.99, "high": seconds * 1.02, "n": 31}},
            "versus": {}, "error": {"ok": True, "max_share": 0.4, "rms_share": 0.25},
        }
        record |= {"digest": "000000000000"} if stale else found.identity(c, device_of(Record(record))).facts
        if found.head is not None:
            record["predict"] = dict(found.head.predict)
        return {**record, **more}

    def climb(self) -> list[Table]:
        """All three rungs, the peers, and the ceilings."""
        versus = {"peer:torch": ratio(0.8, "faster"), "peer:other": ratio(0.5, "faster"), "ceiling:copy": ratio(1.1, "slower")}
        return [
            ceiling(H100),
            self.bench("steps/01_plain", 1e-3),
            self.bench("steps/02_wide", 5e-4),
            self.bench("steps/03_shipped", 1.25e-4, versus=versus),
            self.bench("peer:torch", 1.5625e-4),
            self.bench("peer:other", 2.5e-4),
        ]

    def build(self, records: list[Table], facts: Any = None, checks: Any = ()) -> tuple[str, str]:
        """The texts of the op's page and of the ladder's."""
        site.build(self.out, map(Record, records), facts, checks, house=self.house, now=NOW)
        return quoted(self.out / "op-scale.html"), quoted(self.out / "ladder-steps.html")

    def home(self) -> str:
        """The text of the home page that was built last."""
        return quoted(self.out / "index.html")

    def page(self, records: list[Table], facts: Any = None, checks: Any = ()) -> LadderPage:
        return gather(map(Record, records), facts, checks, house=self.house, now=NOW).ladders[0]


def ratio(value: float, verdict: str) -> dict[str, Any]:
    """As a record holds it: this subject's time over the other's."""
    return {"ratio": value, "low": value * 0.99, "high": value * 1.01, "n": 31, "noise": 0.002, "verdict": verdict}


def ceiling(device: dict[str, Any]) -> Table:
    points = [{"bytes": 2**k << 20, "seconds": (2**k << 20) / BANDWIDTH, "by": "made up"} for k in range(1, 12)]
    return {
        "kind": "ceiling", "digest": roofline.digest(), "at": "2026-01-01T09:00:00+00:00", "run": "zero", "device": device,
        "curves": {k: copy.deepcopy(points) for k in ("copy", "read", "write")},
        "fma_fp32": {duty: {"ops_per_s": FMA} for duty in ("burst", "sustained")}, "launch": {"graph_node_s": 1e-6},
    }


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A house with one op, one kernel and a ladder of three rungs, in files below `tmp_path`."""
    house = registry.House(tmp_path / "ops", tmp_path / "kernels", tmp_path / "ladders")
    files = {
        "ops/scale.py": CONTRACT,
        "kernels/simple/scale__cuda.cu": kernel("shipped"),
        "ladders/steps/ladder.toml": 'op = "scale"\ntitle = "Steps & <b>stairs</b>"\nintro = "Up."\ndtypes = ["f32", "bf16"]\ntargets = [80, 90]\n'
        'headline = "big"\ncases = ["big", "odd"]\n',
        "ladders/steps/01_plain.cu": kernel("One thread an element.", limit="x < y && <script>alert(1)</script>"),
        "ladders/steps/02_wide.cu": kernel(
            "More threads.", predict="speedup = 2.1, registers = 16", threads=256, more='[requires]\n"C == 8192" = "rows of 8192 & no other"\n',
            body="if (i < n) y[i] = factor * x[i];",
        ),
        "ladders/steps/03_shipped.toml": 'idea = "The shipped one."\npredict = { speedup = 2.0 }\nlimit = "the copy"\nimplementation = "scale__cuda"\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Made(house, tmp_path / "report")


class Strict(HTMLParser):
    """Checks that every element is closed in order, by a tag or by one that HTML takes for it, and collects what a page refers to."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr", "wbr"})
    # What an element that is open ends with: one of these begins, or its parent's end.
    ENDED_BY = {
        "td": {"td", "th", "tr", "tbody"}, "th": {"td", "th", "tr", "tbody"}, "tr": {"tr", "tbody"}, "thead": {"tbody"}, "tbody": {"tbody"},
        "caption": {"thead", "tbody", "tr"}, "li": {"li"}, "dt": {"dt", "dd"}, "dd": {"dt", "dd"}, "option": {"option"},
        "p": {"p", "div", "section", "header", "main", "footer", "nav", "figure", "h1", "h2", "h3", "ul", "ol", "dl", "details", "table", "pre"},
    }

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.widths: list[list[int]] = []  # of each table, the columns of each row
        self._spanning: list[list[int]] = []  # of the present table: columns, rows still to come
        self.feed(text)
        self.close()
        assert self.stack == [], f"never closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice: {attrs}"
        while self.stack and tag in self.ENDED_BY.get(self.stack[-1], ()):
            self.ended(self.stack.pop())
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "table":
            self.widths.append([])
            self._spanning = []
        elif tag == "tr":
            self.widths[-1].append(sum(columns for columns, rows in self._spanning if rows))
            self._spanning = [[columns, rows - 1] for columns, rows in self._spanning if rows]
        elif tag in ("td", "th"):
            columns, down = int(found.get("colspan") or 1), int(found.get("rowspan") or 1)
            self.widths[-1][-1] += columns
            self._spanning.append([columns, down - 1])
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing (line {self.getpos()[0]})"
        while self.stack[-1] != tag and self.stack[-1] in self.ENDED_BY and tag not in ("b", "i", "span", "a", "small", "code", "label"):
            self.ended(self.stack.pop())
        assert self.stack[-1] == tag, f"</{tag}> closes <{self.stack[-1]}> (line {self.getpos()[0]})"
        self.ended(self.stack.pop())

    def ended(self, tag: str) -> None:
        """An element is over."""

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] == "script":
            self.scripts.append(data)
        elif self.stack and self.stack[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def of(self, name: str) -> Iterator[tuple[str, str]]:
        return ((tag, str(attrs[name])) for tag, attrs in self.tags if name in attrs)


FACTS = {
    "registers": 17, "spills": 8, "shared": 4096, "threads": 192, "occupancy": {"percent": 62.5, "limiter": "shared memory"},
    "counts": {"LDG.32": 3, "LDG.128": 41, "FFMA": 43, "S2R": 9}, "loop": {"LDS.128": 47}, "kernel": "scale<float>",
}


def rows(page: LadderPage) -> dict[int, RungRow]:
    return {r.number: r for r in page.rungs}


