"""Many runs at once, ended in every way, while the service, Podman's service, the relay and conmons are killed.

    scripts/soak [RUNS] [--seed N] [--at-once N] [--json]

Prints what became of the runs, how fast they died, and what is left of them.  Exit code 1 when anything is left, a
stream is not whole, or a death took more than 5 s.  A seed gives the same runs and the same kills again; what they hit
depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.podman.soak.soaking import DEATH_SECONDS, Result, Soak, Story


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.partition("\n\n")[0])
    parser.add_argument("runs", nargs="?", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="the same runs and kills as another time")
    parser.add_argument(
        "--at-once", type=int, default=6, help="how many runs are under way (2 of them wait in the line)"
    )
    parser.add_argument("--json", action="store_true", help="the result as JSON, for machines")
    options = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    print(f"soak: {options.runs} runs, seed {seed}, {os.cpu_count()} CPUs", file=sys.stderr, flush=True)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="pm-soak-", ignore_cleanup_errors=True) as root:
        soak = Soak(Path(root), runs=options.runs, seed=seed, at_once=options.at_once, pause=(1.0, 6.0), say=say)
        try:
            result = asyncio.run(soak.run())
        except BaseException:
            say(_tail(Path(root) / "service.log"))
            raise
        if not result.clean or result.slow:
            kept = Path(tempfile.gettempdir()) / f"pm-soak-{seed}.log"
            kept.write_bytes((Path(root) / "service.log").read_bytes())
            result.kept = str(kept)
    print(json.dumps(as_json(result), indent=2) if options.json else as_table(result))
    return 0 if result.clean and not result.slow else 1


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-4000:] if path.exists() else ""


def outcomes(result: Result) -> Counter[str]:
    return Counter(_outcome(story) for story in result.stories)


def _outcome(story: Story) -> str:
    reason = (story.record.get("error") or {}).get("reason")
    return reason or story.record.get("outcome") or "no end"


def deaths(result: Result) -> list[Story]:
    timed = [story for story in result.stories if story.death is not None]
    return sorted(timed, key=lambda story: story.death or 0.0, reverse=True)


def as_json(result: Result) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "seed": result.seed,
        "runs": len(result.stories),
        "seconds": round(result.seconds, 1),
        "outcomes": dict(outcomes(result).most_common()),
        "kills": result.chaos,
        "deaths": [
            {
                "run": story.number,
                "run_id": story.run_id,
                "kind": story.plan.kind.name,
                "cause": story.cause,
                "seconds": round(story.death or 0.0, 2),
                "load": story.load,
            }
            for story in deaths(result)
        ],
        "left_at_once": {what: len(found) for what, found in result.left_before.items()},
        "left": result.left,
        "faults": result.faults,
        "longest_gap_between_looks": round(result.longest_gap, 2),
        "highest_load": result.highest_load,
        "clean": result.clean,
        "service_log": result.kept,
    }


def as_table(result: Result) -> str:
    """Everything, for people."""
    died = deaths(result)
    lines = [
        f"{len(result.stories)} runs in {result.seconds:.0f} s, seed {result.seed}",
        f"highest load {result.highest_load:.1f} on {os.cpu_count()} CPUs",
        "",
        "how the runs ended",
        *(f"  {name:28}{count:6}" for name, count in outcomes(result).most_common()),
        "",
        "what was killed under them",
        *(f"  {name:36}{count:6}" for name, count in sorted(result.chaos.items())),
        "",
        f"deaths timed: {len(died)}; over {DEATH_SECONDS:.0f} s: {len(result.slow)}",
        f"  longest time between two looks: {result.longest_gap:.1f} s; the slowest deaths:",
        *(
            f"  {story.death:6.2f} s  run {story.number} {story.plan.kind.name}, after {story.cause}, load {story.load:.1f}"
            for story in died[:5]
        ),
        "",
        "streams",
        f"  {'gapless, with one last event':28}{len(result.stories) - len({f.split(':')[0] for f in result.faults}):6}",
        f"  {'faulty':28}{len({f.split(':')[0] for f in result.faults}):6}",
        "",
        "what is left" + "at the end of the last run, and then".rjust(44),
        *(f"  {what:28}{len(result.left_before.get(what, [])):6}{len(found):6}" for what, found in result.left.items()),
        *(f"LEFT: {what}: {one}" for what, found in result.left.items() for one in found[:20]),
        *(f"FAULT: {fault}" for fault in result.faults),
        *(
            f"SLOW: run {story.number} {story.run_id}: {story.death:.2f} s after {story.cause}, load {story.load:.1f}"
            for story in result.slow
        ),
        *([f"the service's log: {result.kept}"] if result.kept else []),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
