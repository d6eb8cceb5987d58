"""Programmatic dependent launch (`Launch.pdl`): whether a kernel may start before the preceding one has completed; what its machine
code does before it waits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rooftop.lab.inspect.sass import Instruction

WAIT, MAY_BEGIN = "ACQBULK", "PREEXIT"  # griddepcontrol.wait, griddepcontrol.launch_dependents
# What moves data, by the start of its name, and those of them that reach no further than the block: its shared memory, a thread's own,
# constants, registers. A load that is not known here counts as one of global memory.
_MEMORY = re.compile(r"LD|ST|ATOM|RED|CCTL|UBLK|UTMA|ULD|UST|TEX|TLD|TXD|TXQ|TMML|SULD|SUST|SUATOM|SURED")
_WITHIN = frozenset({"LDC", "LDCU", "ULDC", "LDS", "LDSM", "LDL", "STS", "STSM", "STL", "ATOMS", "REDUX", "LDGDEPBAR"})
_PREFETCH_MAP = "UTMACCTL.PF"  # prefetch.tensormap: of a map among the parameters, which no kernel writes
_JUMPS = frozenset({"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"})
_AWAY = frozenset({"CALL", "RET", "EXIT", "KILL"})


def before_wait(code: Sequence[Instruction], labels: Mapping[str, int], targets: Mapping[int, Sequence[str]]) -> tuple[str, ...] | None:
    """What must not stand before a kernel's wait for the preceding kernels, and does, on any way through the code; None where it never
    waits. The arguments are those that `rooftop.lab.inspect.sass.parse` gives.

    Every thread must wait, and before it does anything that the preceding kernel may do too: no access of global memory, no release of
    the dependent kernel, no end and no call before the wait, whichever way a branch goes."""
    if not any(i.opcode.partition(".")[0] == WAIT for i in code):
        return None
    found: dict[str, None] = {}
    todo, seen = [0], set[int]()
    while todo:
        at = todo.pop()
        if at in seen or at >= len(code):
            continue
        seen.add(at)
        i = code[at]
        name = i.opcode.partition(".")[0]
        if name == WAIT and not i.predicate:
            continue
        if name == WAIT:
            found["a condition"] = None
        reaches = _MEMORY.match(name) and name not in _WITHIN and not i.opcode.startswith(_PREFETCH_MAP)
        if reaches or name == MAY_BEGIN or name in _AWAY or (name in _JUMPS and at not in targets):
            found[i.opcode] = None
        todo += [labels[label] for label in targets.get(at, ())]
        # `BRA P1, there` and `BRA.U !UP0, there` have their condition among the operands
        if name not in _JUMPS or i.predicate or "," in i.operands:
            todo.append(at + 1)
    return tuple(sorted(found))


def faults(kernel: str, before: Sequence[str] | None, pdl: bool, last: bool = False) -> list[str]:
    """Why a kernel does not fit programmatic dependent launch (`pdl`), or an ordinary one, as sentences; none where it does. `before`:
    what `before_wait` found in it. Without a wait, or before it, it races with the preceding kernel, and nothing would tell. `last`: it says
    that it shares nothing with the preceding kernel (`DEMANDS`, "waits_last"), so that it waits only in order not to end first."""
    if not pdl:
        return [] if before is None else [
            f"{kernel} waits for the preceding kernel and is not launched with pdl (programmatic dependent launch): the wait is useless"
        ]
    if before is None:
        return [f"{kernel} is launched with pdl and never waits for the preceding kernel (griddepcontrol.wait)"]
    if before and not last:
        return [f"{kernel} is launched with pdl and waits for the preceding kernel only after {', '.join(before)}"]
    return []
