"""A bridge as plain text: one sentence, rows with bars and shares of the gap, counterfactuals, cautions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from agentprof.analysis.bridge import Bridge
from agentprof.analysis.bridge_splits import Row
from agentprof.report.bridge_words import (
    COUNTERFACTUAL_RULE,
    counterfactual_words,
    name_of,
    note_of,
    per_token,
    sentence,
    share_of,
    shown_rows,
    subtitle,
)
from agentprof.report.layout import bar, hang, rate, wrap

_BAR_CELLS, _NAME, _PRICE, _SHARE = 14, 20, 8, 6


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the table. `share` is None for lines without a bar."""

    name: str
    ns: Fraction
    share: str | None
    note: str


def render_bridge(bridge: Bridge, width: int = 100, *, is_open: bool = False) -> str:
    """The bridge in lines of at most `width`; `is_open` shows what first-token waits and decode are made of."""
    blocks = [
        wrap(sentence(bridge), width),
        _table(bridge, width, is_open=is_open),
        _counterfactuals(bridge, width),
        _cautions(bridge, width),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _table(bridge: Bridge, width: int, *, is_open: bool) -> list[str]:
    lines = [_Line("benchmark", bridge.benchmark_ns, "", f"{rate(bridge.benchmark_tok_s)} tok/s")]
    for row in shown_rows(bridge):
        lines.append(_Line(name_of(row), row.ns, share_of(bridge, row), note_of(bridge, row)))
        if is_open:
            lines += _opened(bridge, row, 1)
    lines.append(_Line("agent, in all", bridge.agent_ns, "", f"{rate(bridge.agent_tok_s)} tok/s"))
    name_width = max(_NAME, *(len(line.name) for line in lines))
    largest = max(float(line.ns) for line in lines)
    bar_cells = max(4, min(_BAR_CELLS, width - name_width - _PRICE - _SHARE - 8))
    head = f"{'ms per output token':<{name_width + _PRICE}}"
    printed = [*wrap(subtitle(bridge), width, first="  "), f"  {head}{'share of the gap':>{bar_cells + _SHARE + 4}}"]
    for line in lines:
        cells = "" if line.share is None else bar(float(line.ns) / largest, bar_cells)
        lead = f"  {line.name:<{name_width}}{per_token(line.ns):>{_PRICE}}  {cells:<{bar_cells}}"
        printed += hang(line.note, width, f"{lead}  {line.share or '':>{_SHARE}}  ")
    return printed


def _opened(bridge: Bridge, row: Row, depth: int) -> Iterator[_Line]:
    for part in row.parts:
        if part.ns:
            yield _Line("  " * depth + name_of(part), part.ns, None, note_of(bridge, part))
            yield from _opened(bridge, part, depth + 1)


def _counterfactuals(bridge: Bridge, width: int) -> list[str]:
    words = counterfactual_words(bridge)
    if not words:
        return []
    return [*wrap(f"What if: {' · '.join(words)}", width, rest="  "), *wrap(COUNTERFACTUAL_RULE, width, first="  ")]


def _cautions(bridge: Bridge, width: int) -> list[str]:
    lines = [line for caution in bridge.cautions for line in wrap(caution, width, first="  * ", rest="    ")]
    return ["Cautions:", *lines] if lines else []
