"""Names that a test decides about."""

from __future__ import annotations

import asyncio
import ipaddress

from orchestrator.config.hosts import Address
from orchestrator.relay.proxy.resolver import UnknownNameError


class ScriptedResolver:
    """Implements ``Resolver``.  For each name the answers in their order; the last one repeats."""

    def __init__(self, **names: list[list[str]]) -> None:
        self.names = {name.replace("_", "."): answers for name, answers in names.items()}
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None
        """Answers come when it is set."""

    async def resolve(self, host: str) -> list[Address]:
        self.asked.append(host)
        if self.gate is not None:
            await self.gate.wait()
        answers = self.names.get(host)
        if not answers:
            raise UnknownNameError
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ipaddress.ip_address(address) for address in answer]
