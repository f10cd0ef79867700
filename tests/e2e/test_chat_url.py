"""`perigee chat --url`: the same conversation as with a model here, and every way in which a server can fail."""

import http.server
import json
import os
import pty
import re
import select
import signal
import subprocess
import threading
import time

import pytest
from conftest import DEMO
from server import Server

FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def demo(perigee):
  with Server(perigee) as server:
    yield server


def chat(perigee, url, *flags, stdin):
  return perigee.run("chat", "--url", url, *flags, stdin=stdin)


def failure(perigee, url, *flags, stdin="hi\nagain\n"):
  """The last line of a call that ends with status 2."""
  done = chat(perigee, url, *flags, stdin=stdin)
  assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
  last = done.stderr.strip().splitlines()[-1]
  assert last.startswith("perigee: ")
  return last, done.stdout


def generated(perigee, tmp_path, messages):
  path = tmp_path / "chat.json"
  path.write_text(json.dumps(messages))
  return perigee.json("generate", DEMO, "--chat", path, "--temperature", 0)


def test_the_same_answers_as_generate(perigee, demo, tmp_path):
  lines = ["hello", FRANCE, "What is 12 * 7 + 9?"]
  done = chat(perigee, demo.url, "--temperature", 0, stdin="\n".join(lines) + "\n")
  assert done.returncode == 0, done.stderr
  messages, said, thought = [], "", ""
  for line in lines:
    messages.append({"role": "user", "content": line})
    made = generated(perigee, tmp_path, messages)
    messages.append({"role": "assistant", "content": made["text"], "reasoning_content": made["reasoning"]})
    said += made["text"] + "\n"
    thought += made["reasoning"] + "\n" if made["reasoning"] else ""
  assert "Paris" in said
  assert done.stdout == said
  assert done.stderr == thought


@pytest.mark.parametrize("ending", ["/", "/v1", "/v1/"])
def test_the_same_conversation_as_with_a_model_here(perigee, demo, ending):
  flags = ["--temperature", 0.7, "--seed", 5, "--top-k", 20, "--max-tokens", 60, "--system", "Be brief.", "--usage"]
  stdin = f"hello\n\n{FRANCE}\n/new\n{FRANCE}\n/quit\nnever\n"
  here = perigee.run("chat", DEMO, *flags, stdin=stdin)
  there = chat(perigee, demo.url + ending, *flags, stdin=stdin)
  assert here.returncode == there.returncode == 0, there.stderr
  assert there.stdout == here.stdout
  assert there.stderr == here.stderr
  assert there.stderr.count("tokens in") == 3


def test_the_last_line_may_lack_its_end_and_no_lines_are_no_questions(perigee, demo):
  done = chat(perigee, demo.url, "--temperature", 0, stdin=FRANCE)
  assert done.returncode == 0 and "Paris" in done.stdout
  done = chat(perigee, demo.url, stdin="")
  assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_models_have_names(perigee, demo):
  assert chat(perigee, demo.url, "--model", "demo", stdin="hello\n").returncode == 0
  message, said = failure(perigee, demo.url, "--model", "other")
  assert "answered 404" in message and '"other"' in message and said == ""


def test_keys(perigee, tmp_path):
  key = tmp_path / "key"
  key.write_text("secret-1\n")
  with Server(perigee, "--api-key", "secret-1") as server:
    for flags in ([], ["--api-key", "wrong"], ["--model", "demo"]):
      message, _ = failure(perigee, server.url, *flags)
      assert "answered 401" in message and "--api-key" in message
    for flags in (["--api-key", "secret-1"], ["--api-key-file", key]):
      done = chat(perigee, server.url, *flags, stdin="hello\n")
      assert done.returncode == 0, done.stderr
      assert "secret" not in done.stdout + done.stderr


