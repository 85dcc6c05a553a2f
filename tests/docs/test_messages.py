"""The page on which an editor reads all messages shows those of the source."""

import ast

import pytest

from scripts.messages import PAGE, messages, page

pytestmark = pytest.mark.lint


def test_the_page_of_messages_is_that_of_the_source() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python scripts/messages.py"


def test_errors_options_and_names_in_braces_are_read() -> None:
    text = (
        "raise wrong('bins', f' is {bins}: give more.')\nOption(help='Number of bins.')\nf('a b')"
    )
    assert [*messages(ast.parse(text))] == ["bins is {bins}: give more.", "Number of bins."]
