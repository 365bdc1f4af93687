"""Looks at the page in a headless Chromium: a device is killed, and its tile turns red.

    page.py SHMCCL SHMCCL_GRPC DIRECTORY_OF_SCREENSHOTS
"""

import base64
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from pool import Pool
from replay import MIN, Client, packed

# Where other programs take the processors, a second is not enough for the browser alone.
LONG = bool(os.environ.get("SHMCCL_LONG"))


class Browser:
    """A Chromium with one tab, by its protocol for developers over a websocket."""

    def __init__(self, profile):
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1100,760", "about:blank"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        for line in self.process.stderr:
            if found := re.search(r"ws://([^/]+)/", line):
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        host, port = found[1].rsplit(":", 1)
        tabs = json.load(urllib.request.urlopen(f"http://{host}:{port}/json"))
        path = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page").split("/", 3)[3]
        self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(60)
        self.socket.sendall((
            f"GET /{path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.incoming = self.socket.makefile("rb")
        while self.incoming.readline().strip():
            pass
        self.number = 0

    def ask(self, method, **parameters):
        self.number += 1
        text = json.dumps({"id": self.number, "method": method, "params": parameters}).encode()
        head = b"\x81" + (bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + struct.pack(">H", len(text)))
        self.socket.sendall(head + bytes(4) + text)
        while True:
            answer = json.loads(self.message())
            if answer.get("id") == self.number:
                return answer["result"]

    def message(self):
        payload, is_last = b"", False
        while not is_last:
            first, length = self.incoming.read(2)
            is_last = bool(first & 0x80)
            if length == 126:
                (length,) = struct.unpack(">H", self.incoming.read(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", self.incoming.read(8))
            payload += self.incoming.read(length)
        return payload

    def value(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def screenshot(self, path):
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.process.terminate()
        self.process.wait()


def state_of(browser, device):
    return browser.value(f"document.querySelector('[data-id=\"{device}\"]')?.dataset.state")


def refusals(url):
    """Whoever has another token, another host's name or another method is refused."""
    base, token = re.match(r"(http://[^/]+)/(\w+)/", url).groups()
    for address, headers, method, code in [
            (f"{base}/{token[:-1]}x/", {}, "GET", 404), (f"{base}/", {}, "GET", 404),
            (url, {"Host": "evil.example"}, "GET", 421), (url, {}, "POST", 405),
            (f"{url}../{token}/events/x", {}, "GET", 404)]:
        request = urllib.request.Request(address, headers=headers, method=method)
        try:
            urllib.request.urlopen(request, timeout=10)
        except urllib.error.HTTPError as error:
            assert error.code == code, (address, error.code)
        else:
            raise AssertionError(f"{method} {address} was not refused")


def main(shmccl, front_program, screenshots):
    os.makedirs(screenshots, exist_ok=True)
    with Pool(shmccl, front_program, 6) as pool, tempfile.TemporaryDirectory() as profile:
        front = pool.start(front_program, "--listen", "127.0.0.1:0", "--page")
        Pool.until(lambda: "the page is at" in pool.said(front) and "listens at 127" in pool.said(front))
        said = pool.said(front)
        url = re.search(r"the page is at (\S+)", said)[1]
        refusals(url)
        browser = Browser(profile)
        try:
            look(pool, browser, url, re.search(r"listens at (127\S+):", said)[1], screenshots)
        finally:
            browser.close()


def look(pool, browser, url, address, screenshots):
    browser.ask("Page.navigate", url=url)
    # Devices come first; behind them stand jobs that others have here.
    tiles = "document.querySelector('.tiles')?.childElementCount"
    Pool.until(lambda: browser.value(tiles) == 6)
    assert browser.value("document.querySelector('.tiles').querySelectorAll('.free').length") == 6
    browser.screenshot(f"{screenshots}/idle.png")

    client = Client(address)
    made = client.init(4)
    for device in made.devices:
        client.put(device, MIN, packed([1.0]) * 100_000)
    going_on = threading.Event()

    def work():
        while not going_on.is_set():
            client.start(made.commId)
            client.reduce(made.commId, 100_000, 2)
            client.end(made.commId)

    worker = threading.Thread(target=work)
    worker.start()
    rates = "[...document.querySelector('.tiles').children].filter(tile => /B\\/s/.test(tile.textContent)).length"
    Pool.until(lambda: browser.value(rates) == 4)
    browser.screenshot(f"{screenshots}/work.png")
    going_on.set()
    worker.join()

    victim = made.devices[2].deviceId.value
    Pool.until(lambda: state_of(browser, victim) == "ready")
    os.kill(victim, signal.SIGKILL)
    killed_at = time.monotonic()
    Pool.until(lambda: state_of(browser, victim) == "lost")
    took = time.monotonic() - killed_at
    color = browser.value(f"getComputedStyle(document.querySelector('[data-id=\"{victim}\"]')).borderLeftColor")
    assert color == "rgb(208, 34, 46)", color
    browser.screenshot(f"{screenshots}/lost.png")
    print(f"the tile of a killed device is red after {took * 1000:.0f} ms")
    assert took < (1 if LONG else 5), "it is to be red within a second"


if __name__ == "__main__":
    main(*sys.argv[1:])
