from pathlib import Path

from orchestrator.bootstrap.service import network_of
from orchestrator.config.load import parse
from orchestrator.contract.egress import Network, UpstreamProxy

TEXT = """
egress:
  ca_file: /etc/ssl/corp.pem
  upstream_proxy: {url: "http://[2001:db8::1]:3128", username: pm, password: p, no_proxy: [git.example]}
"""


def test_the_relay_gets_the_network_of_the_configuration() -> None:
    assert network_of(parse("", name="f", env={}).config.egress) == Network()
    assert network_of(parse(TEXT, name="f", env={}).config.egress) == Network(
        ca_file=Path("/etc/ssl/corp.pem"),
        proxy=UpstreamProxy(host="2001:db8::1", port=3128, username="pm", password="p", no_proxy=("git.example",)),
    )
    plain = network_of(parse("egress: {upstream_proxy: {url: 'http://p.example'}}", name="f", env={}).config.egress)
    assert plain == Network(proxy=UpstreamProxy(host="p.example", port=80))
