"""Compares the machine code that two trees of this project compile: instructions, constants, registers and shared memory, without debug sections and names.

    python scripts/compare_machine_code.py 43ba691e                       # a git revision, or a folder, and this tree
    python scripts/compare_machine_code.py 43ba691e --only norm --each 0  # one family, CUDA C++ alone
    python scripts/compare_machine_code.py OLD NEW --each 8 --jobs 4      # other folders; 8 binaries of each kernel in Triton and Gluon, 4 processes a tree

Every kernel of CUDA C++, shipped or of a ladder, is compiled for the card that it is written for with every config that a case of its op chooses; of a
kernel in Triton or Gluon a sample of the binaries is. A table says how many binaries of each family are the same; differences are listed with registers and
shared memory. Needs no GPU. Exits with 1 if something differs."""

from __future__ import annotations

import argparse
import base64
import collections
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
TOGETHER = 8  # kernels of one file that are compiled at once: most of the time is spent on its headers
SAMPLED = ("triton", "gluon")
Binary = tuple[str, str, str, str]  # family, subject, target, and the kernel; of Triton and Gluon the number of a launch and its case: "#0 odd f32"


# -- in the process of one tree: only what both trees have ---------------------------------------------------------


def subjects(family: str) -> Iterator[tuple[str, str, Any]]:
    """Family, name and implementation of every kernel, and of every rung that is a file of its own."""
    from rooftop.core import registry

    families = {}
    for file in registry.kernel_files():
        families[file.op] = file.path.parent.name
        families.setdefault(file.op.removesuffix("_bwd"), file.path.parent.name)
        if family in ("", file.path.parent.name):
            yield file.path.parent.name, file.name, registry.implementation(file.name)
    for ladder in map(registry.ladder, registry.ladder_names()):
        for rung in ladder.rungs:
            own = families.get(ladder.op) or families.get(ladder.op.removesuffix("_bwd"), "none")
            if rung.path.suffix != ".toml" and family in ("", own):
                yield own, rung.name, rung.implementation


def launched(implementation: Any) -> Iterator[tuple[Any, Any, int, Any, Any]]:
    """Case, problem, number and scratch of every launch of a kernel, with the configs that its cases choose."""
    from rooftop.core import registry
    from rooftop.core.call import problem_for_kernels
    from rooftop.core.spec import TARGETS

    op, device = registry.op(implementation.op), TARGETS[implementation.arch]
    for case in op.cases:
        try:
            problem = problem_for_kernels(op, op.problem(case, device))[0]
            if implementation.supports(problem) is not None:
                continue
            config = implementation.choose(problem)
            steps = list(implementation.steps(problem, config))
            scratch = implementation.scratch(problem, config)
        except Exception as error:  # a case that this tree cannot prepare is one that it does not compile
            print(f"{implementation.name}, {case.id}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        for i, step in enumerate(steps):
            if hasattr(step, "grid"):
                yield case, problem, i, step, scratch


def listed(family: str, each: int) -> list[Binary]:
    """What this tree compiles. `each`: of a kernel in Triton or Gluon, that many binaries."""
    found: dict[Binary, None] = {}
    for its_family, name, implementation in subjects(family):
        target = f"sm_{implementation.arch}" + "a" * (implementation.arch >= 90)
        if implementation.backend == "cuda":
            for kernel in sorted({step.kernel for _, _, _, step, _ in launched(implementation)}):
                found[its_family, name, target, kernel] = None
        elif implementation.backend in SAMPLED and each:
            different: dict[str, str] = {}
            for case, problem, i, step, scratch in launched(implementation):
                different.setdefault(implementation.variant(step, {**dict(problem.tensors), **scratch}, problem), f"#{i} {case.id}")
            for key in random.Random(name).sample(sorted(different.values()), min(each, len(different))):
                found[its_family, name, target, key] = None
    return list(found)


def compiled(family: str, name: str, target: str, kernels: list[str]) -> dict[str, Any]:
    """The cubin of kernels of one file, of Triton and Gluon of one launch; or why there is none."""
    try:
        implementation = {n: i for _, n, i in subjects(family)}[name]
        if implementation.backend == "cuda":
            return {"cubin": base64.b64encode(implementation.compile(kernels, target).cubin).decode()}
        for case, problem, i, step, scratch in launched(implementation):
            if f"#{i} {case.id}" == kernels[0]:
                return {"cubin": base64.b64encode(implementation.machine_code(problem, step, scratch).cubin).decode()}
        return {"why": "the case has no such launch"}
    except Exception as error:
        return {"why": f"{type(error).__name__}: {error}"[:300]}


def work() -> None:
    """A line of JSON in (what to call, its arguments), a line out."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        what, *given = json.loads(line)
        print(json.dumps((listed if what == "listed" else compiled)(*given)), file=answers, flush=True)


# -- the comparison ------------------------------------------------------------------------------------------------


class Tree:
    """A process that runs a tree's package."""

    def __init__(self, folder: Path) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))}
        program = "import runpy, sys; sys.argv = [sys.argv[1], 'work']; runpy.run_path(sys.argv[0], run_name='__main__')"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, __file__], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *question: Any) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a tree's process has ended: its error stands above")
        return json.loads(line)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def resources(cubin: bytes) -> str:
    from rooftop.lab.inspect.binary import all_facts

    return ", ".join(f"{f.instructions} instructions, {f.registers} registers, {f.shared} B shared, {f.stack} B stack" for f in all_facts(cubin).values())


