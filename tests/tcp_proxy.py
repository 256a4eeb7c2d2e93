"""A TCP proxy that can hold traffic back, let it go, or cut it, in front of any server.

Knows bytes only. Invariant: held bytes are kept in order, and are delivered even when the client
that sent them has gone: a late message is what this is for.
"""

from __future__ import annotations

import asyncio


class TcpProxy:
    """`to_server` and `to_client` gate the two directions; both are open at first."""

    def __init__(self, host: str = "", port: int = 0, *, unix_path: str = "") -> None:
        self._upstream = (host, port, unix_path)
        self._server: asyncio.Server | None = None
        self._to_server = _open_gate()
        self._to_client = _open_gate()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.held = asyncio.Event()  # something has arrived at a closed gate

    async def start(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    def hold_requests(self) -> None:
        self.held.clear()
        self._to_server.clear()

    def hold_replies(self) -> None:
        self.held.clear()
        self._to_client.clear()

    def release(self) -> None:
        self._to_server.set()
        self._to_client.set()

    def cut(self) -> None:
        """Break every connection; replies that are held are lost, the gates are open again."""
        for writer in self._writers:
            writer.transport.abort()
        self.release()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port, unix_path = self._upstream
        if unix_path:
            up_reader, up_writer = await asyncio.open_unix_connection(unix_path)
        else:
            up_reader, up_writer = await asyncio.open_connection(host, port)
        self._writers |= {writer, up_writer}
        self._spawn(self._pump(reader, up_writer, self._to_server))
        self._spawn(self._pump(up_reader, writer, self._to_client))

    def _spawn(self, coroutine: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not gate.is_set():
                    self.held.set()
                    await gate.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
        except ConnectionError:
            writer.transport.abort()


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
