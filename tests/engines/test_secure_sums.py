"""Sums of which the server learns nothing but the sum, and what a site refuses."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortia.errors import PolicyError

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from consortia.engines.flower.secure_sums import (
    Key,
    SumMember,
    fixed_point,
    unmasked,
)


class Circle:
    """Some sites that have begun a session; their identities stand in every policy."""

    def __init__(self, folder: Path, count: int = 3, session: bytes = b"run 1") -> None:
        self.folder, self.session = folder, session
        self.names = [f"site{number}" for number in range(count)]
        self.private = {name: secrets.token_bytes(32) for name in self.names}
        self.identities = {
            name: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw()
            for name, key in self.private.items()
        }
        self.members = {name: self.begun(name) for name in self.names}
        self.keys = {name: member.key for name, member in self.members.items()}

    def begun(self, name: str, session: bytes | None = None) -> SumMember:
        own = self.session if session is None else session
        return SumMember(name, self.private[name], own, self.folder / name)

    def agreed(self) -> Circle:
        for member in self.members.values():
            member.agree(self.keys, self.identities)
        return self

    def sums(self, values: dict[str, np.ndarray], place: str, question: str = "q") -> np.ndarray:
        return unmasked([self.members[n].masked(values[n], place, question) for n in self.names])


@pytest.mark.parametrize("count", [3, 5])
def test_sums_are_the_plain_ones_to_thirty_binary_digits(tmp_path: Path, count: int) -> None:
    circle, rng = Circle(tmp_path, count).agreed(), np.random.default_rng(0)
    values = {name: rng.normal(size=4096) * 1e4 for name in circle.names}
    plain = sum(values.values())
    assert np.abs(circle.sums(values, "query 0") - plain).max() <= 2.0**-30


def test_no_metropolis_decision_of_many_is_changed(tmp_path: Path) -> None:
    circle, rng = Circle(tmp_path).agreed(), np.random.default_rng(1)
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
    np.testing.assert_array_equal(decisions(circle.sums(values, "query 0")), decisions(plain))


def test_a_masked_vector_depends_on_session_place_and_question_and_is_the_same_again(
    tmp_path: Path,
) -> None:
    circle, values = Circle(tmp_path).agreed(), np.arange(8.0)
    own = circle.members["site0"]
    first = own.masked(values, "query 0", "q")
    np.testing.assert_array_equal(own.masked(values, "query 0", "q"), first)
    others = [own.masked(values, *asked) for asked in (("query 1", "q"), ("query 0", "r"))]
    others.append(own.masked(values, "query 0q", ""))  # no two sequences of parts are alike
    for other in others:
        assert not (other == first).any()
    again = Circle(tmp_path / "again", session=b"run 2").agreed()
    assert not (again.members["site0"].masked(values, "query 0", "q") == first).any()
    # Masks are more than half a hundred bits wide whatever is masked.
    assert (first - fixed_point(values, 3) > 2**40).all()


def test_without_a_site_the_sum_is_noise(tmp_path: Path) -> None:
    circle = Circle(tmp_path).agreed()
    parts = [circle.members[name].masked(np.ones(64), "query 0", "q") for name in circle.names]
    assert (unmasked(parts) == 3).all()
    assert (np.abs(unmasked(parts[:-1])) > 100).mean() > 0.9


def test_a_second_vector_for_one_question_is_refused(tmp_path: Path) -> None:
    own = Circle(tmp_path).agreed().members["site0"]
    own.masked(np.ones(4), "query 0", "q")
    with pytest.raises(PolicyError, match="query 0 was answered before with other numbers"):
        own.masked(np.ones(4) + 1e-6, "query 0", "q")


@pytest.mark.parametrize("value", [np.nan, np.inf, -(2.0**31) / 3])
def test_a_number_that_would_wrap_is_refused(tmp_path: Path, value: float) -> None:
    own = Circle(tmp_path).agreed().members["site0"]
    with pytest.raises(PolicyError, match="not finite, or not smaller than"):
        own.masked(np.array([0.0, value]), "query 0", "q")
    assert (fixed_point(np.array([2.0**31 / 3 - 1]), 3) > 0).all()


def swapped(circle: Circle) -> Any:
    """The server's own key in the place of a site's, under the site's signature."""
    public = X25519PrivateKey.generate().public_key().public_bytes_raw()
    return circle.keys | {"site1": Key(public, circle.keys["site1"].signature)}


def of_another_session(circle: Circle) -> Any:
    return circle.keys | {"site1": circle.begun("site1", b"run 0").key}


def of_another_site(circle: Circle) -> Any:
    return circle.keys | {"site1": circle.keys["site2"]}


@pytest.mark.parametrize("keys", [swapped, of_another_session, of_another_site])
def test_a_key_that_its_site_has_not_signed_is_refused(tmp_path: Path, keys: Any) -> None:
    circle = Circle(tmp_path)
    with pytest.raises(PolicyError, match="'site1' is not signed by the identity"):
        circle.members["site0"].agree(keys(circle), circle.identities)


def test_a_roster_that_the_policy_does_not_name_or_that_is_small_is_refused(tmp_path: Path) -> None:
    circle = Circle(tmp_path)
    own, two = circle.members["site0"], ("site0", "site1")
    few = {name: circle.keys[name] for name in two}
    with pytest.raises(PolicyError, match="not those that the policy names"):
        own.agree(few, circle.identities)
    with pytest.raises(PolicyError, match="there are 2 sites, fewer than 3"):
        own.agree(few, {name: circle.identities[name] for name in two})
    with pytest.raises(PolicyError, match="no keys were agreed on"):
        own.masked(np.ones(2), "query 0", "q")


def test_a_session_that_was_begun_is_not_begun_again_nor_joined_by_other_keys(
    tmp_path: Path,
) -> None:
    circle = Circle(tmp_path).agreed()
    # A process that was started anew has no keys, and what it has answered is not known to it.
    with pytest.raises(PolicyError, match="begun before by this site"):
        circle.begun("site0")
    # A folder put back to before the session begins it anew, and the others refuse its new key.
    restored = SumMember("site0", circle.private["site0"], circle.session, tmp_path / "restored")
    keys = circle.keys | {"site0": restored.key}
    with pytest.raises(PolicyError, match="other keys were agreed on before"):
        circle.members["site1"].agree(keys, circle.identities)
    with pytest.raises(PolicyError, match="secure sums: the key of 'site0' is not its own"):
        restored.agree(circle.keys, circle.identities)
