"""The page "Ring", as a person or a screen reader uses it."""

from __future__ import annotations

from typing import Any

TIMEOUT_MS = 60_000


class BoardPage:
    """TensorBoard in a browser, with "Ring" open.

    Args:
        page: Playwright's.
        address: TensorBoard's.
    """

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address.rstrip("/")
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(f"{self.address}/#ring")
        self.frame = page.frame_locator("iframe")
        self.frame.get_by_role("tab", name="Overview").wait_for()

    def headline(self) -> str:
        return self.frame.get_by_role("status").inner_text()

    def wait_for_headline(self, part: str) -> str:
        """Waits until it says that; returns all of it."""
        self.frame.get_by_role("status").filter(has_text=part).wait_for()
        return self.headline()

    def open_tab(self, name: str) -> None:
        self.frame.get_by_role("tab", name=name).click()
        self.frame.get_by_role("tabpanel", name=name).wait_for()

    def charts(self) -> list[str]:
        """What a screen reader says of each, once it is drawn."""
        self.frame.locator("figure .main-svg").first.wait_for()
        images = self.frame.locator("figure > [role=img]").all()
        return [image.get_attribute("aria-label") for image in images]

    def table(self, caption: str) -> list[list[str]]:
        """The rows of a table, unfolded if it belongs to a chart."""
        region = self.frame.get_by_role("region", name=caption, include_hidden=True)
        region.wait_for(state="attached")
        self.frame.locator("details").evaluate_all(
            "all => all.forEach(details => { details.open = true; })"
        )
        region.wait_for()
        rows = region.locator("tbody tr").all()
        return [row.locator("th, td").all_inner_texts() for row in rows]
