"""Arithmetic word problems with their solutions as think texts.

Level 1 to 5 sets the size of the numbers. A twentieth of all questions, chosen by a checksum of
the text, is held out: training never sees them and the evaluation sees nothing else.
"""

import zlib
from dataclasses import dataclass, field

from .words import ITEMS, NAMES

HELD_OUT_SHARE = 20  # one question in so many
TRAINING_LEVELS = (1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5)
SPELLED_FROM = 10  # products and quotients of numbers from here on are worked out digit by digit


@dataclass(frozen=True)
class Sizes:
    """Upper limits of the numbers in a problem."""
    amount: int
    small: int
    count: int
    price: int


LEVELS = {
    1: Sizes(30, 12, 9, 9),
    2: Sizes(120, 40, 12, 9),
    3: Sizes(900, 150, 29, 9),
    4: Sizes(9000, 1500, 99, 15),
    5: Sizes(40000, 9000, 199, 60),
}


def spell_product(left, right):
    """Working of left * right by the digits of the smaller number, or "" if it needs none."""
    larger, smaller = max(left, right), min(left, right)
    parts = [digit * 10 ** place for place, digit in
             reversed(list(enumerate(int(c) for c in reversed(str(smaller))))) if digit]
    if smaller < SPELLED_FROM or len(parts) < 2:
        return ""
    terms = " + ".join("%d * %d" % (larger, part) for part in parts)
    values = " + ".join("%d" % (larger * part) for part in parts)
    return "%s = %s" % (terms, values)


def spell_quotient(total, divisor):
    """Working of total / divisor (no remainder) by the digits of the quotient, or ""."""
    quotient = total // divisor
    if divisor < SPELLED_FROM or quotient < SPELLED_FROM:
        return ""
    lines, rest = [], total
    for place in reversed(range(len(str(quotient)))):
        part = quotient // 10 ** place % 10 * 10 ** place
        if part:
            rest -= part * divisor
            lines.append("%d * %d = %d leaves %d" % (part, divisor, part * divisor, rest))
    return ", ".join(lines)


