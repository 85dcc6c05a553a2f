"""A study between institutions is made of a data dictionary: no row decides what it registers."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from cli.irises import invoke

from consortia.errors import SiteMissingError
from consortia.federation.governance import terms_of
from consortia.federation.governance.approved import differences
from consortia.federation.governance.declared import declared_of
from consortia.federation.governance.proposal import proposed
from consortia.federation.rehearsal.stage import Stage
from consortia.study.build import load_study, study_of
from consortia.study.dictionary import made_up, read_dictionary, registration_of
from tests.refusals import refused

COLUMNS = """column,low,high,levels,type,unit
patient,1,99999,,integer,
ill,,,no|yes,,
age,18,98,,,years
dose,0.5,4.5,,number,mg
sex,,,male | female,,
visits,0,10,,integer,
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("columns.csv").write_text(COLUMNS)
    return tmp_path


def init(*more: str) -> tuple[int, str]:
    done = invoke("init", "--dictionary", "columns.csv", "--sites", "north,south", *more)
    return done.exit_code, done.output


def test_init_writes_a_registered_study_of_a_dictionary_alone(folder: Path) -> None:
    code, output = init("--response", "ill")
    assert code == 0, output
    study = load_study(folder / "study.toml")
    assert study.data.files == ["north.csv", "south.csv"]
    assert study.model.formula == "ill ~ age + dose + sex + visits + site"
    assert study.model.options["missing"] == "complete"
    assert study.registered is not None
    assert study.registered.levels == {"sex": ["female", "male"], "response()": ["no", "yes"]}
    numbers = {name: (n.centre, n.scale, n.rows) for name, n in study.registered.numbers.items()}
    # the middle, and a quarter of the distance, of the bounds; of 0 to 10 the law is even
    assert numbers == {
        "age": (58.0, 20.0, None),
        "dose": (2.5, 1.0, None),
        "visits": (5.0, 3.2, None),
    }
    assert "patient: it identifies rows" in output
    text = (folder / "study.toml").read_text()
    assert "rows (" not in text  # no count of what was made up
    assert "moments" not in terms_of(study).messages


def test_the_same_dictionary_makes_the_same_study(folder: Path) -> None:
    init("--response", "ill")
    first = (folder / "study.toml").read_text()
    init("--response", "ill", "--force")
    assert (folder / "study.toml").read_text() == first


def test_register_states_expressions_of_a_dictionary(folder: Path) -> None:
    study = '[data]\nfiles = ["north.csv", "south.csv"]\n[model]\n'
    study += 'formula = "visits ~ log(dose) + age:sex"\nfamily = "poisson"\n'
    study += '[algorithm]\nname = "few_rounds"\n'
    Path("study.toml").write_text(study)
    done = invoke("register", "study.toml", "--dictionary", "columns.csv")
    assert done.exit_code == 0, done.output
    stated = load_study(folder / "study.toml").registered
    assert stated is not None
    rng = np.random.default_rng(0)
    log = np.log(2.5 + np.sqrt(3) * rng.uniform(-1, 1, 100_000))
    centre, scale = stated.numbers["log(dose)"].centre, stated.numbers["log(dose)"].scale
    assert centre == pytest.approx(log.mean(), abs=0.01)
    assert scale == pytest.approx(log.std(), abs=0.01)
    assert stated.numbers["response()"].centre == 5.0
    lacking = study_of(tomllib.loads(study.replace("age:sex", "weight")), folder / "study.toml")
    with refused(argument="formula"):
        registration_of(lacking, read_dictionary(folder / "columns.csv"))


