"""How the package hangs together: what may import what, also inside functions and for types alone."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rooftop.core import settings

PARTS = ("core", "lab", "ops")


def modules() -> dict[str, Path]:
    """Dotted name -> file, of all that is neither a kernel nor a rung."""
    found = {}
    for part in PARTS:
        for path in (settings.PACKAGE / part).rglob("*.py"):
            name = ".".join(("rooftop", *path.relative_to(settings.PACKAGE).with_suffix("").parts))
            found[name.removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (name if name in known else node.module for alias in node.names for name in [f"{node.module}.{alias.name}"])
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def arrows() -> dict[str, set[str]]:
    known = modules()
    return {name: {m for m in imports(path, known) if m in known and m != name} for name, path in known.items()}


def package(name: str) -> str:
    """`rooftop.core`, `rooftop.ops`, and of the workbench its packages and single modules."""
    parts = name.split(".")
    return ".".join(parts[:3] if parts[1] == "lab" else parts[:2])


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_a_detour() -> None:
    assert circle(arrows()) == []


def test_no_package_imports_itself_by_a_detour() -> None:
    graph: dict[str, set[str]] = {}
    for name, targets in arrows().items():
        graph.setdefault(package(name), set()).update(p for t in targets if (p := package(t)) != package(name))
    assert len(graph) < 26
    assert circle(graph) == []


def test_what_runs_in_a_call_stands_on_nothing_of_the_workbench() -> None:
    assert {n: sorted(t for t in ts if t.startswith("rooftop.lab")) for n, ts in arrows().items() if n.startswith("rooftop.core")} == {
        n: [] for n in arrows() if n.startswith("rooftop.core")
    }


@pytest.mark.parametrize("graph", [{"a": {"b"}, "b": {"a"}}, {"a": {"b"}, "b": {"c"}, "c": {"a"}}])
def test_a_circle_is_seen(graph: dict[str, set[str]]) -> None:
    assert circle(graph)
