"""First differences between answers, and which of them are near ties."""

from __future__ import annotations

from demo.client import Answer, median_times, token_id
from demo.compare import differences, first_difference


def answer(tokens, likely=None):
    return Answer(tokens=list(tokens), top_logprobs=likely or [{token: -0.1} for token in tokens])


def test_identical_answers_have_no_difference():
    assert first_difference(0, answer([1, 2, 3]), answer([1, 2, 3])) is None


def test_the_gap_is_in_the_references_own_logprobs():
    reference = answer([1, 2, 3], [{1: -0.1}, {2: -0.9, 7: -1.1}, {3: -0.1}])
    found = first_difference(4, reference, answer([1, 7, 9]))
    assert found is not None
    assert (found.request, found.position) == (4, 1)
    assert abs(found.gap - 0.2) < 1e-9
    assert found.near_tie
    assert "request 5, token 2" in str(found)


def test_an_unlikely_token_is_no_near_tie():
    reference = answer([1, 2], [{1: -0.1}, {2: -0.1, 5: -3.0}])
    assert not first_difference(0, reference, answer([1, 5])).near_tie
    assert not first_difference(0, reference, answer([1, 9])).near_tie


def test_a_shorter_answer_differs_where_it_ends():
    found = first_difference(0, answer([1, 2]), answer([1]))
    assert found is not None
    assert found.position == 1
    assert not found.near_tie


def test_differences_keep_the_requests_numbers():
    found = differences([answer([1]), answer([1]), answer([1])], [answer([1]), answer([2]), answer([3])])
    assert [difference.request for difference in found] == [1, 2]


def test_times_and_ids():
    answers = [Answer(tokens=[1, 2, 3], first=1.0, last=2.0), Answer(tokens=[1], first=3.0, last=3.0)]
    assert median_times(answers) == (2.0, 0.5)
    assert median_times(answers[1:]) == (3.0, None)
    assert token_id("token_id:42") == 42


def test_two_steps_apart_is_a_tie_whatever_float32_makes_of_it():
    reference = answer([1], [{1: -1.0000001, 5: -1.2500003}])
    assert first_difference(0, reference, answer([5])).near_tie
    reference = answer([1], [{1: -1.0, 5: -1.3125}])
    assert not first_difference(0, reference, answer([5])).near_tie
