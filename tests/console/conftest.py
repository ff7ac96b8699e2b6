"""One Chromium for all tests of a session; without one they are skipped, in one line."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.console.scene import OPERATOR, Scene

# The first needs a third of the processor time of a whole browser, from the same source.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
NONE = "no Chromium here (apt-get install chromium-headless-shell): no test of the console in it"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Any]:
    if CHROMIUM is None:
        pytest.skip(NONE)
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield browser
        await browser.close()


class Watched:
    """A page of its own, and all that went wrong on it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []

    async def go(self, path: str) -> int:
        response = await self.page.goto(self.url + path)
        return int(response.status)

    async def sign_in(self, token: str = OPERATOR) -> None:
        await self.go("/sign-in")
        await self.page.get_by_label("Operator token").fill(token)
        await self.page.get_by_role("button", name="Sign in").click()

    async def let_in(self, scene: Scene) -> None:
        """Signed in already, at the first page."""
        name, value = scene.let_in()
        cookie = {"name": name, "value": value, "url": self.url, "sameSite": "Strict"}
        await self.page.context.add_cookies([cookie])

    async def text(self, selector: str = "main") -> str:
        return str(await self.page.locator(selector).first.inner_text())


# Runs before any script of the page: what a policy has stopped, and what should never run.
WATCH = """
window.__ran = [];
window.__stopped = [];
for (const name of ["alert", "confirm", "prompt", "print", "open"])
  window[name] = (...given) => window.__ran.push(name + " " + given);
addEventListener("securitypolicyviolation",
  (event) => window.__stopped.push(event.violatedDirective + " " + event.blockedURI + " "
    + event.sample));
"""


@asynccontextmanager
async def watched(browser: Any, url: str, **options: Any) -> AsyncIterator[Watched]:
    context = await browser.new_context(**options)
    await context.add_init_script(WATCH)
    page = await context.new_page()
    found = Watched(page, url)
    page.set_default_timeout(15_000)
    page.on("pageerror", lambda error: found.wrong.append(str(error)))
    page.on("dialog", lambda dialog: found.wrong.append(f"dialog {dialog.message}"))
    page.on(
        "console",
        lambda said: (
            None
            if said.type != "error" or said.text.startswith("Failed to load resource")
            else found.wrong.append(said.text)
        ),
    )
    try:
        yield found
    finally:
        await context.close()
