"""Makes a site of pages that are also read as plain Markdown, in a repository.

MkDocs calls the `on_` functions. Besides what they say below:

- A link to a file outside docs/ leads to a page that shows the file, so the site is
  whole by itself wherever it is put.
- A `<picture>` with a dark variant follows the site's scheme, not only the system's.
- The contents of a page say what an error's code means: in headings, as those who link
  there and `ringrun --explain` know them, it stands alone.
- Design records and files outside docs/ are not searched.
- Comments for those who test the pages, as `<!-- not run: ... -->`, are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT_DIR = Path(__file__).resolve().parents[2]
DOCS = "docs"
SHOWN_FILES = "repository"  # Where the site has pages of files outside docs/.
DESIGN = "design/"  # An entry of the nav that stands for all pages of that folder.

_FENCED = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$", re.M | re.S)
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s]+)(?=[)\s])")
_SOURCE = re.compile(r"(?:(?<=src=\")|(?<=href=\"))(?P<target>[^\"]+)(?=\")")
_FOR_TESTS = re.compile(
    r"^[ \t]*<!-- (?:setup:.*?^-->|(?:not run:|exits with).*?-->)[ \t]*\n", re.M | re.S
)
_PICTURE = re.compile(
    r"<picture>\s*<source[^>]*srcset=\"(?P<dark>[^\"]+)\"[^>]*>\s*"
    r"<img alt=\"(?P<alt>[^\"]*)\" src=\"(?P<light>[^\"]+)\"[^>]*>\s*</picture>"
)
_ENTRY = re.compile(r"^### (RK\d{3})\n\n\*\*(.+?)\.?\*\*", re.M)
_LANGUAGES = {
    ".cc": "cpp",
    ".h": "cpp",
    ".hcl": "hcl",
    ".ipynb": "json",
    ".json": "json",
    ".py": "python",
    ".sbatch": "bash",
    ".sh": "bash",
    ".tpl": "yaml",
    ".yaml": "yaml",
}


def on_config(config: Any) -> Any:
    """Lists the design records in the nav."""
    config.nav = [_with_design_records(entry) for entry in config.nav]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds pages of the files outside docs/ that pages link to, and they in turn."""
    waiting = [
        (f"{DOCS}/{file.src_uri}", file.content_string)
        for file in files.documentation_pages()
    ]
    while waiting:
        source, text = waiting.pop()
        for target in _outside_links(source, text):
            uri = _page_of(target)
            if files.get_file_from_path(uri) is not None:
                continue
            content = _shown(target)
            page = File.generated(config, uri, content=content)
            page.inclusion = InclusionLevel.NOT_IN_NAV
            files.append(page)
            waiting.append((target, content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Adapts what is written for a repository to the site."""
    uri = page.file.src_uri
    if uri.startswith((DESIGN, f"{SHOWN_FILES}/")):
        # Who searches for a callback wants its page, not why it came to be.
        page.meta["search"] = {"exclude": True}
    source = f"{DOCS}/{uri}"
    if uri.startswith(f"{SHOWN_FILES}/"):
        source = uri.removeprefix(f"{SHOWN_FILES}/")
        if not (ROOT_DIR / source).exists():
            source = source.removesuffix(".md")

    def adapt(text: str) -> str:
        text = _PICTURE.sub(
            lambda found: (
                f"![{found['alt']}]({found['light']}#only-light)"
                f"![{found['alt']}]({found['dark']}#only-dark)"
            ),
            text,
        )

        def relink(found: re.Match[str]) -> str:
            return _relinked(found["target"], source, uri)

        return _SOURCE.sub(relink, _LINK.sub(relink, text))

    return _outside_code(_FOR_TESTS.sub("", markdown), adapt)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Completes the contents of the page that lists errors."""
    meanings = dict(_ENTRY.findall(page.markdown))

    def complete(items: Any) -> None:
        for item in items:
            if item.title in meanings:
                meaning = meanings[item.title].replace("`", "")
                item.title = f"{item.title}: {escape(meaning)}"
            complete(item.children)

    complete(page.toc)
    return html


def _with_design_records(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _with_design_records(value) for title, value in entry.items()}
    if isinstance(entry, list):
        return [_with_design_records(value) for value in entry]
    if entry == DESIGN:
        records = sorted((ROOT_DIR / DOCS / DESIGN).glob("*.md"))
        return [f"{DESIGN}{record.name}" for record in records]
    return entry


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Changes what is between blocks of code."""
    parts, end = [], 0
    for block in _FENCED.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def _outside_links(source: str, text: str) -> list[str]:
    """Files outside docs/, as paths in the repository, that a page links to."""
    found = []

    def look(part: str) -> str:
        for pattern in (_LINK, _SOURCE):
            for match in pattern.finditer(part):
                target = _in_repository(match["target"], source)
                if target is not None and not target.startswith(f"{DOCS}/"):
                    found.append(target)
        return part

    _outside_code(text, look)
    return found


def _in_repository(link: str, source: str) -> str | None:
    """The path of what a relative link leads to, if there is such a file."""
    path = link.partition("#")[0]
    if not path or path.startswith("/") or re.match(r"[a-z]+:", path):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    return target if (ROOT_DIR / target).exists() else None


def _page_of(target: str) -> str:
    """Where the site shows a file of the repository."""
    if target.startswith(f"{DOCS}/"):
        return target.removeprefix(f"{DOCS}/")
    if (ROOT_DIR / target).is_dir():
        return f"{SHOWN_FILES}/{target}/index.md"
    suffix = "" if target.endswith(".md") else ".md"
    return f"{SHOWN_FILES}/{target}{suffix}"


def _relinked(link: str, source: str, uri: str) -> str:
    target = _in_repository(link, source)
    if target is None:
        return link
    if target == DOCS or (
        target.startswith(f"{DOCS}/") and (ROOT_DIR / target).is_dir()
    ):
        target = f"{DOCS}/index.md"
    anchor = link.partition("#")[1] + link.partition("#")[2]
    return posixpath.relpath(_page_of(target), posixpath.dirname(uri)) + anchor


def _shown(target: str) -> str:
    path = ROOT_DIR / target
    if path.suffix == ".md":
        return path.read_text()
    if path.is_dir():
        names = sorted(
            entry.name + "/" * entry.is_dir()
            for entry in path.iterdir()
            if not entry.name.startswith((".", "__pycache__"))
        )
        return f"# {target}/\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    language = _LANGUAGES.get(path.suffix, "text")
    return f"# {target}\n\n````{language}\n{path.read_text()}````\n"
