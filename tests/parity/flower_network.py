"""Flower's own processes for a test: a SuperLink and its nodes, in a folder, on free ports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from parity.launch import free_port

BIN = Path(sys.executable).parent
POLL = 0.5


def environment(folder: Path) -> dict[str, str]:
    """Of every process of a network: its own home, no telemetry, short polls."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "FLWR_"))}
    return kept | {
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


class Network:
    """A SuperLink, and the connection ``test`` to it.

    Args:
        folder: of everything that the processes write.
        link: further options of the SuperLink.
        connection: further lines of the connection in Flower's configuration.
    """

    def __init__(self, folder: Path, link: list[str], connection: str) -> None:
        self.folder, self.environment = folder, environment(folder)
        self.port = free_port()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "flwr"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n\n[superlink.test]\n'
            f'address = "127.0.0.1:{self.port}"\n{connection}\n'
        )
        options = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.start(
            "superlink",
            "flower-superlink",
            *options,
            "--disable-runtime-dependency-installation",
            *link,
        )

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: Any) -> None:
        for name in reversed(list(self._processes)):
            self.end(name)

    def start(self, name: str, *command: str) -> None:
        """Starts a process that is ended with the network."""
        output = (self.folder / f"{name}.log").open("ab")
        self._processes[name] = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self.environment,
            cwd=self.folder,
            start_new_session=True,
        )

    def end(self, name: str, signal: int = 15) -> None:
        """Ends a process and all that it started."""
        process = self._processes.pop(name)
        for number in (signal, 9):
            try:
                os.killpg(process.pid, number)
                process.wait(timeout=15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        process.wait(timeout=15)

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str, timeout: float = 120) -> Any:
        """A finished ``flwr`` command."""
        return subprocess.run(
            [str(BIN / "flwr"), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.environment,
            cwd=self.folder,
        )

    def submit(self, app: Path, **config: Any) -> str:
        """Submits a run; its id."""
        given = " ".join(f"{k.replace('_', '-')}={json.dumps(v)}" for k, v in config.items())
        options = ["--run-config", given] if given else []
        end = time.monotonic() + 60
        while True:
            done = self.flwr("run", str(app), "test", "--format", "json", *options)
            if done.returncode == 0 and '"run-id"' in done.stdout:
                content = json.loads(done.stdout[done.stdout.index("{") :])
                assert content["success"], done.stdout
                return str(content["run-id"])
            if time.monotonic() > end or "Invalid Flower App" in done.stdout:
                raise AssertionError(done.stdout + done.stderr + self.log("superlink")[-2000:])
            time.sleep(POLL)

    def state(self, run: str) -> str:
        """The state of a run, such as ``finished:completed``."""
        done = self.flwr("list", "test", "--run-id", run, "--format", "json")
        content = json.loads(done.stdout[done.stdout.index("{") :])
        return str(content["runs"][0]["status"])

    def wait(self, run: str, timeout: float) -> str:
        """The final state of a run."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            state = self.state(run)
            if state.startswith("finished"):
                return state
            time.sleep(POLL)
        raise AssertionError(f"run {run} is {state}: {self.log('superlink')[-3000:]}")


def simulation(folder: Path, nodes: int) -> Network:
    """A network whose nodes are simulated."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'consortia[flower]'")
    pytest.importorskip("ray", reason="ray is not installed: pip install 'consortia[flower]'")
    connection = f"insecure = true\noptions.num-supernodes = {nodes}"
    return Network(folder, ["--insecure", "--simulation"], connection)


# --- a deployment --------------------------------------------------------------------------------


def certificates(folder: Path, names: list[str]) -> None:
    """An authority, a certificate of 127.0.0.1 by it, and a key pair for each name."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def key() -> Any:
        return ec.generate_private_key(ec.SECP384R1())

    def name(text: str) -> Any:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    def signed(subject: str, public: Any, by: Any, *extensions: Any) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("a test's authority"))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )
        for extension in extensions:
            made = made.add_extension(extension, critical=False)
        return made.sign(by, hashes.SHA384())

    def private(one: Any, form: Any) -> bytes:
        plain = serialization.NoEncryption()
        return one.private_bytes(serialization.Encoding.PEM, form, plain)

    pem, traditional = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    authority, server = key(), key()
    root = signed(
        "a test's authority",
        authority.public_key(),
        authority,
        x509.BasicConstraints(ca=True, path_length=0),
    )
    local = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    own = signed("127.0.0.1", server.public_key(), authority, local)
    (folder / "ca.crt").write_bytes(root.public_bytes(pem))
    (folder / "server.pem").write_bytes(own.public_bytes(pem))
    (folder / "server.key").write_bytes(private(server, traditional))
    for one in names:
        pair = key()
        openssh = serialization.PrivateFormat.OpenSSH
        (folder / one).write_bytes(private(pair, openssh))
        (folder / one).chmod(0o600)
        public = pair.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        (folder / f"{one}.pub").write_bytes(public + b"\n")


class Deployment(Network):
    """A SuperLink with TLS that takes in registered keys only, and a SuperNode for each site."""

    def __init__(self, folder: Path, sites: dict[str, str]) -> None:
        self.sites, self.keys = sites, folder / "keys"
        self.keys.mkdir()
        certificates(self.keys, [*sites, "stranger"])
        options = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem"]
        options += ["--ssl-keyfile", "server.key"]
        files = [str(self.keys / one) if "." in one else one for one in options]
        connection = f'root-certificates = "{self.keys / "ca.crt"}"'
        super().__init__(folder, ["--enable-supernode-auth", *files], connection)

    def register(self) -> None:
        """Registers the keys of all sites."""
        for name in self.sites:
            end = time.monotonic() + 60
            while True:
                public = str(self.keys / f"{name}.pub")
                done = self.flwr("supernode", "register", public, "test", "--name", name)
                if done.returncode == 0:
                    break
                assert time.monotonic() < end, done.stdout + done.stderr
                time.sleep(POLL)

    def node(self, name: str, config: str, key: str | None = None, ca: str = "ca.crt") -> None:
        """Starts the SuperNode of a site."""
        self.start(
            name,
            "flower-supernode",
            "--root-certificates",
            str(self.keys / ca),
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--auth-supernode-private-key",
            str(self.keys / (key or name)),
            "--port",
            str(free_port()),
            "--node-config",
            config,
        )

    def nodes(self) -> None:
        """Registers all keys and starts all SuperNodes."""
        self.register()
        for name, config in self.sites.items():
            self.node(name, config)


def deployment(folder: Path, sites: dict[str, str]) -> Deployment:
    """A network with TLS and registered keys; of each site the ``--node-config``."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'consortia[flower]'")
    return Deployment(folder, sites)
