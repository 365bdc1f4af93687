"""The end of the interpreter, which comes when all functions of atexit have been called."""

import atexit


class _Last:
    """Only atexit holds it, and drops it behind its last function. Whoever forgets those functions has not called it."""

    def __init__(self, function):
        self.function, self.is_called = function, False

    def __call__(self):
        self.is_called = True

    def __del__(self):
        if self.is_called:
            self.function()


def at_end(function):
    """Has a function called when no other code of the program is to come, and the interpreter is still there."""
    atexit.register(_Last(function))