@dataclass
class Solution:
    """The steps of a solution; each method adds one and returns its value."""
    steps: list = field(default_factory=list)  # (equation, reason)

    def add(self, left, right, reason):
        return self._step(left, "+", right, left + right, reason)

    def subtract(self, left, right, reason):
        return self._step(left, "-", right, left - right, reason)

    def multiply(self, left, right, reason):
        return self._step(left, "*", right, left * right, reason)

    def divide(self, left, right, reason):
        return self._step(left, "/", right, left // right, reason)

    def _step(self, left, sign, right, value, reason):
        equation = "%d %s %d = %d" % (left, sign, right, value)
        if sign == "*":
            working = spell_product(left, right)
            if working:
                equation = "%d * %d = %s = %d" % (left, right, working, value)
        if sign == "/":
            working = spell_quotient(left, right)
            if working:
                equation = "%s, so %s" % (working, equation)
        self.steps.append((equation, reason))
        return value


class Scene:
    """The people, things and number sizes of one problem."""

    def __init__(self, random, level):
        self.random = random
        self.sizes = LEVELS[level]
        self.first, self.second, self.third = random.sample(NAMES, 3)
        self.item, self.other_item, _ = random.sample(ITEMS, 3)
        self.kind = random.randrange(len(PROBLEMS))
        self.solution = Solution()

    def number(self, low, high):
        return self.random.randint(low, high)

    def count(self):
        return self.number(2, self.sizes.count)

    def price(self):
        return self.number(2, self.sizes.price)

    def amount(self, low=1):
        return self.number(low, self.sizes.amount)


# Each problem function takes a scene and returns (question, answer). The order of the draws is part
# of the data.

def _gain_and_loss(s):
    have, more = s.amount(5), s.amount(3)
    lost = s.number(1, have + more - 1)
    question = s.random.choice([
        f"{s.first} has {have} {s.item}. {s.second} gives {s.first} {more} more, and then "
        f"{s.first} loses {lost} of them. How many {s.item} does {s.first} have now?",
        f"{s.first} had {have} {s.item}, bought {more} more and gave {lost} to {s.second}. "
        f"How many {s.item} are left?",
    ])
    total = s.solution.add(have, more, "after getting more")
    return question, s.solution.subtract(total, lost, "after giving some away")


def _boxes_less_some(s):
    boxes, each = s.count(), s.count()
    gone = s.number(1, boxes * each)
    question = s.random.choice([
        f"There are {boxes} boxes with {each} {s.item} in each box. {s.first} takes {gone} of the "
        f"{s.item}. How many {s.item} remain?",
        f"{s.first} packs {boxes} bags with {each} {s.item} each, but {gone} {s.item} get lost. "
        f"How many {s.item} are left?",
    ])
    total = s.solution.multiply(boxes, each, "in all boxes")
    return question, s.solution.subtract(total, gone, "remain")


def _two_purchases(s):
    count, price, other_count, other_price = s.count(), s.price(), s.count(), s.price()
    question = (
        f"{s.first} buys {count} {s.item} for {price} dollars each and {other_count} "
        f"{s.other_item} for {other_price} dollars each. "
        f"How many dollars does {s.first} spend in total?")
    cost = s.solution.multiply(count, price, "for the " + s.item)
    other_cost = s.solution.multiply(other_count, other_price, "for the " + s.other_item)
    return question, s.solution.add(cost, other_cost, "in total")


def _share_then_find(s):
    people, each = s.price(), s.count()
    more = s.amount()
    question = s.random.choice([
        f"{people} friends share {people * each} {s.item} equally. Then {s.first}, one of them, "
        f"finds {more} more {s.item}. How many {s.item} does {s.first} have?",
        f"{s.first} divides {people * each} {s.item} equally among {people} children. One child "
        f"already had {more} {s.item}. How many does that child have now?",
    ])
    share = s.solution.divide(people * each, people, "for each one")
    return question, s.solution.add(share, more, "with the others")


def _walk_and_ride(s):
    miles, days, ride = s.number(3, s.sizes.count), s.price(), s.amount()
    question = (
        f"{s.first} walks {miles} miles every day for {days} days and then takes a bus for {ride} "
        f"miles. How many miles does {s.first} travel in total?")
    walked = s.solution.multiply(miles, days, "walking")
    return question, s.solution.add(walked, ride, "in total")


def _ages(s):
    age, older, years = s.number(4, 40), s.number(2, 20), s.number(2, 20)
    question = (
        f"{s.second} is {age} years old. {s.first} is {older} years older than {s.second}. "
        f"How old will {s.first} be in {years} years?")
    now = s.solution.add(age, older, f"is the age of {s.first} now")
    return question, s.solution.add(now, years, "later")


def _pages_left(s):
    each, days = s.number(3, s.sizes.count), s.price()
    pages = each * days + s.amount()
    question = (
        f"A book has {pages} pages. {s.first} reads {each} pages each day for {days} days. "
        f"How many pages are left to read?")
    read = s.solution.multiply(each, days, "pages read")
    return question, s.solution.subtract(pages, read, "pages left")


def _money_left(s):
    count, price = s.count(), s.price()
    money = count * price + s.amount()
    question = s.random.choice([
        f"{s.first} has {money} dollars and buys {count} {s.item} for {price} dollars each. "
        f"How many dollars are left?",
        f"With {money} dollars, {s.first} pays for {count} {s.item} at {price} dollars each. "
        f"How much money remains?",
    ])
    spent = s.solution.multiply(count, price, "spent")
    return question, s.solution.subtract(money, spent, "left")


def _more_then_twice(s):
    have, more = s.amount(3), s.number(2, s.sizes.small)
    question = (
        f"{s.first} has {have} {s.item}. {s.second} has {more} more than {s.first}. {s.third} has "
        f"twice as many as {s.second}. How many {s.item} does {s.third} have?")
    second = s.solution.add(have, more, "for " + s.second)
    return question, s.solution.multiply(second, 2, "for " + s.third)


def _three_people(s):
    have = s.amount(s.sizes.small)
    fewer, more = s.number(2, s.sizes.small - 1), s.number(2, s.sizes.small)
    question = (
        f"{s.first} has {have} {s.item}. {s.second} has {fewer} fewer than {s.first}, and "
        f"{s.third} has {more} more than {s.second}. How many {s.item} do they have altogether?")
    second = s.solution.subtract(have, fewer, "for " + s.second)
    third = s.solution.add(second, more, "for " + s.third)
    both = s.solution.add(have, second, f"for {s.first} and {s.second}")
    return question, s.solution.add(both, third, "altogether")


def _shelves(s):
    rows, each, shelves = s.count(), s.price(), s.price()
    rows = min(rows, 12)
    question = (
        f"A shelf has {rows} rows with {each} {s.item} in each row. There are {shelves} such "
        f"shelves. How many {s.item} are there?")
    shelf = s.solution.multiply(rows, each, "on one shelf")
    return question, s.solution.multiply(shelf, shelves, "on all shelves")


def _groups(s):
    groups, each = s.price(), s.number(3, s.sizes.count)
    removed = s.number(1, each - 1)
    question = (
        f"{s.first} puts {groups * each} {s.item} into {groups} equal groups and then removes "
        f"{removed} from one group. How many {s.item} are in that group now?")
    group = s.solution.divide(groups * each, groups, "in each group")
    return question, s.solution.subtract(group, removed, "after removing")


def _three_days(s):
    monday, tuesday, friday = s.amount(5), s.amount(5), s.amount(5)
    question = (
        f"{s.first} collected {monday} {s.item} on Monday, {tuesday} on Tuesday and {friday} on "
        f"Friday. How many {s.item} did {s.first} collect?")
    two_days = s.solution.add(monday, tuesday, "after Tuesday")
    return question, s.solution.add(two_days, friday, "after Friday")


def _bare_product(s):
    left, right, more = s.count(), s.price(), s.number(1, s.sizes.small)
    form = s.random.choice(["What is %d * %d + %d?", "Compute %d * %d + %d.",
                            "Calculate %d * %d + %d"])
    product = s.solution.multiply(left, right, "")
    return form % (left, right, more), s.solution.add(product, more, "")


def _bare_sum(s):
    left, right = s.amount(2), s.amount(2)
    less = s.number(1, left + right)
    form = s.random.choice(["What is %d + %d - %d?", "Compute %d + %d - %d.", "%d + %d - %d = ?"])
    total = s.solution.add(left, right, "")
    return form % (left, right, less), s.solution.subtract(total, less, "")


def _team_points(s):
    points, games, other_games = s.count(), s.price(), s.price()
    lost = min(s.number(1, s.sizes.small), (points + other_games) * games)
    question = (
        f"A team scores {points} points in each of {games} games and {other_games} points in each "
        f"of {games} other games, but loses {lost} points for a foul. "
        f"How many points does the team have?")
    first = s.solution.multiply(points, games, "in the first games")
    other = s.solution.multiply(other_games, games, "in the other games")
    before = s.solution.add(first, other, "before the foul")
    return question, s.solution.subtract(before, lost, "after the foul")


PROBLEMS = (
    _gain_and_loss, _boxes_less_some, _two_purchases, _share_then_find, _walk_and_ride, _ages,
    _pages_left, _money_left, _more_then_twice, _three_people, _shelves, _groups, _three_days,
    _bare_product, _bare_sum, _team_points,
)


def is_held_out(question):
    return zlib.crc32(question.encode()) % HELD_OUT_SHARE == 0


def make_problem(random, level=None, held_out=False):
    """Returns (question, steps, answer) from the training part or the held-out part."""
    while True:
        scene = Scene(random, level or random.choice(TRAINING_LEVELS))
        question, answer = PROBLEMS[scene.kind](scene)
        if is_held_out(question) == held_out:
            return question, scene.solution.steps, answer


def think_text(random, steps, answer, effort):
    """The think channel: equations alone at low effort, with words otherwise."""
    if effort == "low":
        return ". ".join(equation for equation, _ in steps) + "."
    text = random.choice(["Let me work step by step. ", "I will go step by step. ", "", ""])
    for index, (equation, reason) in enumerate(steps):
        lead = ("First, ", "Then ", "Next, ", "After that, ")[min(index, 3)]
        text += (lead if len(steps) > 1 else "") + equation
        text += (" " + reason if reason else "") + ". "
    return text + "So the answer is %d." % answer


def hasty_guess(random, answer):
    """A think text without any step and a value near `answer` that is never right."""
    distance = random.randint(1, max(9, abs(answer) // 8))
    guess = answer + random.choice([-1, 1]) * distance
    return "This looks easy. It is about %d." % guess, guess
