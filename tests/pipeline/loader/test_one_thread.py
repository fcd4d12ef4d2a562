"""A thread keeps torch to itself; the numbers of all others, also of those to come, stay as they are."""

from __future__ import annotations

import threading

import torch

from camp.pipeline.one_thread import keep_to_one_thread


def number_in_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_only_the_thread_itself_is_limited() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        inside: list[int] = []

        def work() -> None:
            keep_to_one_thread()
            inside.append(torch.get_num_threads())

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert inside == [1] * 8
        assert torch.get_num_threads() == 3
        assert number_in_a_new_thread() == 3
    finally:
        torch.set_num_threads(before)
