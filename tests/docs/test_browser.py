"""A browser lays out every page of the site, at the widths of a phone and of a desktop.

Without Chromium these tests are skipped; `LIFTCORE_REQUIRE_BROWSER=1` makes that an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import pytest

from tests.docs.html import pages

WIDTHS = (400, 1280)
MEASURE = """<!doctype html><body><script>
const found = [];
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 800px; border: 0`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const inside = frame.contentWindow, root = inside.document.documentElement;
  const wide = [...inside.document.querySelectorAll("article *")].filter(one => {
    for (let box = one.parentElement; box; box = box.parentElement)
      if (["auto", "scroll", "hidden"].includes(inside.getComputedStyle(box).overflowX)) return false;
    return one.getBoundingClientRect().right > width + 1;
  });
  const loaded = inside.performance.getEntriesByType("resource").map(one => one.name);
  found.push({page, width, needs: root.scrollWidth, has: inside.innerWidth, title: inside.document.title,
    wide: wide.slice(0, 3).map(one => one.outerHTML.slice(0, 120)),
    abroad: loaded.filter(url => !url.startsWith(location.origin))});
  frame.remove();
}
(async () => {
  for (const width of WIDTHS) for (const page of PAGES) await measure(page, width);
  await fetch("/measured", {method: "POST", body: JSON.stringify(found)});
})();
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """Serves a site, a page that measures its pages, and takes what that page found."""

    def __init__(self, *args: Any, measured: Queue[str], **options: Any) -> None:
        self.measured = measured
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        if self.path != "/measure":
            return super().do_GET()
        names = sorted(pages(Path(self.directory)))
        text = MEASURE.replace("WIDTHS", str(list(WIDTHS))).replace("PAGES", json.dumps(names)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        self.measured.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def measured(site: Path) -> Iterator[list[dict[str, Any]]]:
    """What a browser finds of each page, at each width."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        give_up = pytest.fail if os.environ.get("LIFTCORE_REQUIRE_BROWSER") == "1" else pytest.skip
        give_up("no Chromium is installed to lay the pages out: apt-get install chromium")
    answers: Queue[str] = Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, measured=answers, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
        ]
        address = f"http://127.0.0.1:{server.server_port}/measure"
        run = subprocess.Popen([browser, *options, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield json.loads(answers.get(timeout=300))
        finally:
            run.kill()
            run.wait()
            server.shutdown()
            server.server_close()


def test_every_page_was_laid_out(site: Path, measured: list[dict[str, Any]]) -> None:
    assert len(measured) == len(WIDTHS) * len(pages(site))
    assert {one["has"] for one in measured} == set(WIDTHS)
    assert all(one["title"] for one in measured)


def test_no_page_is_wider_than_its_window(measured: list[dict[str, Any]]) -> None:
    wide = [one for one in measured if one["needs"] > one["has"] or one["wide"]]
    assert [f"{one['page']} at {one['width']}: {one['needs']} {one['wide']}" for one in wide] == []


def test_the_browser_loads_nothing_from_elsewhere(measured: list[dict[str, Any]]) -> None:
    assert {one["page"]: one["abroad"] for one in measured if one["abroad"]} == {}
