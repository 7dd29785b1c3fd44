"""What commands print of others' texts: characters, and nothing that a terminal would do."""

import json

import pytest

from extender.cli.console import print_copy, print_document, print_line, print_problem, print_rows

HOSTILE = "a\x1b[31m\x9b2J\u202eb\u2028\x85c\nerror: d\re\u200bf\ud800[red]g[/]:smile:\t"
SHOWN = r"a\u001b[31m\u009b2J\u202eb\u2028\u0085c\nerror: d\re\u200bf\ud800[red]g[/]:smile:\t"


def test_a_line_shows_the_characters_of_a_text_and_does_what_none_of_them_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_line(HOSTILE, (HOSTILE, "bold red"))
    print_problem(HOSTILE)
    captured = capsys.readouterr()
    assert captured.out == f"{SHOWN}{SHOWN}\n"
    assert captured.err == f"{SHOWN}\n"


def test_rows_stand_below_each_other_and_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "word " * 100
    print_rows([("a\n", ("b", "red"), "c"), ("longer", "d"), ("日本", sentence + ".")])
    assert capsys.readouterr().out == f"  a\\n     b  c\n  longer  d\n  日本    {sentence}.\n"


def test_json_stays_json_with_its_texts_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    print_document(json.dumps([f"\x7f{HOSTILE}"]))
    shown = capsys.readouterr().out
    assert shown.isprintable()
    assert json.loads(shown) == [f"\x7f{HOSTILE}"]


def test_a_document_keeps_its_lines_and_its_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_document("<p>\n\ta\x1b\u202e\r\x0c\u2028\n</p>\n")
    assert capsys.readouterr().out == "<p>\n\ta\\u001b\\u202e\\r\\u000c\\u2028\n</p>\n"


def test_what_is_given_back_is_given_to_the_byte_but_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a: \u202e\xa0 # \r\n\tb"
    print_copy(text)
    assert capsys.readouterr().out == text
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_copy(text)
    assert capsys.readouterr().out == "a: \\u202e\\u00a0 # \\r\n\tb"
