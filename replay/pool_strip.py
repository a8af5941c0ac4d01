"""The blocks around one block at one moment, as letters of their owners: the shadow map."""

from __future__ import annotations

from textwrap import wrap
from typing import NamedTuple

from rich.text import Text

from .state import Block, Pool, State
from .wording import elided, named

BLOCKS_A_ROW = 16
ROWS_AROUND = 1
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
STYLES = ("cyan", "magenta", "yellow", "blue", "green", "bright_cyan", "bright_magenta")
LEGEND_SHOWN = 10
HOLDERS_SHOWN = 6
NO_BREAK = "\N{NO-BREAK SPACE}"

FREE, CACHED, SHARED, TORN, SENTINEL, UNKNOWN = ".", ":", "+", "!", "#", "?"

SIGNS = (
    (SHARED, "shared"),
    (CACHED, "free, in the prefix index"),
    (FREE, "free"),
    (TORN, "free and held"),
    (SENTINEL, "sentinel"),
    (UNKNOWN, "unknown"),
)


class Cell(NamedTuple):
    sign: str
    owner: str | None
    """The request that alone holds the block."""


def cell_of(pool: Pool, number: int) -> Cell:
    """The sign of one block; an owned one's is given by its owner's letter."""
    block = pool.block(number)
    owners = list(dict.fromkeys(holder.request for holder in block.holders))
    if number in pool.sentinels:
        return Cell(SENTINEL, None)
    if not block.is_known:
        return Cell(UNKNOWN, None)
    if not owners:
        return Cell(_sign_of_unheld(block), None)
    if block.is_free:
        return Cell(TORN, None)
    return Cell(SHARED, None) if len(owners) > 1 else Cell("", owners[0])


def _sign_of_unheld(block: Block) -> str:
    return CACHED if block.keys else FREE


class Strip(NamedTuple):
    """Rows of 16 blocks around one block."""

    pool: Pool
    block: int
    rows: list[list[int]]
    cells: dict[int, Cell]
    letters: dict[str, str]
    """Owner -> its letter."""

    def sign(self, number: int) -> str:
        cell = self.cells[number]
        return self.letters[cell.owner] if cell.owner else cell.sign


def strip_around(state: State, group: int | None, block: int) -> Strip:
    pool = state.pool(group)
    count = state.header.num_blocks if state.header else block + 1
    middle = block // BLOCKS_A_ROW
    last = max(count - 1, block) // BLOCKS_A_ROW
    rows = range(max(middle - ROWS_AROUND, 0), min(middle + ROWS_AROUND, last) + 1)
    numbers = [
        [
            n
            for n in range(row * BLOCKS_A_ROW, (row + 1) * BLOCKS_A_ROW)
            if n < max(count, block + 1)
        ]
        for row in rows
    ]
    cells = {n: cell_of(pool, n) for row in numbers for n in row}
    owners = list(dict.fromkeys(cell.owner for cell in cells.values() if cell.owner))
    letters = {name: LETTERS[i % len(LETTERS)] for i, name in enumerate(owners)}
    return Strip(pool, block, numbers, cells, letters)


def pool_strip(state: State, group: int | None, block: int, width: int = 100) -> list[Text]:
    """Rows of 16 blocks around `block`, which stands in brackets, and a legend."""
    strip = strip_around(state, group, block)
    return [*(_row(row, strip) for row in strip.rows), *_legend(strip, width)]


def _row(numbers: list[int], strip: Strip) -> Text:
    is_marked = strip.block in numbers
    line = Text("=>" if is_marked else "  ", style="bold red" if is_marked else "")
    line.append(f"{numbers[0]:>6}: ", style="dim")
    for number in numbers:
        sign = strip.sign(number)
        around = "[]" if number == strip.block else "  "
        line.append(around[0], style="bold red")
        line.append(sign, style=style_of(sign))
        line.append(around[1], style="bold red")
    return line


def style_of(sign: str) -> str:
    if sign in LETTERS:
        return STYLES[LETTERS.index(sign) % len(STYLES)]
    return "bold red" if sign == TORN else "dim" if sign in (FREE, CACHED) else "bold"


def legend_of(strip: Strip) -> list[str]:
    """What each sign of the strip means, and who holds the marked block."""
    shown = list(strip.letters.items())[:LEGEND_SHOWN]
    parts = [f"{letter} {named(name)}" for name, letter in shown]
    if len(strip.letters) > LEGEND_SHOWN:
        parts.append(f"{len(strip.letters) - LEGEND_SHOWN} more requests")
    used = {cell.sign for cell in strip.cells.values()}
    parts += [f"{sign} {meaning}" for sign, meaning in SIGNS if sign in used]
    marked = strip.cells[strip.block]
    if not marked.owner and (holders := strip.pool.block(strip.block).holders):
        names = [named(name) for name in dict.fromkeys(holder.request for holder in holders)]
        parts.append(f"[{marked.sign}] {elided(names, HOLDERS_SHOWN)}")
    return parts


def _legend(strip: Strip, width: int) -> list[Text]:
    indent = " " * 10
    told = "   ".join(part.replace(" ", NO_BREAK) for part in legend_of(strip))
    lines = wrap(told, max(width - len(indent), 20), break_on_hyphens=False)
    return [Text(indent + line.replace(NO_BREAK, " "), style="dim") for line in lines]
