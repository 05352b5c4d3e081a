"""The page of a fleet: harmless whatever is in it, of a size to send, shown by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import fleets
import pytest
from msgspec import structs

from xce_nodeagent.cli.fleet.blocks import BETWEEN, Look, blocks, looks
from xce_nodeagent.cli.fleet.page import page
from xce_nodeagent.cli.fleet.view import FleetView
from xce_nodeagent.cli.picture.html import hashed

NOW = fleets.TIME + 4000


def drawn(view: FleetView) -> str:
    return page(view, view.nodes, NOW)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


# ---- where things are ----------------------------------------------------------------------------


def test_every_node_is_in_its_block_and_none_is_over_another(view: FleetView) -> None:
    every = blocks(view.nodes)
    assert [block.name for block in every] == sorted({node.block for node in view.nodes})
    spots = [(block, spot) for block in every for band in block.bands for spot in band.spots]
    assert sorted(spot.node.name for _, spot in spots) == [node.name for node in view.nodes]
    assert all(spot.node.block == block.name for block, spot in spots)
    for block in every:
        for band in block.bands:
            for at, one in enumerate(band.spots):
                assert one.x + one.look.width < band.width + 1
                assert one.y + one.look.height < band.height + 1
                for other in band.spots[:at]:
                    across = abs(one.x - other.x) >= BETWEEN + min(one.look.width, 1)
                    assert across or abs(one.y - other.y) >= one.look.height


def test_nodes_without_a_block_are_one_block(view: FleetView) -> None:
    (block,) = blocks(structs.replace(node, block="") for node in view.nodes)
    assert (block.name, block.nodes) == ("", 200)
    assert blocks(()) == ()


@pytest.mark.parametrize("count", [0, 1, 2, 4, 7, 8, 16, 64, 72])
def test_cards_lie_within_their_frame(count: int) -> None:
    look = Look("ok", "h" * count)
    places = list(look.places())
    assert len({(x, y) for _, x, y in places}) == count
    assert all(x + 8 < look.width and y + 8 < look.height for _, x, y in places)


def test_what_looks_alike_is_drawn_once(large: FleetView) -> None:
    assert len(looks(blocks(large.nodes))) < 40


# ---- the file ------------------------------------------------------------------------------------


def test_every_state_has_a_form_of_its_own(view: FleetView) -> None:
    """In grey print: no two kinds of card, nor of frame, differ by colour alone."""
    text = drawn(view)
    legend = text[text.index('<div class="legend"') : text.index("<form")]
    cards = re.findall(r'<svg [^>]*viewBox="-1[^>]*>(.*?)</svg>([^<]*)', legend)
    assert len(cards) == 7
    outlines = {re.sub(r'class="\w"', "", form) for form, _ in cards}
    dashed = {"f", "a"}  # one outline, whole and dashed
    assert len(outlines) == 7 - len(dashed) + 1
    assert ".a { fill: none; stroke: var(--faint); stroke-width: 1; stroke-dasharray" in text
    frames = re.findall(r'<g id="(\w+)"><rect class="frame (\w+)"', text)
    assert {kind for _, kind in frames} >= {"ok", "unhealthy", "stale", "two", "unreadable"}


def test_the_drawing_is_well_formed_and_refers_to_what_is_there(view: FleetView) -> None:
    text = drawn(view)
    for element in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(element)  # noqa: S314  # we wrote it, a moment ago
    tags = Tags(text)
    ids = {attributes["id"] for _, attributes in tags.tags if "id" in attributes}
    uses = [attributes["href"] for attributes in tags.of("use")]
    links = [attributes["href"] for attributes in tags.of("a")]
    assert {href[1:] for href in (*uses, *links)} <= ids
    assert len(links) == sum(node.state not in ("ok", "drained") for node in view.nodes)


def test_a_large_fleet_is_a_file_of_a_size_to_send(large: FleetView) -> None:
    text = drawn(large)
    assert len(text.encode()) < 5_000_000
    assert len(re.findall(r"<title>r\d", text)) == 10_000


def test_evil_strings_stay_strings(evil: FleetView) -> None:
    text = drawn(evil)
    tags = Tags(text)
    names = [tag for tag, _ in tags.tags]
    assert names.count("script") == names.count("style") == 1
    assert not {"img", "iframe", "object", "link", "base", "image"} & set(names)
    for _, attributes in tags.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert not attributes.get("src")
        assert (attributes.get("href") or "#").startswith("#")
    assert not set(text) & {"\x00", "\x1b", "\x07", "\ufffe", "\ud800", "\u202e"}
    policy = next(a["content"] for a in tags.of("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")


def test_a_page_says_how_old_it_is(small: FleetView) -> None:
    text = drawn(structs.replace(small, outdated="the store is away"))
    assert '<p class="late">Out of date: the store is away</p>' in text
    assert "revision 16 of the store" in text


# ---- a browser -----------------------------------------------------------------------------------

CHECK = """
addEventListener("error", event => document.title = "error: " + event.message);
document.addEventListener("securitypolicyviolation",
                          event => document.title = "policy: " + event.blockedURI);
