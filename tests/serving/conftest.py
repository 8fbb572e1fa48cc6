from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.fakes import Running, running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """One server for the tests that leave it as it was."""
    with running("--served-model-name", "fake", "other", "--enable-request-id-headers") as one:
        yield one
