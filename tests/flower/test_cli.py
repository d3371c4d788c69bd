"""`subflot flower new` and `--engine`, as a user meets them."""

import importlib
import importlib.util
import subprocess
import tomllib
from pathlib import Path

import pytest
from commands import Command

import subflot.flower
from subflot.errors import SubflotError
from subflot.experiments import RunConfig, run
from subflot.experiments.engines import engine_in, without_flower


@pytest.fixture
def call(subflot: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Call the command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return subflot


def test_a_new_app_has_all_that_flower_and_devices_need(call: Command, tmp_path: Path) -> None:
    changes = ("--set", "rounds=7", "--set", "flower.round_timeout=30")
    code, out, err = call("flower", "new", "kitchen", "--from", "har", *changes)
    assert (code, out) == (0, "")
    assert err == "kitchen runs subflot on har; its README says how\n"
    home = tmp_path / "kitchen"
    project = tomllib.loads((home / "pyproject.toml").read_text())
    assert project["project"]["name"] == "kitchen"
    for part in project["tool"]["flwr"]["app"]["components"].values():
        module, _, name = part.partition(":")
        text = (home / f"{module.replace('.', '/')}.py").read_text()
        assert f"{name} = " in text
        compile(text, module, "exec")
    flat, table = without_flower(tomllib.loads((home / "federation" / "run.toml").read_text()))
    config = RunConfig.of(**flat)
    assert (config.rounds, config.algorithm, config.seed) == (7, "subflot", 0)
    assert table == {"round_timeout": 30}
    for script in home.glob("*.sh"):
        assert script.stat().st_mode & 0o100
        subprocess.run(["sh", "-n", script], check=True)
    for path in home.rglob("*"):
        assert path.is_dir() or "@" not in path.read_text().replace("$@", ""), path


def test_certificates_name_the_server_and_follow_the_authority(
    call: Command, tmp_path: Path
) -> None:
    call("flower", "new", "kitchen")
    home = tmp_path / "kitchen"
    script = home / "certificates.sh"
    assert subprocess.run([script], capture_output=True).returncode == 2
    subprocess.run([script, "127.0.0.1", "server.local"], check=True, capture_output=True)
    place = home / "certificates"
    check = f"openssl verify -CAfile {place}/ca.crt {place}/server.crt"
    subprocess.run(check.split(), check=True, capture_output=True)
    shown = subprocess.run(
        ["openssl", "x509", "-in", place / "server.crt", "-noout", "-text"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "IP Address:127.0.0.1, DNS:server.local" in shown
    assert (place / "server.key").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (("flower", "new", "my_app"), "`my_app` cannot name a Flower app", "letters, digits"),
        (("flower", "new", "full"), "full is not empty", "name a new folder"),
        (("flower", "new", "app", "--from", "hra"), "unknown preset `hra`", "did you mean `har`"),
        (
            ("flower", "new", "app", "--set", "flower.min_node=3"),
            "unknown setting of [flower] `min_node`",
            "did you mean `min_nodes`",
        ),
        (("run", "digits", "--engine", "flour"), "unknown engine `flour`", "built-in, flower"),
        (("run", "digits", "--set", "flower=3"), "flower is 3", "write [flower]"),
        (
            ("run", "digits", "--engine", "flower", "--set", "flower.privacy=none"),
            "unknown privacy `none`",
            "clipping, local-dp",
        ),
    ],
)
def test_mistakes_are_one_error_and_one_hint(
    args: tuple[str, ...], error: str, hint: str, call: Command, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, out, err = call(*args)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


def test_without_flower_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SubflotError, match=r"Flower is not installed\n.*subflot\[flower\]"):
        importlib.reload(subflot.flower)
    from subflot.flower import ray

    monkeypatch.setattr(ray, "find_spec", lambda name: None)
    with pytest.raises(SubflotError, match=r"Ray is not installed\n.*subflot\[flower-sim\]"):
        ray.on_ray(lambda grid: None, None, 1, 1)  # type: ignore[arg-type]


def test_a_run_is_resumed_on_the_engine_that_began_it(tmp_path: Path) -> None:
    assert engine_in(tmp_path) is None
    (tmp_path / "flower.toml").write_text("round_timeout = 5.0\n")
    engine = engine_in(tmp_path)
    assert engine is not None
    assert engine.keywords["settings"].round_timeout == 5  # type: ignore[attr-defined]


def test_a_run_with_privacy_does_not_go_on_without_it(tmp_path: Path) -> None:
    config = RunConfig(algorithm="local", max_examples=60, num_clients=2, rounds=1, epochs=1)
    (tmp_path / "flower.toml").write_text('privacy = "clipping"\n')
    with pytest.raises(SubflotError, match=r"Flower with privacy.*\n.*subflot resume"):
        run(config, tmp_path, workers=1)
    assert run(config, tmp_path, workers=1, force=True).is_finished
    assert engine_in(tmp_path) is None  # The new run is none of Flower's.
