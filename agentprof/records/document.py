"""A YAML file as plain values, each with the line that it stands on.

Values are built from PyYAML's node tree, so that what pydantic finds wrong later can be traced to its line. Only what
JSON knows is built: text, numbers, truth values, null, lists, mappings. Dates stay the text that was written.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentprof.errors import InputError

Loc = tuple[str | int, ...]
"""Where a value stands: keys and list indices from the top."""

_MAX_NODES = 200_000
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset(_TAG + kind for kind in ("null", "bool", "int", "float", "str"))
_SYNTAX_WORDS: Sequence[tuple[str, str]] = (
    ("found character '\\t'", "a tab; YAML is indented with spaces"),
    ("mapping values are not allowed", 'a ":" that YAML can\'t place; check the indentation, or use quotes'),
    ("could not find expected ':'", 'a line without its ":"; check that key and value are written `key: value`'),
    ("found unexpected end of stream", "a quote that is never closed"),
    ("expected ',' or '}'", 'a "{" that isn\'t closed, or a "," missing in it'),
    ("expected ',' or ']'", 'a "[" that isn\'t closed, or a "," missing in it'),
    ("found '<stream end>'", "the file ends where more was expected"),
    ("expected <block end>", "this line doesn't line up with those above it; check the indentation"),
    ("found another document", 'a second document ("---"); write one file each'),
    ("found undefined alias", "an alias (*) of something that has no anchor (&); put text with a * in quotes"),
    ("found unknown escape character", 'a "\\" that YAML doesn\'t know in double quotes; use single quotes'),
)


@dataclass(frozen=True, slots=True)
class Document:
    """A file that holds a mapping.

    lines: line (from 1) of each key and list item. texts: single values as they were written.
    """

    path: Path
    data: dict[str, Any]
    lines: Mapping[Loc, int]
    texts: Mapping[Loc, str]

    def line_of(self, loc: Loc) -> int:
        """The line of a location, or of the nearest one around it that the file has."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)


@dataclass(slots=True)
class Problems:
    """What is wrong with one file: gathered, then raised at once."""

    path: Path
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, words: str) -> None:
        """Note a problem; said once where several checks find the same."""
        if (line, words) not in self.found:
            self.found.append((line, words))

    def raise_any(self) -> None:
        """Raise InputError with one line for each problem, in the order of the file."""
        if self.found:
            ordered = sorted(self.found, key=lambda problem: problem[0])
            raise InputError("\n".join(f"{self.path}:{line}: {words}" for line, words in ordered))


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises InputError where there is none."""
    try:
        raw = path.read_bytes()
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; name a file in it") from None
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8") from None


def read_document(path: Path) -> Document:
    """Read a YAML file whose top is a mapping.

    Raises InputError naming the line: YAML that can't be read, duplicate or non-text keys, custom tags, an empty file.
    """
    text = read_text(path)
    root = _compose(path, text)
    problems = Problems(path)
    if root is None:
        problems.add(1, "the file is empty; docs/scenarios.md and docs/backends.md show what to write")
    elif not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "text"
        problems.add(root.start_mark.line + 1, f"expected `key: value` lines at the top; found {kind}")
    problems.raise_any()
    reader = _Reader(problems)
    try:
        data = reader.value(root, ())
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be read") from None
    problems.raise_any()
    return Document(path, data, reader.lines, reader.texts)


def _compose(path: Path, text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        words = f"a control character (0x{ord(text[error.position]):02x}) that YAML doesn't allow"
        raise InputError(f"{path}:{line}: {words}") from None
    except yaml.MarkedYAMLError as error:
        raise InputError(f"{path}:{_line_of_error(error)}: not YAML: {_syntax_words(error)}") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be read") from None


def _line_of_error(error: yaml.MarkedYAMLError) -> int:
    # What is never closed is noticed at the end of the file, and was made where it was opened.
    is_late = any(sign in (error.problem or "") for sign in ("end of stream", "<stream end>", "expected ':'"))
    marks = (error.context_mark, error.problem_mark) if is_late else (error.problem_mark, error.context_mark)
    mark = marks[0] or marks[1]
    return 1 if mark is None else mark.line + 1


def _syntax_words(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "can't be read"
    if "end of stream" in problem and "scalar" not in (error.context or ""):
        return "the file ends where more was expected"
    return next((words for start, words in _SYNTAX_WORDS if start in problem), problem)


class _Reader:
    """Walks a node tree: values, lines and texts by location."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.lines: dict[Loc, int] = {}
        self.texts: dict[Loc, str] = {}
        self._open: set[int] = set()
        self._flattened: set[int] = set()
        self._visited = 0
        self._constructor = yaml.SafeLoader("")

    def value(self, node: yaml.Node | None, loc: Loc) -> Any:
        """The plain value of a node; None after a problem, which is noted."""
        if node is None:
            return None
        line = node.start_mark.line + 1
        self.lines.setdefault(loc, line)
        self._visited += 1
        # Aliases of aliases grow without bound in a small file; an alias inside its own anchor never ends.
        if self._visited > _MAX_NODES or id(node) in self._open:
            self.problems.add(line, "aliases (*) that never end; write the values out")
            return None
        self._open.add(id(node))
        try:
            match node:
                case yaml.ScalarNode():
                    return self._scalar(node, loc, line)
                case yaml.SequenceNode():
                    return [self.value(item, (*loc, index)) for index, item in enumerate(node.value)]
                case yaml.MappingNode():
                    return self._mapping(node, loc)
        finally:
            self._open.discard(id(node))
        return None

    def _scalar(self, node: yaml.ScalarNode, loc: Loc, line: int) -> Any:
        self.texts[loc] = node.value
        if any("\ud800" <= char <= "\udfff" for char in node.value):
            self.problems.add(line, "half of a surrogate pair, which is no text; write the character itself")
            return None
        if node.tag == _TAG + "timestamp":
            return node.value
        if node.tag not in _SCALAR_TAGS:
            self.problems.add(line, f"the tag {node.tag.replace(_TAG, '!!')} isn't read here; write plain values")
            return None
        try:
            return self._constructor.construct_object(node)
        except (ValueError, OverflowError, KeyError, yaml.YAMLError):
            self.problems.add(line, "a number that can't be read; put text in quotes")
            return None

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        if id(node) not in self._flattened:  # an aliased node is met again, with the merged keys already in it
            self._flattened.add(id(node))
            self._check_keys(node)
            try:
                self._constructor.flatten_mapping(node)  # `<<: *defaults`
            except yaml.MarkedYAMLError as error:
                self.problems.add(_line_of_error(error), "<< takes a mapping, such as *defaults")
                return {}
        pairs: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                key = str(key_node.value)
                self.lines[(*loc, key)] = key_node.start_mark.line + 1
                pairs[key] = self.value(value_node, (*loc, key))
        return pairs

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add(line, "a key that isn't text; put a value that begins with { or [ in quotes")
            elif key_node.value in seen and key_node.tag != _TAG + "merge":
                first = seen[key_node.value]
                self.problems.add(line, f'"{key_node.value}" is written twice (first in line {first}); keep one')
            else:
                seen[key_node.value] = line
