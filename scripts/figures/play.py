"""The pictures of the page `saformer play`, from Debian's chromium (docs/figures/play*.png).

python -m scripts.figures.play

A cheetah runs within p50 of the data's costs; in the middle of the episode the slider is moved to
p30, and it slows down. Then two lanes side by side, in the dark.
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

DESKTOP = {"width": 1280, "height": 860}
MOVED, SHOWN = 120, 330  # steps
COLOURS = 96  # of the palette: the pages have few


@contextmanager
def playing(run: str) -> Iterator[str]:
    """The address of a page that plays this run."""
    command = [sys.executable, "-m", "saformer", "play", run, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        try:
            assert found is not None
            yield found[0]
        finally:
            process.terminate()


def wait_for_step(page: Page, step: int) -> None:
    while int(page.inner_text(".figures dd").split()[0]) < step:
        time.sleep(0.05)


def take(page: Page, path: Path) -> None:
    """A picture in few colours, so that it is small."""
    page.screenshot(path=path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="pretrained:halfcheetah-effort")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    settings = parser.parse_args()
    browser_at: Any = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox"]}
    with playing(settings.run) as address, sync_playwright() as playwright:
        page = playwright.chromium.launch(**browser_at).new_page(viewport=DESKTOP)
        page.goto(address)
        page.wait_for_selector(".sliders", timeout=120_000)
        page.select_option("#speed", "30")
        wait_for_step(page, MOVED)
        page.click("[data-mark=p30]")
        wait_for_step(page, SHOWN)
        take(page, settings.out / "play.png")
        page.emulate_media(color_scheme="dark")
        page.keyboard.press("l")
        page.wait_for_selector("[aria-label='lane 2'] .sliders")
        page.click("[aria-label='lane 1'] [data-mark=p50]")
        wait_for_step(page, SHOWN)
        take(page, settings.out / "play_lanes.png")


if __name__ == "__main__":
    main()
