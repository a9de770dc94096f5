"""A real browser, where one is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
_REPORT = re.compile(r'<output id="told">(.*?)</output>', re.S)


def told(page: Path, script: str) -> str:
    """What an expression gives in the page, as text, after its scripts ran; errors of theirs come first."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    text = page.read_text()
    head = """<script>window.wrong = []; onerror = (message) => wrong.push(message);
addEventListener("securitypolicyviolation", (event) => wrong.push("policy: " + event.blockedURI));</script>"""
    tail = f"""<output id="told"></output><script>addEventListener("load", () => {{
let found; try {{ found = String({script}); }} catch (error) {{ wrong.push(error); }}
document.getElementById("told").textContent = [...wrong, found].join("\\n"); }});</script>"""
    probed = page.with_suffix(".probed.html")
    probed.write_text(text.replace("<head>", f"<head>{head}", 1).replace("</body>", f"{tail}</body>", 1))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900", "--virtual-time-budget=2000"]
    done = subprocess.run(
        [browser, *flags, f"--user-data-dir={page.parent / 'browser'}", "--dump-dom", probed.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = _REPORT.search(done.stdout)
    assert found is not None, done.stderr[-2000:]
    return unescape(found[1])