def test_bad_flags(perigee, tmp_path):
  url = "http://127.0.0.1:1"
  for bad in ("", "localhost:8000", "ftp://a", "http://", "http://a:x", "http://a/?q", "http://u:p@a"):
    assert "--url" in perigee.refusal("chat", "--url", bad)
  assert "--url" in perigee.refusal("chat")
  assert "--url" in perigee.refusal("chat", DEMO, "--url", url)
  assert "--device" in perigee.refusal("chat", "--url", url, "--device", "cpu")
  for flag, value in (("--api-key", "k"), ("--model", "m"), ("--ca-file", "f"), ("--api-key-file", "f")):
    assert flag in perigee.refusal("chat", DEMO, flag, value)
  assert "--temperature" in perigee.refusal("chat", "--url", url, "--temperature", "-1")
  assert "--api-key " in perigee.refusal("chat", "--url", url, "--api-key", "")
  empty, nowhere = tmp_path / "empty", tmp_path / "nowhere"
  empty.write_text("\n")
  for path in (empty, nowhere):
    assert "--api-key-file" in perigee.refusal("chat", "--url", url, "--api-key-file", path)
  assert "--ca-file" in perigee.refusal("chat", "--url", "https://localhost:1", "--ca-file", nowhere)


def test_nobody_is_there(perigee, demo):
  assert "Connection refused" in failure(perigee, "http://127.0.0.1:1")[0]
  assert "Connection refused" in failure(perigee, "http://127.0.0.1:1", "--model", "m")[0]
  assert "not known" in failure(perigee, "http://no-such-host.invalid")[0]
  assert "TLS failed" in failure(perigee, demo.url.replace("http", "https"))[0]
  assert "/wrong/v1/models answered 404" in failure(perigee, demo.url + "/wrong")[0]


