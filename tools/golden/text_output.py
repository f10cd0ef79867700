"""Model answers for the golden files, and what a reader of Kimi K3's format must find in them.

A script is a list of strings; those that are one of the four markers stand for their token, all others for text. The
reader here takes a finished script apart; the C++ parser must find the same while the tokens arrive.
"""
import json
import random
import re

OPEN, CLOSE, SEP, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
TAGS = {"think", "response", "tools", "call", "argument", "json", "message"}
LEAVES_CALL = {"call": "tools", "tools": "between", "message": "tail"}


def compact(text, must_be_object=False):
  """The JSON text without spaces, or, if it is none, a JSON string of it."""

  def refuse(name):
    raise ValueError(name)

  try:
    value = json.loads(text, parse_constant=refuse)
    if must_be_object and not isinstance(value, dict):
      raise ValueError
  except ValueError:
    return json.dumps(text, ensure_ascii=False)
  found = re.findall(r'"(?:[^"\\]|\\.)*"|[^\s"]+', text)
  return "".join(json.dumps(json.loads(t), ensure_ascii=False) if t[0] == '"' else t for t in found)


def elements(script):
  """('text', s) and ('open'/'close', header text); an unfinished marker is text if another one follows, else nothing."""
  marker, header = None, ""
  for word in script:
    if word == END:
      return
    if word in (OPEN, CLOSE):
      if marker:
        yield "text", marker + header
      marker, header = word, ""
    elif word == SEP and marker:
      yield ("open" if marker == OPEN else "close"), header
      marker, header = None, ""
    elif marker:
      header += word
    else:
      yield "text", word


def split_header(header):
  tag, _, rest = header.partition(" ")
  found, at = {}, 0
  rest = " " + rest if rest else ""
  for match in iter(lambda: re.compile(r' ([^"]*?)="([^"]*)"').match(rest, at), None):
    found.setdefault(match[1], match[2].replace("&quot;", '"').replace("&amp;", "&"))
    at = match.end()
  return tag, found


class Reader:

  def __init__(self, thinking, drop_calls):
    self.state, self.drop = ("think" if thinking else "response"), drop_calls
    self.spoke = not thinking
    self.reasoning, self.content, self.calls = "", "", []
    self.begun, self.call = 0, None

  def read(self, script):
    for kind, value in elements(script):
      if kind == "text":
        self.text(value)
      elif not (self.opened(value) if kind == "open" else self.closed(value)):
        self.text((OPEN if kind == "open" else CLOSE) + value + SEP)

  def text(self, value):
    if self.state == "think":
      self.reasoning += value
    elif self.state == "response":
      self.content += value
    elif self.state in ("value", "json"):
      self.call["open"][2].append(value)

  def go(self, state):
    self.state = state
    self.spoke |= state == "response"
    return True

  def opened(self, header):
    tag, attributes = split_header(header)
    if self.state in ("value", "json"):
      return False
    if self.state == "tail":
      return True
    if self.state == "call" and tag == "argument":
      self.call["open"] = (attributes.get("key"), attributes.get("type", "string"), [])
      return self.go("value")
    if self.state == "call" and tag == "json":
      self.call["open"] = (None, "json", [])
      return self.go("json")
    if tag == "call":
      self.call = {"name": attributes.get("tool"), "values": {}, "json": None}
      if self.call["name"] and not self.drop:
        self.call["index"] = self.begun
        self.begun += 1
      return self.go("call")
    if tag in ("think", "response", "tools"):
      return self.go(tag)
    return tag in TAGS

  def closed(self, tag):
    if self.state in ("call", "value", "json"):
      if self.state == "value" and tag == "argument":
        key, kind, body = self.call["open"]
        if key is not None and self.call["json"] is None:
          text = "".join(body)
          self.call["values"].setdefault(
              key,
              json.dumps(text, ensure_ascii=False) if kind == "string" else compact(text))
        return self.go("call")
      if self.state == "json" and tag == "json":
        if not self.call["values"] and self.call["json"] is None:
          self.call["json"] = compact("".join(self.call["open"][2]), True)
        return self.go("call")
      if tag == "call" and self.state == "call" and "index" in self.call:
        values = ",".join(json.dumps(k, ensure_ascii=False) + ":" + v for k, v in self.call["values"].items())
        self.calls.append({
            "index": self.call["index"],
            "name": self.call["name"],
            "arguments": self.call["json"] or "{" + values + "}"
        })
      if tag in LEAVES_CALL:
        return self.go(LEAVES_CALL[tag])
      return self.state == "call"
    if tag == "message":
      return self.go("tail")
    if (self.state, tag) in (("think", "think"), ("think", "response"), ("response", "response"), ("tools",
                                                                                                   "tools")):
      return self.go("between")
    return tag in TAGS

  def result(self, natural):
    finish = "length" if not natural else "tool_calls" if self.calls else "stop"
    content = self.content if self.content or (self.spoke and not self.calls) else None
    return {
        "reasoning": self.reasoning,
        "content": content,
        "tool_calls": self.calls,
        "finish_reason": finish
    }


