"""A thread of ours -> torch's operations in it run on it alone; every other thread keeps its own number."""

from __future__ import annotations

import threading

import torch

_lock = threading.Lock()


def keep_to_one_thread() -> None:
    """For the calling thread."""
    with _lock:
        for_others = torch.get_num_threads()
        torch.set_num_threads(1)
        # That also set the number which threads begin with from now on; only another thread can set that back
        # without changing ours.
        restoring = threading.Thread(target=torch.set_num_threads, args=(for_others,))
        restoring.start()
        restoring.join()
