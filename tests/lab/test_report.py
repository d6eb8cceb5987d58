"""The pages: every number from a record, stale and missing ones shown as such."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _report import BANDWIDTH, FACTS, FMA, H100, H200, NOW, Made, Strict, ceiling, make, ratio, rows

from rooftop.core import registry
from rooftop.lab.records.record import Record
from rooftop.lab.report import charts, documents
from rooftop.lab.report.data import gather
from rooftop.lab.report.joined import CHANGED, Joined


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_rung_follow_from_its_record(made: Made) -> None:
    ladder = Strict(made.build(made.climb())[1]).text
    home = Strict(made.home()).text
    # 256 MiB at 3e12 bytes/s take 89.48 us; the shipped rung takes 125 us, four times less than the rung before.
    wanted = ("125.0", "123.8 to 127.5", "2 147", "71.6", "2.00× the rung before; measured 4.00× too low")
    for want in (*wanted, "torch faster", "1.250", "1.238 to 1.263", "90.9", "0.400"):
        assert want in ladder, want
    assert "2.10× the rung before; measured 2.00× hit" in ladder
    assert "2 147 GB/s, H100 71.6 % of the roof 1.250× torch" in home


def lasting(made: Made, subject: str = "scale__cuda", **more: Any) -> dict[str, Any]:
    """A record of a case that was timed in a burst and sustained, with what a call allocates."""
    record = made.bench(subject, 1.25e-4, versus={"peer:torch": ratio(0.8, "faster")}, sustained_versus={"peer:torch": ratio(0.96, "faster")}, **more)
    record["clocks"]["kernel"]["duty"] = "burst"
    record["clocks"]["sustained"] = {"median": 1.5e-4, "low": 1.49e-4, "high": 1.52e-4, "n": 31, "duty": "sustained"}
    return record


def test_duties_and_memory_are_named(made: Made) -> None:
    peers = [made.bench("peer:torch", 1.5e-4, memory=96 << 20), made.bench("peer:other", 1.5e-4, memory=160 << 20)]
    home, ladder = made.build([ceiling(H100), lasting(made, memory=64 << 20), *peers])
    for want in ("125.0 in a burst 150.0 sustained", "71.6 memory 59.7 sustained", "1.042 sustained, torch", "64.0 torch 96.0"):
        assert want in Strict(home).text, want
    for want in ("125.0 in a burst", "Sustained", "150.0", "59.7 sustained"):
        assert want in Strict(ladder).text, want
    for page in (home, ladder):
        assert all(len(set(widths)) == 1 for widths in Strict(page).widths)
    plain = Strict(made.build(made.climb())[0]).text
    assert "MiB a call" not in plain and "125.0 in a burst" not in plain, "what was not measured has no column"


def test_a_sustained_time_is_held_to_the_sustained_roof(made: Made) -> None:
    slower = ceiling(H100)
    slower["fma_fp32"]["sustained"]["ops_per_s"] = FMA / 2
    record = lasting(made, work={"read": 4, "write": 4, "ops": {"fma32": FMA * 1e-4}})
    site = gather(map(Record, [slower, record]), house=made.house, now=NOW)
    (m,) = site.ops[0].scores[0].rows[0].measured
    assert m.share == pytest.approx(1e-4 / 1.25e-4) and m.sustained is not None and m.sustained.share == pytest.approx(2e-4 / 1.5e-4)
    assert [one.duty for one in m.duties] == ["burst", "sustained"]
    table = documents.scores([], site)
    for line in ("scale__cuda, burst | 125.0 | 0.80 | 1.25x torch (faster)", "scale__cuda, sustained | 150.0 | 1.33 | 1.04x torch (faster)"):
        assert f"| {line} |" in table
    assert m.sustained.best_peer is not None and m.sustained.best_peer.speed == pytest.approx(1 / 0.96)


def test_a_share_as_older_records_have_it_and_as_they_have_it_now(made: Made) -> None:
    old, new = made.bench("scale__cuda", 1e-4), made.bench("scale__cuda", 1e-4, error={"ok": True, "share": 0.4})
    assert [gather(map(Record, [r]), house=made.house, now=NOW).ops[0].scores[0].rows[0].measured[0].error.share for r in (old, new)] == [0.4, 0.4]


CHANGES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "median": ("both", lambda r: r["clocks"]["kernel"].update(median=1.31e-4)),
    "low": ("ladder", lambda r: r["clocks"]["kernel"].update(low=1.11e-4)),
    "high": ("ladder", lambda r: r["clocks"]["kernel"].update(high=1.41e-4)),
    "cold": ("ladder", lambda r: r["clocks"].update(cold={"median": 3e-4, "low": 3e-4, "high": 3e-4})),
    "hot": ("ladder", lambda r: r["clocks"].update(hot={"median": 3e-4, "low": 3e-4, "high": 3e-4})),
    "host": ("ladder", lambda r: r["clocks"].update(host={"median": 3e-5, "low": 3e-5, "high": 3e-5})),
    "work": ("both", lambda r: r["work"].update(read=r["work"]["read"] // 2)),
    "ratio": ("ladder", lambda r: r["versus"]["peer:other"].update(ratio=1.3)),
    "interval": ("ladder", lambda r: r["versus"]["peer:torch"].update(low=0.7)),
    "verdict": ("ladder", lambda r: r["versus"]["peer:torch"].update(verdict="unresolved")),
    "copy": ("ladder", lambda r: r["versus"]["ceiling:copy"].update(ratio=1.2)),
    "error": ("ladder", lambda r: r["error"].update(max_share=0.9)),
    "wrong": ("ladder", lambda r: r["error"].update(ok=False)),
    "prediction": ("ladder", lambda r: r["predict"].update(speedup=3.3)),
    "date": ("ladder", lambda r: r.update(at="2025-12-31T10:00:00+00:00")),
    "device": ("both", lambda r: r.update(device=H200)),
}


@pytest.mark.sampled("slow")
@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_record_changes_the_page(made: Made, what: str) -> None:
    where, change = CHANGES[what]
    records = made.climb()
    before = (made.build(records), made.home())
    assert (made.build(copy.deepcopy(records)), made.home()) == before, "the same records must give the same page"
    before = (made.home(), made.build(records)[1])
    change(records[3])
    ladder = made.build(records)[1]
    after = (made.home(), ladder)
    assert Strict(after[1]).text != Strict(before[1]).text
    if where == "both":
        assert Strict(after[0]).text != Strict(before[0]).text


def test_the_ceilings_set_the_share_of_the_roof(made: Made) -> None:
    records = made.climb()
    assert rows(made.page(records))[3].cells[(H100["name"], "big f32")].share == pytest.approx((1 << 28) / BANDWIDTH / 1.25e-4)
    for points in records[0]["curves"].values():
        for p in points:
            p["seconds"] *= 0.5
    assert rows(made.page(records))[3].cells[(H100["name"], "big f32")].share == pytest.approx((1 << 28) / BANDWIDTH / 2.5e-4)


def test_faster_than_its_ceiling_is_a_bad_calibration(made: Made) -> None:
    assert "bad calibration" not in made.build(made.climb())[1]
    assert "bad calibration" in made.build([ceiling(H100), made.bench("steps/01_plain", 5e-5)])[1]


def test_without_a_calibration_only_the_datasheet_has_a_roof(made: Made) -> None:
    records = made.climb()[1:]
    m = rows(made.page(records))[3].cells[(H100["name"], "big f32")]
    assert m.share is None
    assert m.sheet_share is not None
    text = Strict(made.build([*records, made.bench("scale__cuda", 2e-4)])[0]).text
    assert "not calibrated" in text and "never measured" in text
    assert "no ceiling" in text
    home = Strict(made.home()).text
    assert "rooftop calibrate" in home and "Card" not in home, "no empty chart, and no list of no cards"


def test_ceilings_of_other_calibration_kernels_are_not_called_never_measured(made: Made) -> None:
    records = made.climb()
    records[0]["digest"] = "of other kernels"
    text = Strict(made.build([*records, made.bench("scale__cuda", 2e-4)])[0]).text
    assert "were measured with other calibration kernels" in text and "never measured" not in text


def test_an_unknown_card_has_no_roof_at_all(made: Made) -> None:
    m = rows(made.page([made.bench("steps/01_plain", 1e-3, device={**H100, "name": "Some Card"})]))[1].cells[("Some Card", "big f32")]
    assert (m.share, m.sheet_share, m.roofs.unit) == (None, None, "GB/s")
    Strict(made.build([made.bench("steps/01_plain", 1e-3, device={**H100, "name": "Some Card"})])[1])


def test_work_bound_by_a_unit_is_counted_in_its_operations(made: Made) -> None:
    work = {"read": 1 << 20, "write": 1 << 20, "ops": {"fma32": 1e10}}
    m = rows(made.page([ceiling(H100), made.bench("steps/01_plain", 1e-3, work=work)]))[1].cells[(H100["name"], "big f32")]
    assert (m.roofs.unit, m.roofs.bound) == ("TFLOP/s", "fma32")
    assert m.throughput == pytest.approx(20.0)
    assert m.share == pytest.approx(1e10 / FMA / 1e-3)


def test_slow_rungs_stand_beside_peers_of_their_run_unpaired(made: Made) -> None:
    records = made.climb()
    first = rows(made.page(records))[1].cells[(H100["name"], "big f32")]
    assert first.best_peer is not None
    assert (first.best_peer.name, first.best_peer.verdict, first.best_peer.interval) == ("peer:torch", "not paired", None)
    assert first.best_peer.speed == pytest.approx(1.5625e-4 / 1e-3)
    records[4]["run"] = records[5]["run"] = "another"
    assert rows(made.page(records))[1].cells[(H100["name"], "big f32")].best_peer is None


# -- predictions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "hit"), (1.14, "hit"), (1.17, "too low"), (0.83, "too high"), (0.86, "hit")])
def test_a_prediction_is_judged_by_kernel_times(made: Made, factor: float, verdict: str) -> None:
    seconds = 1e-3 / 2.1 / factor
    rung = rows(made.page([made.bench("steps/01_plain", 1e-3), made.bench("steps/02_wide", seconds)]))[2]
    assert rung.speedup is not None
    assert (rung.speedup.verdict, rung.speedup.measured) == (verdict, pytest.approx(1e-3 / seconds))


def test_paired_samples_of_one_run_go_before_a_ratio_of_medians(made: Made) -> None:
    paired = made.bench("steps/02_wide", 5e-4, versus={"steps/01_plain": ratio(0.4, "faster")})
    assert rows(made.page([made.bench("steps/01_plain", 1e-3), paired]))[2].measured_speedup == pytest.approx(2.5)
    paired["run"] = "another"
    assert rows(made.page([made.bench("steps/01_plain", 1e-3), paired]))[2].measured_speedup == pytest.approx(2.0)


def test_the_prediction_of_the_record_counts_not_one_written_afterwards(made: Made) -> None:
    records = made.climb()
    records[2]["predict"] = {"speedup": 9.0}
    rung = rows(made.page(records))[2]
    assert rung.speedup is not None
    assert (rung.speedup.predicted, rung.speedup.verdict, rung.restated) == (9.0, "too high", True)
    assert "restated" in made.build(records)[1]
    assert "restated" not in made.build(made.climb())[1]


def test_a_predicted_fact_is_held_against_the_binary(made: Made) -> None:
    rung = rows(made.page([], {("steps/02_wide", 90): FACTS}))[2]
    assert [(p.name, p.measured, p.verdict) for p in rung.predictions] == [("speedup", None, "not measured"), ("registers", 17.0, "hit")]


@pytest.mark.parametrize(
    ("predicted", "measured", "verdict"),
    [(1.10, 0.964, "too high"), (0.95, 1.05, "too low"), (1.02, 0.995, "hit"), (1.10, 1.0, "hit"), (0.9, 0.97, "hit"), (1.05, 1.12, "hit")],
)
@pytest.mark.parametrize("paired", [True, False])
def test_a_prediction_of_the_wrong_sign_is_no_hit(made: Made, predicted: float, measured: float, verdict: str, paired: bool) -> None:
    """All within 15 %. What lies on the other side of 1 by less than its interval (1 % here) may be noise: that stays a hit."""
    versus = {"steps/01_plain": ratio(1 / measured, "slower")} if paired else {}
    after = made.bench("steps/02_wide", 1e-3 / measured, predict={"speedup": predicted}, versus=versus)
    before = made.bench("steps/01_plain", 1e-3)
    for record in (before, after):
        record["clocks"]["kernel"].update(low=record["clocks"]["kernel"]["median"] * 0.995, high=record["clocks"]["kernel"]["median"] * 1.005)
    rung = rows(made.page([before, after]))[2]
    assert rung.speedup is not None
    assert (rung.speedup.verdict, rung.speedup.measured) == (verdict, pytest.approx(measured))


# -- stale and missing -----------------------------------------------------------------------------------------------


def test_a_stale_record_is_shown_and_scores_nothing(made: Made) -> None:
    records = [ceiling(H100), made.bench("scale__cuda", 1.25e-4, stale=True)]
    data = gather(map(Record, records), house=made.house, now=NOW)
    score = data.ops[0].scores[0]
    assert (score.summary.measured, score.summary.median, dict(score.summary.verdicts)) == (0, None, {})
    assert (data.records, data.stale) == (1, 1)
    assert data.ladders[0].top is None
    home, ladder = (Strict(t).text for t in made.build(records))
    assert "125.0" in home
    assert CHANGED in home
    assert "0 of 3 cases measured" in home
    assert CHANGED in ladder
    page = data.ladders[0]
    chart = charts.charts(page)[0]
    assert [b.kind for b in chart.bars if b.anchor] == ["missing", "missing", "stale"]


def test_a_newer_stale_record_does_not_hide_one_that_holds(made: Made) -> None:
    old = made.bench("steps/01_plain", 1e-3)
    new = made.bench("steps/01_plain", 5e-4, stale=True, at="2026-01-05T10:00:00+00:00")
    for records in ([old, new], [new, old]):
        m = rows(made.page(records))[1].cells[(H100["name"], "big f32")]
        assert (m.seconds, m.stale) == (1e-3, None)
    newer = made.bench("steps/01_plain", 2e-3, at="2026-01-06T10:00:00+00:00")
    assert rows(made.page([newer, old]))[1].cells[(H100["name"], "big f32")].seconds == 2e-3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"subject": "steps/09_gone"}, "no longer in the tree"),
        ({"case": "gone f32"}, "no longer has this case"),
        ({"case": "tiny f32"}, "no longer takes this case"),
    ],
)
def test_records_of_what_is_gone_are_stale(made: Made, change: dict[str, str], why: str) -> None:
    record = {**made.bench("steps/02_wide", 1e-3), **change}
    assert why in str(made.gatherer.stale(Record(record)))
    Strict(made.build([record])[1])


def test_a_changed_kernel_makes_its_record_stale(made: Made) -> None:
    records = made.climb()
    path = made.house.ladders / "steps" / "01_plain.cu"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("// ", "").replace("/* rooftop", "/* rooftop\n# a comment"), encoding="utf-8")
    registry.ladder.cache_clear()
    assert Joined(list(map(Record, records)), made.house).stale(Record(records[1])) is None, "a comment changes nothing"
    path.write_text(text.replace("* factor", "* factor + 1"), encoding="utf-8")
    registry.ladder.cache_clear()
    assert Joined(list(map(Record, records)), made.house).stale(Record(records[1])) == CHANGED
    registry.ladder.cache_clear()


def test_without_records_every_page_says_so(made: Made) -> None:
    home, ladder = made.build([])
    for page in (home, ladder, made.home()):
        assert "Not measured on any GPU yet" in Strict(page).text
        assert "<select" not in page
    assert ladder.count('class="rung"') == 3
    assert "the first rung is the start" in Strict(ladder).text
    assert "It does not take odd f32: rows of 8192 & no other (C == 8192)" in Strict(ladder).text


def test_what_is_missing_is_not_measured(made: Made) -> None:
    text = Strict(made.build([*made.climb(), made.bench("scale__cuda", 1e-4, "odd f32")])[1]).text
    assert "does not take this case: rows of 8192 & no other" in text
    assert "not measured" in text
    home = Strict(made.build([ceiling(H100), made.bench("scale__cuda", 1e-4)])[0]).text
    assert "1 of 3 cases measured" in home
    assert "odd f32 not measured" in home


def test_the_last_rung_takes_the_record_of_the_kernel_that_it_is(made: Made) -> None:
    own, other = made.bench("steps/03_shipped", 2e-4), made.bench("scale__cuda", 1e-4)
    at = (H100["name"], "big f32")
    assert rows(made.page([other]))[3].cells[at].seconds == 1e-4
    assert rows(made.page([own, other]))[3].cells[at].seconds == 2e-4
    assert rows(made.page([{**own, "digest": "old"}, other]))[3].cells[at].seconds == 1e-4


def test_each_card_is_shown_and_the_best_known_goes_first(made: Made) -> None:
    records = [*made.climb(), ceiling(H200), made.bench("steps/01_plain", 9e-4, device=H200)]
    page = made.page(records)
    assert [d.short for d in page.devices] == ["H100 80GB HBM3", "H200"]
    assert [c.label for c in charts.charts(page)] == ["big f32 · H100 80GB HBM3", "big f32 · H200"]
    assert "900.0" in Strict(made.build(records)[1]).text
