"""The set-up scripts: their syntax, and the functions of lib.sh that decide something."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / "scripts" / name for name in ("lib.sh", "quickstart", "podmentor", "test", "lock")] + [
    ROOT / ".ci/run"
]


def bash(code: str, *args: str, lib: Path = ROOT / "scripts/lib.sh", **env: str) -> subprocess.CompletedProcess[str]:
    """Source lib.sh and run ``code`` with ``args`` as its positional parameters."""
    return subprocess.run(
        ["bash", "-c", f'. "{lib}"; {code}', "bash", *args],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_is_valid_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.name == "lib.sh" or os.access(script, os.X_OK)


def shell_scripts() -> list[Path]:
    """All of the project, by their first line: those that run on the machine, in images and in virtual machines."""
    found = [ROOT / "scripts/lib.sh"]
    for place in (".ci", "scripts", "Containerfiles", "tests/vm"):
        for path in (ROOT / place).rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    first = file.readline()
                if first.startswith(b"#!") and first.rstrip().endswith((b"/sh", b"bash", b"dash")):
                    found.append(path)
    return sorted(found)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed: scripts/test does it")
def test_shellcheck_finds_nothing() -> None:
    scripts = shell_scripts()
    assert {*SCRIPTS} <= {*scripts}
    # Loops over the words of a command are meant: packages have one word each.
    command = ["shellcheck", "--exclude=SC2013", "-x", "-P", str(ROOT / "scripts")]
    subprocess.run([*command, *map(str, scripts)], check=True)


@pytest.mark.parametrize(
    ("taken", "start"),
    [
        ([], 100000),
        (["a:100000:65536"], 165536),
        (["a:165536:65536"], 100000),
        (["a:200000:65536"], 100000),
        (["a:100000:65536", "b:200000:65536"], 100000 + 3 * 65536),
        (["a:165536:65536", "b:100000:65536"], 231072),
        (["a:100000:65536", "b:165536:1000"], 231072),
        (["a:100000:500000"], 100000 + 8 * 65536),
        (["# a comment", "", "broken", "a:x:y"], 100000),
    ],
)
def test_block_of_subordinate_ids_overlaps_no_other(tmp_path: Path, taken: list[str], start: int) -> None:
    (tmp_path / "subuid").write_text("\n".join(taken) + "\n")
    (tmp_path / "subgid").write_text("")
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    result = bash(
        'first_free_subid 65536 "$@"', *(str(tmp_path / name) for name in ("passwd", "subuid", "subgid", "absent"))
    )
    assert int(result.stdout) == start


def test_block_of_subordinate_ids_keeps_clear_of_real_users(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("ldap:x:123456:1::/:/bin/sh\n")
    (tmp_path / "subuid").write_text("")
    result = bash('first_free_subid 65536 "$1" "$2"', str(tmp_path / "passwd"), str(tmp_path / "subuid"))
    assert int(result.stdout) == 165536


def test_no_free_block_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("")
    (tmp_path / "subuid").write_text("all:100000:4294867295\n")
    result = bash('first_free_subid 65536 "$1" "$2"', str(tmp_path / "passwd"), str(tmp_path / "subuid"))
    assert result.returncode != 0
    assert not result.stdout


def test_subordinate_ids_are_counted_by_name_and_by_number(tmp_path: Path) -> None:
    uid = os.getuid()
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "subuid").write_text(f"{user}:100000:1000\n{uid}:300000:500\n{user}x:400000:65536\n")
    result = bash('subid_count "$1" "$2"; subid_count "$1" /does/not/exist', user, str(tmp_path / "subuid"))
    assert result.stdout.split() == ["1500", "0"]


def test_step_reports_and_keeps_the_exit_code() -> None:
    result = bash('step first true; step second false || echo "got $?"; step third sh -c "exit 7"; echo not reached')
    assert result.returncode == 7
    assert "==> first\n" in result.stdout
    assert "failed (exit 1)" in result.stdout
    assert "got 1" in result.stdout
    assert "not reached" not in result.stdout


def test_a_failure_deep_in_a_step_ends_the_script_and_names_the_step() -> None:
    result = bash("deep() { false; echo not reached; }; trap say_where_it_ended EXIT; step 'the step' deep")
    assert result.returncode == 1
    assert "not reached" not in result.stdout
    assert 'stopped in the step "the step"' in result.stderr


def test_lock_is_held_during_steps_but_not_by_what_they_leave_running(tmp_path: Path) -> None:
    code = """
      SETUP_LOCK=$1/lock; take_lock
      leave() {
        sleep 60 >/dev/null 2>&1 & echo "pid $!"
        # until then the child is a shell, which has the lock as this one has it
        local name; until read -r name <"/proc/$!/comm" && [[ $name == sleep ]]; do :; done
      }
      held() { flock --nonblock "$SETUP_LOCK" true && echo free || echo held; }
      step leave leave; step held held; held; release_lock; held
    """
    result = bash(code, str(tmp_path))
    pid = next(line.split()[1] for line in result.stdout.splitlines() if line.startswith("pid "))
    os.kill(int(pid), 9)
    assert [line for line in result.stdout.splitlines() if line in {"held", "free"}] == ["held", "held", "free"]


@pytest.mark.parametrize(
    ("name", "keep_keys", "passes"),
    [
        ("HTTPS_PROXY", "", True),
        ("SSL_CERT_FILE", "", True),
        ("PIP_INDEX_URL", "", True),
        ("PYTHONPATH", "", False),
        ("DBUS_SESSION_BUS_ADDRESS", "", False),
        ("XDG_CONFIG_HOME", "", False),
        ("ANTHROPIC_API_KEY", "", False),
        ("ANTHROPIC_API_KEY", "1", True),
    ],
)
def test_what_of_roots_environment_reaches_the_service_user(name: str, keep_keys: str, passes: bool) -> None:
    result = bash('passes_through "$1"', name, KEEP_KEYS=keep_keys)
    assert (result.returncode == 0) == passes


@pytest.mark.parametrize(
    ("args", "relative"),
    [
        (["run", "claude-code", "x", "--repo", "."], True),
        (["run", "--repo=sub/dir", "x"], True),
        (["run", "--repo", "/srv/repo", "x"], False),
        (["run", "--repo=/srv/repo"], False),
        (["doctor"], False),
    ],
)
def test_relative_repo_is_noticed(args: list[str], relative: bool) -> None:
    assert (bash('names_relative_repo "$@"', *args).returncode == 0) == relative


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git checkout with the scripts in it and one file of every kind."""
    path = tmp_path / "checkout with space"
    (path / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/lib.sh", path / "scripts/lib.sh")
    for name in ("tracked", "deleted", "changed name é"):
        (path / name).write_text(name)
    (path / ".gitignore").write_text("ignored\n")
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    subprocess.run(["git", "-C", str(path), "add", "-A"], check=True)
    (path / "deleted").unlink()
    (path / "new").write_text("new")
    (path / "ignored").write_text("ignored")
    return path


def listed(checkout: Path) -> list[str]:
    return sorted(bash("checkout_files", lib=checkout / "scripts/lib.sh").stdout.split("\0")[:-1])


def test_files_of_a_checkout(checkout: Path) -> None:
    assert listed(checkout) == [".gitignore", "changed name é", "new", "scripts/lib.sh", "tracked"]


def test_files_of_an_unpacked_archive(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")
    (checkout / "__pycache__").mkdir()
    (checkout / "__pycache__/x.pyc").write_text("")
    assert listed(checkout) == [".gitignore", "changed name é", "ignored", "new", "scripts/lib.sh", "tracked"]


def test_only_what_has_changed_is_copied_again(checkout: Path) -> None:
    code = """
      list() { checkout_files >"$1/list"; manifest_of "$1/list" >"$2"; }
      cd "$1"; list .. ../before; list .. ../same
      changed_files ../before ../same; echo unchanged
      echo more >>"changed name é"; chmod +x new; rm tracked; list .. ../after
      changed_files ../before ../after | tr '\\0' '\\n' | sort
    """
    lines = bash(code, str(checkout), lib=checkout / "scripts/lib.sh").stdout.splitlines()
    assert lines == ["unchanged", "changed name é", "new"]


def test_another_lock_file_means_another_environment(checkout: Path) -> None:
    lib = checkout / "scripts/lib.sh"
    names = []
    for lock in ("one", "two"):
        for name in ("requirements.lock", "requirements-build.lock"):
            (checkout / "scripts" / name).write_text(lock)
        names.append(bash('set_venv run; echo "$VENV"', lib=lib).stdout)
    assert names[0]
    assert names[0] != names[1]


def test_the_repo_around_a_directory(tmp_path: Path) -> None:
    (tmp_path / "repo/src").mkdir(parents=True)
    (tmp_path / "repo/.git").write_text("gitdir: elsewhere\n")
    for place, found in (("repo/src", f"{tmp_path}/repo\n"), ("repo", f"{tmp_path}/repo\n"), ("", "")):
        assert bash('repo_around "$1"', str(tmp_path / place)).stdout == found


@pytest.mark.parametrize("linked", [False, True])
def test_command_without_set_up_names_quickstart(checkout: Path, tmp_path: Path, linked: bool) -> None:
    """Also when it is called through symlinks in a directory of the search path."""
    for name in ("requirements.lock", "requirements-dev.lock", "requirements-build.lock"):
        (checkout / "scripts" / name).write_text("")
    shutil.copy(ROOT / "scripts/podmentor", checkout / "scripts/podmentor")
    command = checkout / "scripts/podmentor"
    if linked:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/other").symlink_to(command)
        command = tmp_path / "bin/podmentor"
        command.symlink_to("other")
    result = subprocess.run(
        [command, "doctor"],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "XDG_RUNTIME_DIR": str(tmp_path),
            "PODMENTOR_USER": "nobody-by-this-name",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert result.returncode == 1
    assert "scripts/quickstart" in result.stderr


def test_packages_for_the_tests_are_not_installed_for_those_who_only_run_it() -> None:
    for_tests = {"shellcheck=shellcheck", "jq=jq"}
    assert not for_tests & {*bash("wanted_packages run").stdout.splitlines()}
    assert for_tests < {*bash("wanted_packages dev").stdout.splitlines()}


def test_packages_for_virtual_machines_are_wanted_only_by_who_asks() -> None:
    assert "qemu" not in bash("wanted_packages").stdout
    assert "qemu-system-x86=qemu-system-x86_64\n" in bash("wanted_packages", WITH_VM="1").stdout
