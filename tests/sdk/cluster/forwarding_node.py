"""A node of a real API server whose kubelet only forwards ports of pods, to a server of this machine."""

import asyncio
import ssl
import threading
import uuid
from typing import Any

import trustme
from aiohttp import WSMsgType, web
from tests.sdk.cluster.namespace import Namespace

PROTOCOL = "v4.channel.k8s.io"


class ForwardingNode:
    """The node, with the pods that a test puts on it. Every port leads to `target_port` of this machine.

    Attributes:
        name: Its name.
        streams: The streams that were opened.
    """

    def __init__(self, namespace: Namespace, target_port: int) -> None:
        self.streams = 0
        self._namespace, self._target_port = namespace, target_port
        self.name = f"node-{uuid.uuid4().hex[:6]}"
        self._open: set[web.WebSocketResponse] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        namespace.node(self.name, asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(30))

    def add_pod(self, name: str, labels: dict[str, str] | None = None, **metadata: str) -> None:
        spec = {"nodeName": self.name, "containers": [{"name": "nats", "image": "nats:1"}]}
        pod: Any = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels, **metadata}}
        pod["spec"] = spec
        self._namespace.create(pod)
        self._namespace.status(pod, {"phase": "Running"})

    def cut(self) -> None:
        async def cut() -> None:
            for each in [*self._open]:
                await each.close()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(30)

    def stop(self) -> None:
        self.cut()
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> int:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        app = web.Application()
        app.router.add_get("/portForward/{namespace}/{pod}", self._forward)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def _forward(self, request: web.Request) -> web.WebSocketResponse:
        """Carry a port as the kubelet does: its data on channel 0, its errors on channel 1, each after its number."""
        self.streams += 1
        stream = web.WebSocketResponse(protocols=(PROTOCOL,))
        await stream.prepare(request)
        self._open.add(stream)
        port = int(request.query["port"]).to_bytes(2, "little")
        for channel in (b"\0", b"\1"):
            await stream.send_bytes(channel + port)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        back = asyncio.create_task(self._copy(reader, stream))
        try:
            async for message in stream:
                if message.type is WSMsgType.BINARY:
                    writer.write(message.data[1:])
                    await writer.drain()
        finally:
            self._open.discard(stream)
            writer.close()
            back.cancel()
        return stream

    async def _copy(self, reader: asyncio.StreamReader, stream: web.WebSocketResponse) -> None:
        while data := await reader.read(1 << 16):
            await stream.send_bytes(b"\0" + data)
        await stream.close()
