"""``consortia flower certificates | key | node | loopback``: Flower's network."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortia.cli.exits import INTERRUPTED, reported

if TYPE_CHECKING:
    from consortia.federation.governance import Policy
    from consortia.federation.loopback import Node

NODE_PORT = 9094
POLICY = "site-policy.toml"
KEYS = "coordinator"
"""Folder of the coordinator's key."""


def certificates(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write to.")],
    host: Annotated[
        list[str],
        typer.Option(help="Name or address by which sites reach the SuperLink; repeatable."),
    ],
    days: Annotated[
        int, typer.Option(min=1, help="Days for which the certificates are valid.")
    ] = 365,
) -> None:
    """Make an authority (ca.crt) and the SuperLink's certificate (server.crt, server.key)."""
    with reported(False):
        from consortia.federation.certificates import make_certificates

        made = make_certificates(folder, host, days)
        typer.echo(f"{made.authority}: for every machine")
        typer.echo(f"{made.server}, {made.server_key}: for the SuperLink only")
        typer.echo(f"{made.authority_key}: keep it offline; it can sign further certificates")


def key(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the site.")],
) -> None:
    """Make the key by which the SuperLink knows a site (node-key, node-key.pub)."""
    with reported(False):
        from consortia.federation.certificates import make_node_key

        public = make_node_key(folder / "node-key")
        typer.echo(f"{folder / 'node-key'}: stays at the site")
        typer.echo(f"{public}: for the SuperLink, which registers it")


def node(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The site's folder, with node-key, ca.crt, site-policy.toml and its ledger.",
        ),
    ],
    data: Annotated[Path, typer.Option(metavar="FILE", help="The rows of the site.")],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the SuperLink.")],
    site: Annotated[
        str | None, typer.Option(help="The site's name in the study; by default FILE's.")
    ] = None,
    port: Annotated[
        int, typer.Option(help="On 127.0.0.1, for Flower's own processes.")
    ] = NODE_PORT,
) -> None:
    """Take part in studies: start Flower's SuperNode, for the apps that the policy approves."""
    with reported(False):
        from consortia.engines.messages.identities import site_ring
        from consortia.federation.commands import environment, supernode_command
        from consortia.federation.reaching import check_superlink

        folder = folder.resolve()
        name = data.stem if site is None else site
        policy = _checked(folder, data)
        site_ring(folder, name, policy.coordinator, policy.identities)
        silent = check_superlink(superlink, folder / "ca.crt")
        if silent is not None:
            typer.echo(f"warning: {silent}; still trying", err=True)
        command = supernode_command(
            superlink,
            folder / "ca.crt",
            folder / "node-key",
            _node_config(folder, data, name),
            port,
            folder / POLICY,
        )
        typer.echo(f"site {name!r}: {folder / POLICY} approves {len(policy.apps)} app(s)")
        sys.stdout.flush()
        os.execve(command[0], command, environment(folder / "flower"))


def loopback(
    app: Annotated[Path, typer.Argument(metavar="APP", help="The app that `flower new` wrote.")],
    data: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder of the study's data files."),
    ],
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For sites, keys, logs and the run; new or empty."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="minimum_rows of the sites' policies.")] = 50,
) -> None:
    """Try an app on this machine as between machines: TLS, registered keys, policies, ledgers."""
    with reported(False):
        from consortia.errors import DeploymentError, StoreError
        from consortia.federation.loopback import Loopback

        root = Path(f"{app.resolve().name}-loopback") if folder is None else folder
        if root.exists() and any(root.iterdir()):
            raise StoreError(f"{root} is not empty: choose another folder.")
        nodes = prepared_sites(app, data, root, rows)
        typer.echo(f"starting a SuperLink and {len(nodes)} SuperNodes on 127.0.0.1 ...")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with Loopback(root / "network", nodes) as network:
                typer.echo(f"SuperLink at {network.address}; logs in {root / 'network'}")
                folders = {"output": root / "run", "keys": root / KEYS}
                config = {name: str(path.resolve()) for name, path in folders.items()}
                status = network.run(app, config=config, show=typer.echo)
        except KeyboardInterrupt:
            typer.echo("interrupted; all processes are stopped, and the run so far is kept")
            raise typer.Exit(INTERRUPTED) from None
        typer.echo(f"Flower says: {status}. All processes are stopped.")
        for site in nodes:
            typer.echo(
                f"what was sent by {site.name}: consortia site ledger {root / 'sites' / site.name}"
            )
        if status != "finished:completed":
            raise DeploymentError(f"the run ended as {status}; the logs are in {root}.")


def prepared_sites(app: Path, data: Path, folder: Path, rows: int) -> list[Node]:
    """Make a folder for each site of an app's study, with a policy that permits nothing else."""
    from consortia.engines.messages.identities import made_keys
    from consortia.errors import InputError
    from consortia.federation.bundle import app_hash, study_of
    from consortia.federation.governance import terms_of
    from consortia.federation.governance.proposal import proposed
    from consortia.federation.loopback import Node
    from consortia.study.build import load_study

    with study_of(app) as path:
        study = load_study(path)
        terms, hashed = terms_of(study), app_hash(app)
    if study.data.files is None:
        raise InputError(
            "to run between sites, the study needs data.files with one file for each site."
        )
    nodes, names = [], study.data.site_names
    for name, file in zip(names, study.data.files, strict=True):
        if not (data / file).is_file():
            raise InputError(
                f"{data / file}: no such file; it should hold the rows of the site {name!r}."
            )
    keys = made_keys(folder / KEYS, {name: folder / "sites" / name for name in names})
    for name, file in zip(names, study.data.files, strict=True):
        site = folder / "sites" / name
        text = proposed(terms, hashed, rows, two_sites=True, keys=keys)
        (site / POLICY).write_text(text, encoding="utf-8")
        config = _node_config(site.resolve(), data / file, name)
        nodes.append(Node(name, config, (hashed,)))
    return nodes


def _node_config(folder: Path, data: Path, name: str) -> dict[str, str | int | float | bool]:
    return {"site": name, "data": str(data.resolve()), "folder": str(folder)}


def _checked(folder: Path, data: Path) -> Policy:
    """Check that all a node needs is there; return its policy."""
    from consortia.errors import InputError, PolicyError
    from consortia.federation.governance import load_policy

    needed = {
        folder / "node-key": "make it: consortia flower key FOLDER",
        folder / "ca.crt": "copy it from where `consortia flower certificates` made it",
        folder / POLICY: "create it with: consortia site check --app APP",
        data: "the rows of the site",
    }
    for path, what in needed.items():
        if not path.is_file():
            raise InputError(f"{path} is not there ({what}).")
    policy = load_policy(folder / POLICY)
    if not policy.apps:
        raise PolicyError(
            f"{folder / POLICY} approves no app: list hashes under apps "
            "(`consortia site check --app APP` prints one).",
            rules=("apps",),
        )
    return policy
