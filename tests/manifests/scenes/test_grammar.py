"""Captions: true, varied, five an image, and pointing at the detail that matters."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest

from camp.manifests.scenes import words
from camp.manifests.scenes.grammar import Caption, write_captions
from camp.manifests.scenes.records import objects_image
from camp.manifests.scenes.scene import Scene, sample_scene

Captions = list[tuple[Caption, ...]]


def test_every_image_has_five_different_captions(default_captions: Captions) -> None:
    for written in default_captions:
        assert len({caption.text for caption in written}) == 5


def test_captions_are_the_same_every_time(default_captions: Captions) -> None:
    for index in (0, 1, 4, 777):
        assert write_captions(sample_scene(0, index)) == default_captions[index]


def test_the_vocabulary_is_rich_but_learnable(default_captions: Captions) -> None:
    spoken = [caption.text for written in default_captions for caption in written]
    counts: dict[str, int] = defaultdict(int)
    for text in spoken:
        for word in text.lower().split():
            counts[word.strip(".,")] += 1
    assert 300 <= len(counts) <= 450
    assert sum(count >= 4 for count in counts.values()) >= 300
    assert len(set(spoken)) > 0.95 * len(spoken)


def test_tokens_are_the_words_of_the_caption(default_captions: Captions) -> None:
    for written in default_captions[:100]:
        for caption in written:
            assert caption.tokens == [w.strip(".,").lower() for w in caption.text.split()]


def test_every_claim_is_true_by_a_naive_reading_of_the_records(
    default_scenes: list[Scene], default_captions: Captions
) -> None:
    kinds = set()
    for scene, written in zip(default_scenes, default_captions, strict=True):
        record = objects_image(scene, written, split="train", images=1200)
        for caption in record["captions"]:
            assert caption["facts"]
            for fact in caption["facts"]:
                kinds.add(fact[0])
                assert _naively_true(fact, record), (fact, record)
    assert kinds == {"count", "relation", "between", "zone", "background"}


def _naively_true(fact: list[Any], image: dict[str, Any]) -> bool:
    """The claim against boxes and properties, written without the package's own geometry."""

    def around(description: dict[str, str]) -> tuple[float, float, float, float]:
        found = [o for o in image["objects"] if all(o[name] == value for name, value in description.items())]
        assert found
        left, top, right, bottom = zip(*(o["box"] for o in found), strict=True)
        return min(left), min(top), max(right), max(bottom)

    def related(a: dict[str, str], relation: str, b: dict[str, str]) -> bool:
        (al, at, ar, ab), (bl, bt, br, bb) = around(a), around(b)
        across, down = (bl + br - al - ar) / 2, (bt + bb - at - ab) / 2
        truth: dict[str, bool] = {
            "left of": ar <= bl and across >= abs(down),
            "right of": br <= al and -across >= abs(down),
            "above": ab <= bt and down >= abs(across),
            "below": bb <= at and -down >= abs(across),
            "next to": (ar <= bl or br <= al) and at < bb and bt < ab,
            "on": abs(ab - bt) <= 3 and bl <= (al + ar) / 2 <= br,
        }
        return truth[relation]

    if fact[0] == "background":
        return bool(image["background"] == fact[1])
    if fact[0] == "count":
        found = [o for o in image["objects"] if all(o[name] == value for name, value in fact[1].items())]
        return bool(len(found) == fact[2])
    if fact[0] == "relation":
        return related(fact[1], fact[2], fact[3])
    if fact[0] == "between":
        sides = (("left of", "right of"), ("right of", "left of"), ("above", "below"), ("below", "above"))
        return any(related(fact[1], r, fact[2]) and related(fact[1], s, fact[3]) for r, s in sides)
    left, top, right, bottom = around(fact[1])
    x, y = (left + right) / 2 / image["width"], (top + bottom) / 2 / image["height"]
    truth: dict[str, bool] = {
        "left": x < 1 / 3,
        "right": x > 2 / 3,
        "top": y < 1 / 3,
        "bottom": y > 2 / 3,
        "middle": 1 / 3 < x < 2 / 3 and 1 / 3 < y < 2 / 3,
    }
    return truth[fact[2]]


def test_the_words_say_what_the_facts_do(default_captions: Captions) -> None:
    """Back from words to meaning: kinds, colours and sizes are found in the text and nowhere else."""
    nouns = {form: kind for kind, forms in words.NOUNS.items() for pair in forms for form in pair}
    colours = {word: colour for colour, choices in words.COLOUR_WORDS.items() for word in choices}
    sizes = {word: size for size, choices in words.SIZE_WORDS.items() for word in choices}
    for written in default_captions:
        for caption in written:
            text = caption.text.lower()
            for phrase in (p for group in words.BACKGROUND_WORDS.values() for p in group):
                text = text.replace(phrase, "")  # 'a green field' is not a green thing
            facts = [fact.record()[1] for fact in caption.facts if fact.record()[0] == "count"]
            spoken = re.findall(r"[a-z-]+", text)
            assert {nouns[w] for w in spoken if w in nouns} == {f["kind"] for f in facts}
            assert {colours[w] for w in spoken if w in colours} == {
                f["colour"] for f in facts if "colour" in f
            }
            assert {sizes[w] for w in spoken if w in sizes} == {f["size"] for f in facts if "size" in f}


@pytest.mark.parametrize(
    "choices",
    [words.COLOUR_WORDS, words.TEXTURE_WORDS, words.SIZE_WORDS, words.RELATION_WORDS, words.ZONE_WORDS],
)
def test_no_word_has_two_meanings(choices: dict[str, tuple[str, ...]]) -> None:
    every = [word for group in choices.values() for word in group]
    assert len(every) == len(set(every))


def test_articles_and_plurals(default_captions: Captions) -> None:
    text = " ".join(caption.text.lower() for written in default_captions for caption in written)
    assert not re.search(r"\ba [aeiou]", text)
    assert not re.search(r"\ban [^aeiou]", text)
    assert not re.search(r"\b(two|three|four) (\w+ )?(ball|cup|tree|house)\b", text)
    assert "  " not in text


def test_nearly_every_caption_tells_its_scene_from_the_partner(
    default_scenes: list[Scene], default_captions: Captions
) -> None:
    vague = 0
    for scene, written in zip(default_scenes, default_captions, strict=True):
        if scene.partner is None:
            continue
        partner = default_scenes[scene.partner]
        unclear = sum(all(fact.holds(partner) for fact in caption.facts) for caption in written)
        assert unclear <= 1
        vague += unclear
    assert 0 < vague < 0.1 * 5 * 960
