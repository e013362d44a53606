"""What the site has beside docs: README.md as its first page, the API from its docstrings, the notebooks, and links that end at the site's own pages."""

import base64
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# file of the project -> its page; docs/README.md can't keep its name, which is that of a first page
PAGES = {"README.md": "index.md", "docs/README.md": "built.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOKS = {f"docs/notebooks/{file.name}": f"{file.stem}.md" for file in sorted((ROOT / "docs/notebooks").glob("*.ipynb"))}
PICTURES = ("plots/schematic_light.svg", "plots/schematic_dark.svg", "plots/accuracy.png")
API = ROOT / "stages/skill_grafting/__init__.pyi"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures from outside of docs."""
    files.remove(files.src_uris["README.md"])
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for picture in PICTURES:
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
    found = re.findall(r"^from \.([\w.]+) import (\w+) as", API.read_text(encoding="utf-8"), re.MULTILINE)
    places = {name: f"skill_grafting.{module}.{name}" for module, name in found}
    return "\n".join(["# The API", "", "`import skill_grafting as sg` has these names.", "", *(f"::: {places[name]}\n" for name in sorted(places, key=str.lower))])
