"""Long work that tidies up after itself, however it is told to end."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_guarded(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; Ctrl-C, a terminal that closes, or a TERM cancels the work, which then tidies up."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
