from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serving.fakes import Running, running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """One server for the tests that leave it as it was."""
    with running("--served-model-name", "fake", "other", "--enable-request-id-headers") as one:
        yield one


@pytest.fixture(scope="session")
def full_server() -> Iterator[Running]:
    """One with everything on that is off by default."""
    flags = (
        "--trust-request-chat-template", "--enable-per-request-metrics", "--enable-tokenizer-info-endpoint",
        "--enable-prompt-tokens-details", "--responses-store", "64K", "--fingerprint-mode", "hash",
        "--reasoning-parser", "deepseek_v3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice",
    )  # fmt: skip
    with running(*flags) as one:
        yield one


@pytest.fixture(scope="session")
def script_server() -> Iterator[Running]:
    """One that says what it is told to, and takes that apart."""
    flags = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice")
    with running(*flags, FAKE_SCRIPT="1") as one:
        yield one
