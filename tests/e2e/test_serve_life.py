"""perigee serve as a program: start, signals, faults, crowding, keys, bad flags and bad bodies."""

import concurrent.futures
import json
import signal
import socket
import threading
import time

import httpx
import pytest
from conftest import DEMO
from server import Server

LONG = {"prompt": "The", "max_tokens": 4000, "ignore_eos": True, "stream": True, "temperature": 1, "seed": 3}
RUNNING, USAGE = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"


def read_stream(lines):
  """Text, finish reason and whether [DONE] came, of a stream of completions."""
  text, reason, done = "", None, False
  for line in lines:
    if line == "data: [DONE]":
      done = True
    elif line.startswith("data: "):
      for choice in json.loads(line[6:]).get("choices", []):
        text += choice["text"]
        reason = choice["finish_reason"] or reason
  return text, reason, done


@pytest.fixture(scope="module")
def server(perigee):
  with Server(perigee) as one:
    yield one
    assert one.process.poll() is None, "the server died: " + "".join(one.log[-20:])


def test_sigterm_lets_a_stream_end(perigee):
  with Server(perigee, "--drain-timeout", 100) as one:
    with one.http.stream("POST", "/v1/completions", json={**LONG, "max_tokens": 100}) as reply:
      lines = reply.iter_lines()
      next(lines)
      one.terminate()
      text, reason, done = read_stream(lines)
    assert text and reason == "length" and done
    assert one.exit_status() == 0


@pytest.mark.parametrize("wait_ms", [0, 20, 40, 60, 80, 95])
def test_sigterm_of_an_idle_server(perigee, wait_ms):
  """At several phases of the server's clock, which ticks ten times a second."""
  with Server(perigee) as one:
    time.sleep(wait_ms / 1000)
    one.terminate()
    assert one.exit_status(10) == 0


def test_a_killed_server_never_seems_to_have_finished(perigee):
  with Server(perigee) as one:
    seen = []
    with pytest.raises(httpx.TransportError), one.http.stream("POST", "/v1/completions", json=LONG) as reply:
      for line in reply.iter_lines():
        seen.append(line)
        if len(seen) == 5:
          one.kill()
    _, reason, done = read_stream(seen)
    assert len(seen) >= 5 and reason is None and not done


def test_a_crash_is_no_clean_exit(perigee):
  with Server(perigee) as one:
    one.process.send_signal(signal.SIGABRT)  # as a failed check does
    assert one.exit_status() == -signal.SIGABRT


def test_a_stalled_engine_shows_in_health(perigee):
  with Server(perigee, "--fault", "stall-engine:6") as one:
    health = lambda: one.http.get("/health").status_code  # noqa: E731
    assert health() == 200
    caller = threading.Thread(target=one.answer, args=("/v1/completions", {"prompt": "The", "max_tokens": 20}))
    caller.start()
    assert one.wait_until(lambda: health() == 503, 4.0)  # the first step, then less than two seconds of silence
    assert one.wait_until(lambda: health() == 200, 10.0)
    caller.join()


def test_more_requests_than_the_cache_holds(perigee, ids_file):
  row_bytes = perigee.json("plan", DEMO, "--pool-bytes", 1 << 30)["row_bytes"]
  with Server(perigee, "--kv-cache-memory-bytes", 24 * row_bytes, "--max-model-len", 1024) as one:
    # each prompt fills nearly a row of 512 tokens, and the answer begins the next one
    body = {"max_tokens": 60, "ignore_eos": True, "temperature": 1}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
      calls = [pool.submit(one.answer, "/v1/completions", {**body, "prompt": [5 + i] * 480, "seed": i}) for i in range(12)]
      assert one.wait_until(lambda: one.gauge("vllm:num_requests_waiting") > 0, 20)
      made = [call.result() for call in calls]
    assert [m["choices"][0]["finish_reason"] for m in made] == ["length"] * 12
    assert [m["usage"]["completion_tokens"] for m in made] == [60] * 12
    alone = one.answer("/v1/completions", {**body, "prompt": [5 + 3] * 480, "seed": 3})
    assert alone["choices"][0]["text"] == made[3]["choices"][0]["text"]


