"""A result as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from rich.table import Table
from rich.text import Text

from loadtests.report import plots
from loadtests.report.result import Result
from loadtests.report.table import remarks, sections

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem } caption { text-align: left; font-weight: 600 }
th, td { padding: .15rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left } svg { max-width: 100%; height: auto }
.bad { background: #fde8e8; border-left: 4px solid #c00; padding: .4rem .8rem } li { overflow-wrap: anywhere }
"""


def write(result: Result, path: Path) -> None:
    """Write the page. Raises ``OSError``."""
    write_parts(f"{result.scenario}, {result.started_at}", _parts(result), path)


def write_parts(title: str, parts: Iterable[str], path: Path) -> None:
    """Write a page with ``title`` and the HTML ``parts``. Raises ``OSError``."""
    name = escape(title)
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
    text = "".join((head, f"<style>{_STYLE}</style></head><body><h1>{name}</h1>", *parts, "</body></html>\n"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _parts(result: Result) -> Iterator[str]:
    bad = [*result.failed, *(result.effort.limits if result.effort else ())]
    if not result.complete:
        bad.append("broken off before its end")
    yield from (f'<p class="bad">{escape(line)}</p>' for line in bad)
    for table in sections(result):
        yield from table_html(table)
    yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in remarks(result)) + "</ul>"
    if plots.AVAILABLE:
        yield from (f"<h2>{escape(name)}</h2>{svg}" for name, svg in plots.pictures(result))
    else:
        yield f"<p>{escape(plots.MISSING)}</p>"
    yield "<h2>What was run</h2><ul>"
    told = {"target": result.target, "seed": result.seed, "speed": result.speed, "workload seconds": result.seconds}
    for name, value in {**told, **result.machine, **result.parameters}.items():
        yield f"<li>{escape(str(name))}: {escape(str(value))}</li>"
    yield "</ul>"


def table_html(table: Table) -> Iterator[str]:
    """``table`` as HTML, its markup left out."""
    yield f"<table><caption>{_plain(table.title)}</caption><tr>"
    yield "".join(f"<th>{_plain(column.header)}</th>" for column in table.columns) + "</tr>"
    for row in zip(*(column.cells for column in table.columns), strict=True):
        yield "<tr>" + "".join(f"<td>{_plain(cell)}</td>" for cell in row) + "</tr>"
    yield "</table>"
    if table.caption:
        yield f"<p>{_plain(table.caption)}</p>"


def _plain(cell: object) -> str:
    """A cell without rich's markup."""
    return escape(Text.from_markup(str(cell)).plain) if cell is not None else ""
