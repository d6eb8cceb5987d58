"""What a check of one case came to. Another process's is read by `forms.formed`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rooftop.lab.check.compare import Verdict

Status = Literal["ok", "wrong", "skipped", "error"]


@dataclass
class Result:
    """One subject on one case. `status`: ok, wrong, skipped (with the reason), error. `unasked`: why it was not compiled for a GPU before
    it was simulated. `archs`: the architectures that were simulated."""

    subject: str
    op: str
    case: str
    status: Status
    backend: str = ""
    message: str = ""
    outputs: dict[str, Verdict] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    seconds: float = 0.0
    unasked: str = ""
    archs: tuple[int, ...] = ()

    @property
    def worst(self) -> Verdict | None:
        return max(self.outputs.values(), key=lambda v: max(v.max_share, v.rms_share), default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject, "op": self.op, "case": self.case, "status": self.status, "backend": self.backend,
            "message": self.message, "outputs": {k: v.to_json() for k, v in self.outputs.items()}, "path": list(self.path),
            **({"unasked": self.unasked} if self.unasked else {}), **({"archs": list(self.archs)} if self.archs else {}),
        }

    def error(self) -> dict[str, Any]:
        """What a record says of it: figures of the worst output."""
        worst = self.worst
        if worst is None:
            return {"ok": self.status == "ok"}
        names = ("max", "rms", "allowed_max", "allowed_rms", "max_share", "rms_share")
        return {"ok": self.status == "ok", **{n: min(float(getattr(worst, n)), 1e300) for n in names}}
