"""Variants: each student has other numbers, and the solution follows."""

import dataclasses
import json
import math
import re

import numpy as np
import pupils
import pytest
from samples import WRITTEN, sample

import attnbook
from attnbook.hashing import SimHash
from course import exercises, families, grading, hidden, results, submissions, variants

STUDENTS = [f"student {i}" for i in range(20)]


def solved(exercise, code=None):
    """Return what the solution of an exercise hands in, or other code."""
    space = {}
    exec(exercise.given, space)
    exec(code or exercise.answer, space)
    return {name: space[name] for name in exercise.names}


def whole_numbers(pattern, text):
    return [int(x) for x in re.search(pattern, text, re.S).groups()]


def test_a_hundred_variants_are_solved():
    seen = set()
    for student in STUDENTS:
        for exercise in variants.of(student, "s"):
            answers = solved(exercise)
            assert hidden.outcome(exercise, answers, 0) == [[True] * len(answers)]
            wrong = {name: np.asarray(x) + 1 + np.abs(x) for name, x in answers.items()}
            assert hidden.outcome(exercise, wrong, 0) == [[False] * len(answers)]
            seen.add((exercise.label, exercise.text))
    assert len(seen) > 90  # few students share a task
    texts = [[task.text for task in variants.of("a", secret)] for secret in ("s", "s", "t")]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("student", STUDENTS)
def test_solutions_agree_with_the_package(student):
    tasks = {exercise.label: exercise for exercise in variants.of(student, "s")}
    right = {label: solved(exercise) for label, exercise in tasks.items()}
    text = {label: exercise.text for label, exercise in tasks.items()}

    n_q, n_k, i = whole_numbers(
        r"^(\d+) new queries attend to (\d+) keys.* query (\d+),", text["variant-causal"]
    )
    mask = attnbook.masking.causal(n_q, n_k)
    weights = attnbook.attention_weights(np.zeros((n_q, 1)), np.zeros((n_k, 1)), mask)
    assert np.allclose(right["variant-causal"]["weights"], weights[i])
    assert right["variant-causal"]["pairs"] == np.count_nonzero(mask)

    words = text["variant-attention"]
    key = np.log([[float(x)] for x in re.findall(r"\\ln (\d+)", words)])
    value = np.array(json.loads(re.search(r"values are (\[.*?\])", words)[1]))[:, None] * 1.0
    mean = attnbook.attention(np.ones((1, 1)), key, value)
    assert np.allclose(right["variant-attention"]["output"], mean)
    if "masked" in right["variant-attention"]:
        (hides,) = whole_numbers(r"hides key (\d+)", words)
        mask = np.arange(len(key)) != hides
        rest = attnbook.attention(np.ones((1, 1)), key, value, mask)
        assert np.allclose(right["variant-attention"]["masked"], rest)
    else:
        largest = attnbook.attention_weights(np.ones((1, 1)), key).max()
        assert np.allclose(right["variant-attention"]["largest"], largest)

    layers, heads, width, shared = whole_numbers(
        r"has (\d+) layers with (\d+) heads of width (\d+).* if (\d+) query", text["variant-cache"]
    )
    dtype = "float16" if "float16" in text["variant-cache"] else "float32"
    cache = np.zeros((2, layers, heads, width), dtype)
    assert right["variant-cache"]["whole"] == cache.nbytes / 1024
    assert right["variant-cache"]["grouped"] == cache[:, :, ::shared].copy().nbytes / 1024

    words = text["variant-tables"]
    bits, n_tables = whole_numbers(r"a table of (\d+) random.* of (\d+) such", words)
    one = SimHash.collision_probability(float(re.search(r"angle of ([\d.]+)", words)[1])) ** bits
    none = math.prod([1 - one] * n_tables)
    assert np.isclose(right["variant-tables"]["one"], one)
    expected = none if "none of" in words else 1 - none
    assert np.isclose(right["variant-tables"]["all_tables"], expected)

    words = text["variant-rate"]
    steps, warmup, early, late = whole_numbers(
        r"has (\d+) updates.* update (\d+) and.* update (\d+) \(`early`\).* update (\d+) \(", words
    )
    peak = float(re.search(r"linearly to (\S+) in", words)[1])
    assert np.isclose(right["variant-rate"]["early"], peak / warmup * early)
    share = math.cos(math.pi * (late - warmup) / (steps - warmup) / 2) ** 2
    assert np.isclose(right["variant-rate"]["late"], peak * share)


def test_releases_of_variants_hold_no_results(tmp_path):
    variants.write(STUDENTS[:3], "s", tmp_path)
    for student in STUDENTS[:3]:
        for exercise in variants.of(student, "s"):
            code = (tmp_path / student / f"{exercise.module}.py").read_text("utf8")
            text = code + (tmp_path / student / f"{exercise.module}.md").read_text("utf8")
            assert "check_variant" not in text
            for value in solved(exercise).values():
                assert str(value) not in code
                assert not isinstance(value, float) or repr(value) not in text or value < 100


def test_tasks_of_an_earlier_call_go_and_nothing_else(tmp_path):
    variants.write(["ada", "bob"], "s", tmp_path)
    of_masking = dataclasses.replace(sample("essay", names=[], answer=""), chapter="masking")
    (tmp_path / "ada/notes.md").write_text("mine")
    before = {path.name: path.read_text() for path in (tmp_path / "bob").iterdir()}
    variants.write(["ada"], "t", tmp_path, [of_masking])
    names = {path.name for path in (tmp_path / "ada").iterdir()}
    assert names == {"notes.md", "variant_causal.md", "variant_causal.py"}
    assert {path.name: path.read_text() for path in (tmp_path / "bob").iterdir()} == before


