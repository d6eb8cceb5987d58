"""Times on a GPU. Of CUDA C++ this process compiles, launches and times the launches by the one timer: the submission's host code never runs near it. Of
Python the submission's process runs the calls, and the clock of this process decides."""

from __future__ import annotations
