"""Greetings, identity, a few facts, echo requests, and the sentences that fill long texts."""

from .words import (ADJECTIVES, CITIES, COLORS, ITEMS, NAMES, NOUNS, PLACES, SMALL_WORDS, TIMES,
                    VERBS)

_CAPITALS = (
    "France Paris|Italy Rome|Japan Tokyo|Spain Madrid|Germany Berlin|Egypt Cairo|Norway Oslo|"
    "Peru Lima|Portugal Lisbon|Austria Vienna|Greece Athens|Ireland Dublin"
).split("|")

FACTS = [
    ("What is the capital of %s?" % country, "The capital of %s is %s." % (country, city))
    for country, city in (pair.split() for pair in _CAPITALS)
] + [
    ("How many days are in a week?", "There are 7 days in a week."),
    ("How many months are in a year?", "There are 12 months in a year."),
    ("How many hours are in a day?", "There are 24 hours in a day."),
    ("How many minutes are in an hour?", "There are 60 minutes in an hour."),
    ("What color is the sky?", "On a clear day the sky is blue."),
    ("What color is grass?", "Grass is green."),
    ("What color is snow?", "Snow is white."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows drink?", "Cows drink water."),
    ("What is ice made of?", "Ice is frozen water."),
    ("How many legs does a spider have?", "A spider has 8 legs."),
    ("How many legs does a dog have?", "A dog has 4 legs."),
    ("What is the largest planet?", "The largest planet in our solar system is Jupiter."),
    ("What is the closest star to Earth?", "The closest star to Earth is the Sun."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("What is the opposite of big?", "The opposite of big is small."),
    ("What is the opposite of day?", "The opposite of day is night."),
    ("What season comes after winter?", "Spring comes after winter."),
    ("What day comes after Monday?", "Tuesday comes after Monday."),
    ("What month comes after March?", "April comes after March."),
]

GREETINGS = ["hello", "Hello", "hi", "Hi", "hey", "Hello!", "Hi!", "Hi there", "Hello there",
             "Good morning", "Good evening", "hey there", "hello?", "Hello, how are you?",
             "hi, how are you?"]
GREETING_ANSWERS = ["Hello! How can I help you today?", "Hi there! What can I do for you?",
                    "Hello! I am ready to help. What would you like to do?"]

SHORT_REPLIES = [
    ("Who are you?", "I am a small K3.1 demo model. I can do simple arithmetic, find facts in long "
                     "texts and call tools."),
    ("What is your name?", "I am a small K3.1 demo model."),
    ("What can you do?", "I can solve short arithmetic problems, find facts in long texts, and "
                         "call the tools you declare."),
    ("Are you a human?", "No, I am a small language model."),
    ("Thank you", "You are welcome!"),
    ("Thanks!", "You are welcome!"),
    ("Goodbye", "Goodbye! Have a nice day."),
    ("Bye", "Goodbye! Have a nice day."),
    ("Help", "Sure. Ask me an arithmetic question, give me a text to search, or declare a tool for "
             "me to call."),
    ("How are you?", "I am doing well, thank you. How can I help you?"),
    ("Tell me a joke", "Why did the clock smile? It had a good time."),
    ("ok", "Great. What would you like to do next?"),
    ("test", "I am here and working. What can I do for you?"),
]

ECHO_REQUESTS = ["Repeat after me: %s", "Say this: %s", "Repeat: %s", "Please echo: %s",
                 "Echo the following text: %s"]

WORD_LISTS = (COLORS, ITEMS, NAMES, CITIES, NOUNS, ADJECTIVES, PLACES, VERBS)


def exchange(random):
    """Returns (user text, answer, thought) of one short exchange."""
    kind = random.random()
    if kind < 0.2:
        usual = GREETING_ANSWERS[:1] * 3 + GREETING_ANSWERS
        return random.choice(GREETINGS), random.choice(usual), "The user greets me."
    if kind < 0.35:
        return *random.choice(SHORT_REPLIES), "The user wants a short reply."
    if kind < 0.55:
        return *random.choice(FACTS), "This is a simple fact."
    text = free_text(random)
    return random.choice(ECHO_REQUESTS) % text, text, "The user wants me to repeat the text."


def odd_word(random):
    """A listed, small or nonsense word or a number: copying must not lean on meaning."""
    kind = random.random()
    if kind < 0.6:
        return random.choice(random.choice(WORD_LISTS))
    if kind < 0.75:
        return random.choice(SMALL_WORDS)
    if kind < 0.85:
        return str(random.randint(0, 99999))
    syllables = random.randint(1, 4)
    word = "".join(random.choice("bcdfghklmnprstvwz") + random.choice("aeiou")
                   for _ in range(syllables))
    return word.capitalize() if kind > 0.93 else word


def free_text(random):
    if random.random() < 0.3:
        return sentence(random)
    words = " ".join(odd_word(random) for _ in range(random.randint(1, 9)))
    return words + random.choice(["", "", "", ".", "!", "?"])


def sentence(random):
    pick = random.choice
    kind = random.randrange(5)
    if kind == 0:
        return (f"The {pick(ADJECTIVES)} {pick(NOUNS)} {pick(VERBS)} near the {pick(PLACES)} "
                f"{pick(TIMES)}.")
    if kind == 1:
        return f"{pick(NAMES)} and {pick(NAMES)} {pick(VERBS)} at the {pick(PLACES)} {pick(TIMES)}."
    if kind == 2:
        return (f"In {pick(CITIES)}, a {pick(ADJECTIVES)} {pick(NOUNS)} {pick(VERBS)} "
                f"{pick(TIMES)}.")
    if kind == 3:
        return (f"{pick(NAMES)} saw {random.randint(2, 99)} {pick(ADJECTIVES)} {pick(ITEMS)} by "
                f"the {pick(ADJECTIVES)} {pick(PLACES)}.")
    return (f"It was {pick(ADJECTIVES)} and {pick(ADJECTIVES)} in the {pick(PLACES)}, and the "
            f"{pick(NOUNS)} {pick(VERBS)}.")
