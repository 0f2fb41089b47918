"""The page, live or around a recorded episode: the same drawing code, inlined where it is alone."""

import html
import json
import math
import re
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
MODULES = ("mathematics.js", "scene.js", "plots.js", "lane.js", "replay.js")
"""Of a recorded episode, each after those that it imports."""
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
MARK = "saformer-recording"
FORMAT = 1  # of recorded episodes


def live_page() -> str:
    """The page that `saformer play` serves."""
    return (STATIC / "page.html").read_text()


def recorded_page(recording: dict[str, Any], title: str = "") -> str:
    """A recorded episode as one file that plays by itself: no server, nothing fetched."""
    played = [lane["about"] for lane in recording["lanes"]]
    words = (f"{each['task']} by {each['agent']} ({each['rule']})" for each in played)
    title = title or ", beside ".join(words)
    # no markup can begin in what is quoted: "<" is written as an escape of JSON
    content = json.dumps(recording, allow_nan=False, separators=(",", ":"))
    content = content.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("&", "\\u0026")
    parts = {
        "title": html.escape(title),
        "policy": POLICY,
        "style": (STATIC / "style.css").read_text(),
        "recording": content,
        "script": _script(),
    }
    template = (STATIC / "recorded.html").read_text()
    return re.sub(r"\{\{ (\w+) \}\}", lambda found: parts[found[1]], template)


def read_recording(path: Path) -> dict[str, Any]:
    """The recorded episode in a page, or in a JSON file."""
    text = path.read_text()
    found = re.search(rf'<script type="application/json" id="{MARK}">(.*?)</script>', text, re.S)
    try:
        recording: dict[str, Any] = json.loads(found[1] if found else text)
        if recording["format"] != FORMAT or not recording["lanes"]:
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no recorded episode ({error})") from None
    return recording


def finite(value: Any) -> Any:
    """For JSON: NaN and infinities are null."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _script() -> str:
    """The modules as one: what they import from each other is there already."""
    texts = [(STATIC / name).read_text() for name in MODULES]
    alone = [re.sub(r"^import [^;]*;\n", "", text, flags=re.M) for text in texts]
    return "\n".join(re.sub(r"^export ", "", text, flags=re.M) for text in alone)
