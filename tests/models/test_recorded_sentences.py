"""What was recorded of the sentence encoder: it is whole, and it is what the encoder makes."""

from importlib import resources

import numpy as np
from cases import recorded

from attnbook import single_head_attention
from attnbook.data import plays
from attnbook.models import recorded_sentences

RECORDED = recorded_sentences()


def test_it_is_small_and_its_parts_fit_together():
    file = resources.files("attnbook.models").joinpath("recorded_sentences.npz")
    assert len(file.read_bytes()) < 400_000
    n, m = len(RECORDED.lines), len(RECORDED.queries)
    assert n > 250
    assert len(RECORDED.speakers) == len(RECORDED.plays) == n
    for vectors, rows in ((RECORDED.vectors, n), (RECORDED.query_vectors, m)):
        assert vectors.shape == (rows, 384)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    for tokens, A in zip(RECORDED.tokens, RECORDED.attention, strict=True):
        assert A.shape == (6, 12, len(tokens), len(tokens))
        np.testing.assert_allclose(A.sum(axis=-1), 1, atol=5e-3)
        assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")


def test_each_line_is_a_line_of_its_play_and_speaker():
    texts = plays().texts
    for line, speaker, play in zip(RECORDED.lines, RECORDED.speakers, RECORDED.plays, strict=True):
        speeches = [speech.split("\n") for speech in texts[play].split("\n\n")]
        assert any(line in lines and lines[0] == f"{speaker}:" for lines in speeches), line


def test_the_head_does_what_was_recorded():
    x, head = RECORDED.x, RECORDED.head
    _, [A] = recorded(single_head_attention, x, x, x, head)
    np.testing.assert_allclose(A, RECORDED.attention[0][RECORDED.head_place], atol=5e-3)
    horses = [i for i, token in enumerate(RECORDED.tokens[0]) if token == "horse"]
    for i in horses:
        others = [j for j in horses if j != i]
        assert A[i, others].sum() > 0.7


def test_a_search_finds_what_is_meant():
    nearest = (RECORDED.query_vectors @ RECORDED.vectors.T).argmax(axis=1)
    found = dict(zip(RECORDED.queries, (RECORDED.lines[i] for i in nearest), strict=True))
    assert "murder sleep" in found["I cannot sleep because I feel guilty."]
    assert "Did my heart love" in found["We fell in love the moment we saw each other."]


def test_the_arrays_are_the_callers():
    RECORDED.vectors[0] = 0
    assert np.linalg.norm(recorded_sentences().vectors[0]) > 0.9


def test_it_is_what_the_encoder_makes(published):
    encoder, recorded = published[0], recorded_sentences()
    some = list(range(0, len(recorded.lines), 9))
    got = encoder.encode([recorded.lines[i] for i in some])
    np.testing.assert_allclose(got, recorded.vectors[some], atol=1e-3)
    np.testing.assert_allclose(encoder.encode(recorded.queries), recorded.query_vectors, atol=1e-3)
    sentence = "A horse! a horse! my kingdom for a horse!"
    assert tuple(encoder.tokens(sentence)) == recorded.tokens[0]
    np.testing.assert_allclose(encoder.attention(sentence), recorded.attention[0], atol=1e-3)
