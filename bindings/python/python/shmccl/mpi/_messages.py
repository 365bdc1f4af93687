"""The calls of a communicator by which one rank sends to another."""

from .._errors import InvalidArgumentError
from ._buffers import is_list, sent
from ._constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from ._pickling import pickle
from ._requests import Prequest, Request
from ._sinks import place, unpickled
from ._status import tell

_FROM_NOBODY = (PROC_NULL, ANY_TAG, 0)


class Message:
    """A message that a probe has taken, for `Recv` or `recv`."""

    def __init__(self, messages=None, message=None, is_of_nobody=False):
        self._messages, self._message, self._is_of_nobody = messages, message, is_of_nobody

    def __bool__(self):
        return self._messages is not None or self._is_of_nobody

    def __eq__(self, other):
        return isinstance(other, Message) and (self is other or not (self or other))

    __hash__ = object.__hash__

    def _received(self, place, finish):
        if self._is_of_nobody:
            return Request._begun(message=_FROM_NOBODY)
        if not self:
            raise InvalidArgumentError("this message was received already, or is none")
        messages, self._messages = self._messages, None
        return Request._begun(messages.receive(self._message, place), finish)

    def Irecv(self, buf):
        return self._received(*place(buf))

    def Recv(self, buf, status=None):
        self.Irecv(buf).wait(status)

    def irecv(self):
        return self._received(None, unpickled)

    def recv(self, status=None):
        return self.irecv().wait(status)

    @classmethod
    def Probe(cls, comm, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(cls, comm, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        return comm.Improbe(source, tag, status)

    probe, iprobe = Probe, Iprobe


MESSAGE_NULL, MESSAGE_NO_PROC = Message(), Message(is_of_nobody=True)


class Messages:
    """Messages of buffers, by the names in upper case, and of objects, by those in lower case."""

    def _send(self, elements, dest, tag, is_synchronous=False):
        if dest == PROC_NULL:
            return Request._begun()
        return Request._begun(self._messages.send(elements, dest, tag, is_synchronous))

    def _send_now(self, elements, dest, tag):
        """Sends elements, and waits for that unless they lie in the header: their memory is free again at once."""
        if not self._messages.send_short(elements, dest, tag):
            self._send(elements, dest, tag).wait()

    def _receive(self, source, tag, place, finish):
        if source == PROC_NULL:
            return Request._begun(message=_FROM_NOBODY)
        return Request._begun(self._messages.post(source, tag, place), finish)

    # Buffers ----------------------------------------------------------------------------------------------------------

    def Isend(self, buf, dest, tag=0):
        return self._send(sent(buf), dest, tag)

    def Issend(self, buf, dest, tag=0):
        return self._send(sent(buf), dest, tag, is_synchronous=True)

    def Ibsend(self, buf, dest, tag=0):
        """Copies the buffer, which may be written again at once."""
        return self._copied(sent(buf), dest, tag)

    Irsend = Isend

    def _copied(self, elements, dest, tag):
        self._send(bytes(elements), dest, tag)
        return Request._begun()

    def Send(self, buf, dest, tag=0):
        if is_list(buf) or not self._messages.send_short(buf, dest, tag):
            self._send_now(sent(buf), dest, tag)

    def Ssend(self, buf, dest, tag=0):
        self.Issend(buf, dest, tag).wait()

    def Bsend(self, buf, dest, tag=0):
        self.Ibsend(buf, dest, tag)

    Rsend = Send

    def Irecv(self, buf, source=ANY_SOURCE, tag=ANY_TAG):
        return self._receive(source, tag, *place(buf))

    def Recv(self, buf, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Receives, and returns the source."""
        x = place(buf)[0] if is_list(buf) else buf
        short = None if x is None else self._messages.receive_short(source, tag, x)
        if short is not None:
            tell(status, short[0])
            return short[0][0]
        request = self.Irecv(buf, source, tag)
        request.wait(status)
        return request._message[0]

    def Sendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
        request = self.Irecv(recvbuf, source, recvtag)
        self.Send(sendbuf, dest, sendtag)
        request.wait(status)
        return request._message[0]

    def Isendrecv(self, sendbuf, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG):
        request = self.Irecv(recvbuf, source, recvtag)
        sending = self.Isend(sendbuf, dest, sendtag)
        if request._work is None:
            request._work = sending._work
        elif sending._work is not None:
            request._work.send_beside(sending._work)
        return request

    def Sendrecv_replace(self, buf, dest, sendtag=0, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
        return self.Sendrecv(bytes(sent(buf)), dest, sendtag, buf, source, recvtag, status)

    def Isendrecv_replace(self, buf, dest, sendtag=0, source=ANY_SOURCE, recvtag=ANY_TAG):
        return self.Isendrecv(bytes(sent(buf)), dest, sendtag, buf, source, recvtag)

    # Calls that are begun again and again -----------------------------------------------------------------------------

    def Send_init(self, buf, dest, tag=0):
        return Prequest._made(lambda: self.Isend(buf, dest, tag))

    def Ssend_init(self, buf, dest, tag=0):
        return Prequest._made(lambda: self.Issend(buf, dest, tag))

    def Bsend_init(self, buf, dest, tag=0):
        return Prequest._made(lambda: self.Ibsend(buf, dest, tag))

    Rsend_init = Send_init

    def Recv_init(self, buf, source=ANY_SOURCE, tag=ANY_TAG):
        return Prequest._made(lambda: self.Irecv(buf, source, tag))

    # Probes -----------------------------------------------------------------------------------------------------------

    def Probe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        if source == PROC_NULL:
            tell(status, _FROM_NOBODY)
        else:
            tell(status, self._messages.wait_for_probe(source, tag, False).told())
        return True

    def Iprobe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Returns whether a message has come."""
        if source == PROC_NULL:
            return self.Probe(source, tag, status)
        message = self._messages.probe(source, tag, False)
        if message is not None:
            tell(status, message.told())
        return message is not None

    def Mprobe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Takes a message, which nothing but the `Message` receives."""
        if source == PROC_NULL:
            tell(status, _FROM_NOBODY)
            return MESSAGE_NO_PROC
        return self._found(self._messages.wait_for_probe(source, tag, True), status)

    def Improbe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Takes a message if one has come, and returns None otherwise."""
        if source == PROC_NULL:
            return self.Mprobe(source, tag, status)
        message = self._messages.probe(source, tag, True)
        return None if message is None else self._found(message, status)

    def _found(self, message, status):
        tell(status, message.told())
        return Message(self._messages, message)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    # Objects ----------------------------------------------------------------------------------------------------------

    def isend(self, obj, dest, tag=0):
        return self._send(pickle.dumps(obj), dest, tag)

    def issend(self, obj, dest, tag=0):
        return self._send(pickle.dumps(obj), dest, tag, is_synchronous=True)

    def ibsend(self, obj, dest, tag=0):
        return self._copied(pickle.dumps(obj), dest, tag)

    def send(self, obj, dest, tag=0):
        self._send_now(pickle.dumps(obj), dest, tag)

    def ssend(self, obj, dest, tag=0):
        self.issend(obj, dest, tag).wait()

    def bsend(self, obj, dest, tag=0):
        self.ibsend(obj, dest, tag)

    def irecv(self, buf=None, source=ANY_SOURCE, tag=ANY_TAG):
        """`buf` is not needed: pickles are received into memory of their own length."""
        return self._receive(source, tag, None, unpickled)

    def recv(self, buf=None, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        short = self._messages.receive_short(source, tag, None)
        if short is None:
            return self.irecv(buf, source, tag).wait(status)
        tell(status, short[0])
        return unpickled(short[1])

    def sendrecv(self, sendobj, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
        request = self.irecv(recvbuf, source, recvtag)
        self.send(sendobj, dest, sendtag)
        return request.wait(status)
