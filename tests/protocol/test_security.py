"""The real client meets a node that asks who it is.

The broker runs in a thread, with a clock that the tests move: a token expires when they say so. The
client runs in a process of its own. What is refused must be refused at once: every answer is asked
for with a limit far below the client's own timeout of two minutes.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from lithify.clock import ManualClock
from lithify.events import ignore_events
from lithify.fs import LocalFileSystem
from lithify.node.security import SecuritySettings, make_access, make_tls
from lithify.pulsar.broker import Broker
from lithify.pulsar.listener import listen
from lithify.pulsar.wire import wire_pb2 as wire
from lithify.pulsar.wire.framing import encode_command
from lithify.topics.definitions.definitions import Definitions, NamespaceDefinition
from lithify.topics.definitions.topic_names import Namespace, TopicName
from lithify.topics.permissions import with_grant
from lithify.topics.topics import Topics, TopicSettings
from tests.patience import PROCESS_S_MAX, at_most, wait_until
from tests.protocol.raw import RawClient, Type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lithify.pulsar.connection import ClientConnection

CLIENT = Path(__file__).with_name("secure_client.py")
SECRET = b"a secret of more than thirty-two bytes"
AT_ONCE_S = 60.0

PATTERN_REFUSED = "LookupError"
"""What the client makes of any error when it asks for the topics of a namespace."""

REFUSED_LATER = {"Timeout", "AuthorizationError", "AlreadyClosed"}
"""What the client makes of a producer or consumer that it is refused when it connects again."""

ORDERS = "persistent://shop/eu/orders"
OTHER_NODE = "persistent://public/default/orders"


class Client:
    """A process of `secure_client.py`."""

    def __init__(self, url: str, *tokens: str, trusted: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CLIENT), url, trusted, *tokens],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pool = ThreadPoolExecutor(1)

    def does(self, operation: str, topic: str) -> str:
        """The outcome."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{operation} {topic}\n")
        process.stdin.flush()
        return self._pool.submit(self._answer, process.stdout).result(AT_ONCE_S)

    def _answer(self, output: Iterable[str]) -> str:
        for line in output:
            if line.startswith("answer: "):
                return line.removeprefix("answer: ").strip()
        return "the client's process has ended"

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._pool.shutdown()


