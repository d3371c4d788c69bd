"""A SuperLink of which the network sees only what devices need.

Flower's SuperLink serves three interfaces on one port. Fleet is for devices, whose keys it checks.
Control registers keys and starts runs, and Runtime serves the apps that run here: neither asks who
is there. So the SuperLink listens on this machine alone, and a gate on the public address hands on
what is meant for Fleet and nothing else.
"""

import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from types import FrameType

import httpx
import uvicorn
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from subflot.errors import SubflotError

LOOPBACK = "127.0.0.1"
FLEET = re.compile(rb"/v1/fleet/[a-z-]+")
"""The paths of calls to Fleet, as they stand in a request: no dots, no escapes, no slashes more."""
OF_THE_CONNECTION = frozenset(
    b"connection content-length date host keep-alive proxy-authenticate proxy-authorization "
    b"proxy-connection server te trailer transfer-encoding upgrade".split()
)
"""Headers that each of the two connections has for itself."""
PAUSE = 0.2


class Gate:
    """An ASGI app that hands calls to Fleet on and answers any other request with 404."""

    def __init__(self, behind: httpx.AsyncClient) -> None:
        self._behind = behind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        if scope["method"] == "POST" and FLEET.fullmatch(scope["raw_path"]):
            response = await self._handed_on(request)
        else:
            response = PlainTextResponse("only devices are served here\n", 404)
        await response(scope, receive, send)

    async def _handed_on(self, request: Request) -> Response:
        # Its length is not handed on: the two sides cannot disagree where a request ends.
        onward = self._behind.build_request(
            "POST",
            request.scope["raw_path"].decode(),
            headers=_own(request.headers.raw),
            content=request.stream(),
        )
        try:
            answer = await self._behind.send(onward, stream=True)
        except ClientDisconnect:
            return Response(status_code=400)
        except httpx.TransportError:
            return PlainTextResponse("the SuperLink does not answer\n", 503)  # Nodes try again.
        response = StreamingResponse(
            answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
        )
        response.raw_headers = _own(answer.headers.raw)
        return response


def _own(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in OF_THE_CONNECTION]


def serve_superlink(
    host: str,
    port: int,
    control_port: int,
    certificates: Path,
    database: Path,
    say: Callable[[str], None],
) -> None:
    """Run a SuperLink and its gate until one of them ends; the other then ends too.

    Args:
        host: the address on which devices reach this machine.
        port: of that address.
        control_port: where `flwr` reaches the SuperLink, from this machine alone.
        certificates: the folder of ca.crt, server.crt and server.key.
        database: the file in which the SuperLink remembers nodes and runs.
        say: told when devices can join.
    """
    authority, certificate, key = (certificates / n for n in ("ca.crt", "server.crt", "server.key"))
    for path in (authority, certificate, key):
        if not path.is_file():
            raise SubflotError(f"there is no file {path}", hint="run certificates.sh first")
    for address, number in ((host, port), (LOOPBACK, control_port)):
        if _listens(address, number):
            raise SubflotError(
                f"somebody already listens on {address}:{number}",
                hint="end the SuperLink that runs there, or name another port",
            )
    link = subprocess.Popen(
        [
            *("flower-superlink", "--host", LOOPBACK, "--port", str(control_port)),
            *("--enable-supernode-auth", "--database", database),
            *("--ssl-ca-certfile", authority),
            *("--ssl-certfile", certificate, "--ssl-keyfile", key),
        ]
    )
    signal.signal(signal.SIGTERM, _leave)  # By way of `finally`.
    try:
        client = httpx.AsyncClient(
            base_url=f"https://{LOOPBACK}:{control_port}",
            verify=ssl.create_default_context(cafile=str(authority)),
            trust_env=False,
            timeout=None,
            # The SuperLink closes connections that were idle for five seconds.
            limits=httpx.Limits(keepalive_expiry=2),
        )
        config = uvicorn.Config(
            Gate(client),
            host,
            port,
            ssl_certfile=certificate,
            ssl_keyfile=str(key),
            lifespan="off",
            ws="none",
            log_level="warning",
        )
        while link.poll() is None and not _listens(LOOPBACK, control_port):
            time.sleep(PAUSE)
        server = uvicorn.Server(config)
        told = (
            f"devices can join at {host}:{port}; "
            f"flwr is served at {LOOPBACK}:{control_port}, from this machine alone"
        )
        threading.Thread(target=_watch, args=(link, server, lambda: say(told)), daemon=True).start()
        server.run()
        raise SubflotError(
            f"the SuperLink ended with code {link.wait()}", hint="what it said stands above"
        )
    except KeyboardInterrupt:
        pass
    finally:
        link.terminate()
        link.wait()


def _watch(
    link: subprocess.Popen[bytes], server: uvicorn.Server, ready: Callable[[], None]
) -> None:
    """Say when the gate is open, and close it when the SuperLink ends."""
    while link.poll() is None and not server.started:
        time.sleep(PAUSE)
    if server.started:
        ready()
    link.wait()
    server.should_exit = True


def _listens(host: str, port: int) -> bool:
    """Say whether somebody answers on an address."""
    try:
        with closing(socket.create_connection((host, port), timeout=1)):
            return True
    except OSError:
        return False


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
