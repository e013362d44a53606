"""A pipeline's markdown as HTML, and the verdict in it as data."""

import re
from dataclasses import dataclass

from markdown_it import MarkdownIt

from stages.commands.page.html import scrolling
from stages.lib.report.document import Verdict

# what marks a claim in the page
VERDICTS = {Verdict.HOLDS: "holds", Verdict.FAILS: "fails", Verdict.UNCLEAR: "unclear", Verdict.OPEN: "open"}
LINE = re.compile(rf"^- \*\*({'|'.join(VERDICTS)})\*\*: (.*)$")
MARKED = re.compile(rf'<ul>(\s*<li class="(?:{"|".join(VERDICTS.values())})">)')
EXCEPTION = re.compile(r"^  - not so in: (.*)$")


@dataclass(frozen=True)
class Found:
    """A claim as the markdown has it: `kind` is one of VERDICTS; `exceptions` may be empty."""

    kind: str
    text: str
    exceptions: str


def to_html(markdown: str) -> str:
    """HTML of it without the title; headings one level down, tables in boxes that scroll, rows and claims marked."""
    body = re.sub(r"\A# .*\n", "", markdown)
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(body)
    html = re.sub(r"<(/?)h2>", r"<\1h3>", html)
    html = re.sub(r' style="text-align:\w+"', "", html)
    html = re.sub(r"<table>(.*?)</table>", lambda found: _table(found[1]), html, flags=re.DOTALL)
    html = unbroken(html)
    for verdict, kind in VERDICTS.items():
        html = html.replace(f"<li><strong>{verdict}</strong>", f'<li class="{kind}"><strong>{verdict}</strong>')
    return MARKED.sub(r'<ul class="claims">\1', html)


def _table(rows: str) -> str:
    paper = re.sub(r"<tr>(\s*<td><em>)", r'<tr class="paper">\1', rows)
    return scrolling(f'<table class="numbers">{paper}</table>')


def unbroken(html: str) -> str:
    """No line break between a number and its sign of percent."""
    return re.sub(r"(?<=\d) %", "\u00a0%", html)


def claims(markdown: str) -> list[Found]:
    """Every claim of the verdict, without the marks of markdown."""
    found: list[Found] = []
    for line in markdown.splitlines():
        if match := LINE.match(line):
            found.append(Found(VERDICTS[match[1]], _plain(match[2]), ""))
        elif found and (match := EXCEPTION.match(line)):
            last = found.pop()
            found.append(Found(last.kind, last.text, _plain(match[1])))
    return found


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
