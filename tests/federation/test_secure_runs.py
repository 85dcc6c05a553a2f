"""Runs over Flower of whose answers the server learns the sums, and messages that are signed."""

from __future__ import annotations

import functools
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from federation.hospitals import HOSPITALS, NAMES, study
from parity.flower_sites import Faulty

import consortia
from consortia.engines.messages import fixed_point
from consortia.engines.messages.engine import MessageEngine
from consortia.engines.messages.envelope import Envelope, decode
from consortia.engines.messages.identities import (
    FILE,
    TO_SITE,
    body_of,
    coordinator_ring,
    made_keys,
    make_identity,
    signed,
)
from consortia.engines.messages.masked import MASKED, PACKED
from consortia.engines.messages.secure_sums import BEGUN, SUM_KEYS
from consortia.engines.messages.transport import Arrival, InProcess
from consortia.errors import PolicyError, SiteMissingError, SiteRefusedError
from consortia.federation import app
from consortia.federation.governance import load_policy, terms_of, verify
from consortia.federation.governance.proposal import proposed
from consortia.study.build import load_study
from tests.refusals import refused

RUN = "ab" * 16
FEW = 'name = "few_rounds"\neffective_size = 200'


class Network:
    """The three hospitals in one process, each with keys, policy and ledger.

    Attributes:
        seen: of each site the messages to it and its answers, as they travel.
    """

    def __init__(
        self, folder: Path, text: str = "", *, sums: bool = True, algorithm: str = FEW
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.path = folder / "study.toml"
        self.path.write_text(study(algorithm) + text + ("" if sums else "secure_sums = false\n"))
        for name in NAMES:
            shutil.copy(HOSPITALS / f"{name}.csv", folder)
        self.study = load_study(self.path)
        self.terms = terms_of(self.study)
        self.lines = made_keys(folder / "server", {name: folder / name for name in NAMES})
        self.ring = coordinator_ring(folder / "server")
        policy = proposed(self.terms).replace(
            "maximum_settled_rows = 0", "maximum_settled_rows = 9"
        )
        if "epsilon" in algorithm:
            policy = (
                f"maximum_epsilon = 5.0\n{policy}" if "maximum_epsilon" not in policy else policy
            )
        for name in NAMES:
            (folder / name / app.POLICY).write_text(policy + self.lines)
        self.sites = {name: self.site(name) for name in NAMES}
        self.seen: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in NAMES}

    def site(self, name: str) -> Any:
        node = {"site": name, "data": str(self.folder / f"{name}.csv")}
        return app.site_of(self.study, node | {"folder": str(self.folder / name)}, {})

    def answer(self, name: str, message: bytes) -> bytes:
        answer = self.sites[name].answer(message)
        self.seen[name].append((message, answer))
        return answer

    def engine(self, faults: Any = None, **options: Any) -> MessageEngine:
        sites = {n: functools.partial(self.answer, name) for n, name in enumerate(NAMES)}
        options = dict[str, Any](keys=self.ring, deadline=3.0, run=RUN) | options
        transport = InProcess(sites) if faults is None else Faulty(sites, faults)
        return MessageEngine(transport, NAMES, study=self.terms.study, **options)

    def run(self, engine: MessageEngine | None = None, **more: Any) -> Any:
        engine = self.engine() if engine is None else engine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            built = self.study.build(engine)
            options = self.study.run_options | {"engine": engine, "progress": False} | more
            return consortia.sample(built.model, built.rows, built.algorithm, **options)

    def queries(self, name: str) -> list[tuple[Envelope, Envelope]]:
        found = [(decode(body_of(a)), decode(body_of(b))) for a, b in self.seen[name]]
        return [pair for pair in found if pair[0].kind == "query"]

    def reason(self, name: str) -> str:
        return (self.folder / name / "errors.log").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Any]:
    network = Network(tmp_path_factory.mktemp("secure"))
    return network, network.run()


