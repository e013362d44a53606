"""Headless Chromium: what a page says on its console, and whether anything on it overlaps or sticks out."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; on Debian: apt-get install chromium")

# Texts and pictures that hold no other: two of them must not share any place, and none may be wider than its box.
LOOK = """<script>
onload = () => {
const leaves = [...document.querySelectorAll("h1,h2,h3,p,li,td,th,summary,figcaption,img,nav a")]
  .filter(part => !part.querySelector("p,li,td,img,table,a") && part.getClientRects().length);
const name = part => `${part.tagName} ${(part.textContent || part.alt).trim().slice(0, 40)}`;
const overlaps = [];
const boxes = leaves.map(part => [part, part.getBoundingClientRect()]).sort((one, other) => one[1].top - other[1].top);
for (const [number, [one, a]] of boxes.entries()) {
  for (let next = number + 1; next < boxes.length && boxes[next][1].top < a.bottom; next++) {
    const [other, b] = boxes[next];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 1) overlaps.push(`${name(one)} / ${name(other)}`);
  }
}
const cramped = leaves.filter(part => part.tagName != "IMG" && part.scrollWidth > part.clientWidth + 1 && part.clientWidth);
const root = document.documentElement;
parent.postMessage({
  width: window.innerWidth, sticks_out: root.scrollWidth - root.clientWidth, parts: leaves.length,
  overlaps: overlaps.slice(0, 5), cramped: cramped.slice(0, 5).map(name),
  pictures: [...document.images].filter(image => !image.naturalWidth).length,
  scrolls: [...document.querySelectorAll("table")].filter(table => table.rows[0].cells.length <= 4 &&
    table.scrollWidth > table.parentElement.clientWidth + 1).map(name),
}, "*");
};
</script>"""

# A window can't be narrower than 500 pixels, a frame in it can.
FRAME = """<!doctype html><iframe src="page.html" style="width: {width}px; height: 900px; border: 0"></iframe>
<pre id="looked"></pre><script>
onmessage = event => document.getElementById("looked").textContent = JSON.stringify(event.data);
</script>"""


@dataclass(frozen=True)
class Look:
    """Faults found: pixels by which the page is too wide, parts that overlap or are too narrow, pictures not shown.

    `scrolls`: tables of up to four columns that don't fit.
    """

    width: int
    sticks_out: int
    parts: int
    overlaps: list[str]
    cramped: list[str]
    pictures: int
    scrolls: list[str]
    console: list[str]


def look_at(html: str, folder: Path, width: int) -> Look:
    """Open a page in a frame of this many pixels with all folded parts open, without a network."""
    (folder / "page.html").write_text(html.replace("<details>", "<details open>").replace("</body>", f"{LOOK}</body>"))
    (folder / "frame.html").write_text(FRAME.format(width=width))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=3000", f"--user-data-dir={folder / 'chromium'}",
        f"--window-size={width + 100},1000", "--dump-dom", (folder / "frame.html").as_uri(),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="looked">(\{.*?\})</pre>', result.stdout, re.DOTALL)
    assert found, result.stderr
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    return Look(**json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")), console=console)
