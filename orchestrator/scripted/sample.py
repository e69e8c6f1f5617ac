"""The little repository that the ``demo`` scenario works on: a shell script with a bug, and the check that finds it."""

from __future__ import annotations

from typing import Final

SCRIPT: Final = "slug.sh"
CHECK: Final = "check.sh"
BUG: Final = "printf '%s\\n' \"$*\" | tr 'A-Z' 'a-z' | tr ' ' '_'"
FIX: Final = "printf '%s\\n' \"$*\" | tr 'A-Z' 'a-z' | tr ' ' '-'"

SAMPLE_FILES: Final[dict[str, str]] = {
    "README.md": "# slug\n\nTurns a title into a file name. `sh check.sh` tells whether it works.\n",
    SCRIPT: f"#!/bin/sh\n# Words in lower case, joined by dashes.\n{BUG}\n",
    CHECK: """#!/bin/sh
want=hello-container-world
got=$(sh slug.sh Hello Container World)
if [ "$got" = "$want" ]; then
    echo "ok: $got"
else
    echo "FAILED: wanted $want, got $got"
    exit 1
fi
""",
}
"""Path to content."""
