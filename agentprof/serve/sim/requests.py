"""What a request asks for: its body, checked the way that the imitated servers check it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agentprof.serve.sim.tokens import piece_of, render_chat, tokenize


class Refused(Exception):  # noqa: N818  a refusal is part of the protocol
    """The request is answered with an HTTP error. `extra` goes into the error object."""

    def __init__(self, status: int, kind: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.extra = extra


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a completion, with its prompt in tokens."""

    is_chat: bool
    prompt: list[str]
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: Any
    max_tokens: int | None
    min_tokens: int
    ignores_eos: bool
    wants_reasoning: bool
    seed: int | None
    salt: str | None
    streams: bool
    wants_usage: bool
    wants_continuous_usage: bool
    wants_token_ids: bool

    @property
    def is_forced(self) -> bool:
        """Whether the length of the reply is fixed by the request."""
        return self.max_tokens is not None and (self.ignores_eos or self.min_tokens >= self.max_tokens)


def read_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises Refused."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(400, "BadRequestError", f"The body isn't JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "BadRequestError", "The body must be a JSON object.")
    return body


def understand(body: Mapping[str, Any], model: str, is_chat: bool) -> Asked:
    """Check a body and render its prompt. Raises Refused for what the servers refuse."""
    wanted = body.get("model", model)
    if wanted != model:
        raise Refused(404, "NotFoundError", f"The model `{wanted}` does not exist.", param="model")
    if body.get("n") not in (None, 1):
        raise Refused(400, "BadRequestError", "Only n=1 is simulated.", param="n")
    messages = _messages(body) if is_chat else []
    tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)] if is_chat else []
    options = body.get("stream_options") or {}
    template = body.get("chat_template_kwargs") or {}
    thinks = body.get("reasoning_effort") != "none" and template.get("enable_thinking") is not False
    return Asked(
        is_chat=is_chat,
        prompt=render_chat(messages, tools) if is_chat else _prompt(body.get("prompt")),
        messages=messages,
        tools=tools,
        tool_choice=body.get("tool_choice", "auto"),
        max_tokens=_limit(body, is_chat),
        min_tokens=_number(body, "min_tokens", least=0) or 0,
        ignores_eos=bool(body.get("ignore_eos")),
        wants_reasoning=is_chat and thinks,
        seed=_number(body, "seed", least=None),
        salt=body.get("cache_salt"),
        streams=bool(body.get("stream")),
        wants_usage=bool(options.get("include_usage")),
        wants_continuous_usage=bool(options.get("continuous_usage_stats")),
        wants_token_ids=bool(body.get("return_token_ids")),
    )


def check_context(asked: Asked, context_tokens: int, engine: str) -> None:
    """Refuse what doesn't fit into the context, in the words that each engine is known for."""
    prompt, wanted = len(asked.prompt), asked.max_tokens or 0
    if engine == "llama.cpp":
        if prompt >= context_tokens:
            message = f"request ({prompt} tokens) exceeds the available context size ({context_tokens} tokens)"
            extra = {"n_prompt_tokens": prompt, "n_ctx": context_tokens}
            raise Refused(400, "exceed_context_size_error", message + ", try increasing it", **extra)
        return
    limit = f"This model's maximum context length is {context_tokens} tokens. However, "
    if prompt >= context_tokens:
        message = f"{limit}your request has {prompt} input tokens. Please reduce the length of the input."
        raise Refused(400, "BadRequestError", message, param="input_tokens")
    if prompt + wanted > context_tokens:
        message = (
            f"{limit}you requested {prompt + wanted} tokens ({prompt} in the messages, {wanted} in the completion)."
        )
        raise Refused(400, "BadRequestError", message + " Please reduce one of them.", param="max_tokens")


def _messages(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise Refused(400, "BadRequestError", "`messages` must be a list of messages.", param="messages")
    return messages


def _prompt(prompt: object) -> list[str]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return list(tokenize(prompt)) or [" "]
    if isinstance(prompt, list) and prompt and all(type(number) is int for number in prompt):
        return [piece_of(number) for number in prompt]
    raise Refused(400, "BadRequestError", "`prompt` must be one text or one list of token ids.", param="prompt")


def _limit(body: Mapping[str, Any], is_chat: bool) -> int | None:
    limit = _number(body, "max_completion_tokens", least=1) if is_chat else None
    limit = limit or _number(body, "max_tokens", least=1)
    return limit if limit is not None or is_chat else 16  # the completions API's own default


def _number(body: Mapping[str, Any], key: str, least: int | None) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least):
        bound = f" of at least {least}" if least is not None else ""
        raise Refused(400, "BadRequestError", f"{key} must be an integer{bound}, got {value!r}.", param=key)
    return value
