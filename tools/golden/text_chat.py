"""Renders chat requests as Kimi K3's published format has them: a list of segments [text, is_control]."""
import json

from text_requests import requests

EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=%s`."
)
RAW_JSON = (
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting."
)


class Prompt:

  def __init__(self):
    self.segments = []

  def marker(self, marker, *words):
    self.segments += [[marker, True], *[[word, False] for word in words if word], ["<|sep|>", True]]

  def open(self, tag, /, **attributes):
    words = [tag]
    for key, value in attributes.items():
      words += [" " + key, '="', str(value).replace("&", "&amp;").replace('"', "&quot;"), '"']
    self.marker("<|open|>", *words)

  def element(self, tag, /, *bodies, **attributes):
    self.open(tag, **attributes)
    for body in bodies:
      if callable(body):
        body()
      elif body:
        self.segments.append([body, False])
    self.marker("<|close|>", tag)

  def message(self, *bodies, **attributes):
    self.element("message", *bodies, **attributes)
    self.segments.append(["<|end_of_msg|>", True])


def fence(value):
  return "```json\n" + json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True) + "\n```"


def without_nulls(tools):
  return [{
      **tool, "function": {
          k: v for k, v in tool["function"].items() if v is not None
      }
  } for tool in tools]


def parts(content):
  return [content] if isinstance(content, str) else [part["text"] for part in content or []]


def write_argument(prompt, key, value):
  kinds = {
      str: "string",
      bool: "boolean",
      type(None): "null",
      int: "number",
      float: "number",
      dict: "object",
      list: "array"
  }
  text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
  prompt.element("argument", text, key=key, type=kinds[type(value)])


def write_call(prompt, index, function):
  arguments = function["arguments"]
  if isinstance(arguments, str) and arguments.strip():
    try:
      arguments = json.loads(arguments)
    except ValueError:
      prompt.element("call",
                     lambda: prompt.element("json", arguments, type="object"),
                     tool=function["name"],
                     index=index)
      return

  def body():
    for key, value in (arguments or {}).items() if isinstance(arguments, dict) else ():
      write_argument(prompt, key, value)

  prompt.element("call", body, tool=function["name"], index=index)


def write_assistant(prompt, message, thinking, name):
  bodies = []
  if thinking:
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    bodies.append(lambda: prompt.element("think", reasoning if reasoning.strip() else ""))
  bodies.append(lambda: prompt.element("response", *parts(message.get("content"))))
  if message.get("tool_calls"):

    def calls():
      for i, item in enumerate(message["tool_calls"]):
        write_call(prompt, i + 1, item["function"])

    bodies.append(lambda: prompt.element("tools", calls))
  prompt.message(*bodies, role="assistant", **name)


def settle_results(messages):
  """Gives every tool result its tool's name, and runs of known results the order of their calls."""
  settled, calls, place = [], [], 0
  todo = list(messages)
  while todo:
    if todo[0]["role"] != "tool":
      message = todo.pop(0)
      if message["role"] == "assistant":
        calls, place = message.get("tool_calls") or [], 0
      settled.append(message)
      continue
    run = []
    while todo and todo[0]["role"] == "tool":
      run.append(todo.pop(0))
    names = [item["function"]["name"] for item in calls]
    ids = [item.get("id") for item in calls]
    aliases = [f"{name}:{i}" for i, name in enumerate(names)]

    def where(message):
      key = message["tool_call_id"]
      return ids.index(key) if key in ids else aliases.index(key) if key in aliases else None

    if all(where(message) is not None for message in run):
      run = [{**message, "tool": names[where(message)]} for message in sorted(run, key=where)]
    else:
      run = [{
          **message, "tool": message.get("tool") or message.get("name") or names[place + i]
      } for i, message in enumerate(run)]
    settled += run
    place += len(run)
  return settled


def render(body):
  body = {"messages": body} if isinstance(body, list) else body
  template = body.get("chat_template_kwargs", {})
  think = body.get("thinking", {})
  thinking = template.get("thinking", template.get("enable_thinking", True))
  if "type" in think:
    thinking = think["type"] == "enabled"
  effort = body.get("reasoning_effort") or think.get("effort") or template.get("thinking_effort") or "max"
  prompt = Prompt()
  has_tools = bool(body.get("tools")) or any(message.get("tools") for message in body["messages"])
  if body.get("tools"):
    prompt.message("# Tools\nHere are the available tools, described in JSONSchema.\n\n" +
                   fence(without_nulls(body["tools"])),
                   role="system",
                   type="tool-declare")
  if thinking:
    prompt.message(EFFORT % effort, role="system", type="thinking-effort")
  index = 0
  for message in settle_results(body["messages"]):
    name = {"name": message["name"]} if message.get("name") else {}
    if message["role"] == "assistant":
      index = 0
      write_assistant(prompt, message, thinking, name)
    elif message["role"] == "tool":
      index += 1
      prompt.message(*parts(message["content"]), role="tool", tool=message["tool"], index=index)
    elif message.get("tools"):
      prompt.message(
          "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\nYou have access to all existing "
          "and extended tools.\nHere are the specs for the extended tools.\n\n" +
          fence(without_nulls(message["tools"])),
          role="system",
          type="tool-declare")
    else:
      prompt.message(*parts(message["content"]),
                     role="user" if message["role"] == "user" else "system",
                     **name)
  choice, form = body.get("tool_choice"), body.get("response_format", {}).get("type")
  if choice == "required":
    prompt.message(
        "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.",
        role="system",
        type="tool-choice")
  if choice == "none" and has_tools:
    prompt.message(
        "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.",
        role="system",
        type="tool-choice")
  if form in ("json_object", "json_schema"):
    text = f"The system is invoked with `response_format={form}`.\n" + RAW_JSON
    if form == "json_schema":
      text += "\nThe JSON data must match the following schema:\n" + fence(
          body["response_format"]["json_schema"]["schema"])
    prompt.message(text, role="system", type="response-format")
  prompt.open("message", role="assistant")
  prompt.open("think" if thinking else "response")
  return prompt.segments


def chat_golden(oracle):
  cases = []
  for name, body in requests():
    segments = render(body)
    ids = []
    for text, is_control in segments:
      ids += oracle.encode(text, control=is_control)
    cases.append({
        "name": name,
        "request": json.dumps(body, ensure_ascii=False),
        "segments": segments,
        "ids": ids
    })
  return {"tokenizer_fnv1a": oracle.fnv1a, "cases": cases}
