"""How many tokens a prompt has for a server: by its own tokeniser where it has one, else by what it reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import orjson

from agentprof.records.call import CallResult
from agentprof.runs.preflight import PreflightError
from agentprof.runs.prompts import Count
from agentprof.wire.client import ChatClient

Ask = Callable[[str], Awaitable[CallResult]]
"""Sends a prompt for one token of an answer."""


async def token_counter(client: ChatClient, ask: Ask, *, is_raw: bool) -> tuple[Count, str]:
    """A way to count prompt tokens, and its name.

    A chat prompt is wrapped in a template that only the server knows, so the tokeniser serves raw prompts alone.
    Counting raises CallError, or PreflightError where the server reports no prompt tokens.
    """

    async def reported(text: str) -> int:
        tokens = (await ask(text)).reply.usage.prompt_tokens
        if tokens is None:
            raise PreflightError(
                f'backend "{client.backend.name}": reports no prompt tokens, '
                "so a prompt of exact length can't be made; use --prompts fixed."
            )
        return tokens

    tokeniser = _Tokeniser(client)
    if not is_raw or await tokeniser.count("one two") is None:
        return reported, "calibrated against the prompt tokens that the server reports"

    async def counted(text: str) -> int:
        found = await tokeniser.count(text)
        return found if found is not None else await reported(text)

    return counted, "exact, by the server's own tokeniser"


class _Tokeniser:
    """A server's `/tokenize`, in vLLM's or llama.cpp's shape."""

    def __init__(self, client: ChatClient) -> None:
        parts = urlsplit(client.backend.base_url)
        path = parts.path.rstrip("/").removesuffix("/v1")
        self._url = urlunsplit((parts.scheme, parts.netloc, f"{path}/tokenize", "", ""))
        self._client = client

    async def count(self, text: str) -> int | None:
        """Tokens of a text as a prompt, a begin-of-sequence token included; None where the server can't tell."""
        body = {"model": self._client.backend.model, "prompt": text, "content": text, "add_special": True}
        timeout = aiohttp.ClientTimeout(total=10)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._client.authorization) as session,
                session.post(self._url, json=body) as response,
            ):
                tokens = orjson.loads(await response.read()).get("tokens") if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError, AttributeError):
            return None
        return len(tokens) if isinstance(tokens, list) else None
