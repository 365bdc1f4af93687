"""Calls that were begun, and waits for one of them, some, or all."""

from .._core import _advance, _complete, _pause_beside, _PostedReceive
from ._constants import ANY_SOURCE, ANY_TAG, UNDEFINED
from ._status import Status, tell

# What a status has that tells of no message.
_NO_MESSAGE = (ANY_SOURCE, ANY_TAG, 0)


class Request:
    """A call that was begun: `Wait` returns when it is done, `wait` with the object that was received.

    `work` tells whether it is done, and is None where it is already. `finish` is called once then, and returns the result;
    that of a receive is called with the elements that have memory of their own.
    """

    def __init__(self, request=None):
        if request is not None:
            self.__dict__ = request.__dict__
            return
        self._work, self._finish, self._message, self._is_active = None, None, _NO_MESSAGE, False
        self._is_cancelled = False

    @classmethod
    def _begun(cls, work=None, finish=None, message=_NO_MESSAGE):
        self = cls()
        self._begin(work, finish, message)
        return self

    def _begin(self, work, finish=None, message=_NO_MESSAGE):
        self._work, self._finish, self._message = work, finish, message
        self._is_active, self._is_cancelled = True, False

    def __bool__(self):
        return self._is_active

    def __eq__(self, other):
        if not isinstance(other, Request):
            return NotImplemented
        return self.__dict__ is other.__dict__ or not (self or other)

    __hash__ = object.__hash__

    def _is_done(self):
        return self._work is None or self._work.is_done()

    def _completed(self, status):
        """Ends it, which is done, and returns its result."""
        if not self._is_active:
            tell(status, _NO_MESSAGE)
            return None
        self._is_active = False
        work, finish, self._finish = self._work, self._finish, None
        self._work = None
        if isinstance(work, _PostedReceive):
            self._message = work.told()
            tell(status, self._message)
            elements = work.finish()
            return finish(elements) if finish is not None else None
        tell(status, self._message)
        if status is not None and self._is_cancelled:
            status.cancelled = True
        if work is not None:
            work.wait()
        return finish() if finish is not None else None

    # One request ------------------------------------------------------------------------------------------------------

    def wait(self, status=None):
        if self._work is not None:
            _complete(self._work)
        return self._completed(status)

    def Wait(self, status=None):
        self.wait(status)
        return True

    def test(self, status=None):
        """Returns whether it is done, and the result."""
        _advance()
        if not self._is_done():
            return False, None
        return True, self._completed(status)

    def Test(self, status=None):
        return self.test(status)[0]

    def Get_status(self, status=None):
        """Returns whether it is done, and leaves the request as it is."""
        _advance()
        is_done = self._is_done()
        if is_done:
            tell(status, self._work.told() if isinstance(self._work, _PostedReceive) else self._message)
        return is_done

    get_status = Get_status

    def Cancel(self):
        """Withdraws a receive that no message has come for. All else goes on."""
        if isinstance(self._work, _PostedReceive) and self._work.withdraw():
            self._work, self._finish, self._is_cancelled = None, None, True

    cancel = Cancel

    def Free(self):
        """Lets go of it. What was begun goes on."""
        self._is_active = False

    # Several requests -------------------------------------------------------------------------------------------------

    @classmethod
    def waitall(cls, requests, statuses=None):
        """Returns the results in the order of the requests."""
        for request in requests:
            if request._work is not None:
                _complete(request._work)
        return [request._completed(status) for request, status in _with_statuses(requests, statuses)]

    @classmethod
    def Waitall(cls, requests, statuses=None):
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def testall(cls, requests, statuses=None):
        _advance()
        if not all(request._is_done() for request in requests):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Testall(cls, requests, statuses=None):
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testany(cls, requests, status=None):
        """Returns the place of one that is done, whether there is one, and its result."""
        _advance()
        active = [at for at, request in enumerate(requests) if request._is_active]
        if not active:
            tell(status, _NO_MESSAGE)
            return UNDEFINED, True, None
        done = next((at for at in active if requests[at]._is_done()), None)
        if done is None:
            return UNDEFINED, False, None
        return done, True, requests[done]._completed(status)

    @classmethod
    def Testany(cls, requests, status=None):
        return cls.testany(requests, status)[:2]

    @classmethod
    def waitany(cls, requests, status=None):
        while True:
            at, is_done, result = cls.testany(requests, status)
            if is_done:
                return at, result
            _pause_beside(next(request._work for request in requests if request._is_active))

    @classmethod
    def Waitany(cls, requests, status=None):
        return cls.waitany(requests, status)[0]

    @classmethod
    def testsome(cls, requests, statuses=None):
        """Returns the places of all that are done, and their results; None where no request is active."""
        _advance()
        active = [at for at, request in enumerate(requests) if request._is_active]
        if not active:
            return None, None
        done = [at for at in active if requests[at]._is_done()]
        found = _with_statuses([requests[at] for at in done], statuses)
        return done, [request._completed(status) for request, status in found]

    @classmethod
    def Testsome(cls, requests, statuses=None):
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def waitsome(cls, requests, statuses=None):
        while True:
            done, results = cls.testsome(requests, statuses)
            if done is None or done:
                return done, results
            _pause_beside(next(request._work for request in requests if request._is_active))

    @classmethod
    def Waitsome(cls, requests, statuses=None):
        return cls.waitsome(requests, statuses)[0]


class Prequest(Request):
    """A call that is begun by each `Start`."""

    _again = None

    @classmethod
    def _made(cls, begin):
        self = cls()
        self._again = begin
        return self

    def __bool__(self):
        return self._again is not None

    def Free(self):
        self._again = None

    def Start(self):
        if self._is_active:
            raise ValueError("a persistent request is active: wait for it before it is started again")
        begun = self._again()
        self._begin(begun._work, begun._finish, begun._message)

    @classmethod
    def Startall(cls, requests):
        for request in requests:
            request.Start()


def _with_statuses(requests, statuses):
    """Pairs requests with statuses. A list that is too short gets more."""
    if statuses is None:
        return [(request, None) for request in requests]
    if isinstance(statuses, list):
        statuses.extend(Status() for _ in range(len(requests) - len(statuses)))
    return list(zip(requests, statuses, strict=False))


REQUEST_NULL = Request()
