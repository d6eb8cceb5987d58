"""Records of the former form get the hashes of today where both trees launch the same code, and only there."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rooftop.core import registry, settings
from rooftop.core.spec import TARGETS
from rooftop.lab.candidates import Subject
from rooftop.lab.records import identity, store
from rooftop.lab.report.joined import Joined

H100 = TARGETS[90]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("migrate_records", settings.CHECKOUT / "scripts" / "migrate_records.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(case: str, digest: str) -> dict[str, Any]:
    return {
        "kind": "check", "op": "add", "subject": "add__triton", "case": case, "backend": "gpu", "digest": digest, "device": store.about(H100),
        "at": "2026-01-01T00:00:00+00:00", "run": "1", "error": {"ok": True, "share": 0.5},
    }


def test_what_is_fresh_and_launches_the_same_gets_the_identity_of_today(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [record("odd f32", "a"), record("odd bf16", "b"), record("odd f16", "c")]
    path = tmp_path / "h100" / "1.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    before = {script.name_of(r): {"fresh": r["digest"] != "b", "launched": "[1]"} for r in rows}
    now = {script.name_of(r): {"fresh": False, "launched": "[2]" if r["digest"] == "c" else "[1]"} for r in rows}
    counts = script.rewrite(tmp_path, before, now, 0.0)
    assert counts == {("check", "fresh"): 1, ("check", "stale"): 1, ("check", "not proven: another launch or code"): 1}
    s = Subject("add__triton", registry.op("add"), registry.implementation("add__triton"))
    found = {r["case"]: r for r in store.read(tmp_path)}
    assert identity.of(s, [s.op.case("odd f32")], H100).made(found["odd f32"])
    assert [found[c]["digest"] for c in ("odd bf16", "odd f16")] == ["b", "c"] and "source" not in found["odd f16"]
    joined = Joined(list(found.values()))
    assert {c: joined.stale(r) is None for c, r in found.items()} == {"odd f32": True, "odd bf16": False, "odd f16": False}

    monkeypatch.setattr(identity, "machine", lambda *_: "abc")
    assert script.fill(tmp_path, 100.0) == 1 and [r.get("machine") for r in store.read(tmp_path)] == ["abc", None, None]
    assert script.fill(tmp_path, 100.0) == 0


def test_the_code_and_the_launches_of_either_tree_are_told_by_the_same_modules(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.modules_of_now(settings.CHECKOUT, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    joined = Joined([])
    odd, other = (script.launched(joined, store.Record(record(case, "a"))) for case in ("odd f32", "odd bf16"))
    assert odd.startswith("[") and other.startswith("[") and odd != other
    assert script.launched(joined, store.Record(record("no such case", "a"))) == "gone"
    assert script.launched(joined, store.Record({**record("odd f32", "a"), "subject": "gone"})) is None
