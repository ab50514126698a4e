"""Workloads: the same for the same seed, prefixes shared as promised and never otherwise, bounded, counted right."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sim.text import answer_turn, encode, pieces, turn
from loadtests.workloads.arrivals import Documents, documents
from loadtests.workloads.ask import Ask, Due, Kind, Reply, Workload
from loadtests.workloads.mix import SCENARIOS, Mix, changed, scenario
from loadtests.workloads.prompt import Prompt, Segment, blocks, content, filler, messages, prompt_tokens
from loadtests.workloads.users import Conversant, Habit, draw


def as_text(prompt: Prompt) -> str:
    """The prompt as the simulator's chat template writes it."""
    turns = (turn(role, "".join(map(content, segments))) for role, segments in messages(prompt))
    return "".join(turns) + answer_turn()


def shared(left: list[int], right: list[int]) -> int:
    """Equal blocks at the beginning."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def drive(workload: Workload, answer_s: float = 5.0, *, ok: bool = True, limit: int = 5_000) -> list[Due]:
    """Everything a workload asks when each answer takes ``answer_s``."""
    asked: list[Due] = []
    for user in workload.users:
        due = user.first()
        while due is not None and len(asked) < limit:
            asked.append(due)
            due = user.then(due.at_s + answer_s, Reply(ok, due.ask.output_tokens if ok else 0))
    for arrivals in workload.arrivals:
        asked += arrivals
    return asked


segments = st.builds(
    Segment,
    st.sampled_from(["system", "user", "assistant"]),
    st.integers(1 << 32, (1 << 32) + 3),
    st.integers(0, 70),
    st.none(),
)


@given(st.lists(segments, min_size=1, max_size=6).map(tuple))
def test_tokens_are_those_of_the_simulators_tokeniser(prompt: Prompt) -> None:
    assert prompt_tokens(prompt) == encode(as_text(prompt)).tokens


@given(st.lists(segments, min_size=1, max_size=6).map(tuple), st.lists(segments, min_size=1, max_size=6).map(tuple))
def test_hashes_share_what_the_texts_share(left: Prompt, right: Prompt) -> None:
    """Virtual time and sockets see the same prefix hits."""
    texts = encode(as_text(left)).blocks, encode(as_text(right)).blocks
    hashes = blocks(left), blocks(right)
    assert [len(found) for found in hashes] == [len(found) for found in texts]
    assert shared(*hashes) == shared(*texts)


def test_an_answer_becomes_part_of_the_next_prompts_prefix() -> None:
    ask = Ask("a", "u", "t", Kind.CHAT, (Segment("user", 1 << 40, 100),), 60, 1 << 41)
    later = (*ask.prompt, ask.answer(60), Segment("user", 1 << 42, 30))
    assert shared(ask.blocks(), blocks(later)) == len(ask.blocks()) == (ask.prompt_tokens + 60) // 16


def test_an_answers_own_text_counts_as_it_was_sent() -> None:
    ask = Ask("a", "u", "t", Kind.CHAT, (Segment("user", 1 << 40, 100),), 3, 1 << 41)
    assert content(ask.answer(3, "one two thr")) == "one two thr"


def test_filler_is_one_token_a_word_and_grows_at_its_end() -> None:
    assert len(pieces(filler(7, 101))) == 101
    assert filler(7, 1_000).startswith(filler(7, 333))
    assert filler(7, 100) != filler(8, 100)
    assert filler(7, 0) == ""


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_is_a_workload(name: str) -> None:
    def once(seed: int) -> list[Due]:
        return drive(scenario(name, seed=seed, seconds=120))

    first = once(3)
    assert first == once(3)
    assert first != once(4)
    assert first


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("ok", [True, False])
def test_every_scenario_ends(name: str, ok: bool) -> None:
    workload = scenario(name, seed=1, seconds=90)
    asked = drive(workload, answer_s=0.0, ok=ok, limit=100_000) if name != "batch_job" else drive(workload, ok=ok)
    assert 0 < len(asked) < 50_000
    assert all(0 <= due.at_s < 90 for due in asked)
    assert len({due.ask.id for due in asked}) == len(asked)
    assert {due.ask.team for due in asked} <= set(workload.teams)


def test_a_user_without_pauses_ends_by_its_count() -> None:
    habit = Habit(think_s=0, opening_tokens=(1, 1), output_tokens=(1, 1), asks_max=17)
    user = Conversant("u", "t", Kind.BATCH, habit, seed=1, seconds=1.0)
    assert len(drive(Workload("w", 1, 1.0, ("t",), (user,), (), 17), answer_s=0.0)) == 17


@pytest.mark.slow
def test_the_department_is_as_described() -> None:
    asked = drive(scenario("department_day", seed=5, seconds=1_800))
    users = {due.ask.kind: {one.ask.user for one in asked if one.ask.kind is due.ask.kind} for due in asked}
    assert (len(users[Kind.CHAT]), len(users[Kind.AGENT])) == (40, 8)
    sizes = [due.ask.prompt_tokens for due in asked if due.ask.kind is Kind.DOCUMENT]
    assert 15 <= len(sizes) <= 48  # 30 expected
    assert all(30_000 <= size <= 240_100 for size in sizes)
    chats = [due.ask for due in asked if due.ask.kind is Kind.CHAT]
    agents = [due.ask for due in asked if due.ask.kind is Kind.AGENT]
    assert mean(ask.prompt_tokens for ask in agents) > 8 * mean(ask.prompt_tokens for ask in chats)
    assert max(ask.prompt_tokens + ask.output_tokens for ask in agents) <= 110_000


def test_a_team_shares_its_system_prompt_and_users_share_nothing_else() -> None:
    asked = drive(scenario("chat_only", seed=2, seconds=200))
    opening = {due.ask.user: due.ask for due in reversed(asked)}
    one, same_team, other_team = opening["chat-1"], opening["chat-5"], opening["chat-2"]
    assert one.team == same_team.team != other_team.team
    assert shared(one.blocks(), same_team.blocks()) == (1 + 1_500) // 16
    assert shared(one.blocks(), other_team.blocks()) == 0


def test_histories_grow_by_answer_and_question() -> None:
    asked = [due.ask for due in drive(scenario("chat_only", seed=2, seconds=400)) if due.ask.user == "chat-3"]
    grown = [(old, new) for old, new in pairwise(asked) if len(new.prompt) > 2]
    assert grown
    for old, new in grown:
        assert new.prompt[: len(old.prompt)] == old.prompt
        assert new.prompt[len(old.prompt)] == old.answer(old.output_tokens)
        assert new.prompt[-1].role == "user"


def test_documents_are_unique() -> None:
    plan = Documents(per_minute=20, tokens=(100, 300))
    asks = [due.ask for due in documents(plan, "d", seed=1, seconds=120)]
    assert len({ask.prompt[0].seed for ask in asks}) == len(asks) > 10
    assert all(shared(asks[0].blocks(), ask.blocks()) == 0 for ask in asks[1:])


def test_a_giant_comes_when_it_was_announced() -> None:
    (due,) = scenario("giant_prompt", seed=1, seconds=400).arrivals[0]
    assert due.at_s == 100
    assert due.ask.prompt[0].tokens == 240_000


def test_a_failed_ask_is_sent_again_and_then_given_up() -> None:
    habit = Habit(think_s=10, opening_tokens=(5, 9), output_tokens=(5, 9), retries=2, retry_s=0.5)
    user = Conversant("u", "t", Kind.CHAT, habit, seed=1, seconds=1_000)
    first = user.first()
    assert first is not None
    again = user.then(20.0, Reply(ok=False))
    assert again is not None
    assert (again.at_s, again.ask.prompt) == (20.5, first.ask.prompt)
    assert again.ask.id != first.ask.id
    third = user.then(30.0, Reply(ok=False, retry_after_s=7.0))
    assert third is not None
    assert third.at_s == 37.0
    other = user.then(40.0, Reply(ok=False))
    assert other is not None
    assert other.ask.prompt != first.ask.prompt


def test_settings_by_dotted_name() -> None:
    mix = changed(SCENARIOS["chat_only"][1], {"chat_users": 3, "chat.think_s": 1, "documents.tokens": [10, 20]})
    assert (mix.chat_users, mix.chat.think_s, mix.documents.tokens) == (3, 1.0, (10, 20))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"chat.thinks": 1}, "chat.think_s"),
        ({"chat_users": "many"}, "int"),
        ({"chat_users": -1}, "0 to 10000"),
        ({"chat.output_tokens": [9, 3]}, "upwards"),
        ({"documents.giants": [[2.0, 5]]}, "share"),
        ({"chat_users.x": 1}, "no such setting"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        changed(Mix(), settings)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 1e6])
def test_a_workload_is_bounded_in_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="86400"):
        scenario("chat_only", seed=1, seconds=seconds)


def test_unknown_scenarios_are_refused() -> None:
    with pytest.raises(ValueError, match="department_day"):
        scenario("weekend", seed=1, seconds=1)


@given(st.integers(1, 50), st.integers(0, 50), st.randoms(use_true_random=False))
def test_draws_stay_in_their_bounds(low: int, more: int, rng: object) -> None:
    assert low <= draw(rng, (low, low + more)) <= low + more  # type: ignore[arg-type]
