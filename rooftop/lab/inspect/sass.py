"""The instructions of one kernel as nvdisasm lists them: read, counted by family, and the loop that most of the time is likely spent in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Loads and stores, counted by width, as `LDG.128` (bits a thread).
BY_WIDTH = frozenset({"LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL", "LDGSTS"})

#: The other instructions that are counted. HGMMA, IGMMA and QGMMA are wgmma on 16-bit floats and tf32, int8 and fp8.
FAMILIES = frozenset(
    {
        *("FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2", "HFMA2", "HADD2", "HMUL2", "DFMA", "DADD", "DMUL", "MUFU"),
        *("HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA"),
        *("LDSM", "STSM", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "SYNCS", "ATOM", "ATOMS", "RED"),
        *("BAR", "SHFL", "REDUX", "VOTE", "BRA", "CALL"),
    }
)
_SAME = {"FFMA32I": "FFMA", "FADD32I": "FADD", "FMUL32I": "FMUL", "HFMA2_32I": "HFMA2", "ATOMG": "ATOM", "REDG": "RED"}

# What tells a hot loop from others.
_TENSOR = frozenset({"HMMA", "IMMA", "DMMA", "BMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "BGMMA"})
_WORK = frozenset({"FFMA", "FFMA2", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2", "DFMA", "MUFU", "LDG", "STG", "LDGSTS"})


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of SASS."""

    offset: int  # bytes from the start of the kernel's code
    predicate: str  # `P0`, `!UP1`, or nothing
    opcode: str  # with its modifiers, as `LDG.E.128`
    operands: str


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a kernel: the instructions of its body, loops inside it included, each counted once."""

    start: int  # byte offset of its first instruction in the kernel's code
    end: int  # byte offset of its last instruction
    depth: int  # 1: in no other loop
    opcodes: Mapping[str, int]

    @property
    def counts(self) -> dict[str, int]:
        """Instructions by family, as `{"FFMA": 64, "LDS.128": 4}`; families with none are left out."""
        return by_family(self.opcodes)

    @property
    def instructions(self) -> int:
        return sum(self.opcodes.values())

    def share(self, wanted: str) -> float:
        """The part, 0 to 1, of the loop's instructions that match `wanted` (see `matches`)."""
        return count(self.opcodes, wanted) / self.instructions


def matches(opcode: str, wanted: str) -> bool:
    """Whether `opcode` is of the kind `wanted`: the same name, and `wanted`'s modifiers among its own, in order.

    `LDG.E.128` fits `LDG`, `LDG.E.128` and `LDG.128`; so does `LDG.E.EF.128.CONSTANT`. `LDGSTS.E.128` fits none.
    """
    name, *modifiers = wanted.split(".")
    have, *rest = opcode.split(".")
    left = iter(rest)
    return name == have and all(m in left for m in modifiers)


def count(opcodes: Mapping[str, int], wanted: str) -> int:
    """How many instructions of `opcodes` match `wanted`, or one of `wanted`'s alternatives, A|B."""
    return sum(n for opcode, n in opcodes.items() if any(matches(opcode, one) for one in wanted.split("|")))


def width(opcode: str) -> int:
    """Bits a thread that a load or store moves."""
    for part in opcode.split(".")[1:]:
        if part in ("64", "128", "256"):
            return int(part)
        if part in ("U8", "S8"):
            return 8
        if part in ("U16", "S16"):
            return 16
    return 32


def by_family(opcodes: Mapping[str, int]) -> dict[str, int]:
    out: Counter[str] = Counter()
    for opcode, n in opcodes.items():
        name = opcode.partition(".")[0]
        name = _SAME.get(name, name)
        if name in BY_WIDTH:
            out[f"{name}.{width(opcode)}"] += n
        elif name in FAMILIES:
            out[name] += n
    return dict(sorted(out.items()))


_LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?PT?\d*)\s+)?([A-Z][\w.]*)\s*([^;]*)")
_LABEL = re.compile(r"^([^\s:]+):\s*$")
_TARGET = re.compile(r"`\(([^)]+)\)")
_INDIRECT = re.compile(r'BRANCH_TARGETS ([^"]*)"')
_JUMPS = ("BRX", "BRXU", "JMX", "JMXU")


def parse(lines: Sequence[str]) -> tuple[list[Instruction], dict[str, int], dict[int, list[str]]]:
    """Instructions, labels (to an instruction's index) and the labels that each branch may go to (by index).

    Left out: the padding behind the code, and instructions whose predicate is never true.
    """
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    targets: dict[int, list[str]] = {}
    indirect: list[int] = []
    for line in lines:
        if (label := _LABEL.match(line)) is not None:
            labels[label[1]] = len(code)
        elif (found := _LINE.match(line)) is not None:
            offset, predicate, opcode, operands = found.groups(default="")
            if predicate in ("!PT", "!UPT"):
                continue
            # A constant 0 made by an idle half-precision pipe: a move, not arithmetic.
            if opcode.startswith("HFMA2") and "-RZ, RZ," in operands:
                opcode = "MOV.HFMA2"
            if (to := _TARGET.findall(operands)) and not opcode.startswith(("RET", "BSSY")):
                targets[len(code)] = to
            elif (named := _INDIRECT.search(line)) is not None:
                targets[len(code)] = named[1].split(",")
            elif opcode in _JUMPS:
                indirect.append(len(code))
            predicate = "" if predicate in ("PT", "UPT") else predicate
            code.append(Instruction(int(offset, 16), predicate, opcode, operands.strip()))
    used = {name for names in targets.values() for name in names}
    for at in indirect:  # no analysis of where it may go: every label that nothing else goes to
        targets[at] = [name for name, i in labels.items() if name not in used and at < i < len(code)]
    while code and (code[-1].opcode == "NOP" or _endless(code, labels, targets)):
        targets.pop(len(code) - 1, None)
        code.pop()
    return code, labels, targets


