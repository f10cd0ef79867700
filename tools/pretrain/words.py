"""Word lists that the generators draw from.

The order of each list is part of the data: a seeded generator picks by index, so moving a word
changes every conversation made after it.
"""

NAMES = (
    "Anna Ben Carla David Elena Felix Grace Hugo Iris Jack Kira Leo Maya Noah Olga Paul Quinn "
    "Rosa Sam Tara Uma Victor Wendy Xavier Yara Zane Alice Boris Clara Diego Emma Frank Gina "
    "Henry Ida John Karen Liam Mia Nina Oscar Petra Ravi Sofia Tom Vera Will Yuki Omar Lucy Max "
    "Ella"
).split()

ITEMS = (
    "apples books pencils marbles stickers cookies coins shells stamps cards balloons oranges "
    "candles buttons beads flowers eggs bottles cups plates tickets toys stones ribbons keys "
    "lemons peaches muffins pens notebooks bricks lamps chairs potatoes carrots tomatoes photos "
    "badges rings maps"
).split()

CITIES = (
    "Paris Lisbon Oslo Madrid Rome Berlin Vienna Prague Athens Dublin Tokyo Kyoto Seoul Delhi "
    "Cairo Lima Quito Bogota Havana Boston Chicago Denver Austin Seattle Toronto Sydney Perth "
    "Milan Turin Geneva Zurich Krakow Riga Tallinn Helsinki Bergen Malmo Porto Seville Lyon "
    "Nice Bremen Dresden Hanoi Manila Jakarta Nairobi Lagos Accra Tunis"
).split()

PLACES = (
    "river market garden station harbor bridge library tower museum forest village castle "
    "school bakery theater square park office hotel farm beach valley temple palace stadium "
    "cinema factory church"
).split()

ADJECTIVES = (
    "old quiet small bright green heavy gentle narrow golden busy cold warm distant famous "
    "simple strange tall white wooden modern dusty clean lonely happy slow red blue dark silver "
    "round"
).split()

NOUNS = (
    "traveler teacher farmer painter singer doctor sailor writer baker driver child neighbor "
    "student gardener fisherman merchant soldier poet cook clerk dog horse bird cat train boat "
    "wagon clock letter song story lamp road wind cloud storm"
).split()

VERBS = (
    "walked waited rested worked stopped turned stood sang slept arrived moved stayed smiled "
    "laughed listened looked talked played returned ran wandered paused appeared gathered"
).split()

TIMES = (
    "in the morning|at night|after lunch|before dawn|during the winter|in early spring|on Monday|"
    "on Friday|last year|every evening|at noon|for many hours|all day long|once a week|in the rain|"
    "under the moon|without a word|again and again"
).split("|")

KEY_KINDS = (
    "secret code|access number|locker number|ticket number|phone extension|badge number|"
    "account number|room code|gate number|serial number"
).split("|")

COLORS = "red blue green yellow orange purple black white pink brown gray silver".split()

WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

SMALL_WORDS = "and or the with from to in of a is not I you we my".split()

TOOL_VERBS = (
    "get set find add send book play open close check create update delete start stop count "
    "order rent track convert"
).split()

TOOL_NOUNS = (
    "weather alarm table event email song ticket room light timer note task price car flight "
    "parcel report score file seat"
).split()

TOOL_PARAMETERS = (
    "city name date time label amount count title color size room owner place item code level "
    "target source price note"
).split()
