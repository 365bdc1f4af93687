"""Messages as MPI has them, over those of the engine: of any length, to oneself, and found by a probe.

A message begins with a header of `HEADER` bytes, which has the tag `HEADERS` in the engine. Its first fields are those of
`_FIELDS`. Elements that have room behind them lie there. Others are the payload, with a tag of their own, which is made of
the message's number. So a receiver learns source, tag and length before it has to say where the elements go. Payloads go
through a communicator of their own, so that nothing else waits behind one.

A receiver takes headers in the order in which they come. It holds each against the receives that were posted, in their
order; a header that is for none is unexpected, and waits for a receive or a probe. A payload goes to the memory of its
receive at once. The receiver of a synchronous message acknowledges the match.

A receive of a header may be open when nothing is received any more, and a receive from any rank fails where all others have
left. So ranks that close a communicator come together first, and have one last header each, from the rank on their left.
A rank that ends without that has a last header for every other: nothing is received behind it, and who waits learns of it.

Nobody takes headers but a thread that waits or tests. So whoever waits for something else takes headers meanwhile, for all
receives that were posted: see `complete`.
"""

import struct
import threading
import time

from .._errors import PeerLostError
from ._constants import ANY_SOURCE, ANY_TAG

HEADER, HEADERS = 256, 0
# Length of the elements in bytes, tag, whether it is synchronous, number.
_FIELDS = struct.Struct("<QqQQ")
ROOM = HEADER - _FIELDS.size
_NUMBERS = 1 << 30
# So many headers of each rank are taken by a call that waits for something else.
_SHARE = 4
# So many operations may be done before they are forgotten.
_MANY = 64
# The tag of the last header of a communicator that is closed, and of a rank that ends.
_LAST, _ENDED = -2, -3
# Seconds that a rank which ends has for its last headers.
_FAREWELL = 0.1
# Seconds for which a thread waits before it looks at what else there is.
_ALONE, _BESIDE = 0.05, 0.0005

# What has posted receives that no message has come for.
_waiting = set()


class Arrived:
    """A message that has come: its header, and its elements where they lie in there."""

    __slots__ = ("source", "tag", "length", "number", "is_synchronous", "elements", "is_matched")

    def __init__(self, source, tag, length, number, is_synchronous, elements):
        self.source, self.tag, self.length, self.number = source, tag, length, number
        self.is_synchronous, self.elements, self.is_matched = is_synchronous, elements, False

    def told(self):
        return self.source, self.tag, self.length

    def is_for(self, source, tag):
        return source in (ANY_SOURCE, self.source) and tag in (ANY_TAG, self.tag)


class SentToSelf:
    """A synchronous message to oneself, which is done when it is matched."""

    def __init__(self, matching, message):
        self._matching, self._message = matching, message

    def is_done(self):
        return self._message.is_matched

    def wait(self, timeout=None):
        return self._matching.wait_here(self.is_done, timeout)


class Both:
    """Two operations that make one."""

    def __init__(self, *works):
        self._works = works

    def is_done(self):
        return all(work.is_done() for work in self._works)

    def wait(self, timeout=None):
        return all(work.wait(timeout) for work in self._works)


class Receive:
    """A receive that was posted. `sink` says where elements go: see `_sinks`."""

    def __init__(self, matching, source, tag, sink):
        self.matching, self.source, self.tag, self.sink = matching, source, tag, sink
        self.message, self._work, self._failure = None, None, None
        # What is sent by the same call, and has to be sent as well.
        self.beside = None

    def match(self, message):
        """Takes a message, and begins to receive its payload. What fails is for whoever waits for the receive."""
        try:
            if message.elements is not None:
                self.sink.put(message.elements)
            else:
                self._work = self.matching.begin_payload(message, self.sink.room_for(message.length))
        except Exception as failure:
            self._failure = failure
        if message.is_synchronous:
            self.matching.acknowledge(message)
        # From here on, another thread may see that it is done.
        self.message = message

    def _works(self):
        return [work for work in (self._work, self.beside) if work is not None]

    def is_done(self):
        return self.message is not None and all(work.is_done() for work in self._works())

    def wait(self, timeout=None):
        if self.message is None:
            self.matching.look(_BESIDE if timeout is None else timeout)
        else:
            for work in self._works():
                work.wait(timeout)
        return self.is_done()

    def fail(self, failure):
        """Ends it without a message."""
        self._failure = failure
        self.message = Arrived(self.source, self.tag, 0, 0, False, b"")

    def raise_failure(self):
        """Raises what the receive has failed by."""
        if self._failure is not None:
            raise self._failure
        for work in self._works():
            work.wait()


