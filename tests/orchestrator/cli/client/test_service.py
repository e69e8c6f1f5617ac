import asyncio
from pathlib import Path

import pytest

from orchestrator.cli.client import service as module
from orchestrator.cli.client.api import ApiClient
from orchestrator.cli.client.follow import Progress, follow
from orchestrator.cli.client.service import ServiceLink, check_url, find_run, find_subagent
from orchestrator.cli.context import CliContext
from orchestrator.config.models import Paths
from orchestrator.errors import ConflictError, InvalidRequestError, NotFoundError, ServiceGoneError, UnauthorizedError
from tests.fakes.api_server import FakeApi, make_run, serve, state_lock


async def test_a_running_service_is_used(paths: Paths, embedded: None) -> None:
    paths.token_file.write_text("pml_other\n")
    async with serve(FakeApi(token="pml_other"), paths.api_socket), ServiceLink(CliContext()) as link:
        assert not link.embedded
        assert (await link.client.run("run_1"))["run_id"] == "run_1"


async def test_without_one_this_process_serves(paths: Paths, embedded: None) -> None:
    async with ServiceLink(CliContext()) as link:
        assert link.embedded
        assert paths.lock_file.exists()
        assert (await link.client.run("run_1"))["run_id"] == "run_1"
    assert not paths.lock_file.exists()
    assert not paths.api_socket.exists()


async def test_a_dead_socket_file_is_no_service(paths: Paths, embedded: None) -> None:
    async with serve(FakeApi(), paths.api_socket):
        pass
    paths.api_socket.touch()
    paths.api_socket.unlink()
    async with ServiceLink(CliContext()) as link:
        assert link.embedded


async def test_the_loser_of_a_race_uses_the_winner_s_socket(paths: Paths, embedded: None) -> None:
    paths.token_file.write_text("pml_local\n")
    looked = asyncio.Event()

    class Watched(ServiceLink):
        async def _join(self, socket: Path, token_file: Path) -> bool:
            looked.set()
            return await super()._join(socket, token_file)

    link = Watched(CliContext())
    with state_lock(paths):  # the winner holds the lock, its socket is not there yet
        connecting = asyncio.get_running_loop().create_task(link.connect())
        await looked.wait()
        async with serve(FakeApi(), paths.api_socket):
            await connecting
            assert not link.embedded
            assert (await link.client.run("run_1"))["run_id"] == "run_1"
            await link.aclose()


async def test_a_lock_whose_owner_never_answers(paths: Paths, embedded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_FOR_WINNER", 0.2)
    with state_lock(paths), pytest.raises(ServiceGoneError, match="does not answer"):
        async with ServiceLink(CliContext()):
            pass


async def test_a_link_of_its_own_never_joins(paths: Paths, embedded: None) -> None:
    with state_lock(paths), pytest.raises(ConflictError):
        async with ServiceLink(CliContext(), join=False):
            pass


async def test_when_the_service_goes_away_the_stream_goes_on_here(paths: Paths, embedded: None) -> None:
    """Another command's embedded service ends in the middle of our stream; we become the service and lose nothing."""
    paths.token_file.write_text("pml_local\n")
    seen: list[int] = []
    half = asyncio.Event()
    other = serve(FakeApi(stop_short=5), paths.api_socket)
    await other.__aenter__()
    link = ServiceLink(CliContext())
    await link.connect()

    def sink(event: object) -> None:
        assert isinstance(event, dict)
        seen.append(event["seq"])
        if event["seq"] == 5:
            half.set()

    progress = Progress(run_id="run_1")
    following = asyncio.get_running_loop().create_task(follow(link, progress, sink))
    await half.wait()
    embedded_before = link.embedded
    await other.__aexit__(None, None, None)
    await following
    assert (embedded_before, link.embedded) == (False, True)
    assert seen == list(range(1, 12))
    assert (progress.events, progress.kinds["tool_use"], progress.ended) == (11, 1, True)
    await link.aclose()


async def test_a_lasting_service_is_sought_again_when_it_has_gone(paths: Paths, embedded: None) -> None:
    """Neither another command's service nor one in this process takes its place."""
    paths.token_file.write_text("pml_local\n")
    async with serve(FakeApi(), paths.api_socket):
        link = ServiceLink(CliContext(), lasting=True)
        await link.connect()
    with pytest.raises(ServiceGoneError, match="no service is running"):
        await link.renew()
    await link.aclose()
    async with serve(FakeApi(embedded=True), paths.api_socket):
        with pytest.raises(ServiceGoneError, match="inside another"):
            await link.renew()
    await link.aclose()
    assert not paths.lock_file.exists()


async def test_a_failing_start_is_told_and_leaves_nothing(
    paths: Paths, embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODMENTOR_FAKE", '{"nope": 1}')
    with pytest.raises(TypeError):
        async with ServiceLink(CliContext()):
            pass
    assert not paths.lock_file.exists()


async def test_a_remote_service_needs_its_token(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(FakeApi(), None) as port:
        context = CliContext(url=f"http://127.0.0.1:{port}")
        with pytest.raises(UnauthorizedError, match="PODMENTOR_TOKEN"):
            async with ServiceLink(context):
                pass
        monkeypatch.setenv("PODMENTOR_TOKEN", "pml_local")
        async with ServiceLink(context) as link:
            assert link.remote
            assert (await link.client.run("run_1"))["run_id"] == "run_1"
    with pytest.raises(ServiceGoneError, match="no podmentor service answers"):
        async with ServiceLink(context):
            pass


def test_a_token_is_never_sent_in_the_clear() -> None:
    for url in ("http://127.0.0.1:1", "http://localhost", "http://[::1]:3", "https://example.com"):
        check_url(url)
    with pytest.raises(UnauthorizedError, match="unencrypted"):
        check_url("http://example.com")
    with pytest.raises(ServiceGoneError):
        check_url("example.com:80")


async def test_a_token_file_that_cannot_be_read(paths: Paths, embedded: None) -> None:
    async with serve(FakeApi(), paths.api_socket):
        with pytest.raises(UnauthorizedError, match="cannot be read"):
            async with ServiceLink(CliContext()):
                pass


IDS = ["abc1", "abd2", "ab", "x"]


@pytest.fixture
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("k") / "api.sock"


async def find(socket: Path, text: str, *, token: str = "pml_local") -> tuple[str, str]:
    api = FakeApi(runs=[make_run(one) for one in IDS], subagents=[{"subagent_id": one} for one in IDS])
    async with serve(api, socket), ApiClient(socket=socket, token=token) as client:
        return await find_run(client, text), await find_subagent(client, text)


@pytest.mark.parametrize(("text", "found"), [("x", "x"), ("abc", "abc1"), ("ab", "ab")])
async def test_whole_ids_and_beginnings_of_one(socket: Path, text: str, found: str) -> None:
    """A whole id is meant even when others begin with it."""
    assert await find(socket, text) == (found, found)


async def test_none_and_several(socket: Path) -> None:
    with pytest.raises(NotFoundError, match="no run 'zzz'"):
        await find(socket, "zzz")
    with pytest.raises(InvalidRequestError, match="'a' is the beginning of several runs: ab, abc1, abd2"):
        await find(socket, "a")


@pytest.mark.parametrize("text", ["", "../etc", "a b", "-x", "x" * 65])
async def test_what_can_be_no_id_is_never_sent(socket: Path, text: str) -> None:
    with pytest.raises(InvalidRequestError):
        await find(socket, text)


async def test_other_errors_are_not_hidden(socket: Path) -> None:
    with pytest.raises(UnauthorizedError):
        await find(socket, "x", token="wrong")
