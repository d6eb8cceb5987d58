"""The hash of a function follows what it computes, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rooftop.core import normal_form
from rooftop.core.digests import c_code
from rooftop.core.specialised import PRESENT

PLAIN = '''
"""A file."""
import torch

FACTOR = 2.0

def half(t):
    return t * 0.5

def reference(x, bias, kind="none"):
    """What it does."""
    out = half(x) * FACTOR
    parts = [torch.exp(p) for p in out]
    return torch.stack(parts) if bias is None else torch.stack(parts) + bias
'''


def hashed(tmp_path: Path, text: str, known: dict[str, Any] | None = None, name: str = "reference") -> str:
    path = tmp_path / f"f{len(list(tmp_path.iterdir()))}.py"
    path.write_text(text, encoding="utf-8")
    return normal_form.of_function(path, name, known)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    out = half", "    # twice the half\n    out = half"),
        ("What it does.", "What it does, in other words."),
        ("out", "result"),
        ("p)", "q)"),
        ("half", "halved"),
        ("FACTOR", "TWO"),
        ("import torch\n", "import math\nimport torch\n"),
        ("    out = half(x) * FACTOR\n", "    out = (half(x)\n           * FACTOR)\n"),
        ("FACTOR = 2.0\n", "OTHER = 3.0\nFACTOR = 2.0\n"),
    ],
)
@pytest.mark.parametrize("known", [None, {}, {"bias": None, "kind": "none"}])
def test_words_and_places_do_not_count(tmp_path: Path, old: str, new: str, known: dict[str, Any] | None) -> None:
    text = PLAIN.replace(old, new)
    if old == "p)":
        text = PLAIN.replace("exp(p) for p in", "exp(q) for q in")
    assert text != PLAIN and hashed(tmp_path, text, known) == hashed(tmp_path, PLAIN, known)


def test_a_parameter_that_has_a_new_name_counts_as_the_old_one(tmp_path: Path) -> None:
    """In the head of a kernel, where it is read, and where it is passed on."""
    new = "import triton\n\n@triton.jit\ndef reference(x, PDL: tl.constexpr):\n    if PDL:\n        wait(PDL=PDL)\n"
    assert hashed(tmp_path, new) == hashed(tmp_path, new.replace("PDL", "CHAINED")) != hashed(tmp_path, new.replace("PDL", "LINKED"))


def test_the_order_of_functions_does_not_count(tmp_path: Path) -> None:
    head, half, rest = PLAIN.partition("def half(t):\n    return t * 0.5\n")
    assert hashed(tmp_path, head + rest + half) == hashed(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("old", "new"), [("0.5", "0.25"), ("2.0", "2"), ("exp", "exp2"), ("x) * FACTOR", "x) + FACTOR"), ("out]", "out[1:]]"), ("+ bias", "- bias")]
)
@pytest.mark.parametrize("known", [None, {}])
def test_another_formula_counts_wherever_it_stands(tmp_path: Path, old: str, new: str, known: dict[str, Any] | None) -> None:
    assert old in PLAIN and hashed(tmp_path, PLAIN.replace(old, new), known) != hashed(tmp_path, PLAIN, known)


ADDED = PLAIN.replace('kind="none"):', 'kind="none", gate=None, scale=1.0, fast=False):').replace(
    "    parts =",
    "    if gate is not None and not fast:\n        gate = gate * scale\n    limit = None if gate is None else 3\n"
    "    out = out if limit is None else out * gate\n    parts =",
)


def test_a_parameter_that_was_added_counts_where_it_is_not_at_its_default(tmp_path: Path) -> None:
    before = hashed(tmp_path, PLAIN, {"bias": PRESENT, "kind": "none"})
    assert hashed(tmp_path, ADDED, {"bias": PRESENT, "kind": "none", "gate": None, "scale": 1.0, "fast": False}) == before
    assert hashed(tmp_path, ADDED, {"bias": PRESENT, "kind": "none", "gate": PRESENT, "scale": 1.0, "fast": False}) != before
    assert hashed(tmp_path, PLAIN, {"bias": None, "kind": "none"}) != before, "an absent tensor is another case"


def test_a_parameter_added_to_a_helper_counts_no_more(tmp_path: Path) -> None:
    known = {"bias": None, "kind": "none"}
    helped = PLAIN.replace("def half(t):\n", "def half(t, *, by=None):\n    t = t if by is None else t / by\n")
    assert hashed(tmp_path, helped, known) == hashed(tmp_path, PLAIN.replace("def half(t):\n", "def half(t):\n    t = t\n"), known)
    assert hashed(tmp_path, helped.replace("half(x)", "half(x, by=3)"), known) != hashed(tmp_path, helped, known)


def test_true_one_and_a_number_are_told_apart(tmp_path: Path) -> None:
    text = "def reference(x, n):\n    return x + n\n"
    assert len({hashed(tmp_path, text, {"n": value}) for value in (1, True, 1.0, "1", None)}) == 5


def test_functions_that_call_each_other(tmp_path: Path) -> None:
    text = "def reference(n):\n    return 0 if n == 0 else other(n - 1)\n\ndef other(n):\n    return 1 if n == 0 else reference(n - 1)\n"
    assert hashed(tmp_path, text) == hashed(tmp_path, text.replace("other", "another"))
    assert hashed(tmp_path, text) != hashed(tmp_path, text.replace("return 1", "return 2"))


def test_the_hash_does_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    calls = {"a": "b(n) + e(n)", "b": "a(n - 1)", "e": "b(n) * c(n)", "c": "n", "d": "a(n) + e(n)"}
    path = tmp_path / "f.py"
    path.write_text("\n".join(f"def {name}(n):\n    return {text}\n" for name, text in calls.items()), encoding="utf-8")
    alone = {}
    for name in calls:
        normal_form.forget()
        alone[name] = normal_form.of_function(path, name)
    for order in ("abcde", "edcba", "cbade", "becad"):
        normal_form.forget()
        assert {name: normal_form.of_function(path, name) for name in order} == alone


def test_names_that_are_bound_together_are_written_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a hash for each way that leads to it through the others: seven names have 3,900."""
    names = "A, B, C, D, E, F, G"
    text = f"def of(i):\n    return i\n{names} = (of(i) for i in range(7))\ndef reference(x):\n    return A(x) + G(x)\n"
    written: list[str] = []
    statement = normal_form._Writer.statement
    monkeypatch.setattr(normal_form._Writer, "statement", lambda self, node, name: written.append(name) or statement(self, node, name))
    found = hashed(tmp_path, text)
    assert sorted(written) == ["A", "B", "C", "D", "E", "F", "G", "of", "reference"]
    assert found == hashed(tmp_path, text.replace("of(", "one(")) != hashed(tmp_path, text.replace("range(7)", "range(8)")) != hashed(tmp_path, text)
    assert found == "8e924450a585", "as records have it"


def test_c_code_is_the_same_whatever_its_layout() -> None:
    text = '/* head */\n#pragma once\n#include <cuda_bf16.h>\n#define N 4\n__device__ int f(int a,\n  int b) { return a - -b; } // sum\nasm("a  b");'
    other = '#define N 4\n__device__ int f( int a, int b )\n{\n    return a - -b;\n}\nasm("a  b");'
    assert c_code(text) == c_code(other)
    for old, new in (("- -", "--"), ("N 4", "N 8"), ("int a", "inta"), ("a  b", "a b")):
        assert c_code(text) != c_code(text.replace(old, new)), old
