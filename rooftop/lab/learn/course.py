"""What comes before what: a graph of ladders and topics, and plans by it. Ladders say in ladder.toml what they need, course.toml has the
topics."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from rooftop.core import registry
from rooftop.core.names import RegistryError
from rooftop.lab.learn.words import _

TOPICS = Path(__file__).parent / "course.toml"


@dataclass(frozen=True)
class Node:
    """A ladder, or a topic. `lessons`: its rungs; of a topic the rung with which it is learnt and those before it. `level`: the longest way
    to it."""

    name: str
    title: str
    about: str
    topic: bool
    needs: tuple[str, ...]
    lessons: tuple[str, ...]
    level: int
    after: tuple[str, ...]  # what it needs, without what one of these needs already

    @property
    def ladder(self) -> str:
        """The ladder that its lessons are of."""
        return self.lessons[0].partition("/")[0]


@cache
def graph() -> Mapping[str, Node]:
    """Every ladder and topic by name, each after what it needs. Raises RegistryError for a name that is none, or a circle."""
    from rooftop.lab.report.reference import sentence

    topics = tomllib.loads(TOPICS.read_text(encoding="utf-8"))
    ladders = {n: registry.ladder(n) for n in registry.ladder_names()}
    at = {n: registry.rung(str(t["at"])) for n, t in topics.items()}
    taught = {n: tuple(t for t, rung in at.items() if rung.ladder == n) for n in ladders}
    needs = {n: (*ladder.needs, *(t for t in taught[n] if t not in ladder.needs)) for n, ladder in ladders.items()}
    needs |= {n: tuple(dict.fromkeys((*t.get("needs", ()), *ladders[at[n].ladder].needs))) for n, t in topics.items()}
    for name, before in needs.items():
        for other in before:
            if other not in needs:
                raise registry.unknown(f"ladder or topic that {name} needs,", other, sorted(needs))
    level: dict[str, int] = {}

    def reach(name: str, way: tuple[str, ...]) -> int:
        if name in way:
            raise RegistryError(f"what comes before what goes in a circle: {' after '.join((*way[way.index(name):], name))}")
        if name not in level:
            level[name] = max((reach(n, (*way, name)) + 1 for n in needs[name]), default=0)
        return level[name]

    @cache
    def all_before(name: str) -> frozenset[str]:
        return frozenset(needs[name]).union(*map(all_before, needs[name]))

    def nearest(name: str) -> tuple[str, ...]:
        return tuple(n for n in needs[name] if not any(n in all_before(other) for other in needs[name]))

    made = []
    for name, ladder in ladders.items():
        level_of = reach(name, ())
        made.append(Node(
            name, ladder.title, sentence(ladder.intro), False, needs[name], tuple(r.name for r in ladder.rungs), level_of, nearest(name)
        ))
    for name, topic in topics.items():
        before = tuple(r.name for r in ladders[at[name].ladder].rungs if r.number <= at[name].number)
        made.append(Node(name, str(topic["title"]), str(topic["about"]), True, needs[name], before, reach(name, ()), nearest(name)))
    return {node.name: node for node in sorted(made, key=lambda x: (x.level, not x.topic, x.name))}


def node(name: str) -> Node:
    """Raises RegistryError for what is neither a ladder nor a topic."""
    if name not in graph():
        raise registry.unknown("ladder or topic", name, list(graph()))
    return graph()[name]


def before(name: str) -> tuple[Node, ...]:
    """All that a ladder or topic needs, directly or not, in an order to learn it in; itself last."""
    wanted = {name}
    for other in reversed(list(graph().values())):
        if other.name in wanted:
            wanted |= set(other.needs)
    node(name)
    return tuple(n for n in graph().values() if n.name in wanted)


def way(name: str) -> tuple[str, ...]:
    """The lessons to a ladder or topic, each once, in an order to read them in."""
    return tuple(dict.fromkeys(lesson for n in before(name) for lesson in n.lessons))


def open_now(done: Collection[str]) -> list[Node]:
    """What is next: nodes with lessons that are not read, after nodes that are."""
    through = {n.name for n in graph().values() if all(x in done for x in n.lessons)}
    return [n for n in graph().values() if n.name not in through and all(x in through or _inside(n, x) for x in n.needs)]


def _inside(ladder: Node, topic: str) -> bool:
    """Whether a topic is learnt on the way through the ladder itself."""
    return graph()[topic].topic and graph()[topic].ladder == ladder.ladder


@dataclass(frozen=True)
class Plan:
    """What is between a learner and a goal. `left`: lessons, in the order to read them; `days`: to the date, today included; `expected`:
    how many would have been read by now at an even pace from the day it was made."""

    name: str
    by: date
    whole: int
    left: tuple[str, ...]
    days: int
    expected: int

    @property
    def done(self) -> int:
        return self.whole - len(self.left)

    @property
    def a_day(self) -> int:
        return -(-len(self.left) // max(self.days, 1))

    @property
    def words(self) -> str:
        """Where the learner is today, in one line."""
        if not self.left:
            return _("{goal}: reached, {all} lessons read", goal=self.name, all=self.whole)
        if self.days <= 0:
            left = len(self.left)
            return _(
                "{goal}: the day ({by}) has passed with {left} of {all} lessons left", goal=self.name, by=self.by, left=left, all=self.whole
            )
        pace = _(
            "ahead of an even pace" if self.done > self.expected else "behind an even pace" if self.done < self.expected
            else "at an even pace"
        )
        from_now = _("{n} lesson a day from now on" if self.a_day == 1 else "{n} lessons a day from now on", n=self.a_day)
        return _(
            "{goal} by {by}: {done} of {all} lessons read, {pace}; ", goal=self.name, by=self.by, done=self.done, all=self.whole, pace=pace
        ) + from_now


def plan(name: str, made: date, by: date, today: date, done: Collection[str]) -> Plan:
    """Raises RegistryError for what is neither a ladder nor a topic."""
    lessons = way(name)
    left = tuple(x for x in lessons if x not in done)
    span = max((by - made).days + 1, 1)
    passed = min(max((today - made).days, 0), span)
    return Plan(name, by, len(lessons), left, (by - today).days + 1, len(lessons) * passed // span)


def goal_of(text: str, today: date) -> tuple[str, date]:
    """A goal as it is typed: `attention_fwd by 2027-01-20`, or `... by 20 January`. Raises ValueError."""
    from datetime import datetime

    name, found, day = text.strip().partition(" by ")
    if not found:
        raise ValueError(f"--goal {text!r}: it is written 'LADDER by DATE', as in 'attention_fwd by {today.replace(month=12, day=20)}'")
    node(name.strip())
    for form in ("%Y-%m-%d", "%d %B %Y", "%d %b %Y", "%B %d %Y"):
        for typed in (day.strip(), f"{day.strip()} {today.year}", f"{day.strip()} {today.year + 1}"):
            try:
                when = datetime.strptime(typed, form).date()
            except ValueError:
                continue
            if typed == day.strip() or when >= today:
                if when < today:
                    raise ValueError(f"--goal {text!r}: {when} has passed; today is {today}")
                return name.strip(), when
    raise ValueError(f"--goal {text!r}: {day.strip()!r} is no date; it is written 2027-01-20 or 20 January")
