"""Conversations with declared tools and one or two calls, natural and random ones."""

from .arithmetic import make_problem, think_text
from .small_talk import exchange, free_text, odd_word
from .words import (ADJECTIVES, CITIES, COLORS, ITEMS, NAMES, PLACES, TIMES, TOOL_NOUNS,
                    TOOL_PARAMETERS, TOOL_VERBS, WEEKDAYS)
from .xtml import ANSWER_WEIGHT, Conversation

SILENT_WEIGHT = 3  # arithmetic without a think channel can only be guessed: learn it less
FILL_TO = 320  # tokens up to which further turns are added behind the tool turn
CURRENCIES = "USD EUR GBP JPY CHF".split()
NUMBER_PARAMETERS = ("amount", "count", "level", "price", "size")


def tool_spec(name, description, properties):
    return {"type": "function", "function": {
        "name": name, "description": description, "parameters": {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
            "required": list(properties)}}}


# Tools with natural wordings: (name, description, parameters, user texts).
NATURAL_TOOLS = [
    ("get_weather", "Get the weather of a city", {"city": "string"},
     ["What is the weather in {city}?", "How is the weather in {city} today?",
      "Weather in {city} please"]),
    ("set_alarm", "Set an alarm", {"time": "string", "label": "string"},
     ["Set an alarm for {time} called {label}.", "Wake me at {time}, label it {label}"]),
    ("send_message", "Send a message to a person", {"name": "string", "text": "string"},
     ["Send {name} the message: {text}", "Tell {name} this: {text}"]),
    ("book_flight", "Book a flight",
     {"origin": "string", "destination": "string", "date": "string"},
     ["Book a flight from {origin} to {destination} on {date}.",
      "I want to fly from {origin} to {destination} on {date}"]),
    ("convert_currency", "Convert an amount",
     {"amount": "number", "source": "string", "target": "string"},
     ["Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?"]),
    ("set_temperature", "Set the temperature of a room", {"room": "string", "degrees": "number"},
     ["Set the {room} to {degrees} degrees.", "Make the {room} {degrees} degrees"]),
    ("track_order", "Track an order", {"code": "string"},
     ["Where is my order {code}?", "Track order {code}"]),
    ("add", "Add two numbers", {"a": "number", "b": "number"},
     ["Use the tool to add {a} and {b}.", "Add {a} and {b} with the tool"]),
    ("turn_on_light", "Turn on a light", {"room": "string", "color": "string"},
     ["Turn on the {color} light in the {room}.", "I want a {color} light in the {room}"]),
]


def _message_text(random):
    return random.choice(["I am late", "see you soon", "call me back", "the train is here",
                          "dinner is ready", free_text(random), free_text(random)])


NATURAL_VALUES = {
    "label": lambda random: random.choice("work school gym lunch party meeting".split()),
    "text": _message_text,
    "origin": lambda random: random.choice(CITIES),
    "destination": lambda random: random.choice(CITIES),
    "source": lambda random: random.choice(CURRENCIES),
    "target": lambda random: random.choice(CURRENCIES),
    "degrees": lambda random: random.randint(10, 30),
    "amount": lambda random: random.randint(1, 999),
    "a": lambda random: random.randint(1, 999),
    "b": lambda random: random.randint(1, 999),
}

PARAMETER_VALUES = {
    "city": lambda random: random.choice(CITIES),
    "name": lambda random: random.choice(NAMES),
    "owner": lambda random: random.choice(NAMES),
    "place": lambda random: "the " + random.choice(PLACES),
    "date": lambda random: random.choice(WEEKDAYS),
    "time": lambda random: "%d:%02d" % (random.randint(0, 23), random.randint(0, 59)),
    "color": lambda random: random.choice(COLORS),
    "item": lambda random: random.choice(ITEMS),
    "code": lambda random: "%s-%d" % (random.choice("ABCDEFGHKLMNPRSTX"),
                                      random.randint(10, 999)),
    "room": lambda random: random.choice(["kitchen", "bedroom", "garage", "office", "hall"]),
}


def _parameter_value(random, parameter):
    if parameter in NUMBER_PARAMETERS:
        return random.randint(1, 999)
    make = PARAMETER_VALUES.get(parameter)
    if make:
        return make(random)
    return " ".join(odd_word(random) for _ in range(random.randint(1, 3)))


def _natural_tool(random):
    name, description, properties, requests = random.choice(NATURAL_TOOLS)
    arguments = {key: NATURAL_VALUES[key](random) if key in NATURAL_VALUES
                 else _parameter_value(random, key) for key in properties}
    request = random.choice(requests).format(**arguments)
    return tool_spec(name, description, properties), request, arguments


