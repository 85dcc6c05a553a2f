"""What a network and its nodes may do to a run: lose, forge, repeat, restart; and who is told."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity import flower_sites

import consortia
from consortia.algorithms.expanding import expanding
from consortia.diagnostics.verdict import prediction_in
from consortia.engines.messages import handshake
from consortia.engines.messages.asking import REFUSAL
from consortia.engines.messages.envelope import Envelope, EnvelopeError, decode
from consortia.engines.messages.stages import QUERY
from consortia.engines.messages.transport import Arrival
from consortia.errors import InputError, NonFiniteError, SiteMissingError, SiteRefusedError
from consortia.theory.bias import Problem, known_law, predict_bias

ROUNDS = 20
SECRET = 48151.62342
"""A value among the data that must not leave."""


@pytest.fixture(scope="module", autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def draws(tree: Any) -> np.ndarray:
    return np.concatenate(
        [
            v.values.reshape(*v.shape[:2], -1)
            for _, v in sorted(tree["posterior"].data_vars.items())
        ],
        axis=2,
    )


def alone(sites: flower_sites.Sites, participation: Any = None, rounds: int = ROUNDS) -> Any:
    engine = consortia.LocalEngine(participation=participation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return consortia.sample(
            sites.model,
            sites.sites,
            sites.method,
            rounds=rounds,
            warmup=sites.warmup,
            chains=sites.chains,
            seed=sites.seed,
            engine=engine,
            progress=False,
        )


def assert_same_draws(one: Any, other: Any) -> None:
    gap = np.abs(draws(one) - draws(other)).max()
    assert gap <= 1e-5 * draws(other).std()


# --- replies that are no good ----------------------------------------------------------------


class Fuzz:
    """Before each good reply in the rounds come bad ones of every kind, and a copy behind it."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(8)
        self.sent = 0
        self.kinds: dict[str, int] = {}
        self.earlier: dict[int, bytes] = {}

    def __call__(self, node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        if decode(request).kind != "round":
            return [good]
        bad = [Arrival(message, node, data) for data in self.damaged(good.payload)]
        bad += [Arrival(message, node, data) for data in self.rewritten(decode(good.payload))]
        other = flower_sites.FIRST_NODE + (node + 1 - flower_sites.FIRST_NODE) % 3
        answer = decode(good.payload)
        moved = {**answer.arrays, "outbox": answer.arrays["outbox"] + 1}
        forged = replace(answer, arrays=moved).encode()  # nothing but its sender is wrong
        bad += [Arrival(message, other, forged), Arrival("message 0", node, good.payload)]
        bad.append(Arrival(message, 77, forged))
        if node in self.earlier:  # an old answer, as if it were to this request
            bad.append(Arrival(message, node, self.earlier[node]))
        self.earlier[node] = good.payload
        self.rng.shuffle(bad)
        self.sent += len(bad) + 1
        return [*bad, good, good]

    def damaged(self, data: bytes) -> list[bytes]:
        place = int(self.rng.integers(len(data)))
        flipped = bytearray(data)
        flipped[place] ^= 1 << int(self.rng.integers(8))
        noise = self.rng.bytes(int(self.rng.integers(200)))
        return [b"", data[:place], data + noise + b"x", bytes(flipped), noise, data[:8] + noise]

    def rewritten(self, good: Envelope) -> list[bytes]:
        """Whole messages, which a site could have made."""
        array = good.arrays["outbox"]
        lost = array.copy()
        lost.flat[int(self.rng.integers(array.size))] = self.rng.choice([np.nan, np.inf])
        other = {**good.arrays, "outbox": array}
        changes: list[dict[str, Any]] = [
            {"arrays": {"outbox": lost}},
            {"arrays": {"outbox": array[:, :1]}},
            {"arrays": {"outbox": array.astype(np.float32)}},
            {"arrays": {"outbox": array.astype(np.int64)}},
            {"arrays": {"outbox": array.reshape(-1)}},
            {"arrays": {}},
            {"arrays": {**other, "more": array}},
            {"arrays": {**other, "not finite: outbox": np.full(array.shape, 9, np.uint8)}},
            {"label": (2, good.label[1] + 1, 0, 0)},
            {"label": (1, *good.label[1:])},
            {"label": ()},
            {"kind": "fit"},
            {"kind": "description"},
            {"run": "0" * 32},
            {"site": "site 99"},
            {"study": "another"},
            {"values": {}},
            {"values": {"request": 7}},
            {"values": {"request": "f" * 64}},
        ]
        return [replace(good, **change).encode() for change in changes]


def test_hundreds_of_bad_replies_are_rejected_and_named_and_the_draws_are_right(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1, warmup=0)
    fuzz = Fuzz()
    over = sites.sampled(sites.engine(fuzz), rounds=ROUNDS)
    assert fuzz.sent > 1500
    assert over.attrs["rejected_replies"] == fuzz.sent
    assert_same_draws(over, alone(sites))
    found = over.attrs["rejected"]
    for kind in ("forged", "late", "replayed", "malformed", "another run", "not finite"):
        assert kind in found, kind
    for number in range(3):
        assert f"site 'site {number}'" in found


def test_a_site_that_answers_nonsense_stops_the_run_and_the_draws_before_are_kept(tmp_path):
    sites = flower_sites.Sites(tmp_path, "federated_hmc", 3, 1, warmup=0)

    def nonsense(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        asked = decode(request)
        if node == flower_sites.FIRST_NODE + 1 and asked.label[:2] == (2, 7):
            return [Arrival(message, node, b"CONSFLWR" + bytes(40))]
        return [good]

    with pytest.raises(SiteMissingError, match=r"'site 1' did not answer .* round 7") as caught:
        sites.sampled(sites.engine(nonsense, deadline=0.5, resend=0.1), rounds=ROUNDS)
    assert draws(caught.value.tree).shape[1] == 7
    whole = flower_sites.Sites(tmp_path / "whole", "federated_hmc", 3, 1, warmup=0)
    np.testing.assert_array_equal(
        draws(caught.value.tree), draws(whole.sampled(rounds=ROUNDS))[:, :7]
    )


# --- chains that leave the finite numbers --------------------------------------------------------

LIMITS = {"north": 1e9, "east": 1.0, "south": 1e9}


def walled(theta: Any, rows: Any) -> Any:
    # 0 · √(limit − θ) is exactly 0 below the limit and NaN above it, and so is its derivative.
    return -0.05 * (theta[0] - 4) ** 2 + 0 * jnp.sqrt(rows["limit"] - theta[0])


def test_a_chain_that_turns_non_finite_stops_the_run_with_site_round_and_earlier_draws(tmp_path):
    model = consortia.Model(lambda theta: -0.5e-3 * jnp.sum(theta**2), walled, jnp.zeros(1))
    shards = [{"limit": np.full(3, limit)} for limit in LIMITS.values()]
    held = consortia.Sites.from_list(shards, names=list(LIMITS))
    sites = flower_sites.Sites(
        tmp_path, "fa_ld", 3, 2, model, held, warmup=0, step_size=0.1, local_steps=1
    )
    failed = {}
    for name, run in {"alone": alone, "over": flower_sites.Sites.sampled}.items():
        with pytest.raises(NonFiniteError, match="first at site 'east'") as caught:
            run(sites, rounds=100)
        failed[name] = caught.value
    over, expected = failed["over"], failed["alone"]
    assert over.round > 3
    assert (over.site, over.round, over.chain) == ("east", expected.round, expected.chain)
    assert f"in round {over.round} " in str(over)
    assert draws(over.tree).shape[1] == over.round
    assert np.isfinite(draws(over.tree)).all()
    assert_same_draws(over.tree, expected.tree)


# --- lost replies, restarts, k of n --------------------------------------------------------------

STATEFUL = {"debias": True, "batch_size": 3}
"""With these a site has a state of its own between two rounds."""


@pytest.mark.engines
def test_a_request_that_comes_again_gets_the_same_bytes_also_after_a_restart(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1, warmup=0, **STATEFUL)
    seen: dict[Any, bytes] = {}

    def lossy(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        number = node - flower_sites.FIRST_NODE
        if (node, request) in seen:
            assert seen[node, request] == good.payload
            return [good]
        seen[node, request] = good.payload
        iteration = (decode(request).label or (0, 0))[1]
        if decode(request).kind != "round" or (iteration + number) % 5:
            return [good]
        if iteration % 2:
            sites.restart(number)
        return []

    over = sites.sampled(sites.engine(lossy, resend=0.05), rounds=ROUNDS)
    assert_same_draws(over, alone(sites))
    assert over.attrs["participation"] == "full"


@pytest.mark.engines
@pytest.mark.parametrize("available", [None, (0.95, 0.8, 0.9)])
def test_a_run_without_some_sites_goes_on_as_it_says_and_is_replayed_in_one_process(
    tmp_path, available
):
    options = {**STATEFUL, "availability": available}
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 2, warmup=3, **options)
    away = {(4, 1), (5, 1), (6, 1), (6, 2), (9, 0), (17, 2)}

    def absent(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        asked = decode(request)
        where = (asked.label[1] if asked.label else -1, node - flower_sites.FIRST_NODE)
        if asked.kind == "round" and where in away:
            return [Arrival(message, 1, None, "the node is not connected")]
        return [good]

    engine = sites.engine(absent, on_missing="continue", minimum_sites=1, resend=0.01)
    over = sites.sampled(engine, rounds=ROUNDS)
    present = over["participation"]["present"].values
    assert {tuple(map(int, one)) for one in np.argwhere(~present)} == away
    assert "at least 1 of 3 sites" in over.attrs["participation"]
    assert_same_draws(over, alone(sites, present))
    # Without the record the chain is another one.
    full = alone(sites)
    assert np.abs(draws(over) - draws(full)).max() > 1e-2 * draws(full).std()


@pytest.mark.engines
def test_a_run_without_some_sites_has_the_forecast_of_those_that_took_part(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    whole = sites.method
    sites.method = expanding(whole)

    def absent(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        asked = decode(request)
        away = asked.kind == "round" and asked.label and asked.label[1] % 3 == 1
        if away and node == flower_sites.FIRST_NODE + 2:
            return [Arrival(message, 1, None, "the node is not connected")]
        return [good]

    engine = sites.engine(absent, on_missing="continue", minimum_sites=1, resend=0.01)
    over = sites.sampled(engine, rounds=ROUNDS)
    present = over["participation"]["present"].values
    known = consortia.LocalEngine(participation=present)
    problem = Problem(sites.model, sites.sites, engine=known)
    # Remote sites have sent the posterior's Gaussian law, and nothing of its skewness.
    expected = known_law(whole, problem).stationary
    forecast = prediction_in(over)
    assert forecast is not None
    assert "skewness" not in forecast.basis
    np.testing.assert_allclose(forecast.shift, expected.mean / problem.near.sd, atol=1e-5)
    np.testing.assert_allclose(forecast.sd_ratio, expected.sd / problem.near.sd, rtol=1e-5)
    everyone = predict_bias(sites.model, sites.sites, whole)
    assert np.abs(forecast.sd_ratio / everyone.sd_ratio - 1).max() > 1e-3


@pytest.mark.engines
def test_a_resumed_run_without_some_sites_says_that_its_forecast_is_not_known(tmp_path):
    sites = flower_sites.Sites(tmp_path / "cut", "fa_hmc", 3, 1)
    sites.method = expanding(sites.method)
    last = []

    def absent(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        asked = decode(request)
        if asked.kind == "round" and asked.label[1] == last[0]:
            return []
        if asked.kind == "round" and asked.label[1] == 4 and node == flower_sites.FIRST_NODE + 2:
            return [Arrival(message, 1, None, "the node is not connected")]
        return [good]

    options = {"on_missing": "continue", "minimum_sites": 1, "deadline": 0.3, "resend": 0.01}
    last.append(13)
    with pytest.raises(SiteMissingError):
        sites.sampled(
            sites.engine(absent, **options), rounds=ROUNDS, store=tmp_path / "run", thin=1
        )
    last[0] = None
    engine = sites.engine(absent, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        parts = sites.model, sites._read(engine), sites.method
        over = consortia.resume(tmp_path / "run", *parts, engine=engine, progress=False)
    assert not over["participation"]["present"].values[4, 2]
    for tree in (over, consortia.open_run(tmp_path / "run")):
        forecast = prediction_in(tree)
        assert forecast.shift is None
        assert "some sites were absent" in forecast.reason


@pytest.mark.engines
def test_too_few_sites_stop_the_run(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1, warmup=0)

    def absent(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        gone = decode(request).label[:2] == (2, 5) and node != flower_sites.FIRST_NODE
        return [Arrival(message, 1, None, "the node is not connected")] if gone else [good]

    engine = sites.engine(absent, on_missing="continue", minimum_sites=2, deadline=0.3, resend=0.05)
    with pytest.raises(SiteMissingError, match="'site 1', 'site 2' did not answer"):
        sites.sampled(engine, rounds=ROUNDS)


@pytest.mark.engines
def test_a_sum_is_never_taken_without_a_site(tmp_path):
    sites = flower_sites.Sites(tmp_path, "federated_hmc", 3, 1, warmup=0)

    def absent(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        gone = decode(request).label[:2] == (2, 5) and node == flower_sites.FIRST_NODE + 2
        return [Arrival(message, 1, None, "the node is not connected")] if gone else [good]

    engine = sites.engine(absent, on_missing="continue", minimum_sites=1, deadline=0.3, resend=0.05)
    with pytest.raises(SiteMissingError, match="'site 2' did not answer") as caught:
        sites.sampled(engine, rounds=ROUNDS)
    assert draws(caught.value.tree).shape[1] == 5


@pytest.mark.parametrize("minimum", [None, 2])
def test_to_go_on_without_sites_must_be_said_in_full(tmp_path, minimum):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    mode = "stop" if minimum else "continue"
    with pytest.raises(InputError, match="minimum_sites and on_missing='continue' need"):
        sites.engine(on_missing=mode, minimum_sites=minimum)


@pytest.mark.engines
@pytest.mark.parametrize("name", ["fa_hmc", "fsgld"])
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(tmp_path, name):
    more = STATEFUL if name == "fa_hmc" else {}
    whole = flower_sites.Sites(tmp_path / "whole", name, 3, 2, warmup=2, **more)
    expected = whole.sampled(rounds=ROUNDS)
    sites = flower_sites.Sites(tmp_path / "cut", name, 3, 2, warmup=2, **more)

    def dies(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        return [] if decode(request).label[:2] == (2, 13) else [good]

    with pytest.raises(SiteMissingError):
        sites.sampled(
            sites.engine(dies, deadline=0.3), rounds=ROUNDS, store=tmp_path / "run", thin=1
        )
    for number in range(3):
        sites.restart(number)
    engine = sites.engine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        again = consortia.resume(
            tmp_path / "run",
            sites.model,
            sites._read(engine),
            sites.method,
            engine=engine,
            progress=False,
        )
    np.testing.assert_array_equal(draws(again), draws(expected))


@pytest.mark.engines
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_of_few_rounds_that_is_cut_at_any_message_has_the_same_draws(tmp_path, every):
    more = {"effective_size": 150, "proposals": 256}
    whole = flower_sites.Sites(tmp_path / "whole", "few_rounds", 3, 2, warmup=0, **more)
    expected = whole.sampled(rounds=20)
    messages = expected.attrs["communication_rounds"]
    assert messages > 2
    # The first, when there is nothing to go on from, one between, and the last, at the draws.
    for cut in range(messages) if every else (0, messages // 2, messages - 1):
        sites = flower_sites.Sites(tmp_path / str(cut), "few_rounds", 3, 2, warmup=0, **more)

        def dies(node: int, message: str, request: bytes, good: Arrival, cut: int = cut) -> Any:
            return [] if decode(request).label[:2] == (QUERY, cut) else [good]

        store = tmp_path / f"run {cut}"
        with pytest.raises(SiteMissingError):
            sites.sampled(sites.engine(dies, deadline=0.3), rounds=20, store=store)
        for number in range(3):
            sites.restart(number)
        engine = sites.engine()
        arguments = (sites.model, sites._read(engine), sites.method)
        again = consortia.resume(store, *arguments, engine=engine, progress=False)
        np.testing.assert_array_equal(draws(again), draws(expected))


# --- who runs what ---------------------------------------------------------------------------


def refusal(sites: flower_sites.Sites) -> str:
    with pytest.raises(SiteRefusedError) as caught:
        sites.sampled(rounds=2)
    assert caught.value.sites == ("site 1",)
    return str(caught.value)


def test_a_site_with_another_study_is_named(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    sites.restart(1, study="a later study")
    assert "another study" in refusal(sites)


def test_a_site_with_another_model_is_named(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    other = consortia.models.logistic_regression(2, intercept=True, prior_scale=3.0)
    sites.restart(1, model=other)
    assert "its model is not that of the server" in refusal(sites)


def test_a_server_that_begins_elsewhere_than_the_study_says_is_refused(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    start = {"coefficients": jnp.full(2, 1e-3), "intercept": jnp.zeros(())}
    with pytest.raises(SiteRefusedError, match="begins elsewhere than seed and init"):
        sites.sampled(rounds=2, init=start)
    assert not any(kind == "round" for gate in sites.gates for kind, _, _ in gate.left)


def test_a_site_that_no_chain_visits_in_a_round_refuses_a_question_of_it(tmp_path):
    sites, asked = flower_sites.Sites(tmp_path, "dsgld", 3, 1), []

    def watch(node: int, name: str, message: bytes, reply: Arrival) -> list[Arrival]:
        if decode(message).kind == "round":
            asked.append((node - flower_sites.FIRST_NODE, decode(message)))
        return [reply]

    sites.sampled(sites.engine(watch), rounds=6)
    site, own = asked[0]
    another = next(request for visited, request in asked if visited != site)
    moved = replace(own, label=another.label)
    assert decode(sites.handlers[site].answer(moved.encode())).kind == REFUSAL
    assert "no chain visits this site" in str(sites.handlers[site].error)
    assert decode(sites.handlers[site].answer(own.encode())).kind == "round"


def test_sites_with_data_of_another_structure_are_named(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    shards = list(sites.sites)
    shards[1] = {"x": shards[1]["x"][:, :1], "y": shards[1]["y"]}
    plain = sites._read

    def read(engine: Any) -> Any:
        names = sites.names
        return consortia.read_sites(shards.__getitem__, names, sites.method, engine)

    sites._read = read
    with pytest.raises(InputError, match="'site 1', leaf 'x': rows of shape"):
        sites.sampled(rounds=2)
    sites._read = plain


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"versions": {"consortia": "0.0.1", "jax": "1", "numpy": "2"}}, "runs consortia 0.0.1"),
        ({"x64": False}, "32 or 64 bits"),
    ],
)
def test_a_site_with_other_versions_is_named(tmp_path, monkeypatch, changed, text):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    own = handshake.description() | changed
    plain = sites.handlers[1]._answer
    monkeypatch.setattr(
        sites.handlers[1],
        "_answer",
        lambda request, *rest, **more: (
            ("description", own, {}, None)
            if request.kind == "description"
            else plain(request, *rest, **more)
        ),
    )
    assert text in refusal(sites)


def test_sites_that_do_not_come_are_named(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    transport = sites.transport()
    transport._sites.pop(flower_sites.FIRST_NODE + 2)
    engine = consortia.FlowerEngine(transport, sites.names, study="study", join_deadline=0.2)
    with pytest.raises(SiteMissingError, match="'site 2' did not answer within 0.2 s"):
        sites.sampled(engine)


# --- what leaves -----------------------------------------------------------------------------


def test_the_text_of_an_exception_stays_at_its_site(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fa_hmc", 3, 1)
    left: list[bytes] = []

    def watched(node: int, message: str, request: bytes, good: Arrival) -> list[Arrival]:
        left.append(good.payload)
        return [good]

    def fails(engine: Any) -> Any:
        raise ValueError(f"row 3 has the value {SECRET}")

    monkey = sites.handlers[1]
    monkey._build = fails
    with pytest.raises(SiteRefusedError, match="the site met an error") as caught:
        sites.sampled(sites.engine(watched))
    for text in (b"48151", b"row 3", b"ValueError"):
        assert not any(text in message for message in left)
    assert "48151" not in str(caught.value)
    assert any("48151" in str(error) for error in sites.gates[1].errors.values())


@pytest.mark.engines
def test_no_row_is_in_what_leaves(tmp_path):
    sites = flower_sites.Sites(tmp_path, "fsgld", 3, 2, warmup=0)
    sites.sampled(rounds=5)
    for gate, rows in zip(sites.gates, sites.sites, strict=True):
        held = {float(value) for value in rows["x"].ravel()}
        for _, _, payload in gate.left:
            for array in decode(payload).arrays.values():
                assert not held & set(array.astype(np.float64).ravel().tolist())


def test_a_message_is_the_same_bytes_when_it_is_read_and_written_again():
    rng = np.random.default_rng(1)
    arrays = {
        "a": rng.normal(size=(3, 0, 2)),
        "b": np.float32(3.5),
        "c": rng.integers(0, 2, (4,)).astype(bool),
        "d": np.arange(5, dtype=">i4"),
    }
    message = Envelope("round", "ab" * 8, "oslo", "x", (2, 1, 0, 0), {"k": [1, None]}, arrays)
    again = decode(message.encode())
    assert again.encode() == message.encode()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    with pytest.raises(EnvelopeError, match="cannot travel"):
        Envelope("round", "ab" * 8, "oslo", "x", arrays={"o": np.array(["text"])}).encode()
