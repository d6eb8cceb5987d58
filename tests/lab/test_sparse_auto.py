"""The times of all ways to make a product: what is timed, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rooftop.core import implementation
from rooftop.core.spec import TARGETS
from rooftop.lab.records.record import Record
from rooftop.lab.timing import sparse_auto
from rooftop.lab.timing.timer import Candidate, sets_needed

L2 = 100_000


def test_each_way_has_operands_enough_that_none_stays_in_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Plain:
        """Calls each candidate, and holds the number of its calls against what the clock asks for."""

        def __init__(self, _backend: Any) -> None: ...

        def measure(self, candidates: Sequence[Candidate], *, bytes_per_call: int, **_: Any) -> dict[str, Any]:
            want: Any = candidates[0].calls[0]()
            for c in candidates:
                assert len(c.calls) >= sets_needed(bytes_per_call, L2)
                assert len({call.args[1].data_ptr() for call in c.calls}) == len(c.calls)  # type: ignore[attr-defined]
                got: Any = c.calls[-1]()
                torch.testing.assert_close(got.float(), want.float(), atol=0.5, rtol=0.05)
            seen.extend(c.name for c in candidates)
            return {c.name: SimpleNamespace(median=1e-6 * (1 + i)) for i, c in enumerate(candidates)}

    device = SimpleNamespace(**{n: getattr(TARGETS[90], n) for n in ("name", "arch", "sms", "shared_per_block")}, l2_bytes=L2)
    monkeypatch.setattr(sparse_auto, "SIZE", 256)
    monkeypatch.setattr(sparse_auto, "Timer", Plain)
    monkeypatch.setattr(sparse_auto, "CudaBackend", lambda _index: None)
    monkeypatch.setattr(implementation, "device_of", lambda _index: device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "device", lambda *_: "cpu")
    few = [m for m in sparse_auto.matrices("cpu") if m[2] <= 64]
    assert len(few) > 8
    monkeypatch.setattr(sparse_auto, "matrices", lambda _device: few)
    record = sparse_auto.measure(say=lambda _line: None)
    assert [row["matrix"] for row in record["rows"]] == [name for name, _, _ in few] and {"dense", "csr", "bsr 32", "2:4"} <= set(seen)
    assert all(sparse_auto.judged(row)[0] in row["seconds"] for row in record["rows"])
    more = {**record["rows"][0], "facts": {**record["rows"][0]["facts"], "counters": "of a later version"}}
    assert sparse_auto.judged(more) == sparse_auto.judged(record["rows"][0])
    assert "| ratio |" in sparse_auto.table([Record({**record, "at": "now", "device": {"name": "a card"}})])
