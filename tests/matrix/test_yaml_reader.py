from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import CONFIG_SYNTAX, CONFIG_TRAP
from orchestrator.matrix import yaml_reader
from orchestrator.matrix.yaml_reader import Mapping, Scalar, Sequence, read_bytes, read_file, read_text


def one_problem(text: str) -> tuple[str, str, str | None, str | None]:
    document = read_text(text, "f.yaml")
    assert len(document.problems) == 1, [problem.what for problem in document.problems]
    problem = document.problems[0]
    return str(problem.where), problem.what, problem.why, problem.fix


def test_scalars_keep_raw_text_position_and_quoting() -> None:
    document = read_text('a: 8.10\nb:\n  - "8.10"\n  - {c: no}\n', "f.yaml")
    assert document.problems == []
    root = document.root
    assert root is not None
    plain = root.entries["a"]
    assert isinstance(plain, Scalar)
    assert (plain.text, plain.plain, str(plain.where)) == ("8.10", True, "f.yaml:1:4")
    items = root.entries["b"]
    assert isinstance(items, Sequence)
    quoted, nested = items.items
    assert isinstance(quoted, Scalar)
    assert (quoted.text, quoted.plain, str(quoted.where)) == ("8.10", False, "f.yaml:3:5")
    assert isinstance(nested, Mapping)
    assert str(nested.keys["c"].where) == "f.yaml:4:6"


@pytest.mark.parametrize("parser", ["CSafeLoader", "SafeLoader"])
def test_both_parsers_give_the_same(parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(yaml, parser):
        pytest.fail("PyYAML was installed without libyaml")
    monkeypatch.setattr(yaml_reader, "_LOADER", getattr(yaml, parser))
    document = read_text("a: [1, x]\nb: *nobody\na: 2\n", "f.yaml")
    assert [str(problem.where) for problem in document.problems] == ["f.yaml:2:4", "f.yaml:3:1"]
    assert document.root is not None
    assert list(document.root.entries) == ["a", "b"]


def test_every_duplicate_key_is_reported_at_every_depth() -> None:
    document = read_text("a: 1\nb:\n  c: 1\n  c: 2\na: 2\n", "f.yaml")
    assert [(str(problem.where), problem.what) for problem in document.problems] == [
        ("f.yaml:4:3", '"c" is given twice'),
        ("f.yaml:5:1", '"a" is given twice'),
    ]
    assert "line 1" in (document.problems[1].why or "")


def test_every_tab_is_named_and_the_rest_is_still_read() -> None:
    document = read_text("a:\n\tb: 1\n  # \tcomment\n\tb: 2\nc: *x\n", "f.yaml")
    assert [(problem.kind, str(problem.where)) for problem in document.problems] == [
        (CONFIG_TRAP, "f.yaml:2:1"),
        (CONFIG_TRAP, "f.yaml:4:1"),
        (CONFIG_SYNTAX, "f.yaml:4:2"),  # b twice, at the column of the file itself
        (CONFIG_TRAP, "f.yaml:5:4"),
    ]
    assert document.problems[0].fix == "replace each tab with two spaces"


def test_a_stray_tab_does_not_hide_the_rest() -> None:
    document = read_text("a: 1\n\tb: *x\nb: 2\n", "f.yaml")
    assert [(problem.kind, str(problem.where)) for problem in document.problems] == [
        (CONFIG_TRAP, "f.yaml:2:1"),
        (CONFIG_TRAP, "f.yaml:2:5"),
        (CONFIG_SYNTAX, "f.yaml:3:1"),
    ]


def test_tabs_that_yaml_allows_are_no_problem() -> None:
    document = read_text("a:\t1\nb: x\ty\nc: |\n  one\n  \ttwo\n", "f.yaml")
    assert document.problems == []
    assert document.root is not None
    block = document.root.entries["c"]
    assert isinstance(block, Scalar)
    assert block.text == "one\n\ttwo\n"


@pytest.mark.parametrize(
    ("text", "where", "fix"),
    [
        ("jetpack: >=4.6.1\n", "f.yaml:1:12", 'put it in quotes: ">=4.6.1"'),
        ("a: 1\nt: [*-cu12]\nb: 2\n", "f.yaml:2:5", None),
        ("t: {ada,rtx}-x\n", "f.yaml:1:13", 'put it in quotes: "{ada,rtx}-x"'),
        ("t: @x\n", "f.yaml:1:4", 'put it in quotes: "@x"'),
        ("d: one: two\n", "f.yaml:1:7", 'put it in quotes: "one: two"'),
        ("a:1\nb: 2\n", "f.yaml:1:1", "write a space after the colon"),
        ("a: 'x\nb: 1\n", "f.yaml:3:1", "close the quote"),
        ("a: [1, 2\n", "f.yaml:2:1", "close it, or put a comma between the items"),
        ("a:\n   b: 1\n  c: 1\n", "f.yaml:3:3", "indent the lines of one block alike"),
        ('p: "C:\\work"\n', "f.yaml:1:4", "use single quotes, or write \\\\"),
    ],
)
def test_syntax_errors_are_explained_with_a_fix(text: str, where: str, fix: str | None) -> None:
    place, _, why, told = one_problem(text)
    assert place.split(":")[:2] == where.split(":")[:2]
    assert why
    if fix is not None:
        assert told == fix


def test_a_glob_without_quotes_is_an_alias_and_the_fix_quotes_it() -> None:
    place, what, _, fix = one_problem("targets:\n  - *ampere\n")
    assert (place, fix) == ("f.yaml:2:5", 'write it in quotes: "*ampere"')
    assert what.startswith("*ampere is a YAML alias")


def test_anchors_work_as_far_as_they_are_harmless() -> None:
    document = read_text("a: &x [1, 2]\nb: *x\n", "f.yaml")
    assert document.problems == []
    assert document.root is not None
    assert document.root.entries["a"] == document.root.entries["b"]


def test_aliases_of_aliases_are_refused_by_what_they_expand_to() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 8)]
    place, what, why, _ = one_problem("\n".join(lines) + "\n")
    assert place.startswith("f.yaml:5:")
    assert what == "the file holds too many values"
    assert "20000" in (why or "")