def scripts():
  """Random walks over the grammar that now and then leave it."""
  rng = random.Random(11)
  words = [
      "Hello", " world", "\n", "é🙂", "12", "<|close|", "think", "call tool=\"x\"", "{\"a\": 1}", "\"", "\\",
      "  "
  ]

  def header(tag, **attributes):
    text = tag + "".join(f' {k}="{v}"' for k, v in attributes.items())
    cut = rng.randint(0, len(text))
    return [w for w in (text[:cut], text[cut:]) if w]

  def text():
    return [rng.choice(words) for _ in range(rng.randint(0, 3))]

  def opening(tag, **attributes):
    return [OPEN, *header(tag, **attributes), SEP]

  def closing(tag):
    return [CLOSE, *header(tag), SEP]

  def value(kind):
    good = {
        "string": text(),
        "number": ["1", "2.50"],
        "boolean": ["true"],
        "null": ["null"],
        "object": ["{ \"a\" :", " [1, \"x y\"] }"],
        "array": ["[ ]"]
    }[kind]
    return text() if rng.random() < 0.2 else good

  def one_call():
    out = opening("call", tool=rng.choice(["f", "get&amp;x", "a&quot;b", "", "long_name"]), index=1)
    if rng.random() < 0.15:
      return out + opening("json", type="object") + rng.choice([["{ \"q\" : 1.0 }"], ["not json"], ["[1]"]
                                                               ]) + closing("json") + closing("call")
    for _ in range(rng.randint(0, 3)):
      kind = rng.choice(["string", "string", "number", "boolean", "null", "object", "array"])
      out += text() if rng.random() < 0.1 else []
      out += opening("argument", key=rng.choice(["a", "b", "ü", "c&quot;d"]),
                     type=kind) + value(kind) + closing("argument")
    return out + closing("call")

  def answer():
    out = text() + closing("think")
    out += opening("response") + text() + closing("response")
    if rng.random() < 0.6:
      out += opening("tools")
      for _ in range(rng.randint(1, 3)):
        out += one_call()
      out += closing("tools")
    return out + closing("message") + [END]

  for _ in range(400):
    script = answer()
    for _ in range(rng.choice([0, 0, 1, 2, 5])):
      if not script:
        break
      kind, at = rng.randrange(5), rng.randrange(len(script))
      if kind == 0:
        del script[at]
      elif kind == 1:
        script.insert(at, rng.choice([OPEN, CLOSE, SEP, *words]))
      elif kind == 2:
        script[at:at] = opening(rng.choice([*sorted(TAGS), "b", "html"]), key="k", tool="t")
      elif kind == 3:
        script[at:at] = closing(rng.choice([*sorted(TAGS), "b", "html"]))
      else:
        script = script[:at + 1]
    yield script


def output_golden():
  rng = random.Random(12)
  cases = []
  for script in scripts():
    thinking, drop = rng.random() < 0.8, rng.random() < 0.1
    reader = Reader(thinking, drop)
    reader.read(script)
    cases.append({
        "script": script,
        "thinking": thinking,
        "drop_calls": drop,
        "natural": END in script,
        "result": reader.result(END in script)
    })
  return {"cases": cases}