@pytest.mark.engines
def test_the_server_learns_sums_and_every_message_is_signed(run: tuple[Network, Any]) -> None:
    network, tree = run
    assert "effective draws" in tree.attrs["stopped"]
    assert tree.attrs["rejected_replies"] == 0
    last = json.loads(tree.attrs["last_messages"])
    for name in NAMES:
        assert network.queries(name)
        for request, answer in network.queries(name):
            assert set(request.values[SUM_KEYS]) == set(NAMES)
            packed = {PACKED} if request.values["function"] == "log_densities" else set()
            assert set(answer.arrays) == {MASKED} | packed
        left = verify(network.folder / name / "ledger.jsonl")
        assert left.problem is None
        assert last[name] == left.entries[-1].sha256
        kinds = {one.kind for one in left.entries if one.event == "released"}
        assert kinds == {"description", "query"}


@pytest.mark.engines
def test_draws_are_those_without_sums_up_to_rounding(tmp_path: Path) -> None:
    """Without noise of the sites, which is another one where the question has keys."""
    trees = []
    for sums in (True, False):
        network = Network(tmp_path / str(sums), sums=sums)
        for site in network.sites.values():
            site._private = False
        trees.append(network.run())
    one, other = (tree["posterior"].dataset for tree in trees)
    for name in one.data_vars:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-4)


FEDERATED = """name = "federated_hmc"
step_size = 0.2
leapfrog_steps = 3
mass_matrix = "identity"
"""


@pytest.mark.slow
@pytest.mark.engines
def test_phases_that_are_sums_are_masked_and_the_draws_are_those_without(tmp_path: Path) -> None:
    plans: list[Any] = []
    trees = []
    for sums in (True, False):
        network = Network(tmp_path / str(sums), sums=sums, algorithm=FEDERATED)
        trees.append(network.run(rounds=20, on_plan=plans.append))
        answers = [decode(body_of(answer)) for _, answer in network.seen["north"]]
        phases = [one for one in answers if one.kind in {"setup", "round"} and one.arrays]
        assert phases
        assert all((set(one.arrays) == {MASKED}) == sums for one in phases)
        assert ("secure sums: of all answers" in " ".join(str(plans[-1]).split())) == sums
    one, other = (tree["posterior"].dataset for tree in trees)
    for variable in one.data_vars:
        np.testing.assert_allclose(one[variable], other[variable], rtol=2e-3, atol=2e-3)


@pytest.mark.engines
def test_a_question_repeatedhas_the_same_bits_in_a_new_process_and_from_a_backup(
    run: tuple[Network, Any], tmp_path: Path
) -> None:
    network, _ = run
    message, answer = network.seen["north"][3]
    assert network.site("north").answer(message) == answer
    # All of the folder is put back to before the run, and the server asks again.
    again = Network.__new__(Network)
    again.__dict__ |= network.__dict__ | {"folder": tmp_path}
    for file in (FILE, app.POLICY, "secret"):
        (tmp_path / "north").mkdir(exist_ok=True)
        shutil.copy(network.folder / "north" / file, tmp_path / "north")
    shutil.copy(network.folder / "north.csv", tmp_path)
    site = again.site("north")
    replayed = [site.answer(one) for one, _ in network.seen["north"][:4]]
    once, repeated = (decode(body_of(one)).arrays for one in (answer, replayed[3]))
    assert {name: array.tolist() for name, array in repeated.items()} == (
        {name: array.tolist() for name, array in once.items()}
    )
    # With a row changed, too, the key is another one: it is not of those that all agreed on.
    shutil.rmtree(tmp_path / "north" / "runs")
    for path in (tmp_path / "north").glob("ledger*"):
        path.unlink()
    shutil.rmtree(tmp_path / "north" / "rows")
    rows = (tmp_path / "north.csv").read_text().splitlines()
    (tmp_path / "north.csv").write_text("\n".join([*rows[:-1], rows[-2], ""]))
    site = again.site("north")
    replayed = [site.answer(one) for one, _ in network.seen["north"][:4]]
    assert decode(body_of(replayed[3])).kind == "refusal"


