"""Runs in the database: one for each idempotency key, none without its subagent, each for its user alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import ConflictError, NotFoundError
from orchestrator.runs.storage.store import Store
from tests.orchestrator.runs.stored import insert


async def test_an_idempotency_key_gives_the_same_run_and_refuses_another_request(store: Store) -> None:
    first = await insert(store, idempotency_key="k")
    again = await insert(store, "2" * 32, "b" * 32, idempotency_key="k")
    assert again.run_id == first.run_id
    with pytest.raises(ConflictError):
        await insert(store, "3" * 32, "c" * 32, idempotency_key="k", request_sha256="other")
    other_user = await insert(store, "4" * 32, "d" * 32, idempotency_key="k", user_id="v")
    assert other_user.run_id == "4" * 32


async def test_a_run_of_an_unknown_subagent_is_refused(store: Store) -> None:
    with pytest.raises(NotFoundError):
        await insert(store, new_subagent=False)


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("fix the parser", "fix the parser"),
        ("\n  \r\n  fix \t the\u00a0parser \nand more", "fix the parser"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
    ],
)
async def test_the_title_is_the_first_line_of_the_first_prompt_until_it_is_changed(
    store: Store, query: str, title: str
) -> None:
    run = await insert(store, query=query)
    await insert(store, "2" * 32, run.subagent_id, query="another", new_subagent=False)
    found = (await store.subagent(run.subagent_id, user_id="u")).record
    assert found.title == title
    with pytest.raises(NotFoundError):
        await store.retitle_subagent(run.subagent_id, "theirs", user_id="v")
    changed = await store.retitle_subagent(run.subagent_id, "Parser", user_id="u")
    assert changed == replace(found, title="Parser")


@pytest.mark.parametrize("name", ["1" * 31, "\ud800" * 32, "'; --", "f" * 32])
async def test_what_there_is_not_and_what_is_somebody_elses_is_not_found(store: Store, name: str) -> None:
    run = await insert(store)
    assert (await store.run(run.run_id, user_id="u")).record == run
    assert (await store.subagent(run.subagent_id, user_id="u")).record.run_ids == (run.run_id,)
    for run_id, subagent_id, user_id in ((run.run_id, run.subagent_id, "v"), (name, name, None)):
        with pytest.raises(NotFoundError):
            await store.run(run_id, user_id=user_id)
        with pytest.raises(NotFoundError):
            await store.subagent(subagent_id, user_id=user_id)
