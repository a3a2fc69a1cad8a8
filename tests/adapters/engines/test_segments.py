"""How a written turn becomes acts, and what shortens it."""

from __future__ import annotations

from antiphon.adapters.engines.scripted.engine import PrefixCache
from antiphon.adapters.engines.scripted.segments import cut, steps, to_segments

A, B, END = [(1, "a"), (2, "b")], [(3, "c")], [(0, "")]


def test_parts_at_one_pace_are_one_act() -> None:
    (act,) = to_segments([{"say": "ab"}, {"say": "c"}], [A, B, END])
    assert act.tokens == [*A, *B, *END]


def test_a_delay_a_tick_and_a_mishap_begin_another_act() -> None:
    parts = [{"say": "ab"}, {"say": "c", "delay": 2}, {"hang": 3}, {"say": "c", "tick": 1}]
    acts = to_segments([*parts, {"die": True}], [A, B, [], B, [], END])
    assert [len(act.tokens) for act in acts] == [2, 1, 0, 1, 1]
    assert [act.delay_s for act in acts] == [0, 2, 3, 0, 0]
    assert [act.tick_s for act in acts] == [0, 0, 0, 1, 0]
    assert [act.fault for act in acts] == [None, None, None, None, {"die": True}]


def test_a_delay_stands_before_all_that_joins_it() -> None:
    (act,) = to_segments([{"say": "ab", "delay": 2}, {"say": "c"}], [A, B, END])
    assert (act.delay_s, act.tokens) == (2, [*A, *B, *END])


def test_a_part_in_one_step_takes_the_end_with_it() -> None:
    (act,) = to_segments([{"say": "ab", "chunk": "all"}], [A, END])
    (step,) = steps(act, finish="stop", cached_tokens=0, alternatives=None)
    assert (step.text, list(step.token_ids), step.finish) == ("ab", [1, 2, 0], "stop")


def test_two_parts_in_one_step_each_are_two_steps() -> None:
    parts = [{"say": "ab", "chunk": "all"}, {"say": "ab", "chunk": "all"}]
    acts = to_segments(parts, [A, A, END])
    texts = [
        s.text for a in acts for s in steps(a, finish=None, cached_tokens=0, alternatives=None)
    ]
    assert texts == ["ab", "ab"]


def test_the_larger_of_all_step_sizes_counts() -> None:
    assert to_segments([{"say": "ab", "chunk": 3}], [A, END], step_tokens=2)[0].step_tokens == 3
    assert to_segments([{"say": "ab", "chunk": 3}], [A, END], step_tokens=9)[0].step_tokens == 9
    assert to_segments([{"say": "ab", "chunk": "all"}], [A, END], step_tokens=9)[0].step_tokens == 9


def test_a_mishap_after_the_last_token_allowed_does_not_come() -> None:
    acts = to_segments([{"say": "ab"}, {"fail": "x"}], [A, [], END])
    assert cut(acts, 2) == (acts[:1], True)
    assert cut(acts, 3) == (acts, False)


def test_a_turn_of_exactly_the_limit_is_not_cut() -> None:
    acts = to_segments([{"say": "ab"}], [A, END])
    assert cut(acts, 3) == (acts, False)
    assert cut(acts, 0) == ([], True)


def test_the_oldest_prefixes_are_forgotten_first() -> None:
    prefixes = PrefixCache(limit=2)
    one, two, three = (range(n, n + 17) for n in (0, 100, 200))
    assert [prefixes.admit(prompt) for prompt in (one, two, one, three)] == [0, 0, 16, 0]
    assert [prefixes.admit(prompt) for prompt in (one, two)] == [16, 0]


def test_another_salt_shares_no_prefix() -> None:
    prefixes = PrefixCache()
    prompt = list(range(40))
    assert [prefixes.admit(prompt, salt) for salt in ("a", "b", "a", None)] == [0, 0, 32, 0]
