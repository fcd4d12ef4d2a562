"""Kinds, colours, textures, sizes, counts, relations, backgrounds -> their words, the commonest first.

No word stands for two meanings of the same sort: a caption's meaning can be read off its words.
"""

from __future__ import annotations

NOUNS: dict[str, tuple[tuple[str, str], ...]] = {
    "ball": (("ball", "balls"), ("sphere", "spheres"), ("orb", "orbs")),
    "bird": (("bird", "birds"), ("songbird", "songbirds"), ("finch", "finches")),
    "boat": (("boat", "boats"), ("sailboat", "sailboats"), ("ship", "ships"), ("yacht", "yachts")),
    "box": (("box", "boxes"), ("crate", "crates"), ("cube", "cubes"), ("parcel", "parcels")),
    "car": (("car", "cars"), ("automobile", "automobiles"), ("vehicle", "vehicles")),
    "cat": (("cat", "cats"), ("kitten", "kittens"), ("kitty", "kitties")),
    "cup": (("cup", "cups"), ("mug", "mugs"), ("teacup", "teacups")),
    "fish": (("fish", "fish"), ("minnow", "minnows"), ("carp", "carp")),
    "flower": (("flower", "flowers"), ("blossom", "blossoms"), ("daisy", "daisies")),
    "house": (("house", "houses"), ("cottage", "cottages"), ("hut", "huts"), ("home", "homes")),
    "kite": (("kite", "kites"), ("paper kite", "paper kites"), ("diamond kite", "diamond kites")),
    "mushroom": (("mushroom", "mushrooms"), ("toadstool", "toadstools"), ("fungus", "fungi")),
    "star": (("star", "stars"), ("pentagram", "pentagrams"), ("five-pointed star", "five-pointed stars")),
    "table": (("table", "tables"), ("desk", "desks"), ("workbench", "workbenches")),
    "tree": (("tree", "trees"), ("fir", "firs"), ("pine", "pines"), ("conifer", "conifers")),
    "umbrella": (("umbrella", "umbrellas"), ("parasol", "parasols"), ("sunshade", "sunshades")),
}

# What a thing of the kind does: 'sits', 'sit', 'sitting'. Harmless words: nothing depends on them.
VERBS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "ball": (("lies", "lie", "lying"), ("rests", "rest", "resting")),
    "bird": (("perches", "perch", "perching"), ("sings", "sing", "singing")),
    "boat": (("floats", "float", "floating"), ("sails", "sail", "sailing"), ("drifts", "drift", "drifting")),
    "box": (("stands", "stand", "standing"), ("lies", "lie", "lying")),
    "car": (("waits", "wait", "waiting"), ("stops", "stop", "stopping")),
    "cat": (("sits", "sit", "sitting"), ("poses", "pose", "posing"), ("watches", "watch", "watching")),
    "cup": (("stands", "stand", "standing"), ("sits", "sit", "sitting")),
    "fish": (("swims", "swim", "swimming"), ("glides", "glide", "gliding")),
    "flower": (("grows", "grow", "growing"), ("blooms", "bloom", "blooming")),
    "house": (("stands", "stand", "standing"), ("rises", "rise", "rising")),
    "kite": (("hangs", "hang", "hanging"), ("flies", "fly", "flying")),
    "mushroom": (("grows", "grow", "growing"), ("sprouts", "sprout", "sprouting")),
    "star": (("shines", "shine", "shining"), ("hangs", "hang", "hanging")),
    "table": (("stands", "stand", "standing"), ("waits", "wait", "waiting")),
    "tree": (("stands", "stand", "standing"), ("grows", "grow", "growing")),
    "umbrella": (("leans", "lean", "leaning"), ("stands", "stand", "standing")),
}

SHARED_VERBS = (
    ("appears", "appear", "appearing"),
    ("rests", "rest", "resting"),
    ("gathers", "gather", "gathering"),
)

COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "scarlet", "crimson"),
    "orange": ("orange", "tangerine"),
    "yellow": ("yellow", "lemon", "golden"),
    "green": ("green", "emerald"),
    "blue": ("blue", "azure", "cobalt"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rosy"),
    "brown": ("brown", "chestnut", "chocolate"),
    "black": ("black", "jet-black"),
    "white": ("white", "ivory"),
}

TEXTURE_WORDS: dict[str, tuple[str, ...]] = {
    "plain": ("plain", "unpatterned", "solid"),
    "striped": ("striped", "stripy", "banded"),
    "dotted": ("dotted", "spotted", "speckled"),
    "checked": ("checked", "chequered", "checkerboard"),
}
TEXTURE_TAILS: dict[str, tuple[str, ...]] = {
    "plain": ("without any pattern", "of one colour"),
    "striped": ("with stripes", "covered in stripes", "with diagonal bands"),
    "dotted": ("with dots", "covered in spots", "with round spots"),
    "checked": ("with a chessboard pattern", "covered in squares", "with checks"),
}

SIZE_WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny", "miniature"),
    "large": ("large", "big", "huge", "enormous", "giant"),
}

NUMBER_WORDS: dict[int, tuple[str, ...]] = {
    1: ("a", "one", "a single", "a lone"),
    2: ("two", "a pair of", "a couple of", "twin"),
    3: ("three", "a trio of", "a group of three"),
    4: ("four", "a group of four", "a set of four"),
}

RELATION_WORDS: dict[str, tuple[str, ...]] = {
    "left of": ("to the left of", "left of", "on the left side of", "on the left of"),
    "right of": ("to the right of", "right of", "on the right side of", "on the right of"),
    "above": ("above", "over", "higher than", "just above"),
    "below": ("below", "under", "beneath", "underneath", "lower than"),
    "next to": ("next to", "beside", "near", "close to", "alongside"),
    "on": ("on", "on top of", "atop"),
}
BETWEEN_WORDS = ("between", "in between")

ZONE_WORDS: dict[str, tuple[str, ...]] = {
    "left": ("on the left", "at the left edge", "on the left-hand side"),
    "right": ("on the right", "at the right edge", "on the right-hand side"),
    "top": ("at the top", "in the upper part", "high up"),
    "bottom": ("at the bottom", "in the lower part", "low down"),
    "middle": ("in the middle", "in the centre", "at the heart of the picture"),
}

BACKGROUND_WORDS: dict[str, tuple[str, ...]] = {
    "meadow": ("in a meadow", "on the grass", "in a green field", "on grassy hills", "in the countryside"),
    "beach": ("on the beach", "by the sea", "at the seaside", "on a sandy shore", "at the coast"),
    "night": ("at night", "in the dark", "under the moon", "in the moonlight", "after sunset"),
    "room": ("in a room", "indoors", "inside", "against a papered wall", "in a living room"),
    "snow": ("in the snow", "on a snowy day", "in winter", "among snowflakes", "in a wintry landscape"),
    "street": ("on the street", "at the roadside", "by a brick wall", "in town", "along the pavement"),
    "desert": ("in the desert", "among sand dunes", "under a hot sun", "in a dry wasteland", "on the dunes"),
    "water": ("under water", "in the deep water", "among bubbles", "below the surface", "beneath the waves"),
}
BACKGROUND_NOUNS: dict[str, tuple[str, ...]] = {
    "meadow": ("a meadow", "a grassy landscape"),
    "beach": ("a beach", "a sandy coast"),
    "night": ("a moonlit night", "a night sky"),
    "room": ("a room", "an indoor scene"),
    "snow": ("a snowy landscape", "a winter day"),
    "street": ("a street", "a road in town"),
    "desert": ("a desert", "a landscape of dunes"),
    "water": ("an underwater world", "an aquarium"),
}

PICTURE_WORDS = ("a picture", "a drawing", "an illustration", "a view", "an image", "a cartoon", "a scene")
SEEN_WORDS = ("you can see", "the picture shows", "we see", "someone drew", "here we have", "this shows")
TAIL_WORDS = ("with", "along with", "together with", "as well as", "accompanied by")
