"""What is said of a file that is not YAML: the line, the reason in plain words, and the line as it should be."""

from __future__ import annotations

import re

import yaml

from orchestrator.errors import CONFIG_SYNTAX, CONFIG_TRAP, EnginefarmError, Where

_MAX_REPORTED_TABS = 20
_LONGEST_LINE = 400  # characters that the hints look at: their patterns take time that grows with the square
_LONGEST_FIX = 120
_QUOTE_IT = 'put it in quotes: "{}"'

# (pattern over the offending line, why, fix); the first that matches is told
_HINTS = (
    (re.compile(r":\s+([>|][^\s\-+0-9].*)$"), "a plain text that starts with > or | opens a block of text", _QUOTE_IT),
    (re.compile(r"(?::|-)\s+(\*\S*)\s*$"), "a plain text that starts with * is an alias", _QUOTE_IT),
    (re.compile(r"(?::|-)\s+([\[{].*[\]}]\S.*)$"), "a plain text that starts with { or [ opens a collection", _QUOTE_IT),
    (re.compile(r"(?::|-)\s+([@`%].*)$"), "a plain text cannot start with @, ` or %", _QUOTE_IT),
    (re.compile(r"^[\w-]+:(?!\s)(\S.*)$"), "a space is missing after the colon", "write a space after the colon"),
    (re.compile(r":\s+([^\"'\[{].*:\s.*)$"), "the value holds a colon followed by a space", _QUOTE_IT),
    (re.compile(r":\s+(\"[^\"]*\\.*\")$"), "a backslash starts an escape inside double quotes", "use single quotes, or write \\\\"),
)


def short(text: str, limit: int = 60) -> str:
    """``text`` in one line of printable characters, cut to ``limit``."""
    printable = "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text[: limit + 1])
    return printable if len(printable) <= limit else printable[: limit - 1] + "…"


def indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def tabs(text: str, name: str) -> list[EnginefarmError]:
    """One problem for each line that a tab indents (the first 20)."""
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        lead, rest = indentation(line), line.strip()
        if "\t" in lead and rest and not rest.startswith("#"):
            problems.append(
                EnginefarmError(
                    CONFIG_TRAP,
                    f'a tab indents this line: "{short(rest)}"',
                    where=Where(file=name, line=number, column=lead.index("\t") + 1),
                    why="YAML allows only spaces in indentation",
                    fix="replace each tab with two spaces",
                )
            )
    return problems[:_MAX_REPORTED_TABS]


def explain(error: yaml.YAMLError, text: str, name: str) -> EnginefarmError:
    """One problem for a syntax error, with a hint read from the line it is on."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return _character(error, text, name)
    lines = text.splitlines()
    # the parser often notices on the line after the mistake
    for number in (mark.line, mark.line - 1):
        line = lines[number][:_LONGEST_LINE] if 0 <= number < len(lines) else ""
        for pattern, why, fix in _HINTS:
            match = pattern.search(line)
            if match:
                column = mark.column + 1 if number == mark.line else len(indentation(line)) + 1
                return _problem(line, Where(file=name, line=number + 1, column=column), why, _fix(fix, match[1].strip()))
    why, fix_text = _reason(error, mark)
    line = lines[mark.line][:_LONGEST_LINE] if mark.line < len(lines) else ""
    return _problem(line, Where(file=name, line=mark.line + 1, column=mark.column + 1), why, fix_text)


def _fix(fix: str, value: str) -> str:
    """The fix with the value in it, as it can be pasted; a long value is only spoken of."""
    return fix.format(value) if len(value) <= _LONGEST_FIX or fix != _QUOTE_IT else "put the value in quotes"


def _problem(line: str, where: Where, why: str, fix: str | None) -> EnginefarmError:
    what = f'this line is not YAML: "{short(line.strip())}"' if line.strip() else "the file ends too early"
    return EnginefarmError(CONFIG_SYNTAX, what, where=where, why=why, fix=fix)


def _reason(error: yaml.YAMLError, mark: yaml.Mark) -> tuple[str, str | None]:
    """The parser's own words made plain; they differ between libyaml and the Python parser, so only their nouns are read."""
    problem, context = str(getattr(error, "problem", "")), str(getattr(error, "context", ""))
    opened = getattr(error, "context_mark", None) or mark
    if "depth" in problem:
        return "the brackets are nested too deeply", None
    if "quoted scalar" in context and "end of stream" in problem:
        return f"the quote opened on line {opened.line + 1} is never closed", "close the quote"
    if "flow" in context:
        return f"the bracket opened on line {opened.line + 1} is not closed here", "close it, or put a comma between the items"
    if "block" in context:
        return f"it does not line up with the block that starts on line {opened.line + 1}", "indent the lines of one block alike"
    return problem, None


def _character(error: yaml.YAMLError, text: str, name: str) -> EnginefarmError:
    position = getattr(error, "position", None)
    line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
    what = f"{name} holds a character that YAML does not allow"
    return EnginefarmError(CONFIG_SYNTAX, what, where=Where(file=name, line=line), fix="remove the control character")
