"""``podmentor serve``: the service in the foreground."""

import asyncio
import logging
import resource
import signal
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import CliContext
from orchestrator.cli.signals import Settled
from orchestrator.system.tasks import TaskOwner

if TYPE_CHECKING:
    from orchestrator.bootstrap.service import ServiceHandle
    from orchestrator.config.models import Config, Paths

log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FORCED_SECONDS = 15.0
"""How long the tidying up may take after a second signal."""


@click.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  Default: as configured (127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0: any free one.  Default: as configured (8765).")
@click.option("--drain", is_flag=True, help="When told to stop, wait for the runs to end.")
@click.pass_obj
def command(context: CliContext, host: str | None, port: int | None, drain: bool) -> None:
    """Run the service until SIGTERM or Ctrl-C.

    Told to stop, it takes no more runs and ends within seconds; containers go on and the next service takes them up
    again (with --drain it waits for them).  A second signal stops it without waiting for anything.
    """
    if not logging.getLogger().isEnabledFor(logging.INFO):
        logging.getLogger().setLevel(logging.INFO)
    config = context.config
    update = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
    if update:
        config = config.model_copy(update={"server": config.server.model_copy(update=update)})
    for warning in context.loaded.warnings:
        log.warning("%s", warning)
    open_as_many_files_as_we_may()
    asyncio.run(_serve(config, context.paths, drain=drain))


def open_as_many_files_as_we_may() -> None:
    """The soft limit up to the hard one, for us and for Podman.

    The usual 1024 is used up by a few hundred clients, and is less than what one container may hold of the descriptors
    that are counted per user.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: "Config", paths: "Paths", *, drain: bool) -> None:
    owner = TaskOwner("serve")
    stop, force = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (force if stop.is_set() else stop).set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        ready: asyncio.Future[ServiceHandle] = loop.create_future()
        service = owner.spawn(Settled.of(_service(config, paths, ready)), name="service")
        stopping = owner.spawn(stop.wait(), name="stop")
        await asyncio.wait({service, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not service.done():
            if ready.done():
                click.echo("stopping" + (" when the runs are done (a second signal does not wait)" if drain else ""))
                ready.result().request_stop(drain=drain)
            else:
                service.cancel()
            forcing = owner.spawn(force.wait(), name="force")
            await asyncio.wait({service, forcing}, return_when=asyncio.FIRST_COMPLETED)
        if not service.done():
            click.echo("stopping now")
            for number in _SIGNALS:
                loop.remove_signal_handler(number)  # a third one ends the process whatever it does
            service.cancel()
            await asyncio.wait({service}, timeout=_FORCED_SECONDS)
        if service.done() and not service.cancelled():
            service.result().result()
    finally:
        await owner.aclose()


async def _service(config: "Config", paths: "Paths", ready: "asyncio.Future[ServiceHandle]") -> None:
    """The service from its start to its end, which may wait for runs."""
    from orchestrator.bootstrap.service import running_service

    async with running_service(config, paths, listen_tcp=True) as handle:
        click.echo(f"listening on http://{_in_url(config.server.host)}:{handle.port}")
        click.echo(f"         and {handle.socket}")
        click.echo(f"token in     {paths.token_file}")
        ready.set_result(handle)
        await handle.wait_stopped()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
