"""Loaders, their checksums and the cache, and what prepares the rows."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from consortia.data import datasets, downloads
from consortia.data.downloads import RemoteFile, read_file
from consortia.errors import ConsortiaError
from tests.refusals import refused

BUNDLED = [name for name, info in datasets.AVAILABLE.items() if info.bundled]
ON_DISK = [name for name, info in datasets.AVAILABLE.items() if not info.bundled]


def load(name: str) -> datasets.Dataset:
    try:
        return datasets.load(name)
    except datasets.DatasetMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """An empty data directory and an empty cache, both in use."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    monkeypatch.setenv("CONSORTIA_DATA", str(data))
    monkeypatch.setenv("CONSORTIA_CACHE", str(cache))
    return data, cache


CONTENT = b"published content\n"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of a server on this machine that publishes the folder ``origin``."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "origin"
    folder.mkdir()
    (folder / "rows.txt").write_bytes(CONTENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def published_file(**changes: object) -> RemoteFile:
    fields = {
        "folder": "demo",
        "name": "rows.txt",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "address": "http://127.0.0.1/rows.txt",
    }
    return RemoteFile(**{**fields, **changes})  # type: ignore[arg-type]


# --- the sets ----------------------------------------------------------------------------------

EXPECTED = {
    "fashion_mnist": ((60000, 28, 28), 10, (10000, 28, 28)),
    "mnist": ((60000, 28, 28), 10, (10000, 28, 28)),
    "kmnist": (None, 10, (10000, 28, 28)),
    "a9a": ((32561, 123), 2, (16281, 123)),
    "boston": ((506, 13), None, None),
    "isolet": ((1560, 617), 26, None),
    "cifar2": ((10000, 32, 32, 3), 2, (2000, 32, 32, 3)),
    "cifar10": ((50000, 32, 32, 3), 10, (10000, 32, 32, 3)),
    "breast_cancer": ((569, 30), 2, None),
    "digits": ((1797, 64), 10, None),
    "wine": ((178, 13), 3, None),
    "diabetes": ((442, 10), None, None),
    "iris": ((150, 4), 3, None),
}


# Of 60,000 photographs all are decoded.
DECODED = pytest.param("cifar10", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [DECODED if name == "cifar10" else name for name in EXPECTED])
def test_a_set_has_the_published_shapes_names_and_classes(name: str) -> None:
    data = load(name)
    train_shape, classes, test_shape = EXPECTED[name]
    for part, shape in ((data.train, train_shape), (data.test, test_shape)):
        assert (part is None) == (shape is None)
        if part is not None:
            assert part["x"].shape == shape
            assert part["y"].shape == shape[:1]
            assert np.isfinite(part["x"]).all()
            if classes is not None:
                assert set(np.unique(part["y"])) == set(range(classes))
    assert len(data.target_names) == (classes or 1)
    if data.rows["x"].ndim == 2:
        assert len(data.feature_names) == data.rows["x"].shape[1]
    assert data.name == name
    assert data.source.startswith("http")
    assert data.licence


def test_every_set_in_the_table_has_its_expected_shape_here() -> None:
    assert set(EXPECTED) == set(datasets.AVAILABLE)


@pytest.mark.parametrize(
    ("name", "train_mean", "test_mean"),
    [("fashion_mnist", 72.9404, 73.1466), ("mnist", 33.3184, 33.7912), ("kmnist", None, 47.0620)],
)
def test_pixels_have_the_published_means(
    name: str, train_mean: float | None, test_mean: float
) -> None:
    data = load(name)
    assert data.test is not None
    # The means are known to four decimals.
    assert data.test["x"].mean() == pytest.approx(test_mean, abs=5e-5)
    if train_mean is not None:
        assert data.train is not None
        assert data.train["x"].mean() == pytest.approx(train_mean, abs=5e-5)


def test_a9a_has_the_published_counts() -> None:
    data = load("a9a")
    assert data.train is not None
    assert data.test is not None
    assert int(data.train["y"].sum()) == 7841
    assert int(data.test["y"].sum()) == 3846
    assert data.train["x"].sum(dtype=int) == 451592
    assert data.test["x"].sum(dtype=int) == 225731
    assert not data.test["x"][:, 122].any()  # feature 123 occurs in one train row only
    assert data.train["x"][:, 122].sum() == 1


def test_boston_targets_have_the_published_mean() -> None:
    assert load("boston").rows["y"].mean() == pytest.approx(22.5328, abs=5e-5)


def test_kmnist_train_images_are_asked_for_by_name(places: tuple[Path, Path]) -> None:
    with refused(datasets.DatasetMissing, file="train-images-idx3-ubyte.gz"):
        datasets.kmnist(test_only=False)


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with refused(argument="name", match="'iris2': .*iris"):
        datasets.load("iris2")


# --- where files come from ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ON_DISK)
def test_an_absent_set_says_its_name_the_variable_and_the_address(
    name: str, places: tuple[Path, Path]
) -> None:
    with pytest.raises(datasets.DatasetMissing, match=f"{name}.*CONSORTIA_DATA.*http") as caught:
        datasets.load(name)
    assert caught.value.file is not None
    assert isinstance(caught.value, ConsortiaError)
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_sets_need_no_place(name: str, places: tuple[Path, Path]) -> None:
    assert datasets.load(name).train is not None


@pytest.mark.parametrize("name", datasets.CARRIED)
def test_a_file_that_scikit_learn_carries_is_read_as_it_reads_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = datasets._from_file(name)
    assert own is not None
    monkeypatch.setitem(datasets.CARRIED, name, ("another.csv", None))
    other = datasets.load(name)
    for key, values in other.rows.items():
        np.testing.assert_array_equal(own.rows[key], values)
        assert own.rows[key].dtype == values.dtype
        assert own.rows[key].flags.c_contiguous == values.flags.c_contiguous
    assert (own.feature_names, own.target_names) == (other.feature_names, other.target_names)


def test_the_data_directory_comes_before_the_cache(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    file = published_file()
    for place in places:
        (place / "demo").mkdir(parents=True)
    (places[1] / "demo" / "rows.txt").write_bytes(b"wrong")
    (places[0] / "demo" / "rows.txt").write_bytes(CONTENT)
    assert read_file(file) == CONTENT


def test_nothing_is_downloaded_unless_asked(places: tuple[Path, Path], tmp_path: Path) -> None:
    with refused(datasets.DatasetMissing, file="rows.txt", match="download=True"):
        read_file(published_file())
    assert not places[1].exists()


def test_a_download_goes_to_the_cache_and_is_read_from_there(
    places: tuple[Path, Path], origin: str, tmp_path: Path
) -> None:
    file = published_file(address=f"{origin}/rows.txt")
    assert read_file(file, download=True) == CONTENT
    assert [path.name for path in (places[1] / "demo").iterdir()] == ["rows.txt"]
    (tmp_path / "origin" / "rows.txt").unlink()
    assert read_file(file) == CONTENT


@pytest.mark.parametrize("content", ["file", "gzip"])
def test_a_wrong_download_is_refused_and_not_kept(
    places: tuple[Path, Path], origin: str, content: str
) -> None:
    file = published_file(sha256="0" * 64, address=f"{origin}/rows.txt", content=content)
    reason = {"file": "is not the published", "gzip": "is damaged"}[content]
    with refused(datasets.DatasetCorrupted, file="rows.txt", match=f"http:.* {reason}"):
        read_file(file, download=True)
    assert not [path for path in places[1].rglob("*") if path.is_file()]


def test_a_failed_download_is_a_missing_set_with_the_reason(
    places: tuple[Path, Path], origin: str
) -> None:
    file = published_file(address=f"{origin}/nowhere")
    with refused(datasets.DatasetMissing, file="rows.txt", match="http:.* failed .*404.*where"):
        read_file(file, download=True)
    assert not [path for path in places[1].rglob("*") if path.is_file()]


def test_a_file_without_an_address_says_what_it_holds(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    file = published_file(address=None, origin="It holds rows.")
    with refused(datasets.DatasetMissing, file="rows.txt", match="It holds rows"):
        read_file(file, download=True)


@pytest.mark.parametrize("place", [0, 1])
def test_a_tampered_file_is_refused_with_its_path_and_both_checksums(
    place: int, places: tuple[Path, Path], tmp_path: Path
) -> None:
    file = published_file()
    path = places[place] / "demo" / "rows.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT + b"!")
    found = hashlib.sha256(CONTENT + b"!").hexdigest()
    with refused(datasets.DatasetCorrupted, file="rows.txt") as caught:
        read_file(file)
    for part in (str(path), file.sha256, found):
        assert part in str(caught.value)


def test_one_changed_byte_of_a_real_set_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    try:
        raw = bytearray(read_file(datasets.HOUSING))
    except datasets.DatasetMissing as error:
        pytest.skip(str(error))
    raw[1000] ^= 1
    monkeypatch.setenv("CONSORTIA_DATA", str(tmp_path))
    (tmp_path / "boston").mkdir()
    (tmp_path / "boston" / "housing.data").write_bytes(raw)
    with refused(datasets.DatasetCorrupted, file="housing.data", match="expected baadf729"):
        datasets.load("boston")


def test_a_gzip_checksum_ignores_the_header_and_notices_the_content(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    file = published_file(content="gzip")
    path = places[0] / "demo" / "rows.txt"
    path.parent.mkdir()
    for time in (1, 2):
        path.write_bytes(gzip.compress(CONTENT, mtime=time))
        assert gzip.decompress(read_file(file)) == CONTENT
    path.write_bytes(gzip.compress(b"other"))
    with refused(datasets.DatasetCorrupted, file="rows.txt", match="sha256"):
        read_file(file)
    for damaged in (b"no gzip at all", gzip.compress(CONTENT)[:-9]):
        path.write_bytes(damaged)
        with refused(datasets.DatasetCorrupted, file="rows.txt", match="is damaged"):
            read_file(file)


def npz(save: Callable[..., None], **arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def test_an_npz_checksum_ignores_the_compression_and_never_unpickles(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    a, b = np.arange(3), np.ones((2, 2), np.uint8)
    checksum = hashlib.sha256(a.tobytes() + b.tobytes()).hexdigest()
    file = published_file(content="npz", sha256=checksum)
    path = places[0] / "demo" / "rows.txt"
    path.parent.mkdir()
    for save in (np.savez, np.savez_compressed):
        path.write_bytes(npz(save, b=b, a=a))
        assert read_file(file)
    path.write_bytes(npz(np.savez, a=a, b=b + 1))
    with refused(datasets.DatasetCorrupted, file="rows.txt", match="sha256"):
        read_file(file)
    for damaged in (b"text", npz(np.savez, a=np.array([{}], dtype=object))):
        path.write_bytes(damaged)
        with refused(datasets.DatasetCorrupted, file="rows.txt", match="is damaged"):
            read_file(file)


def test_the_cache_directory_follows_the_variable_then_the_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CONSORTIA_CACHE", str(tmp_path))
    assert downloads.cache_directory() == tmp_path
    monkeypatch.delenv("CONSORTIA_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform != "linux":
        return
    assert downloads.cache_directory() == tmp_path / "xdg" / "consortia"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert downloads.cache_directory() == tmp_path / ".cache" / "consortia"


# --- preparing rows ----------------------------------------------------------------------------


def test_standardise_uses_the_statistics_of_the_train_rows() -> None:
    generator = np.random.default_rng(0)
    train = {"x": generator.normal(3, 2, (50, 4)), "y": np.zeros(50)}
    test = {"x": generator.normal(3, 2, (20, 4)), "y": np.ones(20)}
    new_train, new_test = datasets.standardise(train, test)
    # Rounding of 50 additions.
    np.testing.assert_allclose(new_train["x"].mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(new_train["x"].std(axis=0), 1, rtol=1e-14)
    expected = (test["x"] - train["x"].mean(axis=0)) / train["x"].std(axis=0)
    np.testing.assert_allclose(new_test["x"], expected, rtol=1e-12, atol=1e-14)
    assert new_test["y"] is test["y"]
    assert datasets.standardise(train)[1] is None


def test_standardise_takes_a_constant_column_to_zero() -> None:
    x = np.stack([np.full(7, 0.1), np.arange(7.0)], axis=1)
    train, test = datasets.standardise({"x": x}, {"x": x + 1})
    np.testing.assert_array_equal(train["x"][:, 0], 0)
    np.testing.assert_array_equal(test["x"][:, 0], 1)


@pytest.mark.parametrize(
    ("given", "result"), [(np.float32, np.float32), (np.uint8, np.float64), (float, float)]
)
def test_standardise_keeps_float32_and_else_gives_float64(given: type, result: type) -> None:
    train, _ = datasets.standardise({"x": np.arange(6).reshape(3, 2).astype(given)})
    assert train["x"].dtype == result


def test_with_intercept_adds_ones_behind_and_keeps_the_type() -> None:
    arrays = {"x": np.zeros((3, 2), np.uint8), "y": np.arange(3)}
    x = datasets.with_intercept(arrays)["x"]
    assert x.dtype == np.uint8
    np.testing.assert_array_equal(x, [[0, 0, 1]] * 3)


def test_images_become_rows_of_scaled_pixels_and_a_one() -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2) * 20
    rows = datasets.images_to_rows({"x": images, "y": np.arange(3)})
    assert rows["x"].dtype == np.float32
    # float32 holds 1/255 to a relative 6e-8.
    np.testing.assert_allclose(rows["x"][:, :4], images.reshape(3, 4) / 255, rtol=2e-7)
    np.testing.assert_array_equal(rows["x"][:, 4], 1)
    assert datasets.images_to_rows({"x": images}, scale=1.0, intercept=False)["x"].shape == (3, 4)


def test_train_test_split_deals_every_row_to_one_part() -> None:
    arrays = {"x": np.arange(50.0)[:, None], "y": np.arange(50)}
    train, test = datasets.train_test_split(arrays, test_share=0.3, seed=1)
    assert len(test["y"]) == 15
    assert sorted([*train["y"], *test["y"]]) == list(range(50))
    np.testing.assert_array_equal(train["x"][:, 0], train["y"])
    again, _ = datasets.train_test_split(arrays, test_share=0.3, seed=1)
    other, _ = datasets.train_test_split(arrays, test_share=0.3, seed=2)
    np.testing.assert_array_equal(train["y"], again["y"])
    assert not np.array_equal(train["y"], other["y"])


@pytest.mark.parametrize(
    ("call", "argument", "match"),
    [
        (lambda: datasets.standardise({"y": np.ones(3)}), "train", "has no x"),
        (lambda: datasets.standardise({"x": np.ones((3, 2, 2))}), "train", "images_to_rows"),
        (
            lambda: datasets.standardise({"x": np.ones((3, 2))}, {"x": np.ones((3, 3))}),
            "test",
            "x has 3 .* 2",
        ),
        (lambda: datasets.with_intercept({}), "arrays", "no x"),
        (lambda: datasets.images_to_rows({"x": np.ones((2, 2))}, scale=0.0), "scale", "scale is 0"),
        (
            lambda: datasets.train_test_split(np.ones(3), test_share=1.0, seed=0),
            "test_share",
            "is 1.0",
        ),
        (
            lambda: datasets.train_test_split(np.ones(3), test_share=0.1, seed=0),
            "test_share",
            "leaves one part empty",
        ),
        (
            lambda: datasets.train_test_split(np.ones(3), test_share=0.5, seed=-2),
            "seed",
            "seed is -2",
        ),
    ],
)
def test_what_cannot_be_prepared_is_refused(
    call: Callable, argument: str | None, match: str | None
) -> None:
    with refused(argument=argument, match=match):
        call()


def test_standardise_leaves_indices_and_categories_alone_unless_they_are_named() -> None:
    x = np.column_stack([np.arange(6) / 7, np.tile([0.0, 1.0, 2.0], 2), np.full(6, 3.0)])
    train, _ = datasets.standardise({"x": x})
    np.testing.assert_array_equal(train["x"][:, 1], x[:, 1])
    np.testing.assert_allclose(train["x"][:, 0].std(), 1.0)
    np.testing.assert_array_equal(train["x"][:, 2], 0.0)
    named, _ = datasets.standardise({"x": x}, columns=[1])
    np.testing.assert_allclose(named["x"][:, 1].std(), 1.0)
    np.testing.assert_array_equal(named["x"][:, 0], x[:, 0])
    with refused(argument="columns"):
        datasets.standardise({"x": x}, columns=[3])


def test_a_data_set_shows_its_columns_and_no_numbers():
    lines = repr(datasets.load("breast_cancer")).splitlines()
    assert lines[0].startswith("breast_cancer, from ")
    assert lines[1] == "train: x (569, 30) float64, y (569,) int64"
    assert lines[2].startswith("features: mean radius, mean texture, ")
    assert lines[2].endswith(", ...")
    assert len(lines) == 4
