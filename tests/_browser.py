"""A page in a real browser: a script in it measures, and posts what it found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_FRAME = """<!doctype html><script>
window.addEventListener("message", function (event) {
  const out = document.createElement("pre"); out.id = "said"; out.textContent = event.data; document.body.append(out);
});
</script><body><iframe src="probe.html" style="width:%dpx;height:6000px;border:0"></iframe>"""


def said(out: Path, page: str, probe: str, width: int) -> Any:
    """What the script `probe` posts to the page's parent, as JSON. `page`: a file of `out`, into which others are written; `width`: pixels."""
    assert BROWSER is not None
    (out / "probe.js").write_text(probe, encoding="utf-8")
    text = (out / page).read_text(encoding="utf-8")
    (out / "probe.html").write_text(text.replace("<body", '<script defer src="probe.js"></script><body', 1), encoding="utf-8")
    (out / "frame.html").write_text(_FRAME % width, encoding="utf-8")
    line = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", f"--window-size={width + 100},6100",
            "--virtual-time-budget=8000", "--run-all-compositor-stages-before-draw", "--dump-dom", (out / "frame.html").as_uri()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-500:]
    return json.loads(unescape(found[1]))
