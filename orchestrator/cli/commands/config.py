"""``podmentor config``: is the file right, and what follows from it."""

import json
from typing import Any

import click

from orchestrator.cli.context import CliContext
from orchestrator.cli.exits import FAILED
from orchestrator.cli.ui.safe import clean, to_json
from orchestrator.errors import ConfigError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Check and show the configuration."""


@group.command("check")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def check_command(ctx: click.Context, as_json: bool) -> None:
    """Read the configuration and say what is wrong or odd about it; exit 1 when something is wrong."""
    report = check(ctx.obj)
    if as_json:
        click.echo(to_json(report))
    else:
        click.echo(f"read from {clean(report['source'] or '(no file: built-in defaults)')}")
        for kind, mark in (("problems", "✗"), ("warnings", "!")):
            for line in report[kind]:
                click.echo(f"{mark} {clean(line)}")
        if report["ok"]:
            backends = ", ".join(report["backends"]) or "none"
            click.echo(f"✓ fine; backends: {clean(backends)}")
            click.echo(f"  state in {clean(report['state_dir'])}, sockets in {clean(report['runtime_dir'])}")
    ctx.exit(0 if report["ok"] else FAILED)


def check(context: CliContext) -> dict[str, Any]:
    """The report.  Touches nothing."""
    from orchestrator.config.paths import plan_paths

    report: dict[str, Any] = {"ok": False, "source": None, "problems": [], "warnings": [], "backends": []}
    if context.config_path is not None:
        report["source"] = str(context.config_path)
    try:
        loaded = context.loaded
        report["source"] = None if loaded.source is None else str(loaded.source)
        report["warnings"] = list(loaded.warnings)
        agents = loaded.config.external_agent
        report["backends"] = [name for name, one in agents.backends.items() if one.enabled and agents.enabled]
        paths = plan_paths(loaded.config)
    except ConfigError as error:
        report["problems"] = error.details.get("problems") or [error.message]
        return report
    return report | {"ok": True, "state_dir": str(paths.state_dir), "runtime_dir": str(paths.runtime_dir)}


@group.command("show")
@click.option("--json", "form", flag_value="json", help="As JSON.")
@click.option("--yaml", "form", flag_value="yaml", default="yaml", help="As YAML (the default).")
@click.pass_obj
def show_command(context: CliContext, form: str) -> None:
    """The configuration in force, defaults included and secrets hidden."""
    from orchestrator.config.models import public

    data = public(context.config)
    if form == "json":
        click.echo(json.dumps(data, indent=2))
    else:
        import yaml

        click.echo(yaml.safe_dump(data, sort_keys=False), nl=False)