def codes(cubin: bytes) -> list[str]:
    """Hashes of its kernels' code, in an order that does not depend on their names."""
    from rooftop.lab.inspect.inspector import symbols
    from rooftop.lab.records.identity import code_of

    return sorted(code_of(cubin, symbol) for symbol in symbols(cubin))


def compare(trees: tuple[Tree, Tree], family: str, name: str, target: str, kernels: list[str]) -> list[tuple[Binary, str]]:
    """Each binary with "" where it is the same, else what differs. What differs among several is compared one by one."""
    answers = [tree.ask("compiled", family, name, target, kernels) for tree in trees]
    cubins = [base64.b64decode(a["cubin"]) for a in answers if "cubin" in a]
    whys = [str(a.get("why", "compiles")) for a in answers]
    if len(cubins) == 2 and codes(cubins[0]) == codes(cubins[1]):
        said = ""
    elif len(kernels) > 1:
        return [found for kernel in kernels for found in compare(trees, family, name, target, [kernel])]
    else:
        said = " -> ".join(map(resources, cubins) if len(cubins) == 2 else whys)
    return [((family, name, target, kernel), said) for kernel in kernels]


def tree_of(given: str, temporary: Path) -> Path:
    folder = Path(given)
    if folder.is_dir():
        return folder.resolve()
    tree, archive = temporary / given, temporary / f"{given}.tar"
    subprocess.run(["git", "-C", str(HERE), "archive", "-o", str(archive), given, "rooftop"], check=True)
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    return tree


def main() -> int:
    if sys.argv[1:] == ["work"]:
        work()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", help="a git revision, or a folder that holds a tree")
    parser.add_argument("newer", nargs="?", default=str(HERE), help="the same (default: this tree)")
    parser.add_argument("--only", default="", help="one family")
    parser.add_argument("--most", type=int, default=0, help="binaries of each file in CUDA C++, at most (default: all)")
    parser.add_argument("--each", type=int, default=2, help="binaries of each kernel in Triton and Gluon (default: 2)")
    parser.add_argument("--jobs", type=int, default=1, help="processes of each tree (default: 1)")
    given = parser.parse_args()
    sys.path.insert(0, str(HERE))
    with tempfile.TemporaryDirectory() as temporary:
        folders = [tree_of(revision, Path(temporary)) for revision in (given.older, given.newer)]
        workers = [(Tree(folders[0]), Tree(folders[1])) for _ in range(given.jobs)]
        known = [{(row[0], row[1], row[2], row[3]) for row in tree.ask("listed", given.only, given.each)} for tree in workers[0]]
        rows = [(key, "only in one tree") for key in sorted(known[0] ^ known[1])]
        groups: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
        for family, name, target, kernel in sorted(known[0] & known[1]):
            groups[family, name, target].append(kernel)
        if given.most:
            groups.update({key: random.Random(key[1]).sample(found, min(given.most, len(found))) for key, found in groups.items() if found[0][0] != "#"})
        sizes = {key: 1 if found[0][0] == "#" else TOGETHER for key, found in groups.items()}
        todo = [(key, found[i : i + sizes[key]]) for key, found in groups.items() for i in range(0, len(found), sizes[key])]

        def share(number: int) -> list[tuple[Binary, str]]:
            return [row for key, batch in todo[number :: given.jobs] for row in compare(workers[number], *key, batch)]

        with ThreadPoolExecutor(given.jobs) as pool:
            rows += [row for found in pool.map(share, range(given.jobs)) for row in found]
        for pair in workers:
            for tree in pair:
                tree.end()
    for (family, name, target, kernel), said in sorted(rows):
        if said:
            print(f"{family}/{name} {kernel} {target}: {said}")
    print(table(rows))
    return int(any(said for _, said in rows))


def table(rows: list[tuple[Binary, str]]) -> str:
    lines = ["| family | files | binaries | the same | other code | in one tree alone |", "|---|---|---|---|---|---|"]
    for family in (*sorted({key[0] for key, _ in rows}), "all"):
        own = [(key, said) for key, said in rows if family in (key[0], "all")]
        alone = sum(said == "only in one tree" for _, said in own)
        same = sum(not said for _, said in own)
        lines.append(f"| {family} | {len({key[1] for key, _ in own})} | {len(own)} | {same} | {len(own) - same - alone} | {alone} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
