"""Moments of columns of which the coordinator learns those of all sites together."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from consortia.data.facts import SiteFacts
from consortia.engines.messages.engine import MessageEngine
from consortia.engines.messages.envelope import decode
from consortia.engines.messages.identities import (
    body_of,
    coordinator_ring,
    lines_of,
    made_keys,
    public_of,
    read_identity,
)
from consortia.engines.messages.pooled import MOMENTS
from consortia.engines.messages.transport import InProcess
from consortia.errors import InputError, SiteMissingError, SiteRefusedError
from consortia.federation import app
from consortia.federation.governance import terms_of
from consortia.federation.governance.proposal import proposed
from consortia.study.build import load_study
from tests.refusals import refused

NAMES = ("north", "south", "west")
STUDY = """[data]
files = [{files}]
[model]
formula = "{formula}"
family = "{family}"
{of_model}
[algorithm]
name = "{algorithm}"
{more}
"""
SHIFTS = dict(zip(NAMES, (-3.0, 0.0, 4.0), strict=True))


def rows_of(name: str, *, ill: int = 40, glucose: float = 1.0) -> np.ndarray:
    """Return age, glucose and the response of 200 patients, of whom so many are ill."""
    rng = np.random.default_rng(NAMES.index(name))
    age = rng.normal(60 + SHIFTS[name], 9, 200).round(1)
    sugar = rng.normal(5.5, 0.8, 200).round(2) * glucose
    return np.column_stack([age, sugar, rng.permutation(np.arange(200) < ill)])


class Network:
    """Sites of one process with keys, policies and ledgers; ``seen`` is what each has answered."""

    def __init__(
        self,
        folder: Path,
        rows: dict[str, np.ndarray] | None = None,
        *,
        formula: str = "ill ~ age + glucose",
        more: str = "",
        of_model: str = "",
        family: str = "bernoulli",
        algorithm: str = "few_rounds",
        names: tuple[str, ...] = NAMES,
        known: tuple[str, ...] = (),
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.names, path = folder, names, folder / "study.toml"
        files = ", ".join(f'"{name}.csv"' for name in names)
        parts = {
            "formula": formula,
            "algorithm": algorithm,
            "more": more,
            "of_model": of_model,
            "family": family,
        }
        path.write_text(STUDY.format(files=files, **parts))
        for name in names:
            self.write(name, rows_of(name) if rows is None else rows[name])
        self.study = load_study(path)
        self.terms = terms_of(self.study)
        everybody = (*names, *known)
        lines = made_keys(folder / "server", {name: folder / name for name in everybody})
        self.ring = coordinator_ring(folder / "server")
        for name in names:
            policy = proposed(self.terms, two_sites=True)
            (folder / name / app.POLICY).write_text(policy + lines)
        self.sites = {name: self.site(name) for name in names}
        self.seen: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in names}

    def write(self, name: str, rows: np.ndarray) -> None:
        head = "age,glucose,ill"
        np.savetxt(self.folder / f"{name}.csv", rows, "%.10g", ",", header=head, comments="")

    def site(self, name: str) -> Any:
        node = {"site": name, "data": str(self.folder / f"{name}.csv")}
        return app.site_of(self.study, node | {"folder": str(self.folder / name)}, {})

    def answer(self, name: str, message: bytes) -> bytes:
        answer = self.sites[name].answer(message)
        self.seen[name].append((message, answer))
        return answer

    def built(self, run: str = "ab" * 16) -> Any:
        sites = {n: functools.partial(self.answer, name) for n, name in enumerate(self.names)}
        options: dict[str, Any] = {"keys": self.ring, "deadline": 3.0, "run": run}
        engine = MessageEngine(InProcess(sites), self.names, study=self.terms.study, **options)
        return self.study.build(engine)

    def units(self) -> dict[str, Any]:
        return dict(self.built().regression.specification.units)

    def told(self, name: str, of: int = -1) -> tuple[SiteFacts, Any]:
        values = decode(body_of(self.seen[name][of][1])).values
        return SiteFacts.read(values["facts"]), values.get(MOMENTS)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    network = Network(tmp_path_factory.mktemp("masked"))
    network.built()
    return network


def test_units_are_those_of_the_rounded_moments_of_all(network: Network) -> None:
    units = network.units()
    pooled = np.concatenate([rows_of(name) for name in NAMES])
    for column, name in enumerate(("age", "glucose", "response()")):
        sd = pooled[:, column].std()
        assert units[name].mean == pytest.approx(pooled[:, column].mean(), abs=0.05 * sd)
        assert units[name].sd == pytest.approx(sd, rel=0.05)
        assert units[name].rows == 600


def test_no_site_tells_how_many_are_ill(tmp_path: Path) -> None:
    networks = [
        Network(tmp_path / str(number), {n: rows_of(n, ill=ill) for n, ill in counts.items()})
        for number, counts in enumerate(
            [dict(zip(NAMES, ill, strict=True)) for ill in ((20, 60, 40), (60, 20, 40))]
        )
    ]
    units = [network.units() for network in networks]
    assert units[0] == units[1]
    for name in NAMES:
        tables = [network.told(name)[0].table for network in networks]
        assert tables[0] is not None
        assert tables[0] == tables[1]
        assert tables[0].moments["response()"][1:3] == [0.5, 50.0]  # of two codes, the lower one
        assert all(network.told(name)[0].pooled == {} for network in networks)


def test_two_of_three_answers_add_up_to_noise_and_another_run_has_other_masks(
    network: Network,
) -> None:
    every = [network.told(name)[1] for name in NAMES]
    digits = {
        text for masked in every for columns in masked for v in columns.values() for text in v
    }
    assert len(digits) == 3 * 3 * 3
    highest = [int(text[:16], 16) / 16**16 for text in digits]
    assert min(highest) < 0.3
    assert max(highest) > 0.7
    network.built(run="cd" * 16)
    again = [network.told(name)[1] for name in NAMES]
    for masked, other in itertools.product(every, again):
        for name, values in masked[0].items():
            assert not {*values} & {*other[0][name]}


def test_the_same_question_has_the_same_answer_and_changed_rows_have_none(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.built()
    question, answer = network.seen["west"][0]
    assert network.site("west").answer(question) == answer
    rows = rows_of("west")
    rows[:40, 0] += 1
    network.write("west", rows)
    refusal = decode(body_of(network.site("west").answer(question)))
    assert refusal.kind == "refusal"


def test_the_ledger_alone_refuses_another_answer(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.built()
    question, answer = network.seen["west"][0]
    for note in (tmp_path / "west" / "runs").rglob("moments.bin"):
        note.unlink()
    assert network.site("west").answer(question) == answer
    for note in (tmp_path / "west" / "runs").rglob("moments.bin"):
        note.unlink()
    rows = rows_of("west")
    rows[:40, 0] += 20  # so that rounding does not hide it
    network.write("west", rows)
    assert decode(body_of(network.site("west").answer(question))).kind == "refusal"
    assert "answered before with other numbers" in (tmp_path / "west" / "errors.log").read_text()


def test_rows_of_the_second_model_of_a_comparison_do_not_change_either(tmp_path: Path) -> None:
    more = '[compare]\nformula = "ill ~ glucose"\n[run]\nloo = true'
    network = Network(tmp_path, formula="ill ~ age", more=more)
    network.study = network.study.left_out
    network.terms = terms_of(network.study)
    for name in NAMES:
        path = tmp_path / name / app.POLICY
        keys = path.read_text()[path.read_text().rindex("coordinator = ") :]
        path.write_text(proposed(network.terms) + keys)
    network.sites = {name: network.site(name) for name in NAMES}
    network.built()
    question, _ = network.seen["west"][0]
    assert network.told("west")[0].beside is not None
    rows = rows_of("west")
    rows[:40, 1] += 1
    network.write("west", rows)
    assert decode(body_of(network.site("west").answer(question))).kind == "refusal"


def test_terms_that_are_no_columns_show_nothing(tmp_path: Path) -> None:
    """Several roundings of one column would tell together how many are ill."""
    formula = "age ~ " + " + ".join(f"I(ill / {k})" for k in range(3, 9)) + " + log(glucose)"
    facts = []
    for ill in (40, 57):
        rows = {name: rows_of(name, ill=ill) for name in NAMES}
        network = Network(tmp_path / str(ill), rows, formula=formula, family="gaussian")
        network.built()
        table = network.told("north")[0].table
        assert table is not None
        facts.append({n: v for n, v in table.moments.items() if n != "response()"})
    assert facts[0] == facts[1]
    assert {tuple(plain) for plain in facts[0].values()} == {(200, 0.0, 200.0, False, 0.0, True)}


def test_a_site_without_events_shows_what_others_do(tmp_path: Path) -> None:
    shown = []
    for ill in (0, 40, 200):
        counts = {name: ill if name == "north" else 40 for name in NAMES}
        rows = {name: rows_of(name, ill=count) for name, count in counts.items()}
        network = Network(tmp_path / str(ill), rows)
        network.built()
        table = network.told("north")[0].table
        assert table is not None
        shown.append(table.moments["response()"])
    assert shown == [[200, 0.5, 50.0, False, 0.0, True]] * 3


def test_masks_that_do_not_cancel_are_no_moments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consortia.engines.messages import pooled

    original, calls = pooled.mask_bytes, itertools.count()

    def other(pair: bytes, asked: bytes, count: int) -> bytes:
        return original(pair, asked + bytes([next(calls) == 3]), count)

    monkeypatch.setattr(pooled, "mask_bytes", other)
    with pytest.raises(InputError, match="cannot be added"):
        Network(tmp_path).built()


def test_another_unit_is_doubted_as_before(tmp_path: Path) -> None:
    rows = {name: rows_of(name, glucose=18.0 if name == "south" else 1.0) for name in NAMES}
    made = Network(tmp_path, rows).built().regression
    assert [(guess.column, guess.text.split(":")[0]) for guess in made.readings] == [
        ("glucose", "south")
    ]
    codes = {name: rows_of(name) for name in NAMES}
    for name, table in codes.items():
        table[:, 1] = (table[:, 0] > 60) + 1.0 * (name == "west")
    made = Network(tmp_path / "codes", codes).built().regression
    assert [guess.text for guess in made.readings] == [
        "west: glucose is 1 or 2 in all rows, and 0 or 1 at north"
    ]


def test_a_column_that_a_site_lacks_is_masked_as_nothing(tmp_path: Path) -> None:
    rows = {name: rows_of(name) for name in NAMES}
    rows["west"][:, 1] = np.nan
    network = Network(tmp_path, rows, of_model='missing = "indicator"')
    assert network.units()["glucose"].rows == 400
    facts, masked = network.told("west")
    assert facts.table is not None
    assert "glucose" not in facts.table.moments
    assert "glucose" in masked[0]


def test_sites_of_other_methods_and_with_more_partners_mask_them_too(tmp_path: Path) -> None:
    more = "step_size = 0.1\nlocal_steps = 2\n[run]\nrounds = 10"
    parts = {"algorithm": "fa_ld", "more": more, "known": ("east",)}
    network = Network(tmp_path, **parts)
    assert network.terms.sums != "masked"
    assert network.units()["age"].rows == 600
    assert network.told("north")[1]


def test_of_two_sites_each_would_compute_the_other_s(tmp_path: Path) -> None:
    network = Network(tmp_path, names=NAMES[:2])
    assert network.units()["age"].rows == 400
    facts, masked = network.told("north")
    assert masked is None
    assert facts.table is not None
    assert facts.table.moments["response()"][1] == 0.2


def test_no_site_gives_the_moments_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(tmp_path, names=NAMES[:2])
    site = network.sites["north"]
    own = site._own
    plain = [400, 1.0, 2.0, False, 0.0, False]
    monkeypatch.setattr(site, "_own", lambda facts: replace(own(facts), pooled={"age": plain}))
    with refused(SiteMissingError, sites=("north",), match="moments of all sites"):
        network.built()


def test_a_site_that_does_not_know_the_others_is_named(tmp_path: Path) -> None:
    more = "step_size = 0.1\nlocal_steps = 2\n[run]\nrounds = 10"
    network = Network(tmp_path, algorithm="fa_ld", more=more)
    keys = {"north": network.ring.sites["north"]}
    coordinator = public_of(read_identity(tmp_path / "server"))
    policy = proposed(network.terms) + lines_of(coordinator, keys)
    (tmp_path / "north" / app.POLICY).write_text(policy)
    with refused(SiteRefusedError, sites=("north",), match="masked moments"):
        network.built()


def test_a_study_with_a_site_that_the_policy_does_not_know_gets_nothing(tmp_path: Path) -> None:
    network = Network(tmp_path)
    keys = {name: key for name, key in network.ring.sites.items() if name != "west"}
    coordinator = public_of(read_identity(tmp_path / "server"))
    policy = proposed(network.terms) + lines_of(coordinator, keys)
    (tmp_path / "north" / app.POLICY).write_text(policy)
    with refused(SiteRefusedError, sites=("north",), match="identities"):
        network.built()
