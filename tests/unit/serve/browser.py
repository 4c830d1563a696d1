"""Headless Chromium over its own debugging pipe: open a page, run JavaScript in it, press keys, take pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
# Chromium reads commands from descriptor 3 and writes to 4.
_START = (
    "import os, sys; r, w = (os.dup2(int(n), 100 + i) for i, n in enumerate(sys.argv[1:3])); "
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    def __init__(self, folder: Path) -> None:
        read, far_write = os.pipe()
        far_read, write = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(far_read), str(far_write), CHROMIUM, *flags, "about:blank"],
            pass_fds=(far_read, far_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(far_read)
        os.close(far_write)
        self._read, self._write = open(read, "rb", buffering=0), open(write, "wb", buffering=0)  # noqa: SIM115
        self._rest, self._count, self._session = b"", 0, ""
        self.problems: list[str] = []  # what the console and the policy complained about
        (target,) = [
            each for each in self.send("Target.getTargets")["targetInfos"] if each["type"] == "page"
        ]  # fmt: skip
        attached = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._count:
                assert "error" not in found, found["error"]
                result: dict[str, Any] = found["result"]
                return result
            self._note(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = self._read.read(1 << 16)
            assert data, "Chromium has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(event["params"]["exceptionDetails"])[:2000])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"] + " " + event["params"]["entry"].get("url", ""))

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, (script, self.run("document.body.innerText"), self.problems)
            time.sleep(0.05)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def key(self, name: str, text: str = "") -> None:
        code = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Escape": 27}.get(name, 0)
        common = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text or ("\r" if name == "Enter" else ""), **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def size(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}
        found = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self._write.close()  # Chromium ends with its pipe
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._read.close()
