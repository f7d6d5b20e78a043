"""The bridge as one page that needs nothing but itself, whatever names it shows."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from test_bridge_text import agent, bridge_of, published

from agentprof.report.bridge_html import bridge_html

EVIL = "<img src=x onerror=alert(1)></script>\"'&"


class Page(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data


@pytest.fixture(scope="module")
def page() -> Page:
    benchmark = published(source=EVIL, tool=EVIL, ttft_definition=EVIL, cautions=(EVIL,))
    return Page(bridge_html(bridge_of(agent(name=EVIL), benchmark)))


def test_it_opens_offline(page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "img", "object", "embed"}
        assert not {"src", "href"} & set(attributes)
    assert sum(len(script) for script in page.scripts) > 1_000_000  # the library itself


def test_names_are_text_never_markup(page: Page) -> None:
    assert page.text.count(EVIL) >= 4
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_it_says_what_the_text_says(page: Page) -> None:
    for words in ("where the benchmark gets 192", "each one longer", "tools at zero → 107 tok/s", "don't add up"):
        assert words in page.text
    for heading in ("Milliseconds per output token", "What if", "Cautions", "The benchmark"):
        assert heading in page.text
    assert "324.37 ms" in page.text
    assert "absent" in page.text


def test_the_figure_holds_the_rows(page: Page) -> None:
    plot = next(script for script in page.scripts if "Plotly.newPlot(" in script)
    data = json.JSONDecoder().raw_decode(re.split(r'"bridge",\s*', plot, maxsplit=1)[1])[0][0]
    assert data["type"] == "waterfall"
    assert data["x"] == ["benchmark", "first-token waits", "decode", "tool", "unattributed", "agent, in all"]
    assert data["measure"] == ["absolute", *["relative"] * 4, "total"]
    assert sum(data["y"][:-1]) == pytest.approx(data["y"][-1])


def test_it_is_the_same_every_time() -> None:
    assert bridge_html(bridge_of(agent())) == bridge_html(bridge_of(agent()))
