"""A headless Chromium for the tests of pages, where the system has one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MISSING = "there is no Chromium with its driver; Debian's packages are chromium and chromium-driver"


def found() -> tuple[str, str] | None:
    """Returns the paths of a Chromium and of its driver."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextlib.contextmanager
def opened(page: Path, *, dark: bool = False, size: tuple[int, int] = (1440, 900)) -> Iterator[Any]:
    """Yields selenium's driver with a page; skips the test where there is no browser.

    The page asked the network for nothing, and its console is empty, at the end.
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
    paths = found()
    if paths is None:
        pytest.skip(MISSING)
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for argument in ("--headless=new", "--disable-gpu", "--hide-scrollbars", f"--window-size={size[0]},{size[1]}"):
        options.add_argument(argument)
    if dark:
        options.add_argument("--blink-settings=preferredColorScheme=0")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(paths[1]))
    try:
        driver.get(page.as_uri())
        yield driver
        said = [entry["message"] for entry in driver.get_log("browser")]
        assert said == [], said  # pytest rewrites the asserts of test modules only
        asked = _requests(driver) - {page.as_uri(), "data:,"}
        assert asked == set(), asked
    finally:
        driver.quit()


def _requests(driver: Any) -> set[str]:
    """Returns the addresses that the page asked for."""
    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return {
        event["params"]["request"]["url"].partition("#")[0]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
