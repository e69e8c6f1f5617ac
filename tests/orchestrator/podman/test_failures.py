import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import (
    ImageMissingError,
    RuntimeUnavailableError,
    SandboxError,
    SandboxGoneError,
    TransientSandboxError,
)
from orchestrator.podman.failures import classify

ID = "89ad6ece0247a248bc7565090e51e5b1fbfeac0207afb02af852fc07083e2709"
KEEP_ID = (
    "keep-id requires additional UIDs or GIDs defined in /etc/subuid and /etc/subgid to function correctly: %!w(<nil>)"
)


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        # seen with Podman 4.3.1, word for word
        (500, KEEP_ID, TransientSandboxError),
        (500, "container state improper: stopped", TransientSandboxError),
        (
            500,
            f"cannot remove container {ID} as it could not be stopped: container state improper: stopped",
            TransientSandboxError,
        ),
        (404, 'no container with name or ID "nope" found: no such container', SandboxGoneError),
        (404, "no such container", SandboxGoneError),
        (404, "", SandboxGoneError),
        (
            404,
            "failed to find image localhost/podmentor/nope:current: localhost/podmentor/nope:current: image not known",
            ImageMissingError,
        ),
        (500, f"{'0' * 64}: image not known", ImageMissingError),
        (404, f"no such image: {'0' * 64}: image not known", ImageMissingError),  # 5.4.2
        (500, "runc: runc create failed: wrong rlimit value: RLIMIT_X: OCI runtime error", SandboxError),
        (500, "statfs /nonexistent: no such file or directory", SandboxError),
        (500, "exit status 1", SandboxError),
        # seen with Podman 5.4.2
        (
            500,
            f"cannot remove container {ID} as it could not be stopped: container {ID} conmon exited prematurely, exit code could not be retrieved: internal libpod error",
            TransientSandboxError,
        ),
        # known from other versions and from the trackers
        (500, "adding container to database: database is locked", TransientSandboxError),
        (500, "database is locked (5) (SQLITE_BUSY)", TransientSandboxError),
        (
            409,
            f"can only kill running containers. {ID} is in state exited: container state improper",
            TransientSandboxError,
        ),
        (409, f"container {ID} is being removed", TransientSandboxError),
        (500, "allocating lock for new container: allocation failed; exceeded num_locks (2048)", SandboxError),
        (500, "creating container storage: mkdir /x: no space left on device", SandboxError),
        (500, "", SandboxError),
        (400, "invalid config provided", SandboxError),
        # the client's fault is never tried again
        (400, "database is locked", SandboxError),
        (400, KEEP_ID, SandboxError),
        # no answer
        (None, "connection refused", TransientSandboxError),
        (None, "connection reset", TransientSandboxError),
        (None, "no such socket", TransientSandboxError),
        (None, "timed out", RuntimeUnavailableError),
        (None, "SSLError", RuntimeUnavailableError),
    ],
)
def test_classified(status: int | None, message: str, expected: type[SandboxError]) -> None:
    error = classify(status, message)
    assert type(error) is expected
    assert error.details["status"] == status


@pytest.mark.parametrize(
    "message",
    [
        "crun: executable file `database is locked` not found in $PATH: OCI runtime attempted to invoke a command: database is locked",
        "runc: exec: container state improper",
        "statfs /srv/database is locked: no such file or directory",
        "statfs /srv/keep-id requires additional UIDs or GIDs defined in /etc/subuid and: no such file or directory",
        "connection refused",
        "connection reset",
    ],
)
def test_text_that_others_can_write_makes_nothing_be_tried_again(message: str) -> None:
    assert type(classify(500, message)) is SandboxError


@pytest.mark.parametrize(
    "message",
    [
        "statfs /srv/no such container: permission denied",
        "statfs /srv/x: image not known: permission denied",
        "crun: open `no such container`: OCI runtime error",
    ],
)
def test_a_path_cannot_say_that_a_container_is_gone(message: str) -> None:
    assert type(classify(500, message)) is SandboxError


@pytest.mark.parametrize(
    ("message", "what_to_do"),
    [
        ("allocation failed; exceeded num_locks (2048)", "podman system renumber"),
        ("no free locks", "podman system renumber"),
        ("write /x: no space left on device", "free some space"),
        ("write /x: disk quota exceeded", "free some space"),
        ("pipe2: too many open files", "ulimit -n"),
        (
            "crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv1: OCI runtime error",
            "podman.runtime: runc",
        ),
        (KEEP_ID, "usermod --add-subuids"),
    ],
)
def test_the_message_says_what_to_do(message: str, what_to_do: str) -> None:
    assert what_to_do in classify(500, message).message


@given(st.one_of(st.none(), st.integers(400, 599)), st.text())
def test_any_text_gives_an_error_with_a_printable_bounded_message(status: int | None, message: str) -> None:
    error = classify(status, message)
    assert isinstance(error, SandboxError)
    assert len(error.message) < 1200
    assert not any(ord(character) < 32 for character in error.message)
