# SPDX-License-Identifier: Apache-2.0
"""TLS of a server, with certificates made here."""

import contextlib
import datetime
import ipaddress
import json
import signal
import socket
import ssl
import subprocess
import sys

import numpy as np
import onnx
import pytest
from tests.serving.conftest import json_input
from tests.serving.test_queue import LONG
from tests.serving.test_server import serving

from intarsia.errors import SettingError

pytest.importorskip("uvicorn")
x509 = pytest.importorskip("cryptography.x509")
httpx = pytest.importorskip("httpx")

from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from tests.serving.test_connections import HEAD, HELD, LARGE, answer, connected, running  # noqa: E402

from intarsia.serving.tls import load_certificate  # noqa: E402

CLIENT = """
import sys
import grpc
channel = grpc.secure_channel(
    f"127.0.0.1:{sys.argv[1]}", grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
)
live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
assert live(b"", timeout=60) == b"\\x08\\x01", "not live"
plain = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
try:
    plain.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=60)
except grpc.RpcError as error:
    assert error.code() is grpc.StatusCode.UNAVAILABLE, error
else:
    raise AssertionError("answered without TLS")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a certificate of 127.0.0.1, its key, another key, and what is neither."""
    folder = tmp_path_factory.mktemp("tls")
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "intarsia test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = serialization.BestAvailableEncryption(b"secret")
    for file, one, guard in (
        ("key.pem", key, plain),
        ("other.pem", other, plain),
        ("locked.pem", key, secret),
    ):
        (folder / file).write_bytes(one.private_bytes(pem, pkcs8, guard))
    (folder / "junk.pem").write_text("nothing of the kind\n")
    return folder


@pytest.mark.parametrize(
    ("chain", "key", "words"),
    [
        ("nowhere.pem", "key.pem", "nowhere.pem' cannot be read: No such file"),
        ("cert.pem", "nowhere.pem", "nowhere.pem' cannot be read: No such file"),
        ("junk.pem", "key.pem", "junk.pem' is no certificate in PEM"),
        ("cert.pem", "junk.pem", "junk.pem' is no private key in PEM"),
        ("cert.pem", "cert.pem", "cert.pem' is no private key in PEM"),
        ("cert.pem", "other.pem", "other.pem' is not that of the certificate"),
        ("cert.pem", "locked.pem", "locked.pem' has a passphrase"),
    ],
)
def test_what_is_no_certificate_with_its_key_is_named(made, chain, key, words):
    with pytest.raises(SettingError) as caught:
        load_certificate(made / chain, made / key)
    assert words in caught.value.message


def test_one_without_the_other_is_an_error(made, call, tmp_path, rows_model):
    onnx.save(rows_model, tmp_path / "rows.onnx")
    for option in ("cert", "key"):
        answer = call("serve", tmp_path / "rows.onnx", f"--tls-{option}", made / f"{option}.pem")
        assert answer.code == 2
        assert "is missing" in answer.err
        assert "loading" not in answer.err


@pytest.fixture
def answering(made):
    return load_certificate(made / "cert.pem", made / "key.pem").context


@pytest.fixture
def trusting(made):
    return ssl.create_default_context(cafile=made / "cert.pem")


@pytest.mark.parametrize("large", [140_000, pytest.param(2_000_000, marks=pytest.mark.exhaustive)])
def test_who_reads_late_gets_all_of_its_answer(answering, trusting, large):
    """What TLS has given to the socket and the kernel has not taken is waited for, too."""
    with (
        running(most=2, large=large, send_buffer=40_000, tls=answering) as (
            port,
            app,
            loop,
            closed,
        ),
        connected(port, receive_buffer=40_000) as raw,
        trusting.wrap_socket(raw, server_hostname="127.0.0.1") as client,
    ):
        client.sendall(LARGE)
        assert app.begun.acquire(timeout=LONG)
        for _ in range(10):  # looks at the connection, more than an answer takes turns of the loop
            loop.forward(1)
        assert len(answer(client).partition(b"\r\n\r\n")[2]) == large
    assert not closed


def test_who_shakes_no_hands_is_counted_and_timed(answering, trusting):
    with (
        contextlib.ExitStack() as stack,
        running(most=2, tls=answering) as (port, app, loop, closed),
        connected(port) as first,
        connected(port) as second,
        connected(port, b"\x16\x03\x01"),  # as a handshake begins
    ):
        assert answer(first) == b""
        with connected(port, HEAD + b"\r\n") as plain:  # takes the place of another
            assert b"HTTP" not in answer(plain)
        assert answer(second) == b""
        loop.forward(LONG)
        assert closed == {"idle": 2, "slow": 1}
        with (
            connected(port) as raw,
            trusting.wrap_socket(raw, server_hostname="127.0.0.1") as held,
            connected(port) as other,
            trusting.wrap_socket(other, server_hostname="127.0.0.1") as as_well,
        ):
            for one in (held, as_well):
                one.sendall(HELD)
                assert app.begun.acquire(timeout=LONG)
            with (
                connected(port) as late,
                trusting.wrap_socket(late, server_hostname="127.0.0.1") as refused,
            ):
                assert answer(refused).startswith(b"HTTP/1.1 503 ")
            app.may_go.set()
            assert answer(held).endswith(b"here")
            assert answer(as_well).endswith(b"here")
        # Nor does one without a handshake keep the server from ending.
        stack.enter_context(connected(port))


@pytest.mark.exhaustive
def test_both_ports_answer_by_tls_and_idle_clients_keep_nothing(
    made, tmp_path, rows_model, trusting
):
    pytest.importorskip("grpc")
    onnx.save(rows_model, tmp_path / "rows.onnx")
    tls = ("--tls-cert", made / "cert.pem", "--tls-key", made / "key.pem")
    with serving(tmp_path, "rows.onnx", *tls, "--grpc-port", 0, "--grace", 20) as (process, told):
        assert told["tls"] is True
        port = told["http_port"]
        body = {"inputs": [json_input("x", np.ones((1, 3), np.float32))]}
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting) as client:
            answer = client.post("/v2/models/rows/infer", json=body, timeout=LONG)
            assert answer.status_code == 200, answer.text
            with pytest.raises(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/v2/health/live", timeout=LONG)
            with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
                httpx.get(f"https://127.0.0.1:{port}/v2/health/live", timeout=LONG)
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, str(told["grpc_port"]), made / "cert.pem"],
                capture_output=True,
                text=True,
                check=False,
                timeout=LONG,
            )
            assert done.returncode == 0, done.stderr
            # Neither a client that keeps its connection nor one that stays silent is waited for:
            # TLS would do so for half a minute, which is longer than there is.
            with (
                socket.create_connection(("127.0.0.1", port)) as raw,
                trusting.wrap_socket(raw, server_hostname="127.0.0.1"),
            ):
                process.send_signal(signal.SIGTERM)
                assert process.wait(LONG) == 0
                assert json.loads(process.stdout.read()) == {"event": "stopped", "whole": True}
    assert "Traceback" not in (tmp_path / "log").read_text()
