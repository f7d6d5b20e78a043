"""Formula text to a tree, by precedence climbing."""

from gridcalc.errors import CellError, FormulaError
from gridcalc.nodes import NEGATION, PRECEDENCE, Area, Binary, Call, Cell, Literal, Unary
from gridcalc.refs import Ref
from gridcalc.tokens import tokenize

_MAX_DEPTH = 100


def parse(formula):
    """The tree of a formula, with or without its `=`. Raises FormulaError."""
    parser = _Parser(tokenize(formula.removeprefix("=")))
    node = parser.expression(0)
    parser.expect("end", "")
    return node


class _Parser:
    def __init__(self, tokens):
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    @property
    def token(self):
        return self.tokens[self.at]

    def take(self):
        token = self.token
        self.at += 1
        return token

    def accept(self, text):
        if self.token.kind == "operator" and self.token.text == text:
            return self.take()
        return None

    def expect(self, kind, text):
        if (self.token.kind, self.token.text) != (kind, text):
            found = repr(self.token.text) if self.token.text else "the end"
            raise FormulaError(f"expected {text!r}, found {found}" if text else f"unexpected {found}", self.token.position)
        return self.take()

    def expression(self, level):
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise FormulaError("nested too deeply", self.token.position)
        left = self.operand()
        while self.token.kind == "operator" and PRECEDENCE.get(self.token.text, 0) > level:
            operator = self.take().text
            left = Binary(operator, left, self.expression(PRECEDENCE[operator]))
        self.depth -= 1
        return left

    def operand(self):
        for sign in ("-", "+"):
            if self.accept(sign):
                return self.percent(Unary(sign, self.expression(NEGATION)))
        return self.percent(self.primary())

    def percent(self, node):
        while self.accept("%"):
            node = Unary("%", node)
        return node

    def primary(self):
        token = self.take()
        match token.kind:
            case "number":
                return Literal(float(token.text) if any(mark in token.text for mark in ".eE") else int(token.text))
            case "text":
                return Literal(token.text[1:-1].replace('""', '"'))
            case "error":
                return Literal(CellError(token.text))
            case "ref":
                return self.reference(token)
            case "name":
                return self.named(token)
        if token.text == "(":
            node = self.expression(0)
            self.expect("operator", ")")
            return node
        found = repr(token.text) if token.text else "the end"
        raise FormulaError(f"expected a value, found {found}", token.position)

    def reference(self, token):
        one = _cell(token)
        if self.accept(":"):
            if self.token.kind != "ref":
                raise FormulaError("expected the other corner of the range", self.token.position)
            return Area(one, _cell(self.take()))
        return one

    def named(self, token):
        name = token.text.upper()
        if self.accept("("):
            return Call(name, self.arguments())
        if name in ("TRUE", "FALSE"):
            return Literal(name == "TRUE")
        raise FormulaError(f"unknown name {token.text!r}", token.position)

    def arguments(self):
        found = []
        if self.accept(")"):
            return ()
        while True:
            found.append(self.expression(0))
            if self.accept(")"):
                return tuple(found)
            if not (self.accept(",") or self.accept(";")):
                self.expect("operator", ")")


def _cell(token):
    try:
        ref = Ref.parse(token.text)
    except ValueError as error:
        raise FormulaError(str(error), token.position) from None
    letters = token.text.lstrip("$")
    return Cell(ref, is_row_fixed="$" in letters, is_column_fixed=token.text.startswith("$"))
