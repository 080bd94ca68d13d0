"""Ctrl-C ends runs, and others go on beside them."""

import os
import signal
import sys
import threading

import policies
import pytest

import bimetal

# It would take days.
ENDLESS = "gen:zipf:pages=3000:requests=1000000000000"


class Interrupting(policies.Lru):
    """Presses Ctrl-C in the middle of its run."""

    def evict(self, coming):
        if not getattr(self, "pressed", False):
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)
        return super().evict(coming)


def pressed_from_beside():
    """Presses Ctrl-C on another thread of Python, which gets to run only if the run has given the lock back."""
    main = threading.main_thread().ident

    def is_inside():
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_globals.get("__name__") != "bimetal._run":
            frame = frame.f_back
        return frame is not None

    def press():
        seen = 0
        while seen < 2000:
            seen += is_inside()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    return thread


def test_ctrl_c_ends_a_run_with_a_policy_of_python():
    stack = bimetal.Stack(cache={"policy": Interrupting, "size": "64KiB"})
    with pytest.raises(KeyboardInterrupt):
        bimetal.replay(stack, ENDLESS)
    assert bimetal.replay(stack.set("cache.policy", "lru"), "gen:zipf:requests=100")["requests"] == 100


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"cache": {"policy": "lru", "size": "64KiB"}},
        {"device": {"profile": "slc-4k"}},
    ],
    ids=["counting", "cache", "how far it reaches"],
)
def test_ctrl_c_ends_a_run_which_holds_no_lock(keys):
    stack = bimetal.Stack(**keys)
    presser = pressed_from_beside()
    with pytest.raises(KeyboardInterrupt):
        bimetal.replay(stack, ENDLESS)
    presser.join()


def test_ctrl_c_ends_a_sweep():
    presser = pressed_from_beside()
    with pytest.raises(KeyboardInterrupt):
        bimetal.sweep(bimetal.Stack(), {"seed": range(1000)}, ENDLESS, jobs=2)
    presser.join()


def test_ctrl_c_ends_a_preconditioning():
    stack = bimetal.Stack(device={"profile": "slc-4k", "size": "64GiB"}, run={"precondition": "random"})
    presser = pressed_from_beside()
    with pytest.raises(KeyboardInterrupt):
        bimetal.replay(stack, "gen:zipf:requests=100")
    presser.join()


def test_ctrl_c_ends_a_run_on_a_file_system():
    stack = bimetal.Stack(fs={"kind": "nfhybrid"})
    presser = pressed_from_beside()
    with pytest.raises(KeyboardInterrupt):
        bimetal.replay(stack, "gen:postmark:files=2000:transactions=200000")
    presser.join()
