"""The package's public names: looked up once, explained beside other threads, typed by the stub, loaded when they are used."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import rooftop
from rooftop import public_names as api
from rooftop.core import registry
from rooftop.core.dispatch import explain_problem
from rooftop.core.spec import TARGETS


def test_the_stub_is_what_the_op_files_say() -> None:
    assert api.STUB.read_text(encoding="utf-8") == api.stub(), "run: rooftop stub"


def test_importing_the_package_loads_nothing() -> None:
    code = "import sys, json, rooftop; print(json.dumps([m for m in ('torch', 'triton', 'numpy', 'rich') if m in sys.modules]))"
    assert json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) == []


def test_calls_of_other_threads_run_while_one_is_explained() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    inside, go = threading.Event(), threading.Event()

    def add(*given: torch.Tensor) -> torch.Tensor:  # the name says which op it is
        inside.set()
        assert go.wait(600)
        return rooftop.add(*given)

    rooftop.add(x, x)
    before = registry.op("add").caller()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(rooftop.explain, add, x, x)
        assert inside.wait(600)
        other = pool.submit(rooftop.explain, rooftop.add, x, x)  # waits for the first
        try:
            assert torch.equal(rooftop.add(x, x), x + x)
            assert not slow.done()
        finally:
            go.set()
        said = "torch's own function where that computes it, else the reference, in plain torch"
        assert {str(f.result(600)) for f in (slow, other)} == {f"add on cpu: {said} (kernels run on CUDA tensors)"}
    assert registry.op("add")._call is before
    with pytest.raises(TypeError):
        rooftop.explain(rooftop.add, x, "5")
    assert registry.op("add")._call is before


def test_a_public_name_is_looked_up_once_and_the_packages_own_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(rooftop), "gelu", raising=False)
    found = rooftop.gelu
    monkeypatch.setattr(api, "_op_names", lambda: pytest.fail("looked up again"))
    assert rooftop.gelu is found
    monkeypatch.setattr(api, "_op_names", lambda: ["load"])
    monkeypatch.delitem(vars(rooftop), "load", raising=False)
    assert rooftop.load is api.load
    with pytest.raises(AttributeError, match="no attribute 'nothing'; it has load"):
        _ = rooftop.nothing


def test_an_explanation_names_every_implementation_and_why_it_is_not_the_one() -> None:
    op = registry.op("softmax")
    said = str(explain_problem(op, op.problem(op.case("rows 2048x131072 bf16"), TARGETS[90])))
    taken = said.split(": ")[1]
    for other in registry.implementations("softmax"):
        assert (f"not {other.name}: " in said) == (other.name != taken), said
    assert "softmax__triton: supports this too" in said and "softmax__cutile_sm90: runs only if a call names it" in said
    assert "the call names it" not in said
