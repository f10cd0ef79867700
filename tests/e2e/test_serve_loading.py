"""perigee serve before its model is there: the port and its troubles come first, then what watches the server sees it load."""

import os
import signal
import socket
import time

import pytest
from conftest import DEMO
from server import Server

STALL = "stall-loading:60"


def test_what_answers_while_the_model_loads(perigee):
  with Server(perigee, "--fault", STALL, "--admin-port", 0, "--admin-key", "secret", loading=True) as one:
    health = one.http.get("/health")
    assert health.status_code == 503 and "loading" in health.json()["reason"] and "retry-after" in health.headers
    assert one.http.get("/ready").status_code == one.http.get("/ping").status_code == one.http.get("/load").status_code == 503
    assert one.http.get("/version").status_code == 200
    metrics = one.http.get("/metrics")
    assert metrics.status_code == 200 and "perigee:http_connections" in metrics.text
    assert "vllm:num_requests_running" not in metrics.text  # no engine, no numbers of one
    for reply in (one.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
                  one.post("/v1/completions", {"prompt": "x"}), one.http.get("/v1/models"), one.http.get("/no/such/path")):
      error = reply.json()["error"]
      assert reply.status_code == 503 and "retry-after" in reply.headers
      assert error["type"] == "service_unavailable_error" and "loading" in error["message"] and error["code"] == 503
    assert one.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_loading_ends_at_once(perigee, number):
  with Server(perigee, "--fault", STALL, loading=True) as one:
    begin = time.monotonic()
    one.process.send_signal(number)
    assert one.exit_status(10) == 0
    assert time.monotonic() - begin < 2
    one.reader.join(5)
    assert "ended while loading" in one.log[-1]


def test_dummy_weights_can_be_given_up_as_well(perigee):
  """No fault planted: the load itself is under way."""
  with Server(perigee, "--load-format", "dummy", loading=True) as one:
    one.terminate()
    assert one.exit_status(10) == 0


def test_a_server_that_was_seen_loading_serves(perigee):
  with Server(perigee, "--fault", "stall-loading:1", loading=True) as one:
    assert one.http.get("/health").status_code == 503
    assert one.wait_until(lambda: one.http.get("/ready").status_code == 200, 30)
    assert one.http.get("/health").json() == {"status": "ok"}
    assert one.answer("/v1/completions", {"prompt": "The", "max_tokens": 3})["usage"]["completion_tokens"] == 3
    one.terminate()
    assert one.exit_status() == 0


def test_troubles_of_the_port_come_before_the_model(perigee):
  """The model is not even there, and every sentence is about the port or the host."""
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = str(taken.getsockname()[1])
    sentence = perigee.refusal("serve", "/no/such/model", "--host", "127.0.0.1", "--port", port)
    assert f"--port {port}" in sentence and "in use" in sentence
  assert "--host 'no.such.host.invalid'" in perigee.refusal("serve", "/no/such/model", "--host", "no.such.host.invalid")
  # 192.0.2.1 is an address for documents; no machine has it
  assert "192.0.2.1" in perigee.refusal("serve", "/no/such/model", "--host", "192.0.2.1", "--port", "0")
  admin = perigee.refusal("serve", "/no/such/model", "--port", "0", "--admin-host", "192.0.2.1", "--admin-port", "0",
                          "--admin-key", "x")
  assert "--admin-port" in admin and "192.0.2.1" in admin


@pytest.mark.skipif(os.geteuid() == 0, reason="root may take every port")
def test_a_port_without_permission(perigee):
  with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as first:
    if int(first.read()) <= 1:
      pytest.skip("every port is free here")
  assert "Permission denied" in perigee.refusal("serve", "/no/such/model", "--host", "127.0.0.1", "--port", "1")


def test_a_model_that_is_not_there(perigee):
  done = perigee.run("serve", "/no/such/model", "--port", "0")
  assert done.returncode == 2 and "/no/such/model" in done.stderr.splitlines()[-1], done.stderr


def test_a_flag_without_meaning_comes_before_the_port(perigee):
  assert "--load-format" in perigee.refusal("serve", DEMO, "--port", "0", "--load-format", "pickle")