def test_made_up_rows_lie_within_the_bounds_and_have_every_level(folder: Path) -> None:
    entries = read_dictionary(folder / "columns.csv")
    files = made_up(entries, ["north", "south"], folder)
    assert files["north"].read_bytes() != files["south"].read_bytes()
    rows = [line.split(",") for line in files["north"].read_text().split()[1:]]
    columns = dict(zip(entries, zip(*rows, strict=True), strict=True))
    ages, visits = (np.array(columns[name], float) for name in ("age", "visits"))
    assert 18 <= ages.min() < 30
    assert 86 < ages.max() <= 98
    assert set(visits) == set(range(11))
    assert set(columns["sex"]) == {"male", "female"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("column,low", "name,low", "no column is named 'column'"),
        ("18,98", "98,18", "columns.csv, line 4: age: low is 98 and high 18: give low < high"),
        ("18,98", "18,", "line 4: age: give low and high of a number, its levels, or"),
        ("no|yes", "no", "line 3: ill: give two different levels"),
        ("no|yes", "no|no", "line 3: ill: give two different levels"),
        ("age,", "dose,", "line 5: dose: the column has a line already"),
        (
            "0,10,,integer",
            "0.5,10,,integer",
            "line 7: visits: low is 0.5 and high 10: give integers",
        ),
        ("0,10,,integer", "0,10,,whole", "line 7: visits: give its name, and as type one of num"),
        ("0,10,,integer", "0,10,,identifier", "line 7: visits: an identifier has neither levels"),
        ("type,unit", "type,mean", "line 4: age: give both mean and sd, low < mean < high"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(folder: Path, old: str, new: str, words: str) -> None:
    Path("columns.csv").write_text(COLUMNS.replace(old, new))
    code, output = init("--response", "ill")
    assert code == 2
    assert words in " ".join(output.split())
    assert not Path("study.toml").exists()


@pytest.mark.parametrize(("mean", "sd"), [(7, 7), (60, 25), (490, 5)])
def test_a_usual_mean_and_sd_are_those_that_the_study_registers(
    folder: Path, mean: float, sd: float
) -> None:
    crp = f"crp,0,500,,,{mean},{sd}"
    Path("columns.csv").write_text(f"column,low,high,levels,type,mean,sd\nill,,,no|yes,,,\n{crp}\n")
    code, output = init("--response", "ill")
    assert code == 0, output
    registered = load_study(folder / "study.toml").registered
    assert registered is not None
    # quantiles of a law in place of its draws, and two digits: 5 % of an sd
    assert abs(registered.numbers["crp"].centre - mean) < 0.1 * sd
    assert abs(registered.numbers["crp"].scale / sd - 1) < 0.05
    assert registered.ranges["crp"] == [0, 500]
    values = read_dictionary(Path("columns.csv"))["crp"].values(np.random.default_rng(0))
    assert values.min() >= 0
    assert values.max() <= 500
    integer = read_dictionary(Path("columns.csv"))["crp"]._replace(integer=True)
    assert integer.values(np.random.default_rng(0)).dtype.kind == "i"


@pytest.mark.parametrize("pair", ["7,", ",7", "7,x", "7,400", "7,0", "600,7", "0,7"])
def test_a_mean_and_an_sd_that_no_law_between_the_bounds_has_are_refused(
    folder: Path, pair: str
) -> None:
    Path("columns.csv").write_text(f"column,low,high,levels,mean,sd\ncrp,0,500,,{pair}\n")
    with refused(file="columns.csv", line=2, match="crp: .* mean"):
        read_dictionary(Path("columns.csv"))


def test_an_identifier_is_what_patients_with_several_rows_are_called_by(folder: Path) -> None:
    Path("columns.csv").write_text(COLUMNS.replace("1,99999,,integer", ",,,identifier"))
    code, output = init("--response", "visits", "--group", "patient")
    assert code == 0, output
    study = load_study(folder / "study.toml")
    assert study.model.formula.endswith("+ site + (1 | site:patient)")
    assert study.registered is not None
    assert "patient" not in {**study.registered.levels, **study.registered.numbers}
    assert "patient" not in study.registered.ranges
    rows, sexes = ["patient,ill,age,dose,sex,visits"], ("male", "female")
    rows += [
        f"P-{row // 3},no,{28 + row},{1 + row % 4},{sexes[row % 2]},{row % 5}" for row in range(60)
    ]
    for site in ("north", "south"):
        (folder / f"{site}.csv").write_text("\n".join([*rows, ""]))
    built = study.build().regression
    assert built is not None
    assert "sd(Intercept | patient)" in str(built)
    code, output = init("--response", "visits", "--force")
    assert "left out: patient: --group patient writes (1 | site:patient)" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--response", "ill"], "give one TABLE a site; or"),
        (["--dictionary", "columns.csv", "--response", "ill"], "give one TABLE a site; or"),
        (
            ["north.csv", "--dictionary", "columns.csv", "--sites", "a", "--response", "ill"],
            "give one TABLE a site; or",
        ),
        (["--dictionary", "columns.csv", "--sites", "a,a", "--response", "ill"], "given twice"),
        (
            ["--dictionary", "columns.csv", "--sites", "a/b", "--response", "ill"],
            "'a/b' cannot name",
        ),
    ],
)
def test_tables_or_a_dictionary_with_sites(folder: Path, arguments: list[str], words: str) -> None:
    done = invoke("init", *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_register_writes_no_digits_of_the_rows_that_it_reads(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for name in ("north", "south"):
        lines = [f"{age:.3f},{number % 2}" for number, age in enumerate(rng.normal(61, 9, 40))]
        Path(f"{name}.csv").write_text("\n".join(["age,ill", *lines, ""]))
    Path("study.toml").write_text(
        '[data]\nfiles = ["north.csv", "south.csv"]\n[model]\nformula = "ill ~ age"\n'
        'family = "bernoulli"\n[algorithm]\nname = "few_rounds"\n'
    )
    assert invoke("register", "study.toml").exit_code == 0
    study = load_study(folder / "study.toml")
    assert study.registered is not None
    age = study.registered.numbers["age"]
    assert age.scale == pytest.approx(9, rel=0.2)
    assert float(f"{age.scale:.1e}") == age.scale
    assert round(age.centre, 1) == age.centre


def test_a_number_beyond_the_bounds_of_the_dictionary_is_refused_with_its_line(
    folder: Path,
) -> None:
    assert init("--response", "ill")[0] == 0
    study = load_study(folder / "study.toml")
    assert study.registered is not None
    assert study.registered.ranges["visits"] == [0, 10]
    files = made_up(read_dictionary(folder / "columns.csv"), ["north", "south"], folder)
    lines = files["north"].read_text().splitlines()
    head = lines[0].split(",")
    for code, line in (("-9", 3), ("11", 5)):
        cells = lines[line - 1].split(",")
        cells[head.index("visits")] = code
        changed = [*lines[: line - 1], ",".join(cells), *lines[line:]]
        files["north"].write_text("\n".join(changed) + "\n")
        with refused(argument="visits", site="north") as caught:
            study.contribution(files["north"], 0)
        message = str(caught.value)
        assert f"line {line}: visits is {code}; the study registers 0 to 10; outside: 1" in message
        assert f"[harmonise.north.missing_values] visits = [{code}]" in message
    # a code for a missing value is none
    text = (folder / "study.toml").read_text()
    with_code = f"{text}\n[harmonise.north.missing_values]\nvisits = [11]\n"
    Path("study.toml").write_text(with_code)
    load_study(folder / "study.toml").contribution(files["north"], 0)
    for wrong in ("x = [0, 1]", "age = [1, 1]", "age = [0]"):
        Path("study.toml").write_text(
            text.replace("[registered.ranges]", f"[registered.ranges]\n{wrong}").replace(
                "age = [18.0, 98.0]\n", "" if "age" in wrong else "age = [18.0, 98.0]\n"
            )
        )
        with refused(argument=f"registered.ranges.{wrong.split()[0]}"):
            load_study(folder / "study.toml")


def test_copies_of_a_site_s_file_are_read_as_it_is(folder: Path) -> None:
    """What a study says of another site's columns is not so of copies that stand for its file."""
    assert init("--response", "ill")[0] == 0
    with Path("study.toml").open("a") as file:
        file.write('\n[harmonise.south.rename]\n"Dose (mg)" = "dose"\n')
        file.write('[harmonise.north.recode.sex]\nf = "female"\n')
    files = made_up(read_dictionary(folder / "columns.csv"), ["north", "south"], folder)
    files["north"] = files["north"].rename(folder / "north.csv")
    files["south"] = files["south"].rename(folder / "south.csv")
    files["north"].write_text(files["north"].read_text().replace("female", "f"))
    files["south"].write_text(files["south"].read_text().replace("dose", "Dose (mg)", 1))
    study = load_study(folder / "study.toml")
    for index, site in enumerate(("north", "south")):
        assert declared_of(study, files[site], index)[0].usual > 0
        words = "--study", "study.toml", "--two-sites", "--data"
        done = invoke("site", "check", *words, f"{site}.csv")
        assert done.exit_code == 0, done.output
        export = files[site].with_name("export.csv")  # whose name says nothing of the site
        export.write_bytes(files[site].read_bytes())
        named = invoke("site", "check", *words, "export.csv", "--site", site)
        assert named.stdout == done.stdout
        unnamed = invoke("site", "check", *words, "export.csv")
        assert unnamed.exit_code == 2
        assert "the study has the sites north, south, not 'export': give --site" in unnamed.output
        copies = dict.fromkeys(("north", "south"), files[site])
        of_copies = study.of_copies(site)
        assert terms_of(of_copies) == terms_of(study)  # a policy permits both or none
        built = of_copies.build(files=dict(enumerate(copies.values())))
        np.testing.assert_array_equal(built.rows.sizes[0], built.rows.sizes[1])


def test_bounds_with_decimal_commas_have_a_line_that_works(folder: Path) -> None:
    assert init("--response", "ill")[0] == 0
    files = made_up(read_dictionary(folder / "columns.csv"), ["north", "south"], folder)
    head, *rows = [line.split(",") for line in files["north"].read_text().splitlines()]
    rows[1][head.index("dose")] = "-9.5"
    lines = [";".join(cell.replace(".", ",") for cell in row) for row in (head, *rows)]
    files["north"].write_text("\n".join(lines) + "\n")
    with refused(argument="dose", site="north", match="is -9,5") as caught:
        load_study(folder / "study.toml").contribution(files["north"], 0)
    remedy = str(caught.value).split("missing value: ")[1].split("; where")[0]
    table, line = remedy.split("] ")
    with Path("study.toml").open("a") as file:
        file.write(f"\n{table}]\n{line}\n")
    load_study(folder / "study.toml").contribution(files["north"], 0)


def test_a_study_with_other_bounds_is_refused_before_rows_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds that are moved from study to study would find the largest value of a file."""
    assert init("--response", "ill")[0] == 0
    files = made_up(read_dictionary(folder / "columns.csv"), ["north", "south"], folder)
    text = (folder / "study.toml").read_text()
    study = load_study(folder / "study.toml")
    policy = proposed(terms_of(study), two_sites=True, rows=1)
    read = []
    monkeypatch.setattr("consortia.study.formulas.read_table", lambda *_, **__: read.append(1))
    for high in ("9.0", "11.0"):  # a value of 10 is outside, or inside
        Path("other.toml").write_text(
            text.replace("visits = [0.0, 10.0]", f"visits = [0.0, {high}]")
        )
        stage = Stage(folder / "other.toml", files, folder / high, policy)
        with refused(SiteMissingError, sites=("north",), match=r"\(studies"):
            stage.run()
        other = load_study(folder / "other.toml")
        assert f"bounds: visits from 0 to {float(high):g}" in differences(other, [study])
    assert not read


def test_a_registration_without_bounds_has_the_fingerprint_that_it_had(folder: Path) -> None:
    assert init("--response", "ill")[0] == 0
    text = (folder / "study.toml").read_text()
    start, end = text.index("[registered.ranges]"), len(text)
    Path("study.toml").write_text(text[:start] + text[end:])
    stated = load_study(folder / "study.toml")._settings()["registered"]
    assert set(stated) == {"levels", "numbers", "fills"}


def test_rows_left_out_of_a_registered_study_are_counted_where_all_sites_are_here(
    folder: Path,
) -> None:
    assert init("--response", "ill")[0] == 0
    entries = read_dictionary(Path("columns.csv"))
    for site, path in made_up(entries, ["north", "south"], folder).items():
        rows = path.read_text().splitlines()
        if site == "south":
            rows[1] = ",".join(["", *rows[1].split(",")[1:]])
            rows[2] = ",".join([*rows[2].split(",")[:-1], ""])
        Path(f"{site}.csv").write_text("\n".join([*rows, ""]))
    built = load_study(folder / "study.toml").build().regression
    assert built is not None
    # a patient without a name is analysed
    assert "left out: 1 row with missing values (south 1 of 420)" in built.notes
