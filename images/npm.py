"""Asking the npm registry, with the npm of the build stage: the host needs none."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from images.plan import LABEL_PRIME
from images.process import output
from orchestrator.errors import ImageBuildError, InvalidRequestError

SECONDS: Final = 300.0
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
_PODMAN_FAILED: Final = frozenset({125, 126, 127})
"""Exit codes of ``podman run`` when the container could not be started."""


class Npm:
    """npm in a container of the image ``builder``.  ``runtimes``: OCI runtimes to try, None: Podman's own choice."""

    def __init__(self, builder: str, runtimes: Sequence[str | None]) -> None:
        self._builder = builder
        self._runtimes = runtimes

    async def newest(self, package: str) -> str:
        """The version that the registry calls the latest.  Raises ImageBuildError."""
        return await self._version(package, "latest")

    async def check(self, package: str, version: str) -> None:
        """Raises InvalidRequestError when there is no such version."""
        if not _VERSION.fullmatch(version):
            raise InvalidRequestError(f"{version!r} is not a version; it looks like 1.2.3")
        try:
            found = await self._version(package, version)
        except ImageBuildError as error:
            if "E404" not in " ".join([str(error), *error.details.get("lines", ())]):
                raise
            found = ""
        if found != version:
            raise InvalidRequestError(f"the npm registry has no {package} {version}")

    async def lock(self, package_json: bytes, package: str, version: str, work: Path) -> dict[str, bytes]:
        """The two package files for this version, every package with its checksum.  ``work``: an empty directory."""
        manifest = json.loads(package_json)
        manifest["dependencies"] = {package: version}
        file = work / "package.json"
        file.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        arguments = ("install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund")
        await self._run(*arguments, mount=work)
        return {name: (work / name).read_bytes() for name in ("package.json", "package-lock.json")}

    async def _version(self, package: str, which: str) -> str:
        answer = (await self._run("view", f"{package}@{which}", "version", "--json")).decode("utf-8", "replace")
        try:
            return str(json.loads(answer))
        except ValueError:
            return ""

    async def _run(self, *arguments: str, mount: Path | None = None) -> bytes:
        failure: ImageBuildError | None = None
        for runtime in self._runtimes:
            try:
                return await output(npm_argv(self._builder, runtime, arguments, mount=mount), timeout=SECONDS)
            except ImageBuildError as error:
                failure = error
                if error.details.get("exit_code") not in _PODMAN_FAILED:
                    break
        assert failure is not None
        raise failure


def npm_argv(builder: str, runtime: str | None, arguments: Sequence[str], *, mount: Path | None) -> list[str]:
    """npm in a container that is removed afterwards.  Pure."""
    return [
        "podman",
        *([f"--runtime={runtime}"] if runtime else []),
        "run",
        "--rm",
        "--pull=never",
        "--network=host",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--security-opt=label=disable",
        f"--label={LABEL_PRIME}=1",
        *([f"--volume={mount}:/build"] if mount else []),
        "--workdir=/build",
        builder,
        "npm",
        *arguments,
    ]
