"""What the site has beside docs: README.md as its first page, the API from its docstrings, the notebooks, and links that end at the site's own pages.

A site with a picture or a link that leads nowhere isn't built.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import shutil
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# file of the project -> its page; docs/README.md can't keep its name, which is that of a first page
PAGES = {"README.md": "index.md", "docs/README.md": "built.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOKS = {f"docs/notebooks/{file.name}": f"{file.stem}.md" for file in sorted((ROOT / "docs/notebooks").glob("*.ipynb"))}
# folders of copies, which go with the build
COPIES: list[Path] = []
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
PICTURE = re.compile(r"(?<!\[)!\[[^\]]*\]\((?P<shown>[^)\s]+)\)|\b(?:src|srcset)=\"(?P<named>[^\"]+)\"")
# attributes that name another file of the site
NAMING = ("href", "src", "srcset")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Have the reader of docstrings, which passes over folders without an __init__.py, read a copy that has them."""
    COPIES.append(Path(mkdtemp()))
    package = COPIES[-1] / "skill_grafting"
    shutil.copytree(ROOT / "stages/skill_grafting", package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (place for place in package.rglob("*") if place.is_dir()):
        (folder / "__init__.py").touch()
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(COPIES[-1])]
    return config


on_config.mkdocs_priority = 100  # before the plugin reads its settings


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures from outside of docs."""
    from mkdocs.structure.files import File

    files.remove(files.src_uris["README.md"])
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for picture in pictures():
        files.append(File.generated(config, picture, content=(ROOT / picture).read_bytes()))
    files.append(File.generated(config, "api.md", content=_api()))
    for notebook, page in NOTEBOOKS.items():
        for name, content in _notebook(ROOT / notebook, page):
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the site's pages; what is no page is named without a link.  Badges, which ask the network, go."""
    source = next((name for name, other in PAGES.items() if other == page.file.src_uri), f"docs/{page.file.src_uri}")

    def led(found: re.Match[str]) -> str:
        text, (path, mark, anchor) = found[1], found[2].partition("#")
        if "://" in path or not path:
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        own = (PAGES | NOTEBOOKS).get(file, file.removeprefix("docs/"))
        return f"[{text}]({own}{mark}{anchor})" if own in files.src_uris else text

    lines = (line for line in markdown.splitlines() if not line.startswith("[!["))
    return LINK.sub(led, "\n".join(lines))


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if anything that the site names isn't there."""
    from mkdocs.exceptions import Abort

    if found := broken(Path(config.site_dir)):
        raise Abort("\n".join(["the site names what it doesn't have:", *found]))


def on_shutdown() -> None:
    """Take the copies away."""
    while COPIES:
        shutil.rmtree(COPIES.pop())


def pictures() -> list[str]:
    """The project's pictures that pages from outside of docs show."""
    found = []
    for page in PAGES:
        names = (match["shown"] or match["named"] for match in PICTURE.finditer((ROOT / page).read_text(encoding="utf-8")))
        found += [posixpath.normpath(posixpath.join(posixpath.dirname(page), name)) for name in names if "://" not in name]
    return [*dict.fromkeys(found)]


def broken(site: Path) -> list[str]:
    """A line for each attribute of a page that names a file or an anchor which the site doesn't have; other sites aren't asked."""
    found = []
    for page in sorted(site.rglob("*.html")):
        for name in _read(page).names:
            link = urlsplit(name)
            place = page if not link.path else site / unquote(link.path).lstrip("/") if link.path[0] == "/" else page.parent / unquote(link.path)
            place = place / "index.html" if place.is_dir() else place
            known = place.is_file() and (place.suffix != ".html" or unquote(link.fragment) in ("", *_read(place).anchors))
            if not (link.scheme or link.netloc or known):
                found.append(f"{page.relative_to(site)}: {name}")
    return found


class Names(HTMLParser):
    """What a page names, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read the attributes of an element."""
        for name, value in attrs:
            if name in NAMING and value:
                self.names.append(value.split()[0])
            elif name in ("id", "name") and value:
                self.anchors.add(value)


@cache
def _read(page: Path) -> Names:
    names = Names()
    names.feed(page.read_text(encoding="utf-8"))
    return names


def _notebook(file: Path, page: str) -> Iterator[tuple[str, str | bytes]]:
    """The page of a notebook with its outputs, and the pictures in them, by name."""
    parts: list[str] = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{file.stem}-{len(parts)}.png"
                yield name, base64.b64decode(data["image/png"])
                parts.append(f"![figure]({name})")
            else:
                text = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```text\n{text}\n```")
    yield page, "\n\n".join(parts)


def _api() -> str:
    """A page with every public name where it is defined."""
    import skill_grafting

    places = {name: f"skill_grafting.{module}.{name}" for name, module in skill_grafting._PLACES.items()}
    lines = (f"::: {places[name]}\n" for name in sorted(places, key=str.lower))
    return "\n".join(["# The API", "", "`import skill_grafting as sg` has these names.", "", *lines])
