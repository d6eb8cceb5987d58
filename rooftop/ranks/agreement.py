"""The ranks tell each other what they were called with, before anything else moves: those that do not go together find it out, all of them,
at once.

Each rank says its call in a text: function, dtype, shape, every option. One exchange of a row of FIELDS numbers compares them by their
hashes. A rank that refuses its arguments takes part, and says so in place of them. Where rows differ all ranks see it, and a second
exchange carries the texts, for the message that all of them raise. No more was sent then: the group is as it was, and the next call finds
all ranks at the same place.

The row also has what is not compared: how many calls of the group the rank has made, by which ranks on GPUs know together when they stop
comparing, and its host, which hierarchical collectives ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from rooftop.ranks import groups
from rooftop.ranks.groups import CommError, Disagreement, Limit

VERIFIED = 16  # calls of a group on a GPU of which the ranks compare what they were given; on the CPU all
FIELDS = 6  # int64: whether it refuses, two of the text's hash, bytes of the text; then the number of calls, the host
COMPARED = 4  # of them
TEXT = 2000  # bytes of a text that travel


def check_verify(what: str, verify: Any) -> None:
    """Raises TypeError."""
    if verify is not None and not isinstance(verify, bool):
        raise TypeError(f"{what}: verify is {verify!r}; it must be True, False or None")


def together(what: str, group: Any, verify: bool | None, limit: Limit, say: Callable[[], str], problem: Exception | None = None) -> None:
    """Begin a call: compare `say()` with the other ranks, or tell them that this one refuses its arguments.

    Raises `problem` where there is one, Disagreement where ranks differ, CommError where one does not come."""
    groups.usable(what, group)
    if dist.get_world_size(group) > 1 and _must(group, _meant(verify)):
        text = ""
        try:
            text = say() if problem is None else ""
        except Exception as error:  # whatever it is, the others must not wait for this rank
            problem = error
        text = text if problem is None else f"refused its arguments: {type(problem).__name__}: {problem}"
        try:
            agree(what, group, text, limit, problem is not None)
            groups.state(group).verify = verify
        except (Disagreement, CommError):
            if problem is None:
                raise
    if problem is not None:
        raise problem


def refuse(what: str, group: Any, problem: Exception) -> NoReturn:
    """Raise `problem`, which this rank alone may have, and tell the others, which are at a call."""
    together(what, group, None, Limit(), str, problem)
    raise AssertionError("unreachable")


def _meant(verify: Any) -> bool | None:
    """What a `verify` that is refused counts as: ranks that were given True compare the call, so that one that was given 1 must too."""
    if verify is None or isinstance(verify, bool):
        return verify
    try:
        return bool(verify)
    except Exception:
        return None


def _must(group: Any, verify: bool | None) -> bool:
    """Whether this call is compared: the same on all ranks, where their calls are. On the CPU always. On a GPU, known by the last tensor
    that was accepted, the
    host would wait: in the first calls of a group, or by `verify`; of calls that say False the first, so that ranks which do not say so
    hear of it."""
    own = groups.state(group)
    own.calls += 1
    if (own.device or groups.meeting(group)).type == "cpu":
        return True
    if torch.cuda.is_current_stream_capturing():
        return False
    early = own.calls <= VERIFIED
    return early if verify is None else verify or (early and own.verify is not False)


@lru_cache(4096)
def _row(text: str, refused: bool) -> tuple[int, ...]:
    coded = text.encode(errors="replace")
    hashed = hashlib.blake2b(coded, digest_size=16).digest()
    return int(refused), *(int.from_bytes(hashed[i : i + 8], "little", signed=True) for i in (0, 8)), min(len(coded), TEXT)


@lru_cache(1)
def _host() -> int:
    from rooftop.ranks import symmetric

    return symmetric.host()


def agree(what: str, group: Any, text: str, limit: Limit, refused: bool = False) -> None:
    """Compare texts, and learn the ranks' hosts. Raises Disagreement on every rank where one differs."""
    own, ranks = groups.state(group), dist.get_world_size(group)
    mine = (*_row(text, refused), own.calls, _host())
    sent = torch.tensor(mine, dtype=torch.int64, device=groups.meeting(group))
    got = sent.new_empty(ranks * FIELDS)
    groups.run(what, group, lambda: groups.gather_into(got, sent, group), limit)
    rows = got.view(ranks, FIELDS).tolist()
    own.calls = max(row[4] for row in rows)
    if own.names is None:
        own.names = [row[5] for row in rows]
    if all(row[:COMPARED] == rows[0][:COMPARED] for row in rows):
        return
    said = _texts(what, group, text, max(row[3] for row in rows), [row[3] for row in rows], limit)
    raise Disagreement(
        f"{what}: the ranks were given different arguments: {_by_rank(said)}. All ranks must call the same function, in the same order, "
        f"with the same dtype, "
        "shape and options, `timeout` apart"
    )


def _texts(what: str, group: Any, text: str, longest: int, lengths: Sequence[int], limit: Limit) -> list[str]:
    coded = text.encode(errors="replace")[:longest]
    sent = torch.tensor(list(coded.ljust(longest)), dtype=torch.uint8, device=groups.meeting(group))
    got = sent.new_empty(len(lengths) * longest)
    groups.run(what, group, lambda: groups.gather_into(got, sent, group), limit)
    return [bytes(row[:n]).decode(errors="replace") for row, n in zip(got.view(len(lengths), longest).tolist(), lengths, strict=True)]


def _by_rank(said: Sequence[str]) -> str:
    """Ranks that said the same stand together."""
    alike: dict[str, list[int]] = {}
    for rank, one in enumerate(said):
        alike.setdefault(one, []).append(rank)
    return "; ".join(f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {one}" for one, ranks in alike.items())


def names(what: str, group: Any, limit: Limit) -> Sequence[int]:
    """Of each rank's host. They have told each other in the first call that was compared, or do it now."""
    own = groups.state(group)
    if own.names is None:
        agree(what, group, "plan, which asks where the ranks are", limit)
    assert own.names is not None
    return own.names
