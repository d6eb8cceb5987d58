"""Which cases a ladder's page shows, and which of them its predictions speak of."""

from __future__ import annotations

from rooftop.core import registry
from rooftop.core.contract import Contract
from rooftop.core.names import RegistryError
from rooftop.core.spec import Case


def cases_of(ladder: registry.Ladder, op: Contract) -> list[Case]:
    """The cases on a ladder's page."""
    return [c for name in ladder.cases for dtype in ladder.dtypes for c in op.cases if c.name == name and c.dtype == dtype]


def headline_of(ladder: registry.Ladder, op: Contract) -> Case:
    """The case that predictions speak of: the headline in the first of the ladder's dtypes that has it."""
    cases = cases_of(ladder, op)
    found = [c for dtype in ladder.dtypes for c in cases if c.name == ladder.headline and c.dtype == dtype]
    if not found:
        known = ", ".join(c.id for c in cases) or "none"
        raise RegistryError(f"ladders/{ladder.name}/ladder.toml: headline {ladder.headline!r} is no case of the ladder; there are {known}")
    return found[0]
