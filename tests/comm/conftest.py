"""Tests that start processes cost seconds: what `make test` has of them is one of each kind."""

from __future__ import annotations

import pytest


@pytest.fixture
def long(pytestconfig: pytest.Config) -> None:
    """Only with --all, or where the file is named."""
    from conftest import whole

    if not whole(pytestconfig):
        pytest.skip("long: with --all, or where its file is named")
