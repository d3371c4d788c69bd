"""Axes while a model is traced: sums of products of atoms, and equalities between them.

An atom is a set of indices that move together. An axis is an ordered sum of row-major products of
atoms: after a flatten it is one product (channel, height, width), after a concatenation a sum of
several. Operations say which axes are equal; equality is solved by merging atoms and by splitting
one into a product or a sum. An atom with a reason is frozen: its order or its number matters.
"""

import math
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

MAX_TERMS = 10_000
"""A sum of more terms than this is frozen instead of being written out."""


POSITIONS = "its entries are places"
"""The reason of axes that run over an image or a kernel, not over channels."""


@dataclass(frozen=True)
class Reason:
    """Why channels must stay as they are: what was done to them, by which operation and module."""

    text: str
    operation: str = ""
    module: str = ""

    def __str__(self) -> str:
        where = f" in `{self.module}`" if self.module else ""
        return f"{self.operation}{where}: {self.text}" if self.operation else self.text + where


RUNNING: ContextVar[tuple[str, str]] = ContextVar("RUNNING", default=("", ""))
"""The operation and the module whose rule is being applied."""


def because(text: str) -> Reason:
    """Make a reason that names what is running."""
    return Reason(text, *RUNNING.get())


class Atom:
    """Indices that move together; `parts` is set once it turns out to be made of others."""

    __slots__ = ("depth", "parts", "reason", "size")

    def __init__(self, size: int, reason: Reason | None = None) -> None:
        self.size = size
        self.reason = reason
        self.parts: list[Product] | None = None
        self.depth = 0


Product = tuple[Atom, ...]
Axis = list[Product]


def fresh(size: int, reason: Reason | None = None) -> Axis:
    """Make an axis of which nothing is known but its length."""
    return [()] if size == 1 else [(Atom(size, reason),)]


def length(axis: Axis) -> int:
    """Count the entries along an axis."""
    return sum(math.prod(atom.size for atom in product) for product in axis)


def resolve(axis: Axis) -> Axis:
    """Write an axis in atoms that have no parts; atoms of size one vanish."""
    return [product for old in axis for product in _expand(old)]


def _expand(product: Sequence[Atom]) -> Axis:
    return multiply([_parts(atom) for atom in product if atom.size != 1])


def _parts(atom: Atom) -> Axis:
    if atom.parts is None:
        return [(atom,)]
    atom.parts = resolve(atom.parts)
    return atom.parts


def multiply(axes: Sequence[Axis]) -> Axis:
    """Lay axes row-major into one, as flatten does."""
    total: Axis = [()]
    for axis in axes:
        if len(axis) == 1:
            total = [product + axis[0] for product in total]
        elif total == [()]:
            total = list(axis)
        else:  # Outer indices in front of a sum: each repeats the sum, so their order is fixed.
            reason = because("a concatenation is repeated along the axis")
            freeze(total, reason)
            repeats = length(total)
            if repeats * len(axis) > MAX_TERMS:
                freeze(axis, reason)
                total = fresh(repeats * length(axis), reason)
            else:
                total = list(axis) * repeats
    return total


def freeze(axis: Axis, reason: Reason) -> None:
    """Forbid any change along an axis; the first reason given is kept."""
    for product in resolve(axis):
        for atom in product:
            atom.reason = atom.reason or reason


