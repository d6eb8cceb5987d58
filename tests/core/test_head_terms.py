"""What heads may say of cards and of many configs at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rooftop.core import settings
from rooftop.core.expressions import ExpressionError, evaluate
from rooftop.core.head import HeadError
from rooftop.core.head_text import parse
from rooftop.core.spec import TARGETS, Meta

HEAD = '''/* rooftop
op = "add"
args = ["N: i64", "x: f32[N]", "y: f32[N]", "out: f32[N]"]
configs = [{ B = 3 }, { A = [1, 2], B = [5, 6] }]
[config]
A = 7
B = 8
[[launch]]
kernel = "k"
grid = [1]
block = ["A"]
*/
'''


def test_a_list_in_configs_stands_for_each_of_its_values() -> None:
    found = [dict(c) for c in parse(HEAD, "my.cu").configs]
    assert found == [{"A": 7, "B": 3}, *({"A": a, "B": b} for a in (1, 2) for b in (5, 6))]
    with pytest.raises(HeadError, match="configs set C"):
        parse(HEAD.replace("{ B = 3 }", "{ C = [3] }"), "my.cu")


def test_how_many_clusters_run_at_once_is_the_cards_to_say() -> None:
    h100 = TARGETS[90]
    assert [evaluate(f"resident(card, {n})", {"card": h100}) for n in (1, 2, 3, 4, 8, 16)] == [132, 66, 30, 30, 15, 7]
    assert replace(h100, clusters=()).resident(16) == 8  # nobody was asked
    for text in ("resident(1, 2)", "resident(card, 0)"):
        with pytest.raises(ExpressionError, match="resident"):
            evaluate(text, {"card": h100})


def test_an_address_alone_may_be_asked_for() -> None:
    odd = Meta((4, 7), "f32", (7, 1), 16)
    assert evaluate("starts(x, 16) and not aligned(x, 16)", {"x": odd}) is True
    assert evaluate("starts(x, 16)", {"x": Meta((4,), "f32", (1,), 4)}) is False
    with pytest.raises(ExpressionError, match="starts"):
        evaluate("starts(x, 0)", {"x": odd})


def test_what_a_rung_in_python_says_of_itself_is_no_part_of_its_digest(tmp_path):
    from rooftop.core.backends.triton import TritonImplementation

    source = (settings.PACKAGE / "ladders" / "norm_triton" / "04_whole_row.py").read_text(encoding="utf-8")
    other = source.replace("\nLIMIT = ", '\nLIMIT = (\n    "first"\n    " and second")\nLIMIT = ', 1)
    code = source.replace("tl.div_rn(1.0,", "tl.div_rn(2.0,", 1)
    assert other != source and code != source
    found = []
    for name, text in (("a", source), ("b", other), ("c", code)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        found.append(TritonImplementation(tmp_path / f"{name}.py", "rms_norm", name).digest)
    assert found[0] == found[1] != found[2]
