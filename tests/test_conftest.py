"""The lists by which tests are spread name what is there: a module that is renamed would lose its place silently."""

from pathlib import Path

from tests import conftest

ROOT = Path(__file__).parents[1]


def test_every_module_that_is_listed_is_there() -> None:
    listed = {*conftest.IMAGES, *conftest.ONE_SERVICE, *conftest.ONE_DISK, *conftest.LONGEST}
    assert [name for name in listed if not (ROOT / name).is_file()] == []


def test_tests_that_share_a_service_run_in_one_process() -> None:
    modules = [path for path in (ROOT / "tests/podman").glob("test_*.py") if "loop_scope" in path.read_text()]
    modules += [
        path for path in (ROOT / "tests/podman").glob("test_*.py") if "podman.shared import" in path.read_text()
    ]
    names = {path.relative_to(ROOT).as_posix() for path in modules}
    assert len(names) > 5
    assert names <= {*conftest.ONE_SERVICE}
    assert {conftest.together(f"{name}::test_one") for name in names} == names


def test_what_takes_longest_begins_first_and_what_is_alone_comes_last_of_those_with_containers() -> None:
    backends, other = "tests/podman/test_backends.py::test_a[codex]", "tests/podman/test_probe.py::test_a"
    ids = ["tests/test_claims.py::test_a", f"{conftest.ALONE[0]}test_a", other, backends]
    ordered = sorted(ids, key=lambda nodeid: conftest.turn(nodeid, podman="podman" in nodeid))
    assert ordered == ids[::-1]
    assert [conftest.together(nodeid) for nodeid in ordered] == [
        "tests/podman/test_backends.py[codex]",
        other,
        "alone",
        "tests/test_claims.py",
    ]
