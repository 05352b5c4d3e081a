"""The commands where no agent answers: no socket, one that refuses, one that says nothing."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from cli.command import COMMAND, command, environment, good

from xce_nodeagent.cli import local
from xce_nodeagent.privileged import credential

SYSTEMD = Path("/run/systemd/system").is_dir()


class TestWithoutAnAgent:
    """No socket, a socket that refuses, one that says nothing."""

    def test_no_socket(self, tmp_path: Path) -> None:
        done = command(str(tmp_path / "none"), "jobs")
        assert done.returncode == 75
        assert "no agent" in done.stderr
        start = "systemctl start xce-nodeagent" if SYSTEMD else "xce-nodeagent run"
        assert f"`{start}`" in done.stderr
        assert ("systemctl" in done.stderr) == SYSTEMD

    def test_a_socket_that_refuses(self, tmp_path: Path) -> None:
        path = str(tmp_path / "dead")
        with closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.bind(path)
        for asked in (["jobs"], ["inventory"]):
            done = command(path, *asked, "--json")
            assert done.returncode == 75
            assert json.loads(done.stdout)["error"]["code"] == "not_ready"

    def test_a_file_that_is_no_socket(self, tmp_path: Path) -> None:
        plain = tmp_path / "plain"
        plain.touch()
        for asked in (["jobs"], ["inventory"]):
            done = command(str(plain), *asked)
            assert done.returncode == 64
            assert f"{plain} is not a socket" in done.stderr

    @pytest.mark.parametrize("asked", [["doctor"], ["jobs"], ["inventory"]])
    def test_an_agent_that_says_nothing_is_waited_for_until_the_deadline(
        self, tmp_path: Path, asked: list[str]
    ) -> None:
        path = str(tmp_path / "silent")
        with closing(socket.socket(socket.AF_UNIX)) as silent:
            silent.bind(path)
            silent.listen()
            done = command(path, *asked, "--deadline", "0.3")
        assert done.returncode in (69, 75)
        assert "has not answered for 0.3 s" in done.stdout + done.stderr

    def test_an_agent_that_trickles_is_not_waited_for_longer(self, tmp_path: Path) -> None:
        path = str(tmp_path / "trickle")
        with closing(socket.socket(socket.AF_UNIX)) as slow:
            slow.bind(path)
            slow.listen()
            with subprocess.Popen(
                [*COMMAND, "jobs", "--deadline", "0.5"], env=environment(path), text=True,
                stderr=subprocess.PIPE,
            ) as process:  # fmt: skip
                peer, _ = slow.accept()
                with closing(peer):
                    until = time.monotonic() + 20
                    while process.poll() is None and time.monotonic() < until:
                        with suppress(OSError):
                            peer.send(b"{")
                        with suppress(subprocess.TimeoutExpired):
                            process.wait(0.05)
                    assert process.poll() == 75
                assert process.stderr is not None
                assert "has not answered for 0.5 s" in process.stderr.read()

    def test_a_path_that_is_too_long(self, tmp_path: Path) -> None:
        done = command(str(tmp_path / ("x" * 120)), "jobs")
        assert done.returncode == 64
        assert "too long" in done.stderr

    @pytest.mark.parametrize("more", [[], ["--local"]])
    def test_the_inventory_is_looked_up_where_there_is_no_socket(
        self, tmp_path: Path, more: list[str]
    ) -> None:
        done = command(str(tmp_path / "none"), "inventory", "--json", *more)
        value = json.loads(good(done))
        assert value["source"] == "local"
        assert value["schema"] == "xce.inventory/v1"
        assert value["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert all(instance["held_by"] is None for instance in value["instances"])

    def test_a_recorded_machine(self, tmp_path: Path) -> None:
        kernel = tmp_path / "proc/sys/kernel"
        kernel.mkdir(parents=True)
        (kernel / "hostname").write_text("recorded.example\n")
        done = command(str(tmp_path / "none"), "inventory", "--sysroot", str(tmp_path), "--json")
        assert json.loads(good(done))["node"] == "recorded"
        for wrong in (tmp_path / "x", kernel):
            done = command(str(tmp_path / "none"), "inventory", "--sysroot", str(wrong))
            assert done.returncode == 64
            assert "expected a folder with sys, proc and dev in it" in done.stderr

    def test_a_wrong_configuration(self, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text("[ports]\nrange = 7\n")
        asked = ["inventory", "--local"]
        done = command("/nonexistent", *asked, XCE_NODEAGENT_CONFIG=str(config))
        assert done.returncode == 78
        assert f"{config}:2" in done.stderr
        done = command("/nonexistent", *asked, XCE_NODEAGENT_CONFIG=str(tmp_path / "none"))
        assert done.returncode == 78

    def doctor(self, folder: Path, text: str, **more: str) -> dict[str, list[dict[str, str]]]:
        """Let the doctor look without an agent; give its checks by their names."""
        config = folder / "config.toml"
        config.write_text(text)
        (folder / "state").mkdir(exist_ok=True)
        more = {
            "XCE_NODEAGENT_CONFIG": str(config), "XCE_NODEAGENT_STATE_DIR": str(folder / "state"),
            "XCE_NODEAGENT_RUNTIME_DIR": str(folder / "run"), **more,
        }  # fmt: skip
        done = command(str(folder / "none"), "doctor", "--json", **more)
        assert (done.returncode, done.stderr) == (69, "")
        found: dict[str, list[dict[str, str]]] = {}
        for check in json.loads(done.stdout)["checks"]:
            found.setdefault(check["name"], []).append(check)
        plain = command(str(folder / "none"), "doctor", **more)
        assert plain.returncode == 69
        assert plain.stdout.startswith("FAULT   agent: not reachable: there is no socket ")
        for check in json.loads(done.stdout)["checks"]:
            assert f"{check['name']}: {check['text']}" in plain.stdout
        return found

    def test_the_doctor_looks_by_itself(self, tmp_path: Path) -> None:
        checks = self.doctor(tmp_path, '[simulate]\nprofile = "cpu-only"\n')
        assert next(iter(checks)) == "agent"
        states = {name: [one["state"] for one in found] for name, found in checks.items()}
        assert states["agent"] == ["fault"]
        assert states["configuration"] == states["state"] == states["discovery"] == ["ok"]
        assert states["runtime"] == states["simulate"] == ["note"]
        assert "account" in states
        assert "is not there yet" in checks["runtime"][0]["text"]

    def test_the_doctor_tells_all_that_is_wrong(self, tmp_path: Path) -> None:
        checks = self.doctor(tmp_path, "[ports]\nrange = 7\n[agent]\nenforcement = 1\n")
        assert [one["state"] for one in checks["configuration"]] == ["fault", "fault"]
        (tmp_path / "run").touch()
        checks = self.doctor(
            tmp_path,
            f'[agent]\ncgroup_root = "{tmp_path}"\n[simulate]\nprofile = "no-such"\n',
            XCE_NODEAGENT_STATE_DIR=str(tmp_path / "run" / "state"),
        )
        assert checks["simulate"][0]["state"] == checks["runtime"][0]["state"] == "fault"
        assert checks["state"][0]["state"] == "fault"
        assert "there are cpu-only" in checks["simulate"][0]["text"]
        faults = [one for name in ("cgroups", "enforcement") for one in checks.get(name, [])]
        assert "fault" in [one["state"] for one in faults]

    @pytest.mark.needs("root")
    def test_the_doctor_tells_a_folder_of_somebody_elses(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        shutil.chown(tmp_path / "state", 12345)
        checks = self.doctor(tmp_path, "")
        assert checks["state"][0]["state"] == "fault"
        assert "of uid 12345" in checks["state"][0]["text"]

    def test_the_runtime_folder_says_where_the_socket_is(self, agent: str) -> None:
        done = command("", "doctor", XCE_NODEAGENT_RUNTIME_DIR=str(Path(agent).parent))
        assert "ledger" in good(done)


def test_the_uid_without_an_account_is_the_agents() -> None:
    assert local.UID_WITHOUT_ACCOUNT == credential.AGENT_UID
