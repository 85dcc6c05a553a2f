"""Sums of which the server learns nothing but the sum, and what a site refuses."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from consortia.engines.messages import secure_sums
from consortia.engines.messages.fixed_point import MOST_SITES, encoded, largest, sum_of
from consortia.engines.messages.masked import MASKED, PACKED, Layout
from consortia.engines.messages.narrow import Ring, ring_of
from consortia.engines.messages.secure_sums import Key, SumMember
from consortia.errors import PolicyError
from tests.refusals import refused


class Circle:
    """Some sites that have begun a session; their identities stand in every policy."""

    def __init__(self, count: int = 3, session: bytes = b"run 1") -> None:
        self.session, self.study = session, "study 1"
        self.names = [f"site{number}" for number in range(count)]
        self.private = {name: secrets.token_bytes(32) for name in self.names}
        self.identities = {
            name: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
            for name, key in self.private.items()
        }
        self.members = {name: self.begun(name) for name in self.names}
        self.keys = {name: member.key for name, member in self.members.items()}

    def begun(self, name: str, study: str | None = None, rows: bytes = b"rows 1") -> SumMember:
        own = self.study if study is None else study
        return SumMember(name, self.private[name], own, self.private[name] + rows)

    def agreed(self) -> Circle:
        for name in self.names:
            self.agree(name)
        return self

    def agree(self, name: str, keys: Any = None, session: bytes | None = None) -> SumMember:
        own = self.session if session is None else session
        keys = self.keys if keys is None else keys
        self.members[name].agree(keys, self.identities, own)
        return self.members[name]

    def sums(
        self,
        values: dict[str, np.ndarray],
        place: str,
        question: str = "q",
        bounds: dict[str, float] | None = None,
    ) -> np.ndarray:
        left = [
            self.members[name].masked({"sum": values[name]}, place, question, bounds)
            for name in self.names
        ]
        like = {"sum": values[self.names[0]]}
        return Layout.of(like, bounds or {}, len(self.names)).total(left)["sum"]


def masked(member: SumMember, values: np.ndarray, place: str, question: str) -> np.ndarray:
    return member.masked({"sum": values}, place, question)[MASKED]


BOUNDS = {"sum": 2.0**16}


@pytest.mark.parametrize("bounds", [{}, BOUNDS])
@pytest.mark.parametrize("count", [3, 5])
def test_sums_are_the_plain_ones_to_thirty_binary_digits(
    count: int, bounds: dict[str, float]
) -> None:
    circle, rng = Circle(count).agreed(), np.random.default_rng(0)
    values = {name: rng.normal(size=4096) * 1e4 for name in circle.names}
    plain = sum(values.values())
    assert np.abs(circle.sums(values, "query 0", bounds=bounds) - plain).max() <= 2.0**-30


@pytest.mark.parametrize("bounds", [{}, BOUNDS])
def test_no_metropolis_decision_of_many_is_changed(bounds: dict[str, float]) -> None:
    circle, rng = Circle().agreed(), np.random.default_rng(1)
    count = 100_001
    values = {name: rng.normal(size=count).astype(np.float32) for name in circle.names}
    uniform = np.log(rng.random(count - 1))

    def decisions(heights: np.ndarray) -> np.ndarray:
        found, current = np.zeros(count - 1, bool), heights[0]
        for index, level in enumerate(uniform):
            found[index] = level < heights[index + 1] - current
            if found[index]:
                current = heights[index + 1]
        return found

    plain = np.sum([one.astype(np.float64) for one in values.values()], axis=0)
    np.testing.assert_array_equal(
        decisions(circle.sums(values, "query 0", bounds=bounds)), decisions(plain)
    )


def test_a_masked_vector_depends_on_session_place_and_question_and_is_the_same_again() -> None:
    circle, values = Circle().agreed(), np.arange(8.0)
    own = circle.members["site0"]
    first = masked(own, values, "query 0", "q")
    np.testing.assert_array_equal(masked(own, values, "query 0", "q"), first)
    others = [masked(own, values, *asked) for asked in (("query 1", "q"), ("query 0", "r"))]
    others.append(masked(own, values, "query 0q", ""))  # no two sequences of parts are alike
    for other in others:
        assert not (other == first).any()
    again = circle.begun("site0")
    assert again.key == own.key
    again.agree(circle.keys, circle.identities, b"run 2")
    assert not (masked(again, values, "query 0", "q") == first).any()
    with refused(PolicyError, rules=("secure_sums",), match="another beginning"):
        own.agree(circle.keys, circle.identities, b"run 2")
    # Masks are many bits wide whatever is masked.
    assert (first[:, 1] - encoded(values, 3)[:, 1] > 2**40).all()


def test_a_key_of_two_sites_and_one_of_low_order_are_refused_by_name() -> None:
    circle = Circle()
    member = circle.members["site0"]
    for public, words in (
        (circle.keys["site1"].public, "'site1' and 'site2'"),
        (bytes(32), "'site2' .* low order"),
    ):
        signer = Ed25519PrivateKey.generate()
        signature = signer.sign(secure_sums._signed(member._study, "site2", public))
        keys = {**circle.keys, "site2": Key(public, signature)}
        identities = {**circle.identities, "site2": signer.public_key().public_bytes_raw()}
        with refused(PolicyError, rules=("secure_sums",), match=words):
            member.agree(keys, identities, b"run 1")


def test_without_a_site_the_sum_is_noise() -> None:
    circle = Circle().agreed()
    parts = [masked(circle.members[name], np.ones(64), "query 0", "q") for name in circle.names]
    assert (sum_of(parts) == 3).all()
    assert not (np.abs(sum_of(parts[:-1])) < 100).any()


def test_a_server_that_tells_a_site_another_beginning_has_noise() -> None:
    circle = Circle()
    for name in circle.names:
        circle.agree(name, session=b"another" if name == "site1" else None)
    parts = [masked(circle.members[name], np.ones(64), "query 0", "q") for name in circle.names]
    assert not (np.abs(sum_of(parts)) < 100).any()


def test_a_second_vector_for_one_question_is_refused() -> None:
    own = Circle().agreed().members["site0"]
    masked(own, np.ones(4), "query 0", "q")
    with refused(PolicyError, rules=("secure_sums",), match="query 0"):
        masked(own, np.ones(4) + 1e-6, "query 0", "q")


def test_what_is_not_finite_or_too_large_travels_as_that_and_no_sum_wraps() -> None:
    most, sites = largest(3), 3
    values = {
        "site0": np.array([np.nan, np.inf, -np.inf, np.inf, most, -most, most * 0.999, -1e-9]),
        "site1": np.array([1.0, 1.0, 1.0, -np.inf, 1.0, 1.0, most * 0.999, 1e-9]),
        "site2": np.array([-1.0, -1e9, 1e9, 1.0, -1.0, 1.0, most * 0.999, -3.0]),
    }
    found = sum_of([encoded(one, sites) for one in values.values()])
    np.testing.assert_array_equal(found[:6], [np.nan, np.inf, -np.inf, np.nan, np.inf, -np.inf])
    np.testing.assert_allclose(found[6:], [3 * most * 0.999, -3.0], rtol=1e-15, atol=2.0**-36)
    circle = Circle().agreed()
    np.testing.assert_array_equal(circle.sums(values, "query 0"), found)
    with refused(argument="sites", match="255"):
        encoded(np.zeros(1), MOST_SITES + 1)


def ring(sites: int) -> Ring:
    found = ring_of(BOUNDS["sum"], sites)
    assert found is not None
    return found


def test_a_bounded_number_has_the_bits_that_a_sum_needs_and_wraps_at_no_end() -> None:
    most = BOUNDS["sum"]
    assert [ring(sites).bits for sites in (3, 10, 25)] == [52, 57, 61]
    assert ring_of(most, MOST_SITES) is None
    values = {
        "site0": np.array([most, -most, np.nan, np.inf, most * 1.01, 1e-9, most]),
        "site1": np.array([most, -most, -most, np.inf, -most, 1.0, -most]),
        "site2": np.array([most, -most, -most, np.inf, -most, -1.0, 0.5]),
    }
    found = Circle().agreed().sums(values, "query 0", bounds=BOUNDS)
    expected = [3 * most, -3 * most, np.inf, np.inf, np.inf, 1e-9, 0.5]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2.0**-30)


def test_a_number_below_its_bound_is_refused_by_name() -> None:
    own = Circle().agreed().members["site0"]
    for low in (-1.01 * BOUNDS["sum"], -np.inf):
        with refused(PolicyError, rules=("secure_sums",), match="overflow"):
            own.masked({"sum": np.array([1.0, low])}, "query 0", "q", BOUNDS)


def test_a_packed_vector_of_one_site_is_uniform_over_its_ring() -> None:
    own, count = Circle().agreed().members["site0"], 20_000
    left = own.masked({"sum": np.zeros(count)}, "query 0", "q", BOUNDS)
    assert set(left) == {PACKED}
    assert left[PACKED].nbytes == 52 * count // 8
    shares = ring(3).unpacked(left[PACKED], count) / 2.0**52
    # Kolmogorov-Smirnov: keys are new in every run, and one run in a million is farther off.
    assert np.abs(np.sort(shares) - (np.arange(count) + 0.5) / count).max() < 2.7 / count**0.5


def test_sums_over_as_many_sites_as_there_may_be_are_close() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(MOST_SITES, 200))
    found = sum_of([encoded(one, MOST_SITES) for one in values])
    assert np.abs(found - values.sum(axis=0)).max() <= 2.0**-30


def swapped(circle: Circle) -> Any:
    """The server's own key in the place of a site's, under the site's signature."""
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return circle.keys | {"site1": Key(public, circle.keys["site1"].signature)}


