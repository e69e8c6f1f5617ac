import pytest

from orchestrator.cli.ui.prefix import unique
from orchestrator.errors import InvalidRequestError, NotFoundError, UnauthorizedError

IDS = ["run_abc1", "run_abd2", "run_x"]


async def find(text: str) -> str:
    async def exact(wanted: str) -> None:
        if wanted not in IDS:
            raise NotFoundError("no")

    async def candidates() -> list[str]:
        return [one for one in IDS if one.startswith(text)]

    return await unique("run", text, exact=exact, candidates=candidates)


async def test_exact_and_unique_beginnings() -> None:
    assert await find("run_x") == "run_x"
    assert await find("run_abc") == "run_abc1"


async def test_none_and_several() -> None:
    with pytest.raises(NotFoundError, match="no run 'zzz'"):
        await find("zzz")
    with pytest.raises(InvalidRequestError, match="fits 2 runs: run_abc1, run_abd2"):
        await find("run_ab")


@pytest.mark.parametrize("text", ["", "../etc", "a b", "-x", "x" * 65])
async def test_what_can_be_no_id_is_never_sent(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        await find(text)


async def test_other_errors_are_not_hidden() -> None:
    async def denied(_: str) -> None:
        raise UnauthorizedError("no")

    async def none() -> list[str]:
        return []

    with pytest.raises(UnauthorizedError):
        await unique("run", "r", exact=denied, candidates=none)