class Scripted:
  """A server whose answers are functions of the test's; it keeps the bodies of the questions."""

  def __init__(self):
    self.bodies, self.answers, self.left = [], [], threading.Event()
    scripted = self

    class Handler(http.server.BaseHTTPRequestHandler):
      def log_message(self, *_):
        pass

      def do_GET(self):
        self.whole(200, {"object": "list", "data": [{"id": "first"}, {"id": "second"}]})

      def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        scripted.bodies.append(json.loads(body))
        assert self.path == "/v1/chat/completions"
        scripted.answers.pop(0)(self)

      def whole(self, status, body, headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers:
          self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

      def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

      def event(self, data):
        self.wfile.write(b"data: " + (data if isinstance(data, str) else json.dumps(data)).encode() + b"\n\n")
        self.wfile.flush()

      def delta(self, **members):
        self.event({"choices": [{"index": 0, "delta": members, "finish_reason": None}]})

    self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self.http.daemon_threads = True
    self.url = f"http://127.0.0.1:{self.http.server_port}"
    self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
    self.thread.start()

  def close(self):
    self.http.shutdown()
    self.http.server_close()
    self.thread.join()


@pytest.fixture
def scripted():
  server = Scripted()
  yield server
  server.close()


def saying(*pieces, thought=""):
  def answer(reply):
    reply.begin()
    if thought:
      reply.delta(reasoning=thought)
    for piece in pieces:
      reply.delta(content=piece)
    reply.event("[DONE]")
  return answer


def roles(body):
  return [(m["role"], m["content"]) for m in body["messages"]]


def test_only_what_was_given_is_sent(perigee, scripted):
  scripted.answers = [saying("a", "b", thought="t"), saying("c")]
  done = chat(perigee, scripted.url, stdin="one\ntwo\n")
  assert (done.returncode, done.stdout, done.stderr) == (0, "ab\nc\n", "t\n")
  assert scripted.bodies[0] == {"model": "first", "messages": [{"role": "user", "content": "one"}], "stream": True}
  assert scripted.bodies[1]["messages"][1] == {"role": "assistant", "content": "ab", "reasoning": "t"}
  scripted.answers = [saying("a", thought="t"), saying("c")]
  flags = ["--model", "m", "--temperature", 0, "--top-p", 0.5, "--seed", 7, "--max-tokens", 9, "--drop-thinking", "--usage"]
  assert chat(perigee, scripted.url, *flags, stdin="one\ntwo\n").returncode == 0
  body = scripted.bodies[3]
  assert body.pop("messages")[1] == {"role": "assistant", "content": "a"}
  assert body == {"model": "m", "stream": True, "temperature": 0, "top_p": 0.5, "seed": 7, "max_tokens": 9,
                  "stream_options": {"include_usage": True}}


def test_tool_calls_and_whole_answers_are_shown(perigee, scripted):
  def call(reply):
    reply.begin()
    reply.delta(tool_calls=[{"index": 0, "id": "x", "function": {"name": "look", "arguments": ""}}])
    reply.delta(tool_calls=[{"index": 0, "function": {"arguments": "{\"at\": 1}"}}])
    reply.event("[DONE]")

  def whole(reply):
    reply.whole(200, {"choices": [{"message": {"content": "all"}}]}, [("Content-Type", "application/json")])

  scripted.answers = [call, whole]
  done = chat(perigee, scripted.url, stdin="one\ntwo\n")
  assert (done.returncode, done.stdout, done.stderr) == (0, "all\n", "call look {\"at\": 1}\n")


@pytest.mark.parametrize("status, body, words", [
    (400, {"error": {"message": "temperature is\n too high"}}, "answered 400 Bad Request: temperature is  too high"),
    (401, {"detail": "who are you?"}, "answered 401 Unauthorized: who are you?"),
    (404, {"error": {"message": "no model"}}, "answered 404 Not Found: no model"),
    (404, b"", "OpenAI-compatible"),
    (422, {"detail": [{"msg": "field"}]}, "field"),
    (500, b"<html>oh</html>", "answered 500 Internal Server Error"),
    (503, {"error": "full"}, "answered 503 Service Unavailable: full"),
    (200, b"<html>hello</html>", "/v1/chat/completions"),
])
def test_refusals(perigee, scripted, status, body, words):
  scripted.answers = [lambda reply: reply.whole(status, body)]
  message, said = failure(perigee, scripted.url)
  assert words in message and said == ""
  assert len(scripted.bodies) == 1  # "again" is never asked


def test_a_moved_server_is_named(perigee, scripted):
  scripted.answers = [lambda reply: reply.whole(308, b"", [("Location", "https://new.example/v1")])]
  assert "https://new.example/v1" in failure(perigee, scripted.url)[0]


def cut(reply):
  reply.begin()
  reply.delta(reasoning="hm")
  reply.delta(content="half of")


def cut_by_error(reply):
  cut(reply)
  reply.event({"error": {"message": "out of memory"}})


def cut_by_length(reply):
  reply.send_response(200)
  reply.send_header("Content-Type", "text/event-stream")
  reply.send_header("Content-Length", "9999")
  reply.end_headers()
  reply.delta(content="half of")


def no_chunk(reply):
  cut(reply)
  reply.event("{\"choices\"")


@pytest.mark.parametrize("how, words", [(cut, "broke off"), (cut_by_length, "broke off"), (cut_by_error, "out of memory"),
                                        (no_chunk, "an event of the server's stream")])
def test_a_stream_that_is_cut(perigee, scripted, how, words):
  scripted.answers = [saying("fine"), how]
  message, said = failure(perigee, scripted.url, stdin="one\ntwo\nthree\n")
  assert words in message and "not kept" in message
  assert said == "fine\nhalf of\n"
  assert len(scripted.bodies) == 2


class Terminal:
  """The program on a terminal of its own."""

  def __init__(self, perigee, *arguments):
    self.master, slave = pty.openpty()
    self.process = subprocess.Popen([perigee.path, *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    self.seen = ""

  def expect(self, pattern, seconds=60):
    """Waits for the pattern and forgets all up to its end."""
    end = time.monotonic() + seconds
    while not (found := re.search(pattern, self.seen)):
      ready = select.select([self.master], [], [], max(0, end - time.monotonic()))[0]
      assert ready, f"waited for {pattern!r} in {self.seen!r}"
      self.seen += os.read(self.master, 65536).decode(errors="replace")
    self.seen = self.seen[found.end():]

  def say(self, line):
    os.write(self.master, (line + "\n").encode())

  def close(self):
    if self.process.poll() is None:
      self.process.kill()
    self.process.wait(timeout=30)
    os.close(self.master)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()


def endless(scripted, pause_s=0.01):
  def answer(reply):
    reply.begin()
    try:
      while True:
        reply.delta(content="on ")
        time.sleep(pause_s)
    except OSError:
      scripted.left.set()
  return answer


def test_a_terminal_survives_failures_and_interrupts(perigee, scripted):
  scripted.answers = [saying("hello", thought="a thought"), cut, lambda reply: reply.whole(503, {"error": "full"}),
                      endless(scripted), saying("last")]
  with Terminal(perigee, "chat", "--url", scripted.url) as terminal:
    terminal.expect("> ")
    terminal.say("one")
    terminal.expect(r"\x1b\[2ma thought\x1b\[0m\r\nhello\r\n")  # thinking is dim
    terminal.expect("> ")
    terminal.say("two")
    terminal.expect(r"half of\r\nperigee: [^\n]*not kept")
    terminal.expect("> ")
    terminal.say("three")
    terminal.expect("answered 503")
    terminal.expect("> ")
    terminal.say("four")
    terminal.expect("on on on ")
    terminal.process.send_signal(signal.SIGINT)
    terminal.expect(r"\r\nperigee: the answer was broken off and is not kept\r\n")
    assert scripted.left.wait(10), "the server did not see the client leave"
    terminal.expect("> ")
    terminal.say("five")
    terminal.expect("last\r\n")
    terminal.expect("> ")
    terminal.say("/quit")
    assert terminal.process.wait(timeout=30) == 0
  kept = [("user", "one"), ("assistant", "hello")]
  assert [roles(body) for body in scripted.bodies] == [
      kept[:1], kept + [("user", "two")], kept + [("user", "three")], kept + [("user", "four")], kept + [("user", "five")]]


def test_an_interrupt_while_the_server_is_silent(perigee, scripted):
  released = threading.Event()
  scripted.answers = [lambda reply: released.wait(30), saying("last")]
  with Terminal(perigee, "chat", "--url", scripted.url) as terminal:
    terminal.expect("> ")
    terminal.say("one")
    while not scripted.bodies:
      time.sleep(0.01)
    terminal.process.send_signal(signal.SIGINT)
    terminal.expect("broken off and is not kept", 5)
    terminal.say("two")
    terminal.expect("last")
    terminal.expect("> ")
    terminal.process.send_signal(signal.SIGINT)  # nobody is answering: the program ends, as programs do
    assert terminal.process.wait(timeout=30) == -signal.SIGINT
  released.set()
  assert roles(scripted.bodies[1]) == [("user", "two")]


def test_an_interrupt_reaches_our_server(perigee):
  """In double precision the answer takes long enough to be interrupted."""
  with (Server(perigee, "--device", "reference", "--threads", 1) as server,
        Terminal(perigee, "chat", "--url", server.url, "--temperature", 0) as terminal):
    terminal.expect("> ")
    terminal.say("Tell me a story without an end.")
    assert server.wait_until(lambda: server.gauge("vllm:num_requests_running") == 1, 30)
    terminal.process.send_signal(signal.SIGINT)
    terminal.expect("broken off and is not kept", 10)
    assert server.wait_until(lambda: server.gauge("vllm:num_requests_running") == 0, 30)
    assert server.gauge("perigee:http_disconnects_total") == 1


def test_an_interrupt_of_a_model_here(perigee):
  with Terminal(perigee, "chat", DEMO, "--temperature", 100, "--seed", 1, "--max-tokens", 50000) as terminal:
    terminal.expect("> ")
    terminal.say("Tell me a story without an end.")
    terminal.expect("\x1b\\[2m")  # it thinks
    terminal.process.send_signal(signal.SIGINT)
    terminal.expect("broken off and is not kept", 10)
    terminal.expect("> ")
    terminal.say("/quit")
    assert terminal.process.wait(timeout=30) == 0
