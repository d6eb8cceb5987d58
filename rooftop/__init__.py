"""rooftop: GPU kernels for PyTorch. Each op is developed step by step, from a naive kernel to the fastest one, which a call of
the op runs.

`import rooftop` loads nothing else: an op, torch and the compilers are loaded when a name is first used."""

import sys
from typing import Any

__version__ = "0.1.0"

if sys.version_info < (3, 11):  # noqa: UP036 - put on a path by hand: pip refuses it. Nothing above is newer than Python 3.6
    raised = SystemExit if getattr(sys, "argv", [])[:1] == ["-m"] else ImportError  # python -m rooftop: one line, no traceback
    raise raised("rooftop needs Python 3.11 or later; this is " + sys.version.split()[0])


def __getattr__(name: str) -> Any:
    from rooftop.public_names import public

    return public(name)


def __dir__() -> list[str]:
    from rooftop.public_names import names

    return [*globals(), *names()]
