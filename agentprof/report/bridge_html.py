"""A bridge as one HTML file that needs no network: sentence, figures, table, cautions."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from agentprof.analysis.bridge import Bridge
from agentprof.analysis.bridge_splits import Row
from agentprof.report.benchmark_text import benchmark_rows
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
from agentprof.report.layout import rate

_ENDS, _MORE, _LESS, _IDLE = "#5b6472", "#c2552d", "#2a7f62", "#9aa3af"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2430; background: #fff; margin: 2rem auto; max-width: 62rem;
  padding: 0 1rem; }
h1 { font-size: 1.3rem; margin-bottom: .2rem; }
h2 { font-size: 1.05rem; margin-top: 2rem; }
.sentence { font-size: 1.25rem; }
.under { color: #5b6472; }
.forced { border-left: .4rem solid #c2552d; padding-left: .8rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #e3e7ec; vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
tr.end td { font-weight: 600; }
tr.depth-1 td:first-child { padding-left: 1.6rem; }
tr.depth-2 td:first-child { padding-left: 2.6rem; }
tr.part td { color: #5b6472; font-size: .92rem; }
"""


def bridge_html(bridge: Bridge) -> str:
    """The whole page. Everything that comes from a run or a file is escaped."""
    title = f"agentprof: {', '.join(bridge.scenarios)} beside {bridge.benchmark.tool}"
    body = "\n".join(_body(bridge))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def _body(bridge: Bridge) -> Iterator[str]:
    yield f'<p class="under">{escape(subtitle(bridge))}</p>'
    if bridge.mismatch:
        reasons = escape("; ".join(bridge.mismatch))
        yield f'<p class="forced">Forced: the benchmark is of another backend than the run\'s: {reasons}.</p>'
    yield f'<p class="sentence">{escape(sentence(bridge))}</p>'
    yield _figure_html(bridge)
    yield "<h2>Milliseconds per output token</h2>"
    yield from _table(bridge)
    what_if = counterfactual_words(bridge)
    if what_if:
        items = "".join(f"<li>{escape(words)}</li>" for words in what_if)
        yield f'<h2>What if</h2><ul>{items}</ul><p class="under">{escape(COUNTERFACTUAL_RULE)}</p>'
    if bridge.cautions:
        items = "".join(f"<li>{escape(caution)}</li>" for caution in bridge.cautions)
        yield f"<h2>Cautions</h2><ul>{items}</ul>"
    yield "<h2>The benchmark</h2>"
    yield from _benchmark(bridge)


def _table(bridge: Bridge) -> Iterator[str]:
    yield '<table><thead><tr><th></th><th class="number">ms per token</th><th class="number">share of the gap</th>'
    yield "<th></th></tr></thead><tbody>"
    yield _row("end", "benchmark", per_token(bridge.benchmark_ns), "", f"{rate(bridge.benchmark_tok_s)} tok/s")
    for row in shown_rows(bridge):
        yield _row("row", name_of(row), per_token(row.ns), share_of(bridge, row), note_of(bridge, row))
        yield from _parts(bridge, row, 1)
    yield _row("end", "agent, in all", per_token(bridge.agent_ns), "", f"{rate(bridge.agent_tok_s)} tok/s")
    yield "</tbody></table>"


def _parts(bridge: Bridge, row: Row, depth: int) -> Iterator[str]:
    for part in row.parts:
        if part.ns:
            kind = f"part depth-{depth}"
            yield _row(kind, name_of(part), per_token(part.ns), share_of(bridge, part), note_of(bridge, part))
            yield from _parts(bridge, part, depth + 1)


def _row(kind: str, name: str, price: str, share: str, note: str) -> str:
    return (
        f'<tr class="{kind}"><td>{escape(name)}</td><td class="number">{escape(price)}</td>'
        f'<td class="number">{escape(share)}</td><td>{escape(note)}</td></tr>'
    )


def _benchmark(bridge: Bridge) -> Iterator[str]:
    yield f'<p class="under">TTFT is the {escape(bridge.benchmark.ttft_definition)}.</p>'
    yield '<table><thead><tr><th></th><th class="number"></th><th>provenance</th><th></th></tr></thead><tbody>'
    for name, value, provenance, how in benchmark_rows(bridge.benchmark):
        cells = f'<td>{escape(name)}</td><td class="number">{escape(value)}</td>'
        yield f"<tr>{cells}<td>{escape(provenance)}</td><td>{escape(how)}</td></tr>"
    yield "</tbody></table>"


def _figure_html(bridge: Bridge) -> str:
    """A waterfall from the benchmark to the agent, with the Plotly library inside the page."""
    import plotly.graph_objects as go

    rows = shown_rows(bridge)
    names = ["benchmark", *(name_of(row) for row in rows), "agent, in all"]
    prices = [bridge.benchmark_ns, *(row.ns for row in rows), bridge.agent_ns]
    figure = go.Figure(
        go.Waterfall(
            orientation="v",
            measure=["absolute", *("relative" for _ in rows), "total"],
            # Plotly reads tags in its texts, so they are escaped like the page.
            x=[escape(name) for name in names],
            y=[float(ns / 1_000_000) for ns in prices],
            text=[escape(per_token(ns)) for ns in prices],
            textposition="outside",
            hovertemplate="%{x}: %{text} ms per token<extra></extra>",
            totals={"marker": {"color": _ENDS}},
            increasing={"marker": {"color": _MORE}},
            decreasing={"marker": {"color": _LESS}},
            connector={"line": {"color": _IDLE, "width": 1}},
        )
    )
    figure.update_layout(
        template="plotly_white",
        height=420,
        margin={"l": 60, "r": 20, "t": 30, "b": 40},
        yaxis_title="ms per output token",
        showlegend=False,
    )
    html: str = figure.to_html(
        full_html=False, include_plotlyjs=True, div_id="bridge", config={"displaylogo": False, "responsive": True}
    )
    return html
