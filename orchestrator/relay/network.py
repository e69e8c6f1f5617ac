"""How this process reaches the internet: directly or through an upstream proxy, and which authorities it trusts.

One object for all gateways and proxies; what a service configures holds from the next connection on.
"""

from __future__ import annotations

import base64
import ssl

from orchestrator.config.hosts import is_direct, normalise_host
from orchestrator.contract.egress import Network, UpstreamProxy
from orchestrator.errors import InvalidRequestError


class Uplink:
    """The network settings in force.  Making one, and ``configure``, block while certificates are read."""

    def __init__(self, network: Network | None = None) -> None:
        self._proxy: UpstreamProxy | None = None
        self.tls = ssl.create_default_context()
        if network is not None:
            self.configure(network)

    def configure(self, network: Network) -> None:
        """Use these settings.  Raises: InvalidRequestError, and all stays as it was."""
        tls = ssl.create_default_context()
        if network.ca_file is not None:
            try:
                tls.load_verify_locations(network.ca_file)
            except OSError as error:  # ssl.SSLError too: nothing in it that is a certificate
                reason = "there is no certificate in it" if isinstance(error, ssl.SSLError) else error.strerror
                raise InvalidRequestError(f"egress.ca_file: {network.ca_file} cannot be used: {reason}") from None
        self._proxy, self.tls = network.proxy, tls

    def proxy_for(self, host: str) -> UpstreamProxy | None:
        """The proxy that leads to ``host``, a normalised name or address; None: it is reached directly."""
        if self._proxy is None or is_direct(host, self._proxy.no_proxy):
            return None
        return self._proxy

    def proxy_for_upstream(self, host: str) -> UpstreamProxy | None:
        """Like ``proxy_for``, of a host as it stands in a URL."""
        try:
            return self.proxy_for(normalise_host(host))
        except ValueError:
            return self.proxy_for(host)

    def secrets(self) -> list[str]:
        """What must not come into a log."""
        if self._proxy is None or self._proxy.password is None:
            return []
        return [self._proxy.password, _encoded(self._proxy)]


def credentials(proxy: UpstreamProxy) -> dict[str, str]:
    """The header that the proxy wants to see; none without a user name."""
    return {} if proxy.username is None else {"Proxy-Authorization": f"Basic {_encoded(proxy)}"}


def _encoded(proxy: UpstreamProxy) -> str:
    return base64.b64encode(f"{proxy.username}:{proxy.password or ''}".encode()).decode()


def refusal(status: int, *, known: bool) -> str:
    """Why the upstream proxy has refused, and what its operator can do.  ``known``: it was given credentials."""
    match status:
        case 407 if known:
            return "the network's proxy does not take the credentials in egress.upstream_proxy: correct them"
        case 407:
            return "the network's proxy wants credentials: set egress.upstream_proxy.username and password"
        case 403:
            return "the network's proxy does not allow this host: ask who runs it"
        case _ if status >= 500:
            return f"the network's proxy could not reach the host (status {status})"
        case _:
            return f"the network's proxy refused the connection (status {status})"
