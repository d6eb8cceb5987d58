"""Says what an older Python needs, before pip fetches anything; all else stands in pyproject.toml."""

import sys

if sys.version_info < (3, 11):
    sys.exit("rooftop needs Python 3.11 or later; this is " + sys.version.split()[0] + " (python3.12 -m pip install .)")

import setuptools

setuptools.setup()
