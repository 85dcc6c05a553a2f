"""The rules of English over the package, its pages and its guides, and over commit subjects."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.commit_subject import complaints
from scripts.english import ROOT, checked_files, offences


@pytest.mark.lint
def test_the_package_its_pages_and_its_guides_have_no_offence() -> None:
    found = [offence for path in checked_files() for offence in offences(path)]
    assert not found, "\n".join(map(str, found))


def test_an_offence_planted_in_the_tree_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("scripts.english.ROOT", tmp_path)
    for name in ("README.md", "CONTRIBUTING.md", "src/good.py", "docs/good.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('"""Rows of a site."""\n', encoding="utf-8")
    (tmp_path / "src/room").mkdir()
    (tmp_path / "src/room/planted.py").write_text('print("as was told")\n', encoding="utf-8")
    (tmp_path / "docs/planted.md").write_text("As was told.\n", encoding="utf-8")
    found = [offence for path in checked_files(tmp_path) for offence in offences(path)]
    assert [offence.path for offence in found] == ["docs/planted.md", "src/room/planted.py"]


PLANTED = {
    "fragment": ('"""Of the last trajectory."""\n', ["docstring"]),
    "function": ('def f():\n    """θ after a step."""\n', ["docstring"]),
    "question": ('def f():\n    """Return what a site sends."""\n', ["docstring"]),
    "verb in a class": ('class A:\n    """Return a draw."""\n', ["docstring"]),
    "constant": ('A = 1\n"""How many rounds."""\n', ["docstring"]),
    "word in a comment": ("a = 1  # as the sites are told\n", ["word"]),
    "word in a message": ('print(f"{1 + 1} is no method of {2}")\n', ["word"]),
    "over two lines": ('"""A number that is a whole\nnumber."""\n', ["word"]),
    "both": ('def f():\n    """What was heard."""\n', ["docstring", "word"]),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_offence_is_found(name, tmp_path, monkeypatch) -> None:
    source, rules = PLANTED[name]
    monkeypatch.setattr("scripts.english.ROOT", tmp_path)
    path = tmp_path / "planted.py"
    path.write_text(source, encoding="utf-8")
    assert sorted(offence.rule for offence in offences(path)) == rules


def test_a_planted_word_on_a_page_is_found_with_its_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("scripts.english.ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text('# A\n\n```\ntold\n```\n\nNot "told", `told`; told.\n', encoding="utf-8")
    assert [str(one) for one in offences(path)] == ["page.md:7: 'told': write given, informed"]


@pytest.mark.parametrize(
    "source",
    [
        '"""Draws of one chain."""\n\n\ndef f():\n    """Return θ."""\n',
        'class A:\n    @property\n    def size(self):\n        """Number of rows."""\n',
        "a = {'told': 1}  # `told`, and \"asked\": there is no other\n",
    ],
)
def test_good_english_passes(source, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("scripts.english.ROOT", tmp_path)
    path = tmp_path / "good.py"
    path.write_text(source, encoding="utf-8")
    assert offences(path) == []


@pytest.mark.parametrize(
    "subject",
    [
        "The plan has a line more",
        "Added a plan",
        "add a plan",
        "Add a plan.",
        "Add " + "x" * 69,
        "",
    ],
)
def test_a_subject_that_breaks_the_rule_is_refused(subject) -> None:
    assert complaints(f"{subject}\n\nWhy.\n")


@pytest.mark.parametrize("subject", ["Add a plan", "Pass `turn` by name", "Merge branch 'fix'"])
def test_an_imperative_subject_passes(subject) -> None:
    assert (
        complaints(f"{subject}\n\nA longer reason that may be as long as it likes, on lines.") == []
    )


def test_the_hook_of_commit_subjects_is_installed_with_the_others() -> None:
    hooks = (Path(ROOT) / ".pre-commit-config.yaml").read_text("utf-8")
    assert "default_install_hook_types: [pre-commit, commit-msg]" in hooks
    assert "scripts/commit_subject.py" in hooks
    assert "stages: [commit-msg]" in hooks
