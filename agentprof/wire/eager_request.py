"""A request whose body is written at once, not in a task that waits for its turn on the event loop.

From Python 3.12 on aiohttp starts that task eagerly. Before, whatever else is ready runs first: with sixteen sessions
at once that were 50 ms between a connection and the request on it, in which the server hears nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import TYPE_CHECKING, Any

from aiohttp.client_reqrep import ClientRequest

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.connector import Connection


class EagerRequest(ClientRequest):
    """aiohttp's request, written as far as the socket takes it before its writer's task is made."""

    def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> Coroutine[Any, Any, None]:
        """aiohttp makes a task of what is returned."""
        work = super().write_bytes(writer, conn, content_length)
        return _begun(work) if sys.version_info < (3, 12) else work


def _begun(work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
    """Run `work` until it first has to wait; the rest of it."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return _nothing()
    return _rest(work, waits_for)


async def _nothing() -> None:
    pass


async def _rest(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _go_on(work, waits_for)


@coroutine
def _go_on(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """Hand on what `work` waits for, and back what came of it: results, errors and cancellation."""
    while True:
        try:
            try:
                came = yield waits_for
            except BaseException as error:  # noqa: BLE001  thrown by the task; it belongs to `work`
                waits_for = work.throw(error)
            else:
                waits_for = work.send(came)
        except StopIteration:
            return
