import resource
import signal

import aiohttp

from orchestrator.cli.commands.serve import open_as_many_files_as_we_may
from orchestrator.config.models import Paths
from tests.orchestrator.cli.conftest import Invoke
from tests.orchestrator.cli.process import podmentor


async def test_serve_says_where_and_stops_on_sigterm(paths: Paths) -> None:
    async with podmentor("serve", "--port", "0") as command:
        await command.until("token in")
        address = next(line for line in command.text.splitlines() if line.startswith("listening on ")).split()[-1]
        async with aiohttp.ClientSession() as http, http.get(address + "/healthz") as answer:
            assert answer.status == 200
        assert str(paths.api_socket) in command.text
        assert str(paths.token_file) in command.text
        command.signal(signal.SIGTERM)
        assert await command.end() == 0
    assert "[stop drain=False]" in command.text
    assert not paths.lock_file.exists()


async def test_drain_waits_and_a_second_signal_does_not(paths: Paths) -> None:
    async with podmentor("serve", "--port", "0", "--drain") as command:
        await command.until("token in")
        command.signal(signal.SIGINT)
        await command.until("[stop drain=True]")
        command.signal(signal.SIGINT)
        assert await command.end() == 0
    assert "stopping now" in command.text
    assert not paths.lock_file.exists()


async def test_a_second_service_is_refused(paths: Paths) -> None:
    paths.lock_file.touch()
    async with podmentor("serve", "--port", "0") as command:
        assert await command.end() == 1
    assert "error: another service holds the state directory [conflict]" in command.text


def test_the_port_is_checked(invoke: Invoke) -> None:
    assert invoke("serve", "--port", "70000").exit_code == 2


async def test_a_service_that_cannot_start_says_why(paths: Paths) -> None:
    async with podmentor("serve", PODMENTOR_FAKE='{"nope": 1}') as command:
        assert await command.end() == 1
    assert "[internal]" in command.text


def test_the_limit_of_open_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
        open_as_many_files_as_we_may()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
