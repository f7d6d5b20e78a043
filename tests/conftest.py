"""Fixtures that several rooms share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from agentprof.errors import InputError
from agentprof.serve.local import EngineOptions, LocalEngine, start_engine
from agentprof.serve.weights import find_weights


@pytest.fixture(scope="session")
def _engine_installed() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed: pip install 'agentprof[local]'")
    try:
        find_weights(None)
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def engine(_engine_installed: None) -> Iterator[LocalEngine]:
    """The embedded engine on one thread, one slot of 8192 tokens, for every test of one worker.

    Tests that use it carry `pytest.mark.engine` and `pytest.mark.xdist_group("engine")`, so that one worker runs it.
    """
    with start_engine(EngineOptions(threads=1)) as running:
        yield running
