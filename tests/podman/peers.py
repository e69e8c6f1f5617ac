"""Servers that are not ours, which the tests hold the service against: nginx and Prometheus as Debian packages them.

They run in containers by testcontainers, on a Podman service of the test's own, in the host's network: so they reach
the service on the loopback address, and need neither a bridge nor a published port.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.exceptions import ContainerStartException
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from images.build import build_lock, lock_path
from images.plan import LABEL_PARENT
from tests.podman import session
from tests.podman.images_kit import IMAGE, run_to_end
from tests.podman.live import eventually

testcontainers_config.ryuk_disabled = True  # its image is in a registry; tests/podman/session.py does its work

DOCS = Path(__file__).resolve().parents[2] / "docs"
PEERS = f"localhost/{session.SELFTEST}-peers"
LABEL = f"{session.LABEL}.peers"
"""On the image of the servers; its value is what the image was made from."""
SECONDS = 120
"""For a start, on a machine that is busy with other things as well."""
CONTAINERFILE = """\
ARG BASE
FROM ${BASE}
USER root
RUN export DEBIAN_FRONTEND=noninteractive \\
 && apt-get update \\
 && apt-get install --yes --no-install-recommends nginx-light prometheus \\
 && rm -rf /var/lib/apt/lists/*
"""
"""On our base, which brings the machine's certificates and package sources."""


def snippet(page: str, language: str, having: str) -> str:
    """The one code block of a page of ``docs/`` that is in this language and contains ``having``."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    [found] = [block for block in blocks if having in block]
    return str(found)


def changed(text: str, changes: Mapping[str, str]) -> str:
    """The text with each key replaced; a key that it does not contain is an error."""
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the documented text any more"
        text = text.replace(old, new)
    return text


async def image() -> str:
    """The image with the servers, made when there is none of this content yet: once for a machine."""
    shown = f'--format={{{{index .Labels "{LABEL_PARENT}"}}}}'
    base = run_to_end(["podman", "image", "inspect", shown, IMAGE]).stdout.strip()
    assert base, f"{IMAGE} is not there, or does not name its base: scripts/podmentor images build"
    content = hashlib.sha256(f"{base}\n{CONTAINERFILE}".encode()).hexdigest()[:12]
    tag = f"{PEERS}:{content}"
    if run_to_end(["podman", "image", "exists", tag]).returncode == 0:
        return tag
    # who prunes podmentor's images removes the working containers of builds that stand on them, unless he is locked out
    async with build_lock(lock_path(Path.home()), timeout=250, on_wait=lambda: None):
        if run_to_end(["podman", "image", "exists", tag]).returncode != 0:
            await asyncio.to_thread(_build, tag, base, content)
    return tag


def _build(tag: str, base: str, content: str) -> None:
    """As images/plan.py builds.  Proxies reach the build by the environment."""
    argv = ["--isolation=chroot", "--network=host", "--layers=false", "--force-rm", "--pull=never"]
    labels = [f"--label={LABEL}={content}", "--label=podmentor.image="]  # it is none of podmentor's
    build = ["podman", "build", *argv, *labels, f"--build-arg=BASE={base}", f"--tag={tag}", "-"]
    done = subprocess.run(build, input=CONTAINERFILE, check=False, capture_output=True, text=True, timeout=250, cwd="/")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    run_to_end(["podman", "image", "prune", "--all", "--force", f"--filter=label={LABEL}", "--filter=until=168h"])


@asynccontextmanager
async def _podman_service() -> AsyncIterator[str]:
    """Podman's Docker-compatible API on a socket of our own; its address."""
    place = session.runtime_dir()
    place.mkdir(mode=0o700)
    socket = place / "podman.sock"
    argv = ["podman", "system", "service", "--time=0", f"unix://{socket}"]
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*argv, stdin=nowhere, stdout=nowhere, stderr=nowhere, cwd="/")
    try:
        await eventually(socket.exists, seconds=SECONDS)
        yield f"unix://{socket}"
    finally:
        process.terminate()
        await process.wait()
        socket.unlink(missing_ok=True)
        place.rmdir()


@asynccontextmanager
async def server(command: list[str], *, ready: str, files: Mapping[str, Path]) -> AsyncIterator[DockerContainer]:
    """A container of the servers' image that has logged ``ready``; ``files`` are mounted, by their paths inside: no file twice."""
    tag = await image()
    async with _podman_service() as address:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", address)
            container = DockerContainer(
                tag,
                network_mode="host",
                labels={session.LABEL: session.SESSION},
                volumes=[(str(file), inside, "ro") for inside, file in files.items()],
            ).with_command(command)
            container.waiting_for(LogMessageWaitStrategy(ready).with_startup_timeout(SECONDS).with_poll_interval(0.1))
            try:
                await asyncio.to_thread(container.start)
                yield container
            finally:
                with suppress(ContainerStartException):  # it was not even made
                    print(*(log.decode() for log in container.get_logs()))  # pytest shows it of a test that failed
                await asyncio.to_thread(container.stop)


def output(container: DockerContainer, script: str) -> str:
    """What a shell script prints in the container.  A script that fails is an error."""
    done = container.exec(["sh", "-c", script])
    assert done.exit_code == 0, done.output.decode()
    return done.output.decode()
