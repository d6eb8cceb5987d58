"""What a rung changes is its idea: it changes code, and not much more than a page of it, or the ladder says why."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from rooftop.core import registry
from rooftop.core.registry import RegistryError
from rooftop.lab.report import site

MOST = 120  # lines that are added or taken away: code, without comments and indentation


def changed_lines(before: str, after: str) -> list[str]:
    """The lines that a rung's source adds to that of the rung before, or takes away: without heads, comments and indentation."""
    old, new = ([line for i in site.lesson(text) if (line := lines[i].strip()) and not line.startswith("//")]
                for text in (before, after) for lines in [text.splitlines()])
    return [line for line in difflib.unified_diff(old, new, lineterm="", n=0) if line[0] in "+-" and line[:3] not in ("+++", "---")]


def faults(name: str, rungs: Sequence[tuple[str, str]], large: dict[str, str]) -> Iterator[str]:
    """Of rungs (name, source), in order: those whose difference from the one before shows nothing, or much without a reason; reasons that none
    needs."""
    needed = set()
    for (_, before), (rung, after) in pairwise(rungs):
        changed = len(changed_lines(before, after))
        if changed == 0:
            yield f"{name}/{rung} has the code of the rung before: its idea is not visible"
        if changed > MOST:
            needed.add(rung)
            if not large.get(rung):
                yield f"{name}/{rung} changes {changed} lines: smaller steps, or [large_steps] of {name}/ladder.toml says why not"
    yield from (f"{name}/ladder.toml: large_steps names {rung}, which is no such step" for rung in sorted(set(large) - needed))


@pytest.mark.parametrize("name", registry.ladder_names())
def test_the_idea_of_a_rung_is_visible_in_its_difference(name: str) -> None:
    """Of rungs that are files of their own: of a shipped kernel the page says in five lines what it has besides (test_beyond.py)."""
    ladder = registry.ladder(name)
    own = [(r.name.partition("/")[2], r.path.read_text(encoding="utf-8")) for r in ladder.rungs if r.path.suffix != ".toml"]
    assert list(faults(name, own, dict(ladder.large_steps))) == []


FIRST = '/* rooftop\nidea = "One."\n*/\n__global__ void f() {\n}\n'
SECOND = FIRST.replace("One.", "Two.").replace("}", "// two\n  }")
LONG = FIRST.replace("}", "\n".join(f"a{i}();" for i in range(MOST + 1)) + "\n}")


@pytest.mark.parametrize(("after", "large", "said"), [
    (SECOND, {}, "its idea is not visible"), (LONG, {}, "changes 121 lines"), (LONG, {"02_b": ""}, "changes 121 lines"),
    (LONG, {"02_b": "It is longer.", "03_c": "No."}, "large_steps names 03_c"), (LONG.replace("a0();\n", ""), {"02_b": "It is longer."}, "names 02_b"),
])
def test_a_step_without_its_reason_is_seen(after: str, large: dict[str, str], said: str) -> None:
    found = list(faults("steps", [("01_a", FIRST), ("02_b", after)], large))
    assert len(found) == 1 and said in found[0]


def test_a_table_of_reasons_that_is_none_is_an_error(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    source = registry.ladder("reduce_cuda").path / "ladder.toml"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "ladder.toml").write_text('large_steps = "long"\n' + source.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(RegistryError, match=r"ladders/mine/ladder.toml: large_steps must be a table, rung = why"):
        registry.ladder("mine", registry.House(registry.HOUSE.ops, registry.HOUSE.kernels, tmp_path))
