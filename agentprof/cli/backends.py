"""Which backends a command was asked for, by options or by name; the embedded engine runs while they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from agentprof.errors import InputError
from agentprof.records.backend import Backend
from agentprof.records.loading import load_backends, make_backend
from agentprof.serve.cores import default_threads
from agentprof.serve.local import EngineOptions, start_engine
from agentprof.serve.weights import find_weights
from agentprof.wire.client import api_key

LOCAL = "local"
"""The name of the embedded engine, where no backends file gives it another meaning."""

_FILE = Path("backends.yaml")


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The options that choose backends, as they were given."""

    names: Sequence[str] = ()
    file: Path | None = None
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None


_OPTIONS = (
    click.option(
        "-b",
        "--backend",
        "names",
        multiple=True,
        metavar="NAME",
        help="Backend from the backends file, or `local`: the embedded engine. Repeat to compare.",
    ),
    click.option(
        "--backends",
        "backends_file",
        type=click.Path(path_type=Path),
        default=None,
        help="Backends file.  [default: backends.yaml]",
    ),
    click.option(
        "--base-url", help="A server that is in no file: its OpenAI-compatible base URL, usually ending in /v1."
    ),
    click.option("--model", help="The model's name at --base-url; with `-b local`, a .gguf file."),
    click.option("--api-key-env", metavar="VAR", help="The environment variable that holds the key for --base-url."),
)


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that choose backends to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_backends(options: Mapping[str, Any]) -> BackendOptions:
    """Those options, as they were given."""
    return BackendOptions(
        names=options["names"],
        file=options["backends_file"],
        base_url=options["base_url"],
        model=options["model"],
        api_key_env=options["api_key_env"],
    )


@contextmanager
def open_backends(options: BackendOptions, slots: int, console: Console) -> Iterator[list[Backend]]:
    """The backends asked for. Starts the embedded engine, with so many slots, where it is one of them.

    Raises InputError for options that don't fit together, unknown names, and keys that aren't there.
    """
    known = _known(options)
    for backend in known.values():
        api_key(backend)
    if options.base_url or LOCAL not in options.names or LOCAL in known:
        yield list(known.values())
        return
    model = Path(options.model) if options.model else None
    find_weights(model)
    engine_options = EngineOptions(model=model, threads=default_threads(), slots=slots)
    console.print("starting the embedded engine", highlight=False)
    with start_engine(engine_options) as engine:
        labels = {"engine": "llama.cpp", "threads": str(engine_options.threads), "slots": str(slots)}
        local = Backend(name=LOCAL, base_url=engine.base_url, model=engine.model, labels=labels)
        yield [known.get(name, local) for name in options.names]


def _known(options: BackendOptions) -> dict[str, Backend]:
    """The backends that need no engine of ours, in the order asked for."""
    if options.base_url:
        return {"default": _from_url(options, options.base_url)}
    if options.api_key_env:
        raise InputError("--api-key-env goes with --base-url; in a backends file, write api_key_env.")
    names = options.names
    if not names:
        raise InputError("no backend: give --backend NAME (from backends.yaml, or `local`), or --base-url and --model.")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f'--backend: "{twice}" is named twice; name each backend once.')
    file = options.file or (_FILE if _FILE.exists() else None)
    written = load_backends(file) if file is not None else {}
    missing = next((name for name in names if name not in written and name != LOCAL), None)
    if missing is not None:
        where = f"{file} has {', '.join(written)}" if file else f"there is no {_FILE} here"
        raise InputError(f'backend "{missing}": not known: {where}. `local` is the embedded engine.')
    if options.model and (LOCAL not in names or LOCAL in written):
        raise InputError("--model goes with --base-url or `-b local`; in a backends file, write model.")
    return {name: written[name] for name in names if name in written}


def _from_url(options: BackendOptions, base_url: str) -> Backend:
    if options.names or options.file:
        raise InputError("--base-url and --backend exclude each other; put the server into backends.yaml to use both.")
    if not options.model:
        raise InputError("--base-url needs --model: the name under which the server serves it.")
    values = {"base_url": base_url, "model": options.model, "api_key_env": options.api_key_env}
    return make_backend("default", values)
