"""The site: it builds without a warning, is whole, and asks no other origin."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.browser import chromium
from support.doc_examples import documented_names
from support.doc_links import Site, is_outside
from support.doc_pages import DOCS_DIR, ROOT_DIR

CONFIG = ROOT_DIR / "mkdocs.yml"
PHONE = {"width": 390, "height": 844}


def nav_pages() -> list[str]:
    """The pages that the nav lists."""

    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values() if isinstance(entry, dict) else entry:
                yield from pages(value)

    text = CONFIG.read_text()
    return list(pages(yaml.safe_load(text[text.index("\nnav:") :])["nav"]))


def test_the_nav_has_every_page() -> None:
    listed = nav_pages()
    assert len(set(listed)) == len(listed)
    folders = tuple(entry for entry in listed if entry.endswith("/"))
    there = {
        name
        for name in (p.relative_to(DOCS_DIR).as_posix() for p in DOCS_DIR.rglob("*.md"))
        if not name.startswith(folders)
    }
    assert there == set(listed) - set(folders)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            *("--site-dir", str(directory)),
        ],
        cwd=ROOT_DIR,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    return Site(directory)


@pytest.mark.docs
@pytest.mark.timeout(400)
def test_every_link_leads_somewhere(site: Site) -> None:
    broken = {name: site.broken(name) for name in site.pages}
    assert {name: links for name, links in broken.items() if links} == {}
    assert len(site.pages) > len(nav_pages())


@pytest.mark.docs
@pytest.mark.timeout(400)
def test_the_reference_shows_each_name_as_what_it_is(site: Site) -> None:
    pages = [page for name, page in site.pages.items() if name.startswith("reference/")]
    shown = set().union(*(page.ids for page in pages))
    assert set(documented_names()) <= shown
    assert not [page for page in pages if "doc-symbol-module" in page.text]


@pytest.mark.docs
@pytest.mark.timeout(400)
def test_contents_say_what_codes_mean(site: Site) -> None:
    (page,) = (page for name, page in site.pages.items() if name.startswith("trouble"))
    assert "RK101: init() has not run" in page.text
    assert "rk101" in page.ids


@pytest.mark.docs
@pytest.mark.timeout(400)
def test_pages_load_nothing_from_elsewhere(site: Site) -> None:
    for name, page in site.pages.items():
        assert not [url for url in page.loads if is_outside(url)], name


@pytest.fixture(scope="module")
def address(site: Site) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site.directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Any]:
    """`open_page(**options)` gives a page of the browser, and what it asks for."""
    contexts = []

    def open_one(**options: Any) -> tuple[Any, list[str]]:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(f"error: {error}"))
        return page, asked

    yield open_one
    for context in contexts:
        context.close()


@pytest.mark.docs
@pytest.mark.timeout(600)
def test_no_request_leaves_the_origin(site: Site, address: str, open_page: Any) -> None:
    page, asked = open_page()
    for name in site.pages:
        page.goto(address + name)
    page.goto(address)
    page.get_by_role("textbox", name="Search").fill("reducescatter")
    page.locator(".md-search-result__item").first.wait_for()
    assert page.locator(".md-search-result__item").count() > 0
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]


@pytest.mark.docs
@pytest.mark.timeout(600)
def test_no_page_is_wider_than_a_phone(
    site: Site, address: str, open_page: Any
) -> None:
    page, _ = open_page(viewport=PHONE)
    too_wide = []
    for name in site.pages:
        page.goto(address + name)
        root = "document.documentElement"
        if page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"):
            too_wide.append(name)
    assert not too_wide


@pytest.mark.docs
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("scheme", "expected"), [("light", "default"), ("dark", "slate")]
)
def test_the_scheme_follows_the_system(
    address: str, open_page: Any, scheme: str, expected: str
) -> None:
    page, _ = open_page(color_scheme=scheme)
    page.goto(address)
    assert page.locator("body").get_attribute("data-md-color-scheme") == expected
    shown = page.locator(f'img[src*="ranks-{scheme}"]')
    assert shown.is_visible()