addEventListener("load", () => {
  const out = [], root = document.documentElement;
  if (root.scrollWidth > innerWidth) out.push(`the page is ${root.scrollWidth} wide`);
  const uses = [...document.querySelectorAll(".block use")];
  for (const use of uses) {
    const own = use.getBoundingClientRect(), svg = use.ownerSVGElement.getBoundingClientRect();
    if (!own.width || own.right > svg.right + 1.5 || own.bottom > svg.bottom + 1.5)
      out.push(use.textContent);
  }
  for (const name of document.querySelectorAll(".name")) {
    const box = name.getBoundingClientRect();
    for (const use of name.ownerSVGElement.querySelectorAll("use")) {
      const own = use.getBoundingClientRect();
      if (box.right > own.left && box.bottom > own.top && box.top < own.bottom)
        out.push(`${name.textContent} is over a node`);
    }
  }
  const held = document.querySelector(".h");
  const words = document.querySelector("input");
  words.value = "xid"; words.dispatchEvent(new Event("input"));
  const facts = {out, uses: uses.length, colour: getComputedStyle(held).fill,
    asked: performance.getEntriesByType("resource").length,
    dim: document.querySelectorAll("use.dim").length,
    rows: [...document.querySelectorAll("tbody tr")].filter(row => !row.hidden).length};
  document.body.append(Object.assign(document.createElement("pre"), {
    id: "facts", textContent: JSON.stringify(facts)}));
});
"""


def browse(path: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Let a browser show a file. It gets a home of its own, and no network but the loopback."""
    return subprocess.run(
        [
            shutil.which("chromium") or "chromium", "--headless", "--no-sandbox", "--disable-gpu",
            "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
            "--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'browser'}", "--window-size=1280,1000", *options,
            path.as_uri(),
        ],
        check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def seen(text: str, folder: Path) -> tuple[dict, str]:
    """Show a page with a check of our own in it; the policy is widened by its hash alone."""
    text = text.replace("script-src ", f"script-src '{hashed(CHECK)}' ", 1)
    path = folder / "page.html"
    path.write_text(text.replace("</body>", f"<script>{CHECK}</script></body>"), "utf-8")
    done = browse(path, folder, "--dump-dom")
    facts = re.search(r'<pre id="facts">(.*?)</pre>', done.stdout, re.DOTALL)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert facts, done.stderr[-2000:]
    assert title
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    told = facts[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    return json.loads(told), title[1]


@pytest.mark.needs("chromium")
def test_a_browser_shows_every_node_and_finds_by_words(view: FleetView, tmp_path: Path) -> None:
    facts, title = seen(drawn(view), tmp_path)
    ill = sum(node.state == "unhealthy" for node in view.nodes)
    assert title == "Fleet: 200 nodes"
    assert (facts["out"], facts["asked"], facts["uses"]) == ([], 0, 200)
    assert (facts["dim"], facts["rows"]) == (200 - ill, ill)
    assert facts["colour"] == "rgb(10, 77, 162)"


@pytest.mark.needs("chromium")
def test_a_browser_runs_nothing_of_an_evil_fleet(evil: FleetView, tmp_path: Path) -> None:
    facts, title = seen(drawn(evil), tmp_path)
    assert title == "Fleet: 200 nodes"
    assert (facts["asked"], facts["uses"]) == (0, 200)


@pytest.mark.needs("chromium")
def test_it_is_printed(view: FleetView, tmp_path: Path) -> None:
    (tmp_path / "fleet.html").write_text(drawn(view), "utf-8")
    paper = tmp_path / "fleet.pdf"
    done = browse(tmp_path / "fleet.html", tmp_path, f"--print-to-pdf={paper}")
    assert paper.read_bytes()[:5] == b"%PDF-", done.stderr[-2000:]