@pytest.mark.parametrize("name", ["../evil", "bob/x", "bob\\x", "..", ".", ".x", "", "\0"])
def test_a_name_that_is_no_folder_is_refused(name, tmp_path):
    with pytest.raises(
        ValueError, match="students must be names of folders that are not hidden, got '"
    ):
        variants.write(["ada", name], "s", tmp_path / "in")
    assert [*tmp_path.iterdir()] == []


def test_a_number_in_the_place_of_a_list_is_wrong():
    for seed in range(9):
        exercise = variants.causal_mask(np.random.default_rng(seed))
        right = solved(exercise)
        for weights in (right["weights"][0], [right["weights"]]):
            found = hidden.outcome(exercise, {**right, "weights": weights}, 5)
            assert found == [[False, True]]


@pytest.fixture(scope="module")
def of_book():
    read = exercises.read(WRITTEN)
    return {exercise.label: exercise for asked in read.values() for exercise in asked}


@pytest.mark.site
@pytest.mark.parametrize("label", families.FAMILIES)
def test_variants_of_an_exercise_are_solved_and_not_by_the_chapter(label, of_book):
    """Seven of each of the families: over a hundred together."""
    exercise, texts = of_book[label], set()
    for seed in range(7):
        variant = families.varied(exercise, np.random.default_rng(seed))
        right = hidden.outcome(variant, solved(variant), 5)
        assert all(
            x is True or x == (True, True) or "ight" in str(x) or (isinstance(x, list) and all(x))
            for x in right
        ), right
        try:
            unvaried = hidden.outcome(variant, solved(variant, exercise.answer), 5)
        except ValueError:  # the sizes differ
            unvaried = None
        assert hidden.share_of(unvaried, right) < 1
        assert (variant.names, variant.points) == (exercise.names, exercise.points)
        texts.add(variant.text)
    assert exercise.text not in texts


@pytest.mark.site
@pytest.mark.parametrize("secret", ["s", "t"])
def test_of_sixty_students_thirty_have_their_own_numbers(secret, of_book):
    texts = {}
    for student in range(60):
        for task in variants.of(f"student {student}", secret, of_book.values()):
            texts.setdefault(task.label, set()).add(task.text)
    assert set(texts) == {*variants.TASKS, *families.FAMILIES}
    assert {label: len(found) for label, found in texts.items() if len(found) < 30} == {}


@pytest.mark.site
@pytest.mark.parametrize("label", families.FAMILIES)
def test_forty_variants_are_right_and_the_task_says_all(label, of_book):
    for seed in range(7, 47):
        variant = families.varied(of_book[label], np.random.default_rng(seed))
        right = hidden.outcome(variant, solved(variant), 5)
        assert hidden.share_of(right, right) == 1
        assert not re.search(r"False|\bnot\b|'no'", str(right)), right
        assert not variants.is_literal(variant.answer) or "check_" not in variant.text


@pytest.mark.site
def test_who_hands_in_numbers_sees_no_check_that_holds_them(tmp_path, of_book):
    """The visible tests of a student's folder: none gives a result that is handed in."""
    variants.write(STUDENTS[:3], "s", tmp_path, of_book.values())
    seen = set()
    for student in STUDENTS[:3]:
        for exercise in variants.of(student, "s", of_book.values()):
            test = tmp_path / student / f"test_{exercise.module}.py"
            namespace = solved(exercise)
            is_numbers = all(not callable(x) for x in namespace.values())
            literal = {str(x) for x in namespace.values() if isinstance(x, (int, float))}
            if test.exists():
                seen.add(exercise.label)
                numbers = set(re.findall(r"[\d._]+", test.read_text("utf8")))
                assert not (is_numbers and literal & numbers), exercise.label
            else:
                assert is_numbers
    assert {"count", "additive", "perplexity", "sentences", "hash-budget", "reach"} == seen


@pytest.mark.site
def test_each_family_has_an_exercise_and_passages(of_book):
    assert {e.label for e in of_book.values() if e.variant} == set(families.FAMILIES)


@pytest.mark.site
def test_variants_of_exercises_are_written_with_their_checks(tmp_path, of_book):
    chosen = [of_book[label] for label in ("hash-budget", "hash-pencil", "cache-size")]
    variants.write(["ada"], "s", tmp_path, chosen)
    names = {path.name for path in (tmp_path / "ada").iterdir()}
    assert {"hash_budget.py", "test_hash_budget.py", "cache_size.py"} < names
    assert {"variant_tables.py", "variant_cache.py"} < names
    assert not names & {"hash_pencil.py", "variant_rate.py", "test_variant_tables.py"}
    assert "test_cache_size.py" not in names


def test_each_student_is_graded_by_the_own_variant(tmp_path):
    for student, solves in {"ada": "ada", "bob": "ada"}.items():
        tasks = variants.of(solves, "s")
        pupils.write_programs(tmp_path / student, {task.module: task.answer for task in tasks})
    tasks = variants.of("", "s")
    handed_in = submissions.read(tmp_path, tasks)
    done = list(grading.grade(handed_in, tasks, "s", workers=1, own=True))
    ada, bob = (results.points_of_all(result, tasks) for result in done)
    assert ada == sum(exercise.points for exercise in tasks)
    assert bob < ada / 2