def test_a_value_that_holds_itself_is_refused() -> None:
    place, what, _, _ = one_problem("a: &x [*x]\n")
    assert (place, what) == ("f.yaml:1:8", "*x stands inside the value that it names")


def test_many_aliases_are_refused() -> None:
    text = "a: &x 1\nb: [" + ", ".join(["*x"] * 65) + "]\n"
    assert one_problem(text)[1] == "the file has too many aliases"


@pytest.mark.parametrize("depth", [21, 900, 100_000])
def test_deep_nesting_is_refused_without_recursion(depth: int) -> None:
    document = read_text("a: " + "[" * depth, "f.yaml")
    assert document.root is None
    assert "nested too deeply" in document.problems[0].what + str(document.problems[0].why)


def test_merge_keys_tags_and_odd_keys_are_refused_together() -> None:
    document = read_text("<<: x\na: !!python/object:os.system x\n? [k]\n: 1\n{b: 1}: 2\n", "f.yaml")
    assert [str(problem.where) for problem in document.problems] == ["f.yaml:1:1", "f.yaml:2:4", "f.yaml:3:3", "f.yaml:5:1"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("---\n", "the file is empty"),
        ("- a\n- b\n", "the file holds a list"),
        ("hello\n", 'the file holds the text "hello"'),
        ("a: 1\n---\nb: 2\n", "a second document starts here"),
        ("a: \x01\n", "f.yaml holds a character that YAML does not allow"),
    ],
)
def test_what_is_no_mapping_is_named(text: str, what: str) -> None:
    assert one_problem(text)[1] == what


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n# only a comment\n", "--- # x\n...\n"])
def test_a_file_of_comments_is_empty_and_the_problem_says_what_to_write(text: str) -> None:
    document = read_text(text, "f.yaml")
    assert document.empty
    assert [problem.fix for problem in document.problems] == ["write lines of the form name: value, or remove the file"]


@pytest.mark.parametrize("text", ["''\n", "!x\n", "a: 1\n", "[]\n", "null\n"])
def test_what_holds_something_is_not_empty(text: str) -> None:
    assert not read_text(text, "f.yaml").empty


def test_files_that_cannot_be_text_are_named(tmp_path: Path) -> None:
    assert read_bytes("a: 1\nb: ü\n".encode("latin-1"), "f.yaml").problems[0].what == "f.yaml is not UTF-8 text"
    assert read_bytes("a: 1\nb: ü\n".encode("latin-1"), "f.yaml").problems[0].where.line == 2  # type: ignore[union-attr]
    assert "too large" in read_bytes(b"#" * (yaml_reader.MAX_BYTES + 1), "f.yaml").problems[0].what
    assert read_file(tmp_path).problems[0].what.endswith("is not a file")
    assert read_file(tmp_path / "gone.yaml").problems[0].what.endswith("does not exist")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert read_file(tmp_path / "pipe.yaml").problems[0].what.endswith("is not a file")


def test_a_byte_order_mark_and_windows_line_ends_are_read() -> None:
    document = read_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f.yaml")
    assert document.problems == []
    assert document.root is not None
    assert list(document.root.entries) == ["a", "b"]


@given(st.binary(max_size=200))
def test_any_bytes_give_a_root_or_a_problem(raw: bytes) -> None:
    document = read_bytes(raw, "f.yaml")
    assert (document.root is None) <= bool(document.problems)
    for problem in document.problems:
        assert problem.what.isprintable()


@given(st.text(alphabet="ab:-[]{}*&!|>'\"#,? \t\n\\@%0.", max_size=60))
def test_any_yaml_punctuation_gives_a_root_or_a_problem(text: str) -> None:
    document = read_text(text, "f.yaml")
    assert (document.root is None) <= bool(document.problems)


def test_a_long_broken_line_is_told_in_a_few_words() -> None:
    # the patterns of the hints would look at it for minutes
    document = read_text("description: a: b: " + "- [`" * 200_000, "a.yaml")
    (problem,) = document.problems
    assert problem.kind is CONFIG_SYNTAX
    assert problem.fix == "put the value in quotes"
    assert len(problem.what) < 200
