"""What a reader of the pages finds, and where: the code of a rung before its tables, how an op is called, the reference, search; in a browser too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from _report import H200, Made, Strict, make, quoted, ratio
from torch._subclasses.fake_tensor import FakeTensorMode

from rooftop import public_names
from rooftop.core import registry
from rooftop.lab.report import document, reference, search, site


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return make(tmp_path, monkeypatch)


# -- a rung ---------------------------------------------------------------------------------------------------------------


def test_a_rung_shows_its_idea_its_code_times_and_counts_before_any_table(made: Made) -> None:
    text = made.build(made.climb())[1]
    sections = re.split(r'<section class="rung"', text)[1:]
    assert len(sections) == 3
    for section, rung in zip(sections, made.page(made.climb()).rungs, strict=True):
        before = section.partition("<table")[0]
        assert '<pre class="code"' in before and "<details" not in before
        assert before.index('<p class="idea">') < before.index('<pre class="code"') < before.index("<dl")
        assert "GB/s" in before and "What limits it now" in before, rung.name
    assert "<table" not in text.partition('<section class="rung"')[0].replace(text[text.index("<details>") : text.rindex("</details>")], "")


def test_the_difference_has_no_line_of_a_head_but_its_config() -> None:
    seen = 0
    for name in ("softmax_cuda", "sgemm_cuda", "transpose_cuda"):
        for rung in registry.ladder(name).rungs:
            source = rung.implementation.path.read_text(encoding="utf-8") if rung.implementation else ""
            if source.startswith("/* rooftop"):
                end = source[: source.index("*/")].count("\n")
                head = [source.splitlines()[i] for i in site.lesson(source) if i <= end]
                keys = [re.fullmatch(r"(\w+)\s*=\s*[^=].*", line) for line in head]
                assert all(keys), head
                assert not {k[1] for k in keys if k} & {"idea", "predict", "limit", "args", "kernel", "grid", "block"}, head
                seen += len(head)
    assert seen > 10


# -- an op, and the reference ---------------------------------------------------------------------------------------------


def test_the_reference_has_every_public_name() -> None:
    spaces = reference.namespaces()
    assert {e.name for e in spaces[0][2]} | set(public_names.namespaces()) | set(public_names.LIFTED) == set(public_names.names())
    for space, about, entries in spaces:
        assert about and entries, space
        assert all(e.signature.startswith(e.name) for e in entries if e.kind != "value")
    assert all(e.doc for e in spaces[0][2])
    written = {f"{space}.{e.name}": e.signature for space, _, entries in spaces for e in entries}
    assert written["rooftop.cumsum"] == "cumsum(x: Tensor, dim: int = -1, *, reverse: bool = False, implementation: str | None = None) -> Tensor"
    assert "    wire: str = 'int8',\n" in written["rooftop.comm.all_reduce"]
    assert not [n for n, text in written.items() if re.search(r": '|\w=\w", text)]


def test_a_docstring_is_shown_with_its_arguments_formulas_and_escapes() -> None:
    doc = "Sum of `x` <y>.\n\n    y = x + 1\n\nArgs:\n    x, y: the first;\n        and more.\n    **rest: others.\n\nRaises ValueError for ``x < 0``."
    assert str(reference.shown(doc)) == (
        '<p>Sum of <code>x</code> &lt;y&gt;.</p><pre class="formula">y = x + 1</pre>'
        '<dl class="arguments"><dt><code>x, y</code></dt><dd>the first; and more.</dd><dt><code>**rest</code></dt><dd>others.</dd></dl>'
        "<p>Raises ValueError for <code>x &lt; 0</code>.</p>"
    )
    assert reference.sentence("A sum, e.g. of two. And more.\n\nRest.") == "A sum, e.g. of two."


NAMES = [n for n in registry.op_names() if n in reference.functions()]


@cache
def usages() -> dict[str, str]:
    return {n: reference.usage(registry.op(n)) for n in NAMES}


def test_most_ops_have_an_example() -> None:
    without = [n for n, text in usages().items() if not text]
    assert len(without) <= 9, without  # of formats whose arrays no one makes by hand
    assert set(reference.BY_HAND) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name: str) -> None:
    """Those from cases have their sizes: with tensors that hold nothing."""
    text = usages()[name]
    if not text:
        pytest.skip("its arguments are no plain tensors")
    assert f"rooftop.{name}(" in text or "rooftop.sparse." in text
    if name in reference.BY_HAND:
        exec(compile(text, name, "exec"), {})
        return
    with FakeTensorMode():
        exec(compile(text, name, "exec"), {})


def test_the_page_of_an_op_says_how_it_is_called(tmp_path: Path) -> None:
    site.build(tmp_path, [])
    softmax = Strict((tmp_path / "op-softmax.html").read_text(encoding="utf-8")).text
    assert "rooftop.softmax(x: Tensor, dim: int = -1" in softmax and "y = rooftop.softmax(x)" in softmax and "the dimension that sums to one" in softmax
    home = Strict((tmp_path / "index.html").read_text(encoding="utf-8")).text
    assert "Start here." in home
    for name in registry.ladder_names():
        assert reference.sentence(" ".join(registry.ladder(name).intro.split())) in home, name
    # -- every search result leads somewhere
    rows = json.loads((tmp_path / search.FILE).read_text(encoding="utf-8").partition("=")[2].rstrip(";\n"))
    assert {kind for kind, *_ in rows} >= {"ladder", "rung", "op", "kernel", "API", "tutorial"}
    ids = {p.name: {i for _, i in Strict(p.read_text(encoding="utf-8")).of("id")} for p in tmp_path.glob("*.html")}
    for kind, title, line, address, _ in rows:
        file, _, anchor = address.partition("#")
        assert title and len(line) <= search.LONGEST
        assert file in ids and (not anchor or anchor in ids[file]), (kind, title, address)
    titles = {title for _, title, *_ in rows}
    assert {*registry.op_names(), *registry.ladder_names()} <= titles and len(rows) > 400


def test_text_that_others_wrote_cannot_leave_the_index_of_the_search(made: Made) -> None:
    made.house.ops.joinpath("scale.py").write_text(made.house.ops.joinpath("scale.py").read_text().replace("& <nothing>", "</script>"), encoding="utf-8")
    made.build([])
    text = (made.out / search.FILE).read_text(encoding="utf-8")
    assert json.loads(text.partition("=")[2].rstrip(";\n"))


def test_a_document_as_a_page() -> None:
    text = "# T\n\nA **b** `c`.\n\n- one\n- two\n\n```python\nx = 1 < 2\n```\n\n## Next & last\n\n1. a\n2. b\n"
    shown = str(document.html(text))
    assert document.title(text) == "T" and list(document.chapters(text)) == [("next-last", "Next & last")]
    for part in (
        "<p>A <b>b</b> <code>c</code>.</p>",
        "<ul><li>one</li><li>two</li></ul>",
        "x = 1 &lt; 2",
        '<h2 id="next-last">',
        "<ol><li>a</li><li>b</li></ol>",
    ):
        assert part in shown


# -- in a browser ---------------------------------------------------------------------------------------------------------

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PROBE = """
window.addEventListener("load", function () {
  const input = document.querySelector(".search input");
  function ask(text) {
    input.value = text; input.dispatchEvent(new Event("input"));
    return Array.from(document.querySelectorAll(".search li a")).map(function (a) { return a.getAttribute("href"); });
  }
  input.focus(); ask("scale");
  setTimeout(function () {
    const wide = Array.from(document.querySelectorAll("figure.drawing svg, pre.formula")).filter(function (x) {
      return x.scrollWidth > x.clientWidth + 1 || x.getBoundingClientRect().right > innerWidth;
    });
    parent.postMessage(JSON.stringify({
      width: innerWidth, page: document.documentElement.scrollWidth, wide: wide.length,
      called: ask("rooftop.Scale("), limited: ask("copy steps"), within: ask("cale"), joined: ask("steps02"), nothing: ask("xyzzy"), found: ask("scale"),
      inflected: ask("scaling"), partly: ask("scale xyzzy"),
      numbers: document.querySelectorAll("pre.code b").length, coloured: document.querySelectorAll("pre.code .word").length,
    }), "*");
  }, 1500);
});
"""
FRAME = """<!doctype html><script>
window.addEventListener("message", function (event) {
  const out = document.createElement("pre"); out.id = "said"; out.textContent = event.data; document.body.append(out);
});
</script><body><iframe src="%s" style="width:%dpx;height:6000px;border:0"></iframe>"""


@pytest.mark.skipif(BROWSER is None, reason="there is no browser (chromium)")
@pytest.mark.sampled("slow")
@pytest.mark.parametrize("width", [390, 1440])
def test_pages_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Nothing is wider than the screen but what scrolls by itself; code is coloured and numbered; search finds."""
    made = make(tmp_path, monkeypatch)
    shipped = made.bench("scale__cuda", 2e-4, versus={"peer:torch": ratio(0.8, "faster")})
    made.build([*made.climb(), shipped, made.bench("steps/02_wide", 1e-3, device=H200)])
    assert BROWSER is not None
    for name in ("ladder-steps.html", "op-scale.html", "index.html", "api.html"):
        text = quoted(made.out / name)
        page = made.out / f"probe-{name}"
        (made.out / "probe.js").write_text(PROBE, encoding="utf-8")
        page.write_text(text.replace("</head>", '<script defer src="probe.js"></script></head>'), encoding="utf-8")
        frame = made.out / "frame.html"  # the narrowest window is wider than a phone
        frame.write_text(FRAME % (page.name, width), encoding="utf-8")
        line = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", f"--window-size={width + 100},6100",
                "--virtual-time-budget=8000", "--run-all-compositor-stages-before-draw", "--dump-dom", frame.as_uri()]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
        found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
        assert found, done.stderr[-500:]
        said = json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
        assert said["page"] <= said["width"], (name, said)
        assert said["wide"] == 0 and said["found"][0] == said["called"][0] == "op-scale.html" and said["nothing"] == [], (name, said)
        assert "op-scale.html" in said["within"] and "ladder-steps.html#rung-03" in said["limited"], (name, said)
        assert said["joined"] == ["ladder-steps.html#rung-02"], (name, said)
        assert said["inflected"][0] == said["partly"][0] == "op-scale.html", (name, said)
        if name == "ladder-steps.html":
            assert said["numbers"] > 20 and said["coloured"] > 3, said