@pytest.mark.engines
def test_another_answer_to_one_question_does_not_leave(
    run: tuple[Network, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _ = run
    message, _ = network.seen["west"][3]
    shutil.rmtree(network.folder / "west" / "compiled", ignore_errors=True)
    site = network.site("west")
    monkeypatch.setattr(
        fixed_point, "encoded", lambda values, sites: np.ones((len(values), 2), np.uint64)
    )
    answer = decode(body_of(site.answer(message)))
    assert answer.kind == "refusal"
    assert "secure_sums: it was answered before with other numbers" in network.reason("west")
    assert "secure_sums" not in str(answer.values)  # it depends on rows


PAST = {"few_rounds": (FEW, 4), "federated_hmc": (FEDERATED, 20)}


@pytest.mark.engines
@pytest.mark.parametrize("name", PAST)
def test_a_site_that_was_put_back_is_refused_by_the_server_that_resumes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, messages = PAST[name]
    network = Network(tmp_path / "network", algorithm=algorithm)
    own, backup, store = network.folder / "west", tmp_path / "backup", tmp_path / "run"
    answer = network.answer

    def dies(site: str, message: bytes) -> bytes:
        if site == "west" and len(network.seen["west"]) == 2 and not backup.exists():
            shutil.copytree(own, backup)
        if len(network.seen["north"]) == messages:
            raise RuntimeError("the network is gone")
        return answer(site, message)

    monkeypatch.setattr(network, "answer", dies)
    with pytest.raises(SiteMissingError):
        network.run(store=store, rounds=6)
    monkeypatch.setattr(network, "answer", answer)
    newest = shutil.move(own, tmp_path / "newest")
    shutil.copytree(backup, own)
    network.sites["west"] = network.site("west")

    def resumed() -> Any:
        engine = network.engine()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            built = network.study.build(engine)
            parts = built.model, built.rows, built.algorithm
            return consortia.resume(store, *parts, engine=engine, progress=False)

    with refused(SiteRefusedError, sites=("west",), match="lacks the last message"):
        resumed()
    shutil.rmtree(own)
    shutil.copytree(newest, own)
    network.sites["west"] = network.site("west")
    assert resumed()["posterior"].sizes["draw"]


LIES: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "not signed by the identity": lambda keys: (
        keys | {"north": [keys["west"][0], keys["north"][1]]}
    ),
    "are not those that the policy names": lambda keys: {
        name: key for name, key in keys.items() if name != "west"
    },
    "the question has no keys of sites": lambda keys: None,
}


@pytest.mark.engines
def test_a_server_that_lies_about_keys_gets_no_answer(run: tuple[Network, Any]) -> None:
    network, _ = run
    site, private = network.site("south"), network.ring.private
    request, _ = network.queries("south")[1]
    stage, _, phase, repetition = request.label
    for number, (reason, lie) in enumerate(LIES.items(), 20):
        values = {"function": request.values["function"], BEGUN: request.values[BEGUN]}
        if (keys := lie(dict(request.values[SUM_KEYS]))) is not None:
            values[SUM_KEYS] = keys
        label = (stage, number, phase, repetition)
        message = replace(request, values=values, label=label).encode()
        answer = decode(body_of(site.answer(signed(message, private, TO_SITE))))
        assert answer.kind == "refusal"
        assert reason in network.reason("south")


@pytest.mark.engines
def test_a_question_of_a_run_that_began_otherwise_gets_no_answer(run: tuple[Network, Any]) -> None:
    network, _ = run
    request, _ = network.queries("north")[1]
    stage, _, phase, repetition = request.label
    values = {**request.values, BEGUN: "0" * 64}
    message = replace(request, values=values, label=(stage, 20, phase, repetition)).encode()
    signed_message = signed(message, network.ring.private, TO_SITE)
    answer = decode(body_of(network.site("north").answer(signed_message)))
    assert (answer.kind, answer.values["mismatch"]) == ("refusal", "beginning")


def test_a_message_that_the_coordinator_has_not_signed_is_refused_by_name(tmp_path: Path) -> None:
    network = Network(tmp_path)
    with refused(SiteRefusedError, sites=("north",), match=r"\(identities\)"):
        network.run(network.engine(keys=None))
    assert "not signed by the coordinator that the site's policy names" in network.reason("north")
    ring = network.ring
    own = make_identity(tmp_path / "other")
    swapped = replace(ring, private=bytes.fromhex((tmp_path / "other" / FILE).read_text().strip()))
    assert own not in ring.sites.values()
    with refused(SiteRefusedError, sites=("north",), match=r"\(identities\)"):
        network.run(network.engine(keys=swapped))


def test_a_site_with_another_key_than_the_coordinator_has_is_named(tmp_path: Path) -> None:
    network = Network(tmp_path)
    ring = network.ring
    sites = dict(ring.sites) | {"south": ring.sites["west"], "west": ring.sites["south"]}
    with refused(SiteRefusedError, sites=("south",), match="not signed"):
        network.run(network.engine(keys=replace(ring, sites=sites)))


def test_a_site_that_sends_no_secure_sums_where_others_do_is_named(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.sites["south"]._sums = False
    with refused(SiteRefusedError, sites=("south",), match="no secure sums"):
        network.run()


@pytest.mark.engines
def test_an_answer_that_was_changed_on_its_way_is_not_used(tmp_path: Path) -> None:
    network = Network(tmp_path)

    def faults(node: int, name: str, payload: bytes, arrival: Arrival) -> list[Arrival]:
        if node == 1 and decode(body_of(payload)).kind == "agreement":
            body = body_of(arrival.payload or b"")
            return [replace(arrival, payload=body)]
        return [arrival]

    with pytest.raises(SiteMissingError):
        network.run(network.engine(faults, deadline=1.0))


def test_a_policy_says_whether_answers_may_leave_plain(tmp_path: Path) -> None:
    network = Network(tmp_path, sums=False)
    assert network.terms.sums == "plain"
    path = network.folder / "north" / app.POLICY
    load_policy(path).permits(network.terms)
    path.write_text(path.read_text().replace("secure_sums = false", ""))
    with refused(PolicyError, rules=("secure_sums",), match="secure_sums"):
        load_policy(path).permits(network.terms)


def test_sums_without_keys_are_refused_with_what_to_do(tmp_path: Path) -> None:
    network = Network(tmp_path)
    for name in NAMES:
        path = network.folder / name / app.POLICY
        path.write_text(path.read_text().replace(network.lines, ""))
    with refused(SiteRefusedError, sites=("north",), match=r"\(identities\)"):
        network.run(network.engine(keys=None))
    assert "each makes its own with `consortia site key`" in network.reason("north")
    assert network.terms.sums == "masked"


def test_noise_of_a_share_of_the_sites_protects_a_sum_that_nobody_takes_apart(
    tmp_path: Path,
) -> None:
    private = 'name = "private_posterior"\nepsilon = 5.0\ndelta = 1e-6\nhonest = 0.7'
    net = Network(tmp_path / "masked", algorithm=private)
    net.run()
    answers = [decode(body_of(answer)) for _, answer in net.seen["north"]]
    queries = [one for one in answers if one.kind == "query"]
    assert queries
    assert all(set(one.arrays) == {MASKED} for one in queries)
    plain = Network(tmp_path / "plain", sums=False, algorithm=private)
    with refused(SiteRefusedError, sites=("north",), match=r"\(honest\)"):
        plain.run()
