"""A certificate for servers on 127.0.0.1."""

from __future__ import annotations

import pytest
from scripted_server import make_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))