def cut(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """Cut an axis into consecutive pieces of the given lengths, splitting atoms where needed."""
    while True:
        pieces = _cut_at_terms(resolve(axis), sizes)
        if pieces is not None:
            return pieces


def _cut_at_terms(axis: Axis, sizes: Sequence[int]) -> list[Axis] | None:
    """Cut between terms; where a cut falls inside one, split its first atom and return None."""
    terms = axis[::-1]
    pieces: list[Axis] = []
    for size in sizes:
        piece: Axis = []
        while size > 0:
            term = terms.pop()
            entries = length([term])
            if entries <= size:
                piece.append(term)
                size -= entries
                continue
            first, inner = term[0], entries // term[0].size
            if first.reason is not None and all(atom.reason for atom in term):
                # Its parts are frozen too, so it need not be split wherever it stands.
                piece += fresh(size, first.reason)
                terms += fresh(entries - size, first.reason)
                break
            if size % inner:
                reason = because("cut in the middle of a channel")
                freeze(axis, reason)
                return [fresh(size, reason) for size in sizes]
            head = size // inner
            _replace(first, [(Atom(head),), (Atom(first.size - head),)])
            return None
        pieces.append(piece)
    return pieces


def _replace(atom: Atom, parts: Axis) -> None:
    if atom.reason is not None:
        freeze(parts, atom.reason)
    atom.parts = parts


def _merge(one: Atom, other: Atom) -> None:
    """Make two atoms one; the shallower points to the deeper, so that chains stay short."""
    if one is not other:
        lower, upper = (one, other) if one.depth <= other.depth else (other, one)
        upper.depth = max(upper.depth, lower.depth + 1)
        _replace(lower, [(upper,)])


def _factor(atom: Atom, outer: int) -> None:
    """Split an atom into a row-major product whose first factor has `outer` indices."""
    _replace(atom, [(Atom(outer), Atom(atom.size // outer))])


def unify(left: Axis, right: Axis) -> None:
    """Demand that two axes of equal length move together."""
    left, right = resolve(left), resolve(right)
    if left == right:
        return
    if length(left) != length(right):
        reason = because(f"{length(left)} entries meet {length(right)}")
        freeze(left, reason)
        freeze(right, reason)
    elif len(left) == len(right) == 1:
        _unify_products(left[0], right[0])
    elif len(left) == 1 and len(left[0]) == 1:
        _replace(left[0][0], right)
    elif len(right) == 1 and len(right[0]) == 1:
        _replace(right[0][0], left)
    else:
        ends = sorted(_ends(left) | _ends(right))
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        for one, other in zip(cut(left, sizes), cut(right, sizes), strict=True):
            unify(one, other)


def _ends(axis: Axis) -> set[int]:
    return {length(axis[: count + 1]) for count in range(len(axis))}


def _unify_products(left: Product, right: Product) -> None:
    while left and right:
        one, other = left[0], right[0]
        if one is other or one.size == other.size:
            _merge(one, other)
            left, right = left[1:], right[1:]
        elif one.size % other.size == 0:
            _factor(one, other.size)
        elif other.size % one.size == 0:
            _factor(other, one.size)
        else:
            reason = because(f"groups of {one.size} meet groups of {other.size}")
            freeze([left], reason)
            freeze([right], reason)
            return
        lefts, rights = _expand(left), _expand(right)
        if len(lefts) > 1 or len(rights) > 1:  # An atom of both turned out to be a sum.
            unify(lefts, rights)
            return
        left, right = lefts[0], rights[0]


def divide(axis: Axis, sizes: Sequence[int]) -> list[Axis]:
    """Split one axis row-major into several, as unflatten does."""
    if len(sizes) == 1:
        return [axis]
    axis, outer = resolve(axis), sizes[0]
    if len(axis) > 1 and outer > 1:  # A sum in equal blocks: the blocks must move alike.
        blocks = cut(axis, [math.prod(sizes[1:])] * outer)
        for block in blocks[1:]:
            unify(blocks[0], block)
        reason = because("a concatenation is stacked")
        return [fresh(outer, reason), *divide(blocks[0], sizes[1:])]
    if outer == 1:
        return [[()], *divide(axis, sizes[1:])]
    front: Product = ()
    back, needed = axis[0], outer
    while needed > 1:
        atom = back[0]
        if needed % atom.size == 0:
            front, back, needed = (*front, atom), back[1:], needed // atom.size
        elif atom.size % needed == 0:
            _factor(atom, needed)
            front, back = _expand(front)[0], _expand(back)[0]
        else:
            reason = because(f"channels of {atom.size} regrouped by {needed}")
            freeze(axis, reason)
            return [fresh(size, reason) for size in sizes]
    return [[front], *divide([back], sizes[1:])]
