"""What quantising costs a language model, as perplexity: a small one, trained here on the documentation that Python ships, in codes of each
format.

python -m rooftop.lab.report.perplexity --out results      trains, measures and writes a record (a few minutes of one core); the page shows
                                                           the newest"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rooftop.lab.exit_codes import Parser, ended, positive
from rooftop.lab.records import store
from rooftop.lab.records.record import Record, newest

SUBJECT = "perplexity"
STEPS, WINDOW, CHARACTERS, HELD = 4000, 32, 300_000, 3000
# What a row is called -> the format, and the other arguments of `rooftop.quantize_model`. "gptq" is given its calibration.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("int8", {"group": 0}), "int8, activations int8": ("int8", {"group": 0, "activations": "int8"}),
    "fp8, activations fp8": ("fp8", {"group": 0, "activations": "fp8"}), "fp8 g128": ("fp8", {"group": 128}),
    "fp6 g128": ("fp6", {"group": 128}), "mxfp6": ("mxfp6", {}), "int4 g128": ("int4", {"group": 128}), "int4 g64": ("int4", {"group": 64}),
    "int4 g64, activations int8": ("int4", {"group": 64, "activations": "int8"}), "int4 g64, hqq": ("int4", {"group": 64, "method": "hqq"}),
    "int4 g64, gptq": ("int4", {"group": 64, "method": "gptq"}), "fp4 g64": ("fp4", {"group": 64}), "mxfp4": ("mxfp4", {}),
    "int2 g64, zero points": ("int2", {"group": 64, "zero_points": True}), "int2 g64, hqq": ("int2", {"group": 64, "method": "hqq"}),
    "int2 g64, zero points, gptq": ("int2", {"group": 64, "zero_points": True, "method": "gptq"}),
}


class Reader(nn.Module):  # type: ignore[misc]
    """The next character from the WINDOW before it."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(alphabet, 8), nn.LayerNorm(256)
        self.up, self.mid, self.down, self.lm_head = nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, alphabet)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.silu(self.up(self.norm(self.embed(x).flatten(-2))))
        return self.lm_head(nn.functional.silu(self.down(h + nn.functional.silu(self.mid(h)))))


class Trained:
    """A Reader after `steps` steps, and the text that was held back: the last tenth."""

    def __init__(self, steps: int, rate: float) -> None:
        self.x, self.y, self.alphabet = text()
        self._train = len(self.x) * 9 // 10
        self._held = torch.arange(self._train, len(self.x), 9)[:HELD]
        torch.manual_seed(0)
        model = Reader(self.alphabet)
        optimizer = torch.optim.AdamW(model.parameters(), rate)
        for _ in range(steps):
            i = torch.randint(0, self._train, (256,))
            nn.functional.cross_entropy(model(self.x[i]), self.y[i]).backward()
            optimizer.step()
            optimizer.zero_grad()
        self._state = model.state_dict()
        self._batches = [self.x[torch.randint(0, self._train, (512,))] for _ in range(2)]

    def perplexity(self, way: str = "", dtype: torch.dtype = torch.float32) -> float:
        """Of the model as it is, or in codes by a way of WAYS."""
        from rooftop.quant import quantize_model

        model: nn.Module = Reader(self.alphabet)
        model.load_state_dict(self._state)
        if way:
            format, how = WAYS[way]
            quantize_model(model, format, **{**how, **({"calibration": self._batches} if how.get("method") == "gptq" else {})})
        model = model.to(dtype)
        with torch.no_grad():
            found = model(self.x[self._held]).float()
        return math.exp(float(nn.functional.cross_entropy(found, self.y[self._held])))


def text() -> tuple[Tensor, Tensor, int]:
    """Windows of characters and the one after each, of the topics that Python's help() knows."""
    import pydoc_data.topics

    whole = "\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))[:CHARACTERS]
    alphabet = {c: i for i, c in enumerate(sorted(set(whole)))}
    windows = torch.tensor([alphabet[c] for c in whole]).unfold(0, WINDOW + 1, 1)
    return windows[:, :WINDOW], windows[:, WINDOW], len(alphabet)


def measure(steps: int = STEPS) -> list[dict[str, Any]]:
    """The rows of a record: the model in float32 and float16, then each way, in float16 as it would run."""
    trained = Trained(steps, 2e-3)
    plain = trained.perplexity(dtype=torch.float16)
    rows: list[dict[str, Any]] = [{"way": "float32", "perplexity": trained.perplexity()}, {"way": "float16", "perplexity": plain}]
    rows += [{"way": way, "perplexity": trained.perplexity(way, torch.float16)} for way in WAYS]
    return [{**row, "over_float16": row["perplexity"] / plain} for row in rows]


def table(found: list[Record], _site: Any) -> str:
    """The newest record, for the page."""
    record = newest(found, "clock", SUBJECT)
    if record is None:
        return "Nothing has been measured yet."
    python, torch_ = (record.versions.get(n, "?") for n in ("python", "torch"))
    lines = [
        f"A model of {record['parameters']} parameters after {record['steps']} steps; Python {python}, torch {torch_}, {record['device']['name']}.", ""
    ]
    lines += ["| weights | perplexity | over float16 |", "|---|---:|---:|"]
    lines += [f"| {r['way']} | {float(r['perplexity']):.3f} | {float(r['over_float16']):.4f} |" for r in record["rows"]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = Parser(prog="python -m rooftop.lab.report.perplexity", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=positive, default=STEPS)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of records; none is written without it")
    given = parser.parse_args(arguments)
    about = store.host()
    device = {"name": about["cpu"], "machine": platform.machine(), "cores": about["cores"]}
    if given.out:
        store.Writer(given.out, str(device["name"])).ready()
    torch.set_num_threads(1)  # small products: threads would wait for each other more than they work
    rows = measure(given.steps)
    for row in rows:
        print(f"{row['way']:32} {row['perplexity']:9.4f} {row['over_float16']:8.4f}")
    if given.out:
        count = sum(t.numel() for t in Reader(text()[2]).parameters())
        with store.Writer(given.out, str(device["name"])) as writer:
            writer.write(
                {
                    "kind": "clock", "subject": SUBJECT, "device": device, "versions": store.versions(), "steps": given.steps,
                    "parameters": count, "rows": rows
                }
            )


if __name__ == "__main__":
    ended(main)
