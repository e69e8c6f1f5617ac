"""``podmentor runs``: what has run and what runs."""

import codecs
import sys
from typing import Any

import click

from orchestrator.cli.client.follow import Progress, follow
from orchestrator.cli.client.service import ServiceLink, find_run, find_subagent, with_service
from orchestrator.cli.context import CliContext
from orchestrator.cli.options import JSON_OPTION
from orchestrator.cli.ui import console as consoles
from orchestrator.cli.ui.output import envelope
from orchestrator.cli.ui.quantities import duration, limit_lines, seconds, usage_words
from orchestrator.cli.ui.render import Transcript
from orchestrator.cli.ui.safe import clean, one_line, to_json
from orchestrator.config.hosts import split_port


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """List, show, replay and cancel runs; let them reach further hosts.

    RUN is a run's id, or the beginning of it.
    """


@group.command("list")
@click.option("--state", type=click.Choice(["queued", "starting", "running", "finished"]), help="Only these.")
@click.option("--backend", help="Only runs of this backend.")
@click.option("--subagent", metavar="ID", help="Only runs of this subagent.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="How many.")
@JSON_OPTION
@click.pass_obj
def list_command(
    context: CliContext, state: str | None, backend: str | None, subagent: str | None, limit: int, as_json: bool
) -> None:
    """The newest runs."""

    async def body(link: ServiceLink) -> dict[str, Any]:
        whole = None if subagent is None else await find_subagent(link.client, subagent)
        return await link.client.runs(state=state, backend=backend, subagent_id=whole, limit=limit)

    page = with_service(context, body)
    if as_json:
        click.echo(to_json(page))
        return
    out = consoles.out()
    short = consoles.short_ids(out, [run["run_id"] for run in page["runs"]])
    rows = [
        (
            short[run["run_id"]],
            run["backend"],
            run.get("outcome") or run["state"],
            run["created_at"][:19].replace("T", " "),
            "" if (took := duration(run)) is None else seconds(took),
            one_line(run["query"], 80),
        )
        for run in page["runs"]
    ]
    titles = ("run", "backend", "state", "accepted (UTC)", "took", "prompt")
    consoles.table(out, titles, rows, spare=("took", "accepted (UTC)", "backend"))


@group.command("show")
@click.argument("run")
@JSON_OPTION
@click.pass_obj
def show_command(context: CliContext, run: str, as_json: bool) -> None:
    """Everything about RUN but its events."""

    async def body(link: ServiceLink) -> dict[str, Any]:
        return await link.client.run(await find_run(link.client, run))

    found = with_service(context, body)
    if as_json:
        click.echo(to_json(found))
        return
    out = consoles.out()
    took = duration(found)
    facts = {
        "run": found["run_id"],
        "subagent": found["subagent_id"],
        "backend": " ".join(filter(None, (found["backend"], found.get("cli_version")))),
        "state": found.get("outcome") or found["state"],
        "repo": found.get("repo") or "(empty workspace)",
        "workspace": found.get("workspace"),
        "tier": found.get("tier"),
        "accepted": found.get("created_at"),
        "took": None if took is None else seconds(took),
        "used": " · ".join(usage_words(found.get("usage") or {})) or None,
        "limits": ("\n" + " " * 11).join(limit_lines(found)) or None,
        "egress": None if (hosts := found.get("egress")) is None else ", ".join(hosts) or "(nothing)",
        "exit code": found.get("exit_code"),
        "events": found.get("last_seq"),
        "prompt": one_line(found["query"], 200),
    }
    for name, value in facts.items():
        if value is not None:
            out.out(f"{name:<10} {clean(str(value))}", highlight=False)
    if found["state"] == "finished":
        out.out("\n" + clean(envelope(found)), highlight=False)


@group.command("events")
@click.argument("run")
@click.option("--after", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this one.")
@click.option("--follow/--no-follow", "following", default=True, help="Go on until the run ends.", show_default=True)
@JSON_OPTION
@click.pass_obj
def events_command(context: CliContext, run: str, after: int, following: bool, as_json: bool) -> None:
    """Replay RUN's transcript, and follow it while it runs.

    Leaving with Ctrl-C does not end the run.
    """
    out = consoles.out()
    transcript = Transcript(out)

    def sink(event: Any) -> None:
        if as_json:
            click.echo(to_json(event))
        else:
            transcript.feed(event)

    async def body(link: ServiceLink) -> None:
        run_id = await find_run(link.client, run)
        if following:
            await follow(link, Progress(run_id=run_id, last_seq=after), sink)
        else:
            async for event in link.client.events(run_id, after=after, follow=False):
                sink(event)

    with_service(context, body)
    transcript.close()


@group.command("cancel")
@click.argument("run")
@JSON_OPTION
@click.pass_obj
def cancel_command(context: CliContext, run: str, as_json: bool) -> None:
    """Ask for the end of RUN; one that has ended already stays as it is."""

    async def body(link: ServiceLink) -> dict[str, Any]:
        return await link.client.cancel(await find_run(link.client, run))

    found = with_service(context, body)
    if as_json:
        click.echo(to_json(found))
    else:
        done = found["state"] == "finished"
        click.echo(f"{found['run_id']}: " + (f"already {found.get('outcome')}" if done else "cancelling"))


@group.command("allow")
@click.argument("run")
@click.argument("host", metavar="HOST[:PORT]")
@JSON_OPTION
@click.pass_obj
def allow_command(context: CliContext, run: str, host: str, as_json: bool) -> None:
    """Let RUN reach one more host, until it ends.

    Without a port 443 and 80 are meant.  For a run in tier 1 that was kept from reaching a host: the agent's next
    attempt passes.
    """
    try:
        name, port = split_port(host)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="HOST") from None

    async def body(link: ServiceLink) -> dict[str, Any]:
        return await link.client.allow(await find_run(link.client, run), name, port)

    found = with_service(context, body)
    if as_json:
        click.echo(to_json(found))
    else:
        click.echo(f"{found['run_id']} may reach: {clean(', '.join(found['egress']))}")


@group.command("log")
@click.argument("run")
@click.pass_obj
def log_command(context: CliContext, run: str) -> None:
    """The raw output of RUN's container, as it was logged.

    Every line begins with a time, the stream, and P (more of this line follows) or F.  What goes to a terminal is
    cleaned of control characters; into a file or a pipe it goes byte by byte.
    """

    async def body(link: ServiceLink) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        tty = sys.stdout.isatty()
        async for piece in link.client.log(await find_run(link.client, run)):
            click.echo(clean(decoder.decode(piece)) if tty else piece, nl=False)

    with_service(context, body)