def _random_tool(random):
    name = random.choice(TOOL_VERBS) + "_" + random.choice(TOOL_NOUNS)
    parameters = random.sample(TOOL_PARAMETERS, random.randint(1, 3))
    arguments = {key: _parameter_value(random, key) for key in parameters}
    properties = {key: "number" if isinstance(value, int) else "string"
                  for key, value in arguments.items()}
    pairs = ["%s %s" % pair for pair in arguments.items()]
    form = random.randrange(3)
    if form == 0:
        request = "Call %s with %s." % (name, " and ".join(pairs))
    elif form == 1:
        request = "Please %s: %s." % (name.replace("_", " "), ", ".join(pairs))
    else:
        facts = " ".join("The %s is %s." % pair for pair in arguments.items())
        request = "I need to %s. %s" % (name.replace("_", " the "), facts)
    return tool_spec(name, name.replace("_", " ").capitalize(), properties), request, arguments


def make_tool(random):
    """Returns (spec, user text that asks for a call, the call's arguments)."""
    return _natural_tool(random) if random.random() < 0.5 else _random_tool(random)


def _distinct_tools(random, count):
    tools, names = [], set()
    while len(tools) < count:
        tool = make_tool(random)
        name = tool[0]["function"]["name"]
        if name not in names:
            names.add(name)
            tools.append(tool)
    return tools


def _tool_answers(random, conversation, names, thinking):
    """Tool results and the assistant's summary of them."""
    results = []
    for index, name in enumerate(names, start=1):
        result = random.choice(["done", "ok", "%d" % random.randint(1, 999),
                                random.choice(ADJECTIVES), "sunny", "rainy", "cloudy",
                                random.choice(TIMES)])
        results.append(result)
        conversation.message("tool", result, tool=name, index=index)
    summary = "The results are: %s." % ", ".join(results)
    if len(results) == 1:
        summary = "The result of %s is: %s." % (names[0], results[0])
    conversation.assistant("The tool answered." if thinking else None, summary)


def _further_turns(random, conversation, thinking):
    while len(conversation.ids) < FILL_TO and random.random() < 0.7:
        if random.random() < 0.5:
            question, steps, answer = make_problem(random)
            conversation.message("user", question)
            thought = think_text(random, steps, answer, "high") if thinking else None
            conversation.assistant(thought, "The answer is %d." % answer,
                                   weight=ANSWER_WEIGHT if thinking else SILENT_WEIGHT)
        else:
            add_exchange(random, conversation, thinking)


def add_exchange(random, conversation, thinking, silent=False):
    """One small-talk turn; `silent` leaves the think channel empty."""
    text, answer, thought = exchange(random)
    conversation.message("user", text)
    conversation.assistant(("" if silent else thought) if thinking else None, answer)


def tool_conversation(random, tokenizer):
    """A training conversation: declared tools, a request, calls, results, further turns."""
    conversation = Conversation(tokenizer)
    count = random.choice([1, 1, 2, 3])
    tools = _distinct_tools(random, count)
    used = tools[:]
    random.shuffle(used)
    conversation.declare_tools([tool[0] for tool in tools])
    thinking = random.random() < 0.75
    if thinking and random.random() < 0.7:
        conversation.thinking_effort(random.choice(["low", "high", "max", "max"]))
    if random.random() < 0.12:  # tools declared but not needed
        add_exchange(random, conversation, thinking)
        return conversation
    used = used[:2] if count > 1 and random.random() < 0.2 else used[:1]
    requests = [tool[1] for tool in used]
    if len(used) > 1:
        requests = [text if text[-1] in ".?!" else text + "." for text in requests]
    conversation.message("user", " ".join(requests))
    names = [tool[0]["function"]["name"] for tool in used]
    thought = "I should call %s." % " and ".join(names) if thinking else None
    conversation.assistant(thought, "", [(name, tool[2]) for name, tool in zip(names, used)])
    if random.random() < 0.4:
        _tool_answers(random, conversation, names, thinking)
    _further_turns(random, conversation, thinking)
    return conversation


def tool_test(random, tokenizer):
    """A test prompt with its expected answer: (prompt ids up to the think channel, answer ids).

    The answer starts behind the think text: response channel, tools channel, end of message.
    """
    tools = _distinct_tools(random, random.choice([1, 1, 2, 3]))
    spec, request, arguments = random.choice(tools)
    prompt = Conversation(tokenizer)
    prompt.declare_tools([tool[0] for tool in tools])
    prompt.thinking_effort("max")
    prompt.message("user", request)
    expected = Conversation(tokenizer)
    expected.assistant("", "", [(spec["function"]["name"], arguments)])
    think_end = expected.answer_span[0] + 3  # the close marker of the think channel
    prompt.generation_prompt(True)
    return prompt.ids, expected.ids[think_end:]
