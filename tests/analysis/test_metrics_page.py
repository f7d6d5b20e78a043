"""docs/metrics.md names every field of the contract, every ledger row and every split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from handwritten import Trace, add_call

from agentprof.analysis.explain import explain

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def names(value: object) -> Iterator[str]:
    """Every key of nested dicts and lists, in order."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names(inner)


def test_every_name_of_the_contract_is_documented() -> None:
    traces = [Trace(1), Trace(2)]
    for trace in traces:
        root = trace.add(None, "invoke_agent fix", 0, 101)
        add_call(trace, root, 0, first=50, last=100)
    explained = explain({}, [span for trace in traces for span in trace.spans])
    found = set(names(explained))
    assert {"tok_s", "ledger", "first_token_wait", "tool_call", "prefilled_tokens", "flags"} <= found
    assert [name for name in sorted(found) if f"`{name}`" not in PAGE and f"`run.{name}`" not in PAGE] == []