class Matching:
    """The messages of one communicator, by two of the engine: for headers and acknowledgements, and for payloads."""

    def __init__(self, comm, payloads):
        self.comm, self.payloads, self.rank, self.size = comm, payloads, comm.rank, comm.size
        self._here = threading.Condition()
        self._posted, self._unexpected = [], []
        self._n_sent = 0
        # Held by the thread that takes headers.
        self._looking = threading.Lock()
        self._header, self._is_last = None, False
        # The ranks that have ended.
        self._ended = set()
        # What was started on either beside that header, and may not be done; when to look through it.
        self._started, self._many = [], _MANY

    # What is sent -----------------------------------------------------------------------------------------------------

    def send(self, part, dest, tag, is_synchronous=False):
        """Begins to send the bytes of a part. Returns what tells when they are sent."""
        length = part.count * part.itemsize
        if dest == self.rank:
            return self._send_to_self(Arrived(dest, tag, length, 0, is_synchronous, bytes(part)))
        header, number = self._header_of(part, tag, is_synchronous)
        with self.comm.start() as work:
            self.comm.send(header, dest, tag=HEADERS)
            if is_synchronous:
                self.comm.recv(bytearray(1), dest, tag=_acknowledgement(number))
        self._note_started(work)
        if length <= ROOM:
            return work
        with self.payloads.start() as payload:
            self.payloads.send(part, dest, tag=_payload(number), dtype="uint8")
        self._note_started(payload)
        return Both(work, payload)

    def _header_of(self, part, tag, is_synchronous):
        length = part.count * part.itemsize
        with self._here:
            number = self._n_sent = self._n_sent + 1
        header = _FIELDS.pack(length, tag, is_synchronous, number)
        return (header + bytes(part) if length <= ROOM else header).ljust(HEADER, b"\0"), number

    def _is_idle(self):
        """Returns whether a call made at once waits for nothing that was started, and keeps no thread waiting."""
        if threading.active_count() > 1 or self._header is not None:
            return False
        if self._started:
            self._forget_done()
        return not self._started

    def _note_started(self, work):
        with self._here:
            if len(self._started) >= self._many:
                self._forget_done()
                self._many = _MANY + 2 * len(self._started)
            self._started.append(work)

    def _forget_done(self):
        self._started = [work for work in self._started if not work.is_done()]

    def _send_to_self(self, message):
        self._take(message)
        return SentToSelf(self, message) if message.is_synchronous else None

    def acknowledge(self, message):
        if message.source != self.rank:
            with self.comm.start() as work:
                self.comm.send(b"\1", message.source, tag=_acknowledgement(message.number))
            self._note_started(work)

    # What is received -------------------------------------------------------------------------------------------------

    def post(self, source, tag, sink):
        """Posts a receive, which takes the first unexpected message that is for it."""
        receive = Receive(self, source, tag, sink)
        with self._here:
            message = self._found(source, tag, is_taken=True)
            if message is not None:
                self._matched(receive, message)
            elif (failure := self._failure_of(source)) is not None:
                receive.fail(failure)
            else:
                self._posted.append(receive)
                _waiting.add(self)
        return receive

    def receive(self, message, sink):
        """Receives a message that a probe has taken."""
        receive = Receive(self, message.source, message.tag, sink)
        with self._here:
            self._matched(receive, message)
        return receive

    def withdraw(self, receive):
        """Withdraws a receive. Returns whether no message had come for it."""
        with self._here:
            is_open = receive in self._posted
            if is_open:
                self._posted.remove(receive)
                self._note_waiting()
        return is_open

    def probe(self, source, tag, is_taken=False):
        """Returns an unexpected message, if one has come. It stays one unless it is taken."""
        message = self._unexpected_now(source, tag, is_taken)
        for _ in range(_SHARE * self.size):
            if message is not None or not self.look(0):
                break
            message = self._unexpected_now(source, tag, is_taken)
        return message

    def wait_for_probe(self, source, tag, is_taken=False):
        """Returns an unexpected message when one has come."""
        while (message := self.probe(source, tag, is_taken)) is None:
            if (failure := self._failure_of(source)) is not None:
                raise failure
            look_for_others(self)
            self.look(_pause(self))
        return message

    def begin_payload(self, message, place):
        with self.payloads.start() as work:
            self.payloads.recv(place, message.source, tag=_payload(message.number), dtype="uint8")
        self._note_started(work)
        return work

    def _unexpected_now(self, source, tag, is_taken):
        with self._here:
            return self._found(source, tag, is_taken)

    def _found(self, source, tag, is_taken):
        for at, message in enumerate(self._unexpected):
            if message.is_for(source, tag):
                return self._unexpected.pop(at) if is_taken else message
        return None

    def _take(self, message):
        """Takes a message that has come: for the first receive that it is for, or as an unexpected one."""
        with self._here:
            for receive in self._posted:
                if message.is_for(receive.source, receive.tag):
                    self._posted.remove(receive)
                    self._note_waiting()
                    self._matched(receive, message)
                    return
            self._unexpected.append(message)
            self._here.notify_all()

    def _matched(self, receive, message):
        receive.match(message)
        message.is_matched = True
        self._here.notify_all()

    def _failure_of(self, source):
        """Returns what a receive from there fails by that no message has come for, or None where one may yet come."""
        others = set(range(self.size)) - {self.rank} if source == ANY_SOURCE else {source}
        if not others or not others <= self._ended:
            return None
        rank = min(others)
        return PeerLostError(f"rank {rank} has ended, and has sent no message that this receive is for", rank=rank)

    def _note_end(self, rank):
        with self._here:
            self._ended.add(rank)
            for receive in list(self._posted):
                if (failure := self._failure_of(receive.source)) is not None:
                    self._posted.remove(receive)
                    receive.fail(failure)
            self._note_waiting()
            self._here.notify_all()

    def _is_alone(self):
        """Returns whether no header can come."""
        return len(self._ended) == self.size - 1

    def _note_waiting(self):
        if not self._posted:
            _waiting.discard(self)

    # Headers ----------------------------------------------------------------------------------------------------------

    def look(self, timeout):
        """Takes a header that has come, or comes within `timeout`. Returns whether one has."""
        if self._is_alone():
            return self.wait_here(lambda: False, timeout)
        if not self._looking.acquire(timeout=timeout):
            return False
        try:
            work, header, receipt = self._header = self._header or self._begin_header()
            if not (work.wait(timeout) if timeout else work.is_done()):
                return False
            self._header = None
            work.wait()
            self._read(header, receipt.told()[0])
            return True
        finally:
            self._looking.release()

    def look_at_once(self):
        """Waits for a header, where nothing else is to be done meanwhile. Returns whether that is so."""
        if self._is_alone() or _waiting != {self} or not self._is_idle():
            return False
        header = bytearray(HEADER)
        receipt = self.comm._recv_selected(header, None, HEADERS)
        self._read(header, receipt.told()[0])
        return True

    def _begin_header(self):
        header = bytearray(HEADER)
        with self.comm.start() as work:
            receipt = self.comm._recv_selected(header, None, HEADERS)
        return work, header, receipt

    def _read(self, header, source):
        length, tag, is_synchronous, number = _FIELDS.unpack_from(header)
        if tag == _LAST:
            self._is_last = True
            return
        if tag == _ENDED:
            self._note_end(source)
            return
        elements = bytes(header[_FIELDS.size : _FIELDS.size + length]) if length <= ROOM else None
        self._take(Arrived(source, tag, length, number, bool(is_synchronous), elements))

    def wait_here(self, is_done, timeout):
        """Waits for what another thread of this rank does."""
        with self._here:
            if not is_done():
                self._here.wait(timeout)
        return is_done()

    def end(self):
        """Tells the others that nothing more comes from here, as far as there is room for it."""
        header, ends = _FIELDS.pack(0, _ENDED, False, 0).ljust(HEADER, b"\0"), []
        for rank in set(range(self.size)) - {self.rank} - self._ended:
            with self.comm.start() as work:
                self.comm.send(header, rank, tag=HEADERS)
            ends.append(work)
        by = time.monotonic() + _FAREWELL
        for work in ends:
            work.wait(max(by - time.monotonic(), 0))

    def close(self):
        """Closes it, when all ranks have come here."""
        with self._here:
            self._posted.clear()
            self._note_waiting()
        if self.size > 1:
            with self.comm.start() as work:
                self.comm.send(_FIELDS.pack(0, _LAST, False, 0).ljust(HEADER, b"\0"), self.comm.right, tag=HEADERS)
            while not self._is_last:
                self.look(_ALONE)
            work.wait()
        self.comm.close()
        self.payloads.close()


def is_awaiting():
    """Returns whether some receive was posted that no message has come for."""
    return bool(_waiting)


def _pause(matching=None):
    is_alone = not _waiting - {matching} and threading.active_count() == 1
    return _ALONE if is_alone else _BESIDE


def look_for_others(matching=None):
    """Takes headers of other communicators, where receives were posted; not all, as others may send more and more."""
    for other in list(_waiting):
        if other is not matching:
            for _ in range(_SHARE * other.size):
                if not other.look(0):
                    break


def complete(work):
    """Waits until an operation is done, and takes headers meanwhile for whatever receive was posted."""
    while not work.is_done():
        awaited = work.matching if isinstance(work, Receive) and work.message is None else None
        if awaited is not None and awaited.look_at_once():
            continue
        look_for_others(awaited)
        if not is_awaiting() and not isinstance(work, SentToSelf):
            work.wait(None)
        else:
            work.wait(_pause(awaited))


def pause_beside(work):
    """Waits for one of several operations, for so short a time that the others are not kept waiting."""
    work.wait(_BESIDE)


def advance():
    """Takes the headers that have come, without waiting."""
    look_for_others()


def _payload(number):
    return 1 + number % _NUMBERS


def _acknowledgement(number):
    return 1 << 31 | _payload(number)