class Site:
    """A node with two tenants, and what its operator has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.url = ""
        self._clients: list[Client] = []

    def token(self, name: str, *, valid_s: int = 3600, secret: bytes = SECRET) -> str:
        expires_s = self.clock.now_ms() // 1000 + valid_s
        return jwt.encode({"sub": name, "exp": expires_s}, secret, algorithm="HS256")

    def grants(self, name: str, *actions: str) -> None:
        """From now on a client may do this in the shop, and nothing else."""
        shop = Namespace.parse("shop/eu")
        self.topics.definitions.change(lambda d: with_grant(d, shop, name, actions))

    def client(self, *tokens: str, trusted: str = "") -> Client:
        client = Client(self.url, *tokens, trusted=trusted)
        self._clients.append(client)
        return client

    @contextmanager
    def open(self, security: SecuritySettings) -> Iterator[None]:
        """Serve in a thread while the block runs."""
        topics = Topics(
            LocalFileSystem(),
            str(self.directory / "data"),
            settings=TopicSettings(),
            clock=self.clock,
            events=ignore_events,
            owner="test",
        )
        self.topics = topics
        topics.definitions.change(_with_shop)
        access = make_access(
            security,
            LocalFileSystem(),
            definitions=lambda: topics.definitions.current,
            clock=self.clock,
        )
        broker = Broker(topics, name="test", version="Lithify test", access=access)
        ready, stop = threading.Event(), asyncio.Event()
        loop = asyncio.new_event_loop()

        async def serve() -> None:
            connections: set[ClientConnection] = set()
            tls = make_tls(security)
            server = await listen(broker, "127.0.0.1", 0, connections, tls)
            port = server.sockets[0].getsockname()[1]
            if tls is None:
                self.url = broker.service_url = f"pulsar://127.0.0.1:{port}"
            else:
                self.url = broker.service_url_tls = f"pulsar+ssl://127.0.0.1:{port}"
            ready.set()
            await stop.wait()
            server.close()
            for connection in list(connections):
                connection.abort()
            while connections:
                await asyncio.sleep(0)
            await server.wait_closed()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert ready.wait(PROCESS_S_MAX)
            yield
        finally:
            for client in self._clients:
                client.end()
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()
            topics.close()


def _with_shop(definitions: Definitions) -> Definitions:
    shop = Namespace.parse("shop/eu")
    definitions = definitions.with_tenant("shop", {"adminRoles": ["boss"]})
    definitions = definitions.with_namespace(shop, NamespaceDefinition())
    definitions = with_grant(definitions, shop, "writer", ["produce"])
    return with_grant(definitions, shop, "reader", ["consume"])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def security(tmp_path: Path) -> SecuritySettings:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET + b"\n")
    return SecuritySettings(token_secret_file=str(secret), superusers=("root",))


def test_an_unknown_client_is_refused_at_once(site: Site, security: SecuritySettings) -> None:
    with site.open(security):
        for tokens in (
            (),
            ("no.to.ken",),
            (site.token("writer", secret=b"another secret of more than 32 bytes"),),
            (site.token("writer", valid_s=-1),),
        ):
            client = site.client(*tokens)
            for operation in ("produce", "consume", "read"):
                assert client.does(operation, ORDERS) == "AuthenticationError", tokens
            assert client.does("pattern", ORDERS) == PATTERN_REFUSED, tokens


def test_clients_may_do_what_was_granted_and_nothing_else(
    site: Site, security: SecuritySettings
) -> None:
    with site.open(security):
        writer = site.client(site.token("writer"))
        reader = site.client(site.token("reader"))
        assert writer.does("produce", ORDERS) == "ok"
        assert writer.does("consume", ORDERS) == "AuthorizationError"
        assert writer.does("read", ORDERS) == "AuthorizationError"
        assert writer.does("produce", OTHER_NODE) == "AuthorizationError"
        assert reader.does("consume", ORDERS) == "ok"
        assert reader.does("read", ORDERS) == "ok"
        assert reader.does("pattern", ORDERS) == "ok"
        assert reader.does("produce", ORDERS) == "AuthorizationError"
        assert reader.does("pattern", OTHER_NODE) == PATTERN_REFUSED


def test_a_producer_that_creates_a_subscription_must_be_allowed_to_consume(
    site: Site, security: SecuritySettings
) -> None:
    command = wire.BaseCommand(type=Type.PRODUCER)
    command.producer.topic = ORDERS
    command.producer.producer_id = command.producer.request_id = 1
    command.producer.initial_subscription_name = "first"
    with site.open(security):
        port = int(site.url.rpartition(":")[2])
        for name, answered in (("writer", Type.ERROR), ("boss", Type.PRODUCER_SUCCESS)):
            with RawClient(port, connect=False) as client:
                client.connect(site.token(name))
                client.send(encode_command(command))
                answer = client.expect(answered)
            assert (answer.error.error == wire.ServerError.AuthorizationError) == (name == "writer")
            subscriptions = site.topics.opened().get(TopicName.parse(ORDERS))
            made = subscriptions is not None and "first" in subscriptions.subscriptions
            assert made == (name == "boss")


def test_admins_rule_their_tenant_and_superusers_all(
    site: Site, security: SecuritySettings
) -> None:
    with site.open(security):
        boss = site.client(site.token("boss"))
        root = site.client(site.token("root"))
        stranger = site.client(site.token("stranger"))
        assert boss.does("produce", ORDERS) == "ok"
        assert boss.does("consume", ORDERS) == "ok"
        assert boss.does("produce", OTHER_NODE) == "AuthorizationError"
        assert root.does("produce", ORDERS) == "ok"
        assert root.does("produce", OTHER_NODE) == "ok"
        assert stranger.does("produce", ORDERS) == "AuthorizationError"
        assert stranger.does("consume", ORDERS) == "AuthorizationError"


def test_a_client_with_a_new_token_continues_when_the_old_one_expires(
    site: Site, security: SecuritySettings
) -> None:
    with site.open(security):
        client = site.client(site.token("boss", valid_s=60), site.token("boss", valid_s=600))
        assert client.does("produce", ORDERS) == "ok"
        site.clock.advance(61)
        assert client.does("consume", ORDERS) == "ok"
        assert client.does("produce-again", ORDERS) == "ok"


def test_a_client_without_a_new_token_is_refused_when_the_old_one_expires(
    site: Site, security: SecuritySettings
) -> None:
    with site.open(security):
        client = site.client(site.token("boss", valid_s=60))
        assert client.does("produce", ORDERS) == "ok"
        site.clock.advance(61)
        assert client.does("consume", ORDERS) == "AuthenticationError"


def test_a_client_without_permission_receives_no_more_messages(
    site: Site, security: SecuritySettings
) -> None:
    with site.open(security):
        boss = site.client(site.token("boss"))
        reader = site.client(site.token("reader"))
        assert boss.does("produce", ORDERS) == "ok"
        assert reader.does("listen", ORDERS) == "ok"
        assert reader.does("hear", ORDERS) == "ok"
        consumers = site.topics.opened()[TopicName.parse(ORDERS)].subscriptions["l"].consumers
        assert len(consumers) == 1
        site.grants("reader")
        wait_until(lambda: not consumers)
        assert boss.does("produce-again", ORDERS) == "ok"
        assert reader.does("hear-nothing", ORDERS) in REFUSED_LATER
        assert reader.does("consume", ORDERS) == "AuthorizationError"
        # It tries to come back all the time, and would be the one whose consumer it is.
        reader.end()
        site.grants("reader", "consume")
        again = site.client(site.token("reader"))
        assert again.does("listen", ORDERS) == "ok"
        assert again.does("hear", ORDERS) == "ok", "what came meanwhile was not lost"


def test_a_client_without_permission_can_no_longer_write(
    site: Site, security: SecuritySettings
) -> None:
    with site.open(security):
        writer = site.client(site.token("writer"))
        assert writer.does("produce", ORDERS) == "ok"
        topic = site.topics.opened()[TopicName.parse(ORDERS)]
        site.grants("writer", "consume")
        wait_until(lambda: not topic.producers.joined)
        assert writer.does("produce-again", ORDERS) in REFUSED_LATER
        assert topic.writer.messages_in == 1


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_silent_client_loses_its_consumer_when_its_token_expires(
    site: Site, security: SecuritySettings, tokens: int
) -> None:
    with site.open(security):
        boss = site.client(site.token("boss"))
        given = [site.token("reader", valid_s=60 * (n + 1)) for n in range(tokens)]
        reader = site.client(*given)
        assert boss.does("produce", ORDERS) == "ok"
        assert reader.does("listen", ORDERS) == "ok"
        consumers = site.topics.opened()[TopicName.parse(ORDERS)].subscriptions["l"].consumers
        first = next(iter(consumers))
        site.clock.jump(61)
        wait_until(lambda: first not in consumers)
        if tokens > 1:
            wait_until(lambda: bool(consumers))
            assert reader.does("hear", ORDERS) == "ok", "it showed its new token"
        else:
            assert reader.does("consume", ORDERS) == "AuthenticationError"
            assert not consumers


def test_a_refreshed_token_must_have_the_same_role(site: Site, security: SecuritySettings) -> None:
    with site.open(security):
        client = site.client(site.token("reader", valid_s=60), site.token("boss"))
        assert client.does("produce", ORDERS) == "AuthorizationError"
        site.clock.advance(61)
        assert client.does("produce", ORDERS) == "AuthenticationError"


def test_tls_and_tokens_of_a_key_pair_go_together(site: Site) -> None:
    certificate, key = _self_signed(site.directory)
    signer = rsa.generate_private_key(65537, 2048)
    public = site.directory / "public.pem"
    public.write_bytes(
        signer.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    security = SecuritySettings(
        token_public_key_file=str(public),
        tls_certificate_file=certificate,
        tls_key_file=key,
    )
    with site.open(security):
        good = jwt.encode({"sub": "boss"}, signer, algorithm="RS256")
        client = site.client(good, trusted=certificate)
        assert client.does("produce", ORDERS) == "ok"
        assert client.does("consume", ORDERS) == "ok"
        bad = site.client(site.token("boss"), trusted=certificate)
        assert bad.does("produce", ORDERS) == "AuthenticationError"


def test_tls_below_1_2_is_refused(site: Site) -> None:
    certificate, key = _self_signed(site.directory)
    security = SecuritySettings(tls_certificate_file=certificate, tls_key_file=key)
    context = make_tls(security)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_node_requires_tokens_over_tls_on_both_ports(tmp_path: Path) -> None:
    certificate, key = _self_signed(tmp_path)
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "node.toml").write_text(
        f"""
        data = "{tmp_path}/served"
        pulsar_port = 0
        http_port = 0
        token_secret_file = "{tmp_path}/secret"
        superusers = ["root"]
        tls_certificate_file = "{certificate}"
        tls_key_file = "{key}"
        """
    )
    root = jwt.encode({"sub": "root"}, SECRET)
    node = subprocess.Popen(
        [sys.executable, "-m", "lithify", "serve", "--config", str(tmp_path / "node.toml")],
        stdout=subprocess.PIPE,
        text=True,
    )
    clients = []
    try:
        assert node.stdout is not None
        with at_most(PROCESS_S_MAX, node.kill):
            urls = [node.stdout.readline().split()[1] for _ in range(2)]
        assert [url.partition(":")[0] for url in urls] == ["pulsar+ssl", "https"]
        for url in urls:
            # The second one looks topics up over HTTP.
            client = Client(url, root, trusted=certificate)
            clients.append(client)
            assert client.does("produce", OTHER_NODE) == "ok"
            assert client.does("read", OTHER_NODE) == "ok"
        stranger = Client(urls[0], trusted=certificate)
        clients.append(stranger)
        assert stranger.does("produce", OTHER_NODE) == "AuthenticationError"
        tenants = f"{urls[1]}/admin/v2/tenants"
        trust = ssl.create_default_context(cafile=certificate)
        assert httpx.get(tenants, verify=trust).status_code == 401
        known = httpx.get(tenants, verify=trust, headers={"Authorization": f"Bearer {root}"})
        assert known.json() == ["public"]
    finally:
        for client in clients:
            client.end()
        node.terminate()
        with at_most(PROCESS_S_MAX, node.kill):
            node.communicate()
    assert node.returncode == 0


def test_without_security_everything_is_allowed(site: Site) -> None:
    with site.open(SecuritySettings()):
        for tokens in ((), ("no.to.ken",)):
            client = site.client(*tokens)
            assert client.does("produce", ORDERS) == "ok"
            assert client.does("read", ORDERS) == "ok"


def _self_signed(directory: Path) -> tuple[str, str]:
    """The paths of a certificate for this machine and of its key."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    names: list[Any] = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "node.pem", directory / "node.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(paths[0]), str(paths[1])
