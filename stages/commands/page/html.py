"""Pieces of a web page: text that is safe in it, tables, folded parts, and the page around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

STYLE = Path(__file__).with_name("page.css")


@dataclass(frozen=True)
class Section:
    """A part of the page with an anchor of its own; `body` is HTML."""

    anchor: str
    title: str
    body: str


def text(words: object) -> str:
    """Anything as text of a page."""
    return escape(str(words))


def paragraph(words: object, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{_kind(kind)}>{text(words)}</p>"


def bullets(lines: Sequence[str], kind: str = "") -> str:
    """A list of pieces of HTML; nothing for none."""
    return f"<ul{_kind(kind)}>{''.join(f'<li>{line}</li>' for line in lines)}</ul>" if lines else ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool] = ()) -> str:
    """A table of pieces of HTML in a box that scrolls by itself; `marked` rows are highlighted."""
    marks = marked or [False] * len(rows)
    head = "".join(f"<th>{text(title)}</th>" for title in header)
    lines = [
        f"<tr{_kind('changed' if mark else '')}>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for row, mark in zip(rows, marks, strict=True)
    ]
    return scrolling(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>")


def scrolling(content: str) -> str:
    """A box that is as wide as the page and scrolls if its content is wider; by keyboard too."""
    return f'<div class="wide" tabindex="0">{content}</div>'


def folded(title: str, content: str, is_open: bool = False) -> str:
    """A part that opens at a click."""
    return f"<details{' open' if is_open else ''}><summary>{text(title)}</summary>{content}</details>"


def page(title: str, about: str, sections: Sequence[Section]) -> str:
    """The whole page, with nothing outside of it: no script, font, style sheet or picture to fetch."""
    links = "".join(f'<li><a href="#{part.anchor}">{text(part.title)}</a></li>' for part in sections)
    parts = "".join(
        f'<section id="{part.anchor}"><h2>{text(part.title)}</h2>{part.body}</section>' for part in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{text(title)}</title>'
        f"<style>\n{STYLE.read_text(encoding='utf-8')}</style></head>\n"
        f"<body><header><h1>{text(title)}</h1>{about}</header>"
        f"<nav><ul>{links}</ul></nav>\n<main>{parts}</main></body></html>\n"
    )


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
