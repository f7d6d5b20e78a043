"""The Compose file is what the Compose specification allows, and publishes nothing beyond this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).parents[1] / "docker-compose.yml"


def _load() -> dict[str, Any]:
    return yaml.safe_load(_FILE.read_text())


def test_the_file_follows_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    good = subprocess.run([*command, _FILE], capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stdout + good.stderr


def test_the_check_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "docker-compose.yml"
    bad.write_text(_FILE.read_text().replace("healthcheck:", "healthchek:"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", bad]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_ports_are_published_on_this_machine_only() -> None:
    published = [port for service in _load()["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_services_and_configs_that_are_named_exist() -> None:
    stack = _load()
    names = set(stack["services"])
    for service in stack["services"].values():
        assert set(service.get("depends_on", ())) <= names
        assert {config["source"] for config in service.get("configs", ())} <= set(stack["configs"])
    collector = yaml.safe_load(stack["configs"]["collector"]["content"])
    pipeline = collector["service"]["pipelines"]["traces"]
    assert set(pipeline["exporters"]) <= set(collector["exporters"])
    assert set(pipeline["receivers"]) <= set(collector["receivers"])
