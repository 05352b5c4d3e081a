"""The files of a picture: well-formed, harmless whatever is in them, shown by a real browser."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.cli.picture import html, svg
from xce_nodeagent.cli.picture.svg import DARK, LIGHT
from xce_nodeagent.cli.target import replace
from xce_nodeagent.host import Host

PROFILES = ("cpu-only", "dgx-a100-mig", "dgx-h100", "gb200", "mi300x")
EVIL = (
    "</title></svg><script>document.title='taken'</script>",
    "\"><img src=http://example.invalid/x onerror=document.title='taken'>",
    "]]><!--",
    "&lt;b&gt; &amp;",
    "\x1b]0;taken\x07 \u202egnp\x00\ufffe\ud800",
    "--><style>*{display:none}</style>",
    "javascript:alert(1)",
)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def evil(simulated) -> dict[str, Any]:
    """Give a machine in which everything that others may choose is chosen by somebody evil."""
    machine = copy.deepcopy(simulated("dgx-a100-mig"))
    machine["node"], machine["source"] = EVIL[0], "agent"
    machine["attributes"] = {"cpu_model": EVIL[1], "kernel": EVIL[4]}
    for number, one in enumerate(machine["instances"]):
        text = EVIL[number % len(EVIL)]
        one["attributes"].update(model=text, netdev=text, rdma_device=text, weather=text)
        one.update(healthy=number % 3 > 0, reason=text, reserved=text)
        one["held_by"] = [{"job": text, "attempt": text}] if number % 2 else []
    machine["instances"] = [*machine["instances"], *(
        {**machine["instances"][0], "id": text, "type": "x", "attributes": {}} for text in EVIL
    )]  # fmt: skip
    machine["problems"] = [{"provider": EVIL[0], "state": "error", "reason": EVIL[5]}]
    return machine


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))


# ---- the files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_an_svg_is_xml_and_fetches_nothing(simulated, profile: str) -> None:
    text = svg.page(simulated(profile))
    root = parsed(text)
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title").text
    assert re.search(r"\d (gpu|nic)", root.find(f"{SVG}desc").text)
    harmless(root)


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314  # we wrote it, a moment ago


def harmless(root: ET.Element) -> None:
    kinds = {one.tag.removeprefix(SVG) for one in root.iter()}
    assert kinds <= {"svg", "title", "desc", "style", "defs", "pattern", "rect", "circle", "path",
                     "polyline", "g", "text"}  # fmt: skip
    for one in root.iter():
        for name, value in one.attrib.items():
            assert not name.lower().startswith("on")
            assert "href" not in name
            assert not re.search(r"url\((?!#)|https?:", value)
    style = "".join(one.text or "" for one in root.iter(f"{SVG}style"))
    assert not re.search(r"@import|url\((?!#)|http", style)


def test_evil_strings_stay_strings(evil) -> None:
    harmless(parsed(svg.page(evil)))
    page = html.page(evil)
    tags = Tags(page).tags
    assert [tag for tag, _ in tags].count("script") == 1
    assert not {"img", "iframe", "object", "link", "base"} & {tag for tag, _ in tags}
    assert [tag for tag, _ in tags].count("style") == 1
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert not attributes.get("src")
        assert (attributes.get("href") or "#").startswith("#")
    assert not set(page) & {"\x00", "\x1b", "\x07", "\ufffe", "\ud800", "\u202e"}


def test_a_page_forbids_itself_to_fetch(simulated) -> None:
    page = html.page(simulated("dgx-h100"))
    policy = next(a["content"] for tag, a in Tags(page).tags if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")


def test_every_instance_has_a_row_and_every_link_leads_to_one(simulated) -> None:
    machine = simulated("dgx-a100-mig")
    tags = Tags(html.page(machine)).tags
    rows = [a["id"] for tag, a in tags if tag == "tr" and "id" in a]
    links = [a["href"] for tag, a in tags if tag == "a"]
    assert len(rows) == len(set(rows)) == len(machine["instances"])
    assert sorted(links) == sorted(f"#{row}" for row in rows)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_words_stand_out(colours: dict[str, str]) -> None:
    """WCAG 2.2, 1.4.3: a contrast of 4.5 to 1; of the lines 3 to 1 (1.4.11)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(colours[one]), luminance(colours[other])))
        return (high + 0.05) / (low + 0.05)

    for paper in ("paper", "card", "bar", "socket", "hub"):
        assert contrast("ink", paper) >= 7
    for word in ("faint", "held", "drained", "unhealthy"):
        assert contrast(word, "paper") >= 4.5
    for line in ("line", "nvlink", "xgmi", "reserved"):
        assert contrast(line, "paper") >= 3


# ---- the command ---------------------------------------------------------------------------------


def command(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "inventory", *map(str, arguments)],
        check=False, capture_output=True, text=True, timeout=60, **more,
    )  # fmt: skip