def _endless(code: list[Instruction], labels: dict[str, int], targets: dict[int, list[str]]) -> bool:
    """Whether the last instruction is the branch to itself that the compiler puts behind every kernel."""
    at = len(code) - 1
    return code[at].opcode == "BRA" and [labels.get(t) for t in targets.get(at, [])] == [at]


def hottest(code: Sequence[Instruction], labels: Mapping[str, int], targets: Mapping[int, Sequence[str]]) -> Loop | None:
    """The loop that most of the time is likely spent in.

    Loops are the natural ones: a branch back to a block that every path to it passes (Aho, Lam, Sethi and Ullman,
    *Compilers*, 9.6). Taken is the one with the most work in its own blocks, those of loops inside it apart, each
    level of nesting weighing ten (the usual estimate, as in Chaitin's spill costs, 1982). Work is tensor-core
    instructions; among loops with equally many, floating-point arithmetic and global memory accesses. A loop with
    neither, such as a wait, is never it. Where it stands in a function that is called, its depth is counted there.
    """
    starts, follow = _blocks(code, labels, targets)
    ends = [*starts[1:], len(code)]
    bodies = _loops(follow)
    depth = Counter(block for body in bodies.values() for block in body)
    best: tuple[tuple[int, int, int], int] | None = None
    for head, body in bodies.items():
        own = [b for b in body if depth[b] == depth[head]]
        names = [code[i].opcode.partition(".")[0] for b in own for i in range(starts[b], ends[b])]
        scale = 10 ** (depth[head] - 1)
        tensor = sum(n in _TENSOR for n in names) * scale
        work = sum(n in _WORK for n in names) * scale
        score = (tensor, work, -starts[head])
        if tensor + work and (best is None or score > best[0]):
            best = score, head
    if best is None:
        return None
    inside = sorted(bodies[best[1]])
    opcodes = Counter(code[i].opcode for b in inside for i in range(starts[b], ends[b]))
    last = code[ends[inside[-1]] - 1]
    return Loop(code[starts[inside[0]]].offset, last.offset, depth[best[1]], dict(sorted(opcodes.items())))


def _blocks(
    code: Sequence[Instruction], labels: Mapping[str, int], targets: Mapping[int, Sequence[str]]
) -> tuple[list[int], list[list[int]]]:
    """The basic blocks (index of the first instruction of each) and the blocks that may follow each."""
    first = {0} | {i for i in labels.values() if i < len(code)}
    first |= {i + 1 for i, ins in enumerate(code) if (i in targets or _ends(ins)) and i + 1 < len(code)}
    starts = sorted(first) if code else []
    block = {start: n for n, start in enumerate(starts)}
    follow: list[list[int]] = []
    for n, end in enumerate([*starts[1:], len(code)] if starts else []):
        last = code[end - 1]
        to = [block[labels[t]] for t in targets.get(end - 1, ()) if labels.get(t, len(code)) < len(code)]
        if n + 1 < len(starts) and not _ends(last):
            to.append(n + 1)
        follow.append(to)
    return starts, follow


def _ends(ins: Instruction) -> bool:
    """Whether no thread goes on to the next instruction."""
    name, _, modifiers = ins.opcode.partition(".")
    if name in ("BRA", "JMP"):  # `BRA.U UP0, ...` and `BRA P1, ...` have their condition among the operands
        conditional = modifiers.startswith(("DIV", "CONV")) or re.match(r"!?U?P[\dT]", ins.operands)
        return not (ins.predicate or conditional)
    return name in ("EXIT", "RET", "KILL", *_JUMPS) and not ins.predicate


def _loops(follow: Sequence[Sequence[int]]) -> dict[int, set[int]]:
    """Natural loops of a flow graph that starts in block 0: header to body. Loops of one header are one."""
    order: list[int] = []  # post-order of what can be reached
    seen = {0} if follow else set()
    stack = [(0, iter(follow[0]))] if follow else []
    while stack:
        at, rest = stack[-1]
        ahead = next((b for b in rest if b not in seen), None)
        if ahead is None:
            order.append(at)
            stack.pop()
        else:
            seen.add(ahead)
            stack.append((ahead, iter(follow[ahead])))
    rank = {b: i for i, b in enumerate(order)}
    before: dict[int, list[int]] = {b: [] for b in order}
    for b in order:
        for to in follow[b]:
            before[to].append(b)
    # Immediate dominators after Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm, 2001.
    above = {0: 0}
    changed = True
    while changed:
        changed = False
        for b in reversed(order[:-1]):
            known = [p for p in before[b] if p in above]
            new = known[0]
            for p in known[1:]:
                while new != p:
                    if rank[new] < rank[p]:
                        new = above[new]
                    else:
                        p = above[p]
            if above.get(b) != new:
                above[b], changed = new, True
    bodies: dict[int, set[int]] = {}
    for latch in order:
        for head in follow[latch]:
            up = latch
            while up != head and up != 0:
                up = above[up]
            if up != head:
                continue
            body = bodies.setdefault(head, {head})
            todo = [latch]
            while todo:
                b = todo.pop()
                if b not in body:
                    body.add(b)
                    todo += before[b]
    return bodies
