"""An image builder that only remembers and reports."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from orchestrator.contract.images import BuildProgress, ListedImage, ProgressSink, RemovedImage
from orchestrator.contract.sandbox import ImageRef

REF = ImageRef(
    image_id="a" * 64,
    tag="localhost/podmentor/claude-code:2.1.197-abcdefabcdef",
    backend="claude-code",
    cli_version="2.1.197",
    recipe="abcdef" * 10,
    size_bytes=578_000_000,
    created="2026-11-30T13:31:24Z",
)


class FakeImageBuilder:
    """Implements the contract's ImageBuilder; ``error`` is raised by ``build``, after its progress."""

    def __init__(self) -> None:
        self.builds: list[tuple[list[str], str | None, Path | None, bool]] = []
        self.images: list[ListedImage] = [ListedImage(ref=REF, current=True, up_to_date=False)]
        self.error: BaseException | None = None

    def backends(self) -> list[str]:
        return ["claude-code"]

    def wanted(self, backends: Sequence[str] = ()) -> dict[str, str]:
        return {"claude-code": REF.tag}

    async def build(
        self,
        backends: Sequence[str] = (),
        *,
        base: str | None = None,
        ca_bundle: Path | None = None,
        no_cache: bool = False,
        progress: ProgressSink,
    ) -> list[ImageRef]:
        self.builds.append((list(backends), base, ca_bundle, no_cache))
        progress(event("started", "base image"))
        progress(event("detail", "STEP 1/5 [bold]not markup[/bold]"))
        if self.error is not None:
            raise self.error
        progress(event("finished", "base image"))
        return [REF]

    async def list_images(self) -> list[ListedImage]:
        return self.images

    async def prune(self, progress: ProgressSink) -> list[RemovedImage]:
        return [RemovedImage(name="old", image_id="b" * 64, size_bytes=1)]


def event(kind: Literal["started", "detail", "finished", "skipped", "warning"], text: str) -> BuildProgress:
    return BuildProgress(step="base", kind=kind, text=text, elapsed_seconds=12.34, number=1, total=2)