def test_a_client_that_leaves(server):
  assert server.wait_until(lambda: server.gauge(RUNNING) == 0, 5)
  with server.http.stream("POST", "/v1/completions", json=LONG) as reply:
    lines = reply.iter_lines()  # kept, or its end would close the connection
    next(lines)
    assert server.wait_until(lambda: server.gauge(RUNNING) == 1 and server.gauge(USAGE) > 0, 5)
  assert server.wait_until(lambda: server.gauge(RUNNING) == 0 and server.gauge(USAGE) == 0, 3.0)


def test_keys(perigee):
  with Server(perigee, "--api-key", "secret", "--api-key", "second") as one:
    body = {"prompt": "The", "max_tokens": 1}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer secretly"}):
      assert one.post("/v1/completions", body, headers=headers).status_code == 401
      assert one.http.get("/v1/models", headers=headers).status_code == 401
    for headers in ({"Authorization": "Bearer secret"}, {"Authorization": "Bearer second"}, {"x-api-key": "secret"}):
      assert one.post("/v1/completions", body, headers=headers).status_code == 200
    assert one.http.get("/health").status_code == 200


@pytest.mark.parametrize("flag,value", [
    ("--tensor-parallel-size", "2"), ("--speculative-config", '{"num_speculative_tokens": 3}'), ("--tool-call-parser", "other"),
    ("--reasoning-parser", "other"), ("--fault", "sleep"), ("--port", "70000"), ("--prefix-match-unit", "48"),
    ("--max-num-seqs", "0"), ("--admin-port", "0"), ("--ssl-certfile", "x.pem"), ("--kv-cache-dtype", "int3")])
def test_bad_flags(perigee, flag, value):
  assert flag in perigee.refusal("serve", DEMO, "--port", "0", flag, value)


def test_a_port_in_use(perigee):
  with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = str(taken.getsockname()[1])
    assert port in perigee.refusal("serve", DEMO, "--host", "127.0.0.1", "--port", port)


DEEP = b'{"prompt":' + b"[" * 100000 + b"]" * 100000 + b"}"
BAD_BODIES = [
    ("body", DEEP), ("UTF-8", b'{"prompt": "\xff\xfe"}'), ("n ", b'{"prompt": "a", "n": 1000000000000}'),
    ("stop", json.dumps({"prompt": "a", "stop": ["x" * 10] * 100000}).encode()), ("body", b""), ("body", b'{"prompt": "a"'),
    ("prompt", b'{"prompt": 7}'), ("prompt", b'{"prompt": [99999]}'), ("prompt", b'{"prompt": []}'),
    ("1e400", b'{"prompt": "a", "max_tokens": 1e400}'), ("temperature", b'{"prompt": "a", "temperature": "hot"}'),
    ("logit_bias", b'{"prompt": "a", "logit_bias": {"-1": 3}}'), ("seed", b'{"prompt": "a", "seed": 1.5}')]


def test_bad_bodies_beside_a_good_request(server):
  good = {"prompt": "The", "max_tokens": 100, "ignore_eos": True, "temperature": 1, "seed": 9, "logprobs": 1}
  alone = server.answer("/v1/completions", good)["choices"][0]
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    beside = pool.submit(server.answer, "/v1/completions", good)
    while not beside.done():
      for word, body in BAD_BODIES:
        reply = server.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 400, (word, reply.status_code, reply.text)
        assert word in reply.json()["error"]["message"], (word, reply.text)
    assert beside.result()["choices"][0] == alone


def test_many_streams_at_once(server):
  """A small load: 24 streams over 8 connections, each as if alone."""
  def stream(seed):
    body = {**LONG, "max_tokens": 20, "seed": seed % 4}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as reply:
      return read_stream(reply.iter_lines())
  start = time.monotonic()
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    made = list(pool.map(stream, range(24)))
  print(f"{24 * 20 / (time.monotonic() - start):.0f} tokens a second")
  assert all(reason == "length" and done for _, reason, done in made)
  assert len({text for text, _, _ in made}) == 4 and made[:4] * 6 == made
