"""What check records prove: that a case of a kernel was right, with the kernel, the contract and the config as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from rooftop.core.spec import TARGETS, Case, Device
from rooftop.lab.candidates import Memo, Subject
from rooftop.lab.records import identity
from rooftop.lab.records.identity import Identity
from rooftop.lab.records.record import Record


def device_of(record: Record) -> Device:
    """The card of a record, as kernels were asked about it."""
    d = record.device
    arch = int(d.get("arch", 90))
    like = TARGETS.get(arch, TARGETS[90])
    shared, l2 = d.get("shared_per_block", like.shared_per_block), d.get("l2_bytes", like.l2_bytes)
    return Device(str(d["name"]), arch, int(d.get("sms", like.sms)), int(shared), int(l2))


class Proofs:
    """The checks that were passed, of all records that are given.

    answers   what was worked out of the tree before (rooftop.lab.report.known)"""

    def __init__(self, records: Iterable[Record], answers: Mapping[Any, tuple[str | None, str]] | None = None) -> None:
        self._answers = answers or {}
        self._passed: dict[tuple[str, str, str], set[tuple[Identity, str, Device]]] = {}
        self._asked = Memo()
        for r in records:
            if r.kind == "check" and r.error.ok:
                self._passed.setdefault((r.op, r.subject, r.case), set()).add((identity.of_record(r), r.machine, device_of(r)))

    def hold(self, subject: Subject, case: Case, card: str | None = None, device: Device | None = None) -> bool:
        """Whether a record proves this case: of any card, or of `card` (its name in records) alone. What counts is the kernel as the
        record's card runs it, or `device`, where it is given: what this machine has."""
        for of, machine, recorded in self._passed.get((subject.op.name, subject.name, case.id), ()):
            on = device or recorded
            if card not in (None, recorded.name) or (now := self._now(subject, case, on)) is None:
                continue
            facts, compiled = {**of.facts, "machine": machine}, partial(identity.machine, subject, [case], on, self._asked)
            if now == of or identity.is_same_code(facts, now, compiled):
                return True
        return False

    def by_machine_code(self, subject: Subject, case: Case, card: str, device: Device) -> bool:
        """Whether only machine code can tell if a record of `card` proves this case: none is of the present text, one is of the same launch."""
        found = [of for of, machine, on in self._passed.get((subject.op.name, subject.name, case.id), ()) if machine and on.name == card]
        now = self._now(subject, case, device) if found else None
        return now is not None and now not in found and any(of.facts["digest"] == now.digest for of in found)

    def _now(self, subject: Subject, case: Case, device: Device) -> Identity | None:
        """What the subject is in the tree at a case on a card; None where it does not take it."""
        key = (subject.op.name, subject.name, (case.id,), device)
        if key in self._answers:
            why, found = self._answers[key]
            return None if why else Identity(*found.split(" "))
        return None if subject.supports(case, device, self._asked) is not None else identity.of(subject, [case], device, self._asked)