def test_a_file_is_written_or_stdout(small: Path, tmp_path: Path) -> None:
    done = command("--sysroot", small, "--svg", tmp_path / "node.svg")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shown = command("--sysroot", small, "--svg", "-").stdout
    assert shown == (tmp_path / "node.svg").read_text("utf-8")
    assert command("--sysroot", small, "--html", "-").stdout.startswith("<!DOCTYPE html>")
    refused = command("--sysroot", small, "--html", tmp_path / "no" / "file")
    assert refused.returncode == 64
    assert "No such file" in refused.stderr
    assert command("--svg", "-", "--tree").returncode == 64


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    old, link = tmp_path / "old", tmp_path / "link"
    old.write_text("old")
    old.chmod(0o640)
    link.symlink_to(old)
    reading = old.open()
    replace(str(link), "new")
    assert reading.read() == "old", "who has it open reads the old one"
    reading.close()
    assert (old.read_text(), link.is_symlink()) == ("new", True)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    with pytest.raises(UnicodeEncodeError):
        replace(str(old), "\ud800")
    assert old.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "old"]
    replace(os.devnull, "nothing")


# ---- a browser -----------------------------------------------------------------------------------

CHECK = """
<script>
addEventListener("error", event => document.title = "error: " + event.message);
document.addEventListener("securitypolicyviolation",
                          event => document.title = "policy: " + event.blockedURI);
addEventListener("load", () => {
  const out = [], seen = document.documentElement;
  if (seen.scrollWidth > innerWidth) out.push(`the page is ${seen.scrollWidth} wide`);
  for (const g of document.querySelectorAll("svg g[class]")) {
    const own = g.querySelector(":scope > .box").getBoundingClientRect();
    for (const t of g.querySelectorAll(":scope > text")) {
      const r = t.getBoundingClientRect();
      if (r.left < own.left - .5 || r.right > own.right + .5 || r.top < own.top - 1.5 ||
          r.bottom > own.bottom + 1.5 || !r.width) out.push(`${t.textContent} is not in its box`);
    }
  }
  const asked = performance.getEntriesByType("resource").length;
  if (asked) out.push(`${asked} things were fetched`);
  const words = document.querySelector("input");
  words.value = "gpu"; words.dispatchEvent(new Event("input"));
  const rows = [...document.querySelectorAll("tbody tr")].filter(row => !row.hidden).length;
  const link = document.querySelector("figure a");
  link.dispatchEvent(new PointerEvent("pointerenter"));  // a window may not have the focus yet
  const told = document.querySelector("aside").textContent;
  const facts = {out, rows, told, dim: document.querySelectorAll(".dim").length};
  document.body.append(Object.assign(document.createElement("pre"), {
    id: "facts", textContent: JSON.stringify(facts)}));
});
</script>
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


def seen(page: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Show a page with a check of our own in it; the policy is widened by its hash alone."""
    script = re.search(r"<script>(.*)</script>", CHECK, re.DOTALL)
    assert script
    allowed = html.hashed(script[1])
    page = page.replace("script-src ", f"script-src '{allowed}' ", 1)
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"{CHECK}</body>"), "utf-8")
    done = browse(path, folder, "--dump-dom")
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    facts = re.search(r'<pre id="facts">(.*?)</pre>', done.stdout, re.DOTALL)
    assert title, done.stderr[-2000:]
    assert facts, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    value: dict[str, Any] = json.loads(facts[1].replace("&amp;", "&").replace("&lt;", "<")
                                       .replace("&gt;", ">"))  # fmt: skip
    return value, title[1]


@pytest.mark.needs("chromium")
def test_a_browser_shows_it_without_a_fault(simulated, tmp_path: Path) -> None:
    machine = simulated("dgx-a100-mig")
    machine["node"] = "node7"
    facts, title = seen(html.page(machine), tmp_path)
    assert title == "node7: inventory"
    assert facts["out"] == []
    gpus = [one for one in machine["instances"] if "gpu" in json.dumps(one["id"]).lower()]
    assert facts["rows"] >= len(gpus)
    assert facts["dim"] >= 1, "NICs are not what was asked for"
    assert "type: " in facts["told"]


@pytest.mark.needs("chromium")
def test_a_browser_runs_nothing_of_an_evil_machine(evil, tmp_path: Path) -> None:
    facts, title = seen(html.page(evil), tmp_path)
    assert "taken" not in title.partition("script")[0]
    assert title.endswith("inventory")
    assert facts["out"] == []


@pytest.mark.needs("chromium")
def test_an_svg_is_shown_and_a_page_is_printed(look, small: Path, tmp_path: Path) -> None:
    machine = look(Host(small))
    (tmp_path / "node.svg").write_text(svg.page(machine), "utf-8")
    shot = tmp_path / "node.png"
    done = browse(tmp_path / "node.svg", tmp_path, f"--screenshot={shot}")
    assert shot.read_bytes()[:4] == b"\x89PNG", done.stderr[-2000:]
    assert shot.stat().st_size > 10_000, "it is not blank"
    (tmp_path / "node.html").write_text(html.page(machine), "utf-8")
    paper = tmp_path / "node.pdf"
    done = browse(tmp_path / "node.html", tmp_path, f"--print-to-pdf={paper}")
    assert paper.read_bytes()[:5] == b"%PDF-", done.stderr[-2000:]
