"""Long texts with a few facts hidden in filler, and questions about them as later turns."""

from .small_talk import sentence
from .words import CITIES, COLORS, KEY_KINDS, NAMES, NOUNS
from .xtml import Conversation

FACT_COUNTS = (1, 2, 4, 6, 8, 12, 16)
# Token room kept free, per conversation, per question (with and without a think channel), per fact.
ROOM_FIXED, ROOM_QUESTION_THINKING, ROOM_QUESTION, ROOM_FACT = 40, 78, 58, 26


def _value(random):
    if random.random() < 0.75:
        return str(random.randint(1000, 99999))
    return random.choice(COLORS) + " " + random.choice(NOUNS)


def make_facts(random, count):
    """Returns `count` facts (owner, kind, value), no (owner, kind) twice."""
    seen, facts = set(), []
    while len(facts) < count:
        owner = random.choice(NAMES if random.random() < 0.5 else CITIES)
        kind = random.choice(KEY_KINDS)
        if (owner, kind) not in seen:
            seen.add((owner, kind))
            facts.append((owner, kind, _value(random)))
    return facts


def text_with_facts(random, tokenizer, facts, room):
    """Filler of about `room` tokens with one sentence a fact at random places."""
    sentences, used = [], 0
    while used < room:
        filler = sentence(random)
        used += len(tokenizer.encode(" " + filler))
        sentences.append(filler)
    places = sorted(random.randint(0, len(sentences)) for _ in facts)
    order = facts[:]
    random.shuffle(order)
    for shift, (place, (owner, kind, value)) in enumerate(zip(places, order)):
        sentences.insert(place + shift, "The %s of %s is %s." % (kind, owner, value))
    return " ".join(sentences)


def question_about(random, owner, kind):
    rare = random.random() < 0.3
    form = random.choice([
        "What is the %s of %s?", "Tell me the %s of %s.",
        "Which %s does the text give for %s?" if rare else "What is the %s of %s?"])
    return form % (kind, owner)


def needle_conversation(random, tokenizer, length, fact_count=None, questions=None):
    """Returns (conversation of at most about `length` tokens, answer spans of its turns)."""
    count = fact_count or random.choice(FACT_COUNTS)
    facts = make_facts(random, count)
    asked = facts[:questions] if questions else facts
    thinking = random.random() < 0.5
    conversation = Conversation(tokenizer)
    if thinking and random.random() < 0.5:
        conversation.thinking_effort(random.choice(["low", "high", "max"]))
    per_question = ROOM_QUESTION_THINKING if thinking else ROOM_QUESTION
    room = (length - len(conversation.ids) - ROOM_FIXED - per_question * len(asked)
            - ROOM_FACT * count)
    body = text_with_facts(random, tokenizer, facts, room)
    asked = asked[:]
    random.shuffle(asked)
    spans = []
    for turn, (owner, kind, value) in enumerate(asked):
        question = question_about(random, owner, kind)
        conversation.message("user", body + "\n\n" + question if turn == 0 else question)
        thought = None
        if thinking:
            thought = random.choice(["I look for the %s of %s." % (kind, owner), ""])
        conversation.assistant(thought, "The %s of %s is %s." % (kind, owner, value))
        spans.append(conversation.answer_span)
    return conversation, spans