def of_another_study(circle: Circle) -> Any:
    return circle.keys | {"site1": circle.begun("site1", "study 0").key}


def of_another_site(circle: Circle) -> Any:
    return circle.keys | {"site1": circle.keys["site2"]}


@pytest.mark.parametrize("keys", [swapped, of_another_study, of_another_site])
def test_a_key_that_its_site_has_not_signed_is_refused(keys: Any) -> None:
    circle = Circle()
    with refused(PolicyError, rules=("secure_sums",), match="'site1'"):
        circle.agree("site0", keys(circle))


def test_a_roster_that_the_policy_does_not_name_or_that_is_small_is_refused() -> None:
    circle = Circle()
    own, two = circle.members["site0"], ("site0", "site1")
    few = {name: circle.keys[name] for name in two}
    with refused(PolicyError, rules=("secure_sums",), match="'site0', 'site1'"):
        circle.agree("site0", few)
    with refused(PolicyError, rules=("secure_sums",), match="are 2.*than 3"):
        own.agree(few, {name: circle.identities[name] for name in two}, circle.session)
    with refused(PolicyError, rules=("secure_sums",), match="no keys"):
        masked(own, np.ones(2), "query 0", "q")


def test_a_restarted_process_answers_with_the_same_bits_and_other_rows_have_another_key() -> None:
    circle, values = Circle().agreed(), np.arange(4.0)
    first = masked(circle.members["site0"], values, "query 0", "q")
    again = circle.begun("site0")  # a new process, or a folder that was put back
    again.agree(circle.keys, circle.identities, circle.session)
    np.testing.assert_array_equal(masked(again, values, "query 0", "q"), first)
    changed = circle.begun("site0", rows=b"rows 2")
    with refused(PolicyError, rules=("secure_sums",), match="'site0'"):
        changed.agree(circle.keys, circle.identities, circle.session)
    with refused(PolicyError, rules=("secure_sums",), match="other keys"):
        circle.agree("site1", circle.keys | {"site0": changed.key})
    # Whoever agreed on its new key has other masks with it.
    circle.members["site0"] = changed
    circle.keys = circle.keys | {"site0": changed.key}
    circle.agree("site0")
    assert not (masked(changed, values, "query 0", "q") == first).any()
