"""The harness itself, with a pretended QEMU: what a guest says is passed on, and one that says nothing is ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vm import build, image, machine
from tests.vm.machine import NO_END, OUT_OF_TIME, Ended, qemu, run

FIND_SHARE = """
for word; do case $word in
  local,path=*) share=${word#local,path=}; share=${share%%,*} ;;
  file:*) console=${word#file:} ;;
esac; done
echo booting >"$console"
"""
Guest = Callable[..., Ended]


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guest:
    """Runs a guest whose QEMU is this shell script; ``$share`` and ``$console`` are set."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def start(script: str, *, timeout: float = 60) -> Ended:
        program = programs / "qemu-system-x86_64"
        program.write_text(f"#!/bin/sh\n{FIND_SHARE}\n{script}\n")
        program.chmod(0o755)

        def fill(share: Path) -> None:
            (share / "check.py").write_text("the order")

        return run(tmp_path, fill, memory="1G", accel="tcg", timeout=timeout, keep=tmp_path / "kept")

    return start


def test_the_guests_word_is_passed_on(guest: Guest, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    said = guest('cat "$share/check.py" >>"$share/output"; echo 12.5 >"$share/ready"; echo 7 >"$share/status"')
    assert (said.status, said.ready) == (7, "12.5")
    assert b"the order" in capfdbinary.readouterr().out
    assert (tmp_path / "kept" / "output").read_text() == "the order"
    assert (tmp_path / "kept" / "console").read_text() == "booting\n"


def test_nothing_is_kept_of_a_guest_that_did_well(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    assert guest('echo 0 >"$share/status"').status == 0
    assert not (tmp_path / "kept").exists()


def test_a_guest_that_ends_without_a_word_shows_its_console(
    guest: Guest, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert guest('echo "Kernel panic" >>"$console"').status == NO_END
    assert b"Kernel panic" in capfdbinary.readouterr().out


def test_a_guest_that_hangs_is_ended(guest: Guest, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert guest(f'echo $$ >"{tmp_path}/pid"; exec sleep 600', timeout=1).status == OUT_OF_TIME
    assert b"booting" in capfdbinary.readouterr().out
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_guest_reaches_no_network_and_writes_to_no_image() -> None:
    command = qemu(Path("/image"), Path("/share"), memory="1G", accel="tcg")
    assert "restrict=on" in command[command.index("-nic") + 1]
    assert "snapshot=on" in command[command.index("-drive") + 1]
    assert command[command.index("-accel") + 1] == "tcg,thread=multi"


@pytest.mark.parametrize("flags", ["fpu vme", "fpu vmxy"])
def test_without_virtualisation_in_the_processor_there_is_no_kvm(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags\t: {flags}\n")
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert machine.accelerator() == "tcg"


# --- the recipe of an image ---


def test_a_recipe_is_the_same_twice_and_another_for_other_ingredients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = image.recipe("trixie", ["a"])
    assert re.fullmatch("[0-9a-f]{12}", first)
    assert image.recipe("trixie", ["a"]) == first
    lock = tmp_path / "lock"
    lock.write_text("other==1\n")
    monkeypatch.setattr(build, "LOCKS", [lock])
    assert (
        len({first, image.recipe("trixie", ["a"]), image.recipe("trixie", ["b"]), image.recipe("bookworm", ["a"])}) == 4
    )


def test_the_machines_own_mirrors_serve_another_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "debian.sources"
    monkeypatch.setattr(image, "SOURCES", sources)
    assert [line.split()[-2] for line in image.apt_lines("trixie")] == ["trixie", "trixie-security"]
    sources.write_text(
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\n"
        "Types: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\nComponents: main\n"
    )
    assert [line.split()[-3:] for line in image.apt_lines("trixie")] == [
        ["http://mirror.example/debian", "trixie", "main"],
        ["http://mirror.example/debian", "trixie-updates", "main"],
        ["http://mirror.example/security", "trixie-security", "main"],
    ]
