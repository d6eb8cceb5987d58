"""Prove that topk, kthvalue, topk_mask, sort and argsort are exact on adversarial rows, and that draws have their distribution; write one JSON record.

    python scripts/prove_selection.py --out results/h200/selection.json                    # 10^5 rows, 10^7 draws, on the GPU
    python scripts/prove_selection.py --device cpu --rows 60 --draws 20000 --out here.json

What rows and draws are, and what they are held against: rooftop/lab/fuzz/selection.py. Exit code 1 if anything is wrong; the record says what."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from rooftop.lab.fuzz import selection


def prove(rows: int, draws: int, device: str, seed: int) -> dict[str, Any]:
    """The record. `draws`: from rows of 1000 logits, over all ways; a tenth as many from rows of 20011."""
    import torch

    started = time.monotonic()
    programs = selection.compile_ahead(rows) if device != "cpu" else 0
    compiled = time.monotonic()
    looked: dict[int, int] = {}
    wrong: list[str] = []
    for n, count, bad in selection.wrong_rows(rows, device, seed):
        looked[n] = looked.get(n, 0) + count
        wrong += [bad] if bad else []
    ordered = time.monotonic()
    ways: list[dict[str, Any]] = []
    for length, many in ((1000, draws), (selection.LONG, draws // 10)):
        for way in selection.WAYS:
            each = -(-many // len(selection.WAYS))
            z, free, beyond = selection.deviate(each, way, device, seed, length)
            right = abs(z) <= selection.MOST and beyond == 0
            ways.append({"length": length, "way": way, "draws": each, "z": round(z, 3), "degrees": free, "without probability": beyond, "right": right})
            wrong += [] if right else [f"sample {way} of {length}: z {z:+.2f}, {beyond} draws without probability"]
    return {
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu", "seed": seed, "rows": {str(n): count for n, count in looked.items()},
        "kinds": selection.KINDS,
        "ops": ["topk", "kthvalue", "topk_mask", "sort", "argsort"], "draws": ways, "bound on z": selection.MOST, "wrong": wrong[:20],
        "programs": programs,
        "seconds": {"compile": round(compiled - started, 1), "rows": round(ordered - compiled, 1), "draws": round(time.monotonic() - ordered, 1)},
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--draws", type=int, default=10_000_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(argv)
    record = prove(given.rows, given.draws, given.device, given.seed)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    total = sum(record["rows"].values())
    print(f"{total} rows, {sum(way['draws'] for way in record['draws'])} draws on {record['device']}: {'; '.join(record['wrong']) or 'nothing wrong'}")
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
