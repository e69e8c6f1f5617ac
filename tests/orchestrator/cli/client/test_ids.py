from pathlib import Path

import pytest

from orchestrator.cli.client.api import ApiClient
from orchestrator.cli.client.ids import find_run, find_subagent
from orchestrator.errors import InvalidRequestError, NotFoundError, UnauthorizedError
from tests.fakes.api_server import FakeApi, make_run, serve

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
