"""Starts and stops `perigee serve` on the loopback interface, on a port of the system's choice."""

import queue
import re
import signal
import subprocess
import threading
import time

import httpx
from conftest import DEMO


class Server:
  """One running server; its log is read by a thread, so that it never fills the pipe."""

  def __init__(self, perigee, *flags, model=DEMO, loading=False):
    """Returns once the server is ready, or with `loading` as soon as its port is open."""
    self.log = []
    self.process = subprocess.Popen(
        [perigee.path, "serve", str(model), "--port", "0", "--host", "127.0.0.1", "--served-model-name", "demo",
         *map(str, flags)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lines = queue.Queue()
    self.reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
    self.reader.start()
    try:
      self.url = self._address(lines, r"port (\d+) is open" if loading else r"listens on http://127\.0\.0\.1:(\d+)")
    except BaseException:
      self.process.kill()
      raise
    self.http = httpx.Client(base_url=self.url, timeout=60)

  def _read(self, lines):
    for line in self.process.stderr:
      self.log.append(line)
      lines.put(line)
    lines.put(None)

  def _address(self, lines, pattern):
    while True:
      line = lines.get(timeout=60)
      assert line is not None, "the server ended at once: " + "".join(self.log)
      found = re.search(pattern, line)
      if found:
        return f"http://127.0.0.1:{found.group(1)}"

  def post(self, path, body, **more):
    return self.http.post(path, json=body, **more)

  def answer(self, path, body):
    reply = self.post(path, body)
    assert reply.status_code == 200, reply.text
    return reply.json()

  def gauge(self, name):
    text = self.http.get("/metrics").text
    return float(re.search(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.M).group(1))

  def wait_until(self, condition, seconds):
    """True as soon as the condition holds; False when the time is over."""
    end = time.monotonic() + seconds
    while not condition():
      if time.monotonic() > end:
        return False
      time.sleep(0.02)
    return True

  def terminate(self):
    self.process.send_signal(signal.SIGTERM)

  def kill(self):
    self.process.kill()

  def exit_status(self, seconds=30):
    return self.process.wait(timeout=seconds)

  def close(self):
    """For the end of a test: whatever runs is broken off."""
    self.http.close()
    if self.process.poll() is None:
      self.process.kill()
      self.process.wait(timeout=30)
    self.reader.join(timeout=5)
    self.process.stderr.close()

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()
