"""How much of the tests a run takes: what has changed, a sample of the rest, or all of them (`--all`, or files that are named on the command line)."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

# torch's threads wait for each other by spinning. On a busy machine that takes seconds where the work takes microseconds, and a run has a worker a core anyway.
# torch reads these when it is imported.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# Tests start hundreds of commands. Where the environment says that Python keeps no bytecode, each would compile the package again: seconds each.
# Collecting keeps it as well: reading the tests, with their assertions rewritten, is a third of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Python looks for unreachable cycles after each 700 objects that are new: with all that torch and the tests hold, a tenth of a run's time.
gc.set_threshold(50_000, 20, 20)

os.environ["ROOFTOP_DIARY"] = "off"  # commands of tests are no part of anybody's diary

RANK = pytest.StashKey[int]()  # of a test in its group, in an order that each commit draws anew; where everything runs, none has one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also what has not changed since it was checked on a GPU, and long cases")


def whole(config: pytest.Config) -> bool:
    """Whether everything that was collected runs: with `--all`, or where a file or a test of one is named."""
    return bool(config.getoption("--all")) or any((config.invocation_params.dir / a.partition("::")[0]).is_file() for a in config.args)


def kernels(item: pytest.Item) -> Iterator[str]:
    """The kernels that a test runs, compiles or counts: those of its mark, in which `{name}` stands for a parameter of the test."""
    mark = item.get_closest_marker("sampled")
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    yield from (str(name).format(**given) for name in (mark.args[1:] if mark else ()))


def ops(item: pytest.Item) -> list[str]:
    """The ops that the parameters of a test name whose mark names no kernel: it takes those that are chosen."""
    from contracts import plan

    mark = item.get_closest_marker("sampled")
    named = mark is not None and len(mark.args) > 1
    return plan.ops_of(item.callspec.params.values()) if not named and isinstance(item, pytest.Function) and hasattr(item, "callspec") else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each group of marked tests those stay that this commit can run: the rest is counted and left out before it costs a setup and a report each."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            groups.setdefault(str(mark.args[0]), []).append(item)
    if not groups or whole(config):
        return
    from contracts import plan

    out: set[pytest.Item] = set()
    for group, members in groups.items():
        members.sort(key=lambda item: sha256(f"{plan.seed()} {item.nodeid}".encode()).digest())
        for rank, item in enumerate(members):
            item.stash[RANK] = rank
        out.update(item for item in members if not plan.may_run(group, item.stash[RANK], list(kernels(item)), ops(item)))
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]


def pytest_collection_finish() -> None:
    """Python's collector never again looks through what was collected and imported: it stays to the end. And no bytecode is kept from now on: a test may
    write a module twice in a second, and the bytecode of the first would stand for the second."""
    gc.freeze()
    sys.dont_write_bytecode = True


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("sampled")
    if mark is None or RANK not in item.stash:
        return
    from contracts import plan

    path, test = item.path.relative_to(item.config.rootpath).as_posix(), item.name.partition("[")[0]
    if not plan.runs(str(mark.args[0]), item.stash[RANK], path, list(kernels(item)), ops(item), test):
        pytest.skip("not in the sample of this commit; in that of others, and with --all")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker("sampled")
    if mark is None or RANK not in item.stash:
        return (yield)
    from contracts import plan

    if item.stash[RANK] < plan.SAMPLES[str(mark.args[0])][0] or mark.args[0] in plan.WHOLE:
        return (yield)
    with plan.CLOCK.running():
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that started it what there was no time for."""
    if hasattr(session.config, "workeroutput") and not whole(session.config):
        from contracts import plan

        session.config.workeroutput["left_out"] = dict(plan.CLOCK.left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if left := getattr(node, "workeroutput", {}).get("left_out"):
        from contracts import plan

        plan.CLOCK.left_out.update(left)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names what has changed and was not run here: for want of time, or because only a GPU can tell whether it is right."""
    if config.option.collectonly or config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    from contracts import plan

    if left := plan.CLOCK.left_out:
        terminalreporter.section("no time for these, of which some ran: make test-all, or name their files")
        for name, tests in sorted(left.items()):
            terminalreporter.line(f"{name}: {tests} left out")
    if waiting := plan.waiting():
        terminalreporter.section("only a GPU can run these: rooftop check --records results")
        for line in waiting:
            terminalreporter.line(line)
