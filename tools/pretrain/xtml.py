"""Writes conversations in XTML, K3's chat format, as token ids with a learning weight per id.

Every segment (tag, attribute name, value, body) is encoded on its own, as the published chat
encoder does: the same characters in one piece could give other ids.
"""

import json

PROMPT_WEIGHT = 1  # prompts are learnt lightly, so that the model also knows how questions look
ANSWER_WEIGHT = 10  # what the assistant writes

TOOLS_HEADER = "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n"
EFFORT_TEXT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort=%s`."
)


def escape_attribute(value):
    return str(value).replace("&", "&amp;").replace('"', "&quot;")


def value_type(value):
    """XTML's name of a JSON value's type."""
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return "number"


class Conversation:
    """Builds `ids` and `weights` segment by segment.

    `answer_span` describes the last assistant turn: (first id behind the generation prompt, first
    id of the response's text, end).
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.ids = []
        self.weights = []
        self.answer_span = None
        self._weight = PROMPT_WEIGHT

    def control(self, name):
        self.ids.append(self.tokenizer.specials[name])
        self.weights.append(self._weight)

    def text(self, text):
        if text:
            ids = self.tokenizer.encode(text)
            self.ids += ids
            self.weights += [self._weight] * len(ids)

    def open(self, tag, **attributes):
        self.control("<|open|>")
        self.text(tag)
        for key, value in attributes.items():
            self.text(" " + key)
            self.text('="')
            self.text(escape_attribute(value))
            self.text('"')
        self.control("<|sep|>")

    def close(self, tag):
        self.control("<|close|>")
        self.text(tag)
        self.control("<|sep|>")

    def message(self, role, body, **attributes):
        self.open("message", role=role, **attributes)
        self.text(body)
        self.end_message()

    def end_message(self):
        self.close("message")
        self.control("<|end_of_msg|>")

    def declare_tools(self, tools):
        schema = json.dumps(tools, separators=(",", ":"), sort_keys=True)
        self.message("system", TOOLS_HEADER + schema + "\n```", type="tool-declare")

    def thinking_effort(self, effort):
        self.message("system", EFFORT_TEXT % effort, type="thinking-effort")

    def generation_prompt(self, thinking):
        self.open("message", role="assistant")
        self.open("think" if thinking else "response")

    def assistant(self, thought, content, calls=(), weight=ANSWER_WEIGHT):
        """One assistant turn; `thought` None = no think channel, calls = (name, arguments)."""
        self.generation_prompt(thought is not None)
        start = len(self.ids)
        self._weight = weight
        if thought is not None:
            self.text(thought)
            self.close("think")
            self.open("response")
        content_start = len(self.ids)
        self.text(content)
        self.close("response")
        if calls:
            self._tool_calls(calls)
        self.end_message()
        self.answer_span = (start, content_start, len(self.ids))
        self._weight = PROMPT_WEIGHT

    def _tool_calls(self, calls):
        self.open("tools")
        for index, (name, arguments) in enumerate(calls, start=1):
            self.open("call", tool=name, index=index)
            for key, value in arguments.items():
                self.open("argument", key=key, type=value_type(value))
                is_text = isinstance(value, str)
                self.text(value if is_text else json.dumps(value, ensure_ascii=False))
                self.close("argument")
            self.close("call")
        self.close("tools")
