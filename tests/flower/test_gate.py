"""A stranger who has the certificate and the address of a server, and nothing else."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from flwr.supercore.routers.runtime import create_runtime_router, responses_router
from flwr.superlink.routers.control import router as control_router
from flwr.superlink.routers.fleet.router import router as fleet_router
from network import PUBLIC, Network, started
from processes import wait_for

from subflot.errors import SubflotError
from subflot.flower.gate import FLEET, serve_superlink

CONNECTION = """
[superlink.there]
address = "{address}"
root-certificates = "{authority}"
"""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with started(tmp_path, "--from", "digits") as found:
        found.superlink()
        yield found


def status(network: Network, path: str, method: str = "POST") -> int:
    """What the server answers to a request that is sent as it is written here."""
    context = ssl.create_default_context(cafile=str(network.home / "certificates" / "ca.crt"))
    connection = http.client.HTTPSConnection(PUBLIC, network.port, context=context)
    connection.request(method, path, b"", {"Content-Type": "application/protobuf"})
    return connection.getresponse().status


def paths(*routers: object) -> list[str]:
    return [r.path for one in routers for r in getattr(one, "routes", []) if hasattr(r, "path")]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_a_stranger_gets_in_nowhere_and_a_registered_device_does(
    network: Network, tmp_path: Path
) -> None:
    programs, home = network.programs, network.home

    # With Flower's own commands, as whoever has ca.crt and the address can give them.
    other = tmp_path / "stranger"
    programs.call("other", "subflot", "flower", "new", other, "--from", "digits")
    text = CONNECTION.format(
        address=f"{PUBLIC}:{network.port}", authority=home / "certificates" / "ca.crt"
    )
    (other / ".flwr" / "config.toml").write_text(text)
    (other / "keys").mkdir()
    programs.call(
        "key", "ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", other / "keys" / "k"
    )
    for words in (
        ("supernode", "list", "there"),
        ("supernode", "register", "keys/k.pub", "there", "--name", "site-0"),
        ("run", ".", "there"),
        ("list", "there"),
    ):
        assert programs.start("stranger", other / "flwr.sh", *words).wait() != 0, words
    assert "404" in programs.said("stranger")
    assert programs.said("superlink").count("/v1/control/") == 0

    # With requests of its own.
    closed = paths(control_router, create_runtime_router("SuperLink"), responses_router)
    assert len(closed) > 40
    for path in closed:
        assert status(network, path) == 404, path
    for path in ("/", "/docs", "/openapi.json", "/health", "/v1/control/list-nodes"):
        assert status(network, path, "GET") == 404, path
    for path in (
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet/..%2fcontrol%2flist-nodes",
        "/v1/fleet//v1/control/list-nodes",
        "//v1/control/list-nodes",
    ):
        assert status(network, path) == 404, path
    for path in paths(fleet_router):
        assert status(network, path) == 401, path  # Devices come this far, and show their key.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((PUBLIC, network.control_port))
    assert "GET" not in programs.said("superlink")

    # Through Fleet, with a key that nobody registered; and with one that was registered here.
    assert network.node(0).wait() == 1
    stranger = network.node(0)
    wait_for(lambda: "Failed to activate SuperNode" in programs.said("site-0"))
    assert stranger.wait() != 0
    register = programs.said("site-0").split("./flwr.sh ")[1].splitlines()[0]
    programs.call("register", home / "flwr.sh", *register.split())
    network.node(0)
    wait_for(lambda: "SuperNode ID" in programs.said("site-0"))
    listed = programs.call("list", home / "flwr.sh", "supernode", "list", "devices")
    assert listed.count("online") == 1


def test_every_call_of_fleet_passes_the_gate() -> None:
    calls = [route.path for route in fleet_router.routes if isinstance(route, APIRoute)]
    assert len(calls) > 9
    assert all(FLEET.fullmatch(path.encode()) for path in calls)


def test_a_server_does_not_start_where_another_listens(tmp_path: Path) -> None:
    for name in ("ca.crt", "server.crt", "server.key"):
        with pytest.raises(SubflotError, match=rf"there is no file .*{name}\n.*certificates.sh"):
            serve_superlink("127.0.0.1", 1, 2, tmp_path, tmp_path / "a.db", print)
        (tmp_path / name).touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SubflotError, match=rf"already listens on 127.0.0.1:{port}"):
            serve_superlink("127.0.0.1", 1, port, tmp_path, tmp_path / "a.db", print)
