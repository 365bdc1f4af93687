"""The calls of a communicator by which one rank sends to another."""

from .._core import _Part
from .._errors import InvalidArgumentError, InvalidRankError
from ._buffers import sent
from ._constants import ANY_SOURCE, ANY_TAG, LARGEST_TAG, PROC_NULL
from ._pickling import pickle
from ._requests import Prequest, Request
from ._sinks import ObjectSink, sink
from ._status import tell

_FROM_NOBODY = (PROC_NULL, ANY_TAG, 0)


class Message:
    """A message that a probe has taken, for `Recv` or `recv`."""

    def __init__(self, matching=None, message=None, is_of_nobody=False):
        self._matching, self._message, self._is_of_nobody = matching, message, is_of_nobody

    def __bool__(self):
        return self._matching is not None or self._is_of_nobody

    def __eq__(self, other):
        return isinstance(other, Message) and (self is other or not (self or other))

    __hash__ = object.__hash__

    def _received(self, place):
        if self._is_of_nobody:
            return Request._begun(message=_FROM_NOBODY)
        if not self:
            raise InvalidArgumentError("this message was received already, or is none")
        matching, self._matching = self._matching, None
        return Request._begun(matching.receive(self._message, place))

    def Irecv(self, buf):
        return self._received(sink(buf))

    def Recv(self, buf, status=None):
        self.Irecv(buf).wait(status)

    def irecv(self):
        return self._received(ObjectSink())

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

    def _checked(self, peer, tag, is_source=False):
        """Raises what is wrong with a rank or a tag. Returns whether there is such a rank."""
        if peer == PROC_NULL:
            return False
        lowest, least_tag = (ANY_SOURCE, ANY_TAG) if is_source else (0, 0)
        if not lowest <= peer < self.size:
            raise InvalidRankError(f"rank {peer} is none of {self.size} ranks", rank=peer)
        if not least_tag <= tag <= LARGEST_TAG:
            raise InvalidArgumentError(f"tag {tag} is none: tags go from 0 to {LARGEST_TAG}")
        return True

    def _send(self, elements, dest, tag, is_synchronous=False):
        if not self._checked(dest, tag):
            return Request._begun()
        return Request._begun(self._matching.send(elements, dest, tag, is_synchronous))

    def _send_at_once(self, elements, dest, tag):
        if self._checked(dest, tag) and not self._matching.send_at_once(elements, dest, tag):
            self._send(elements, dest, tag).wait()

    def _receive(self, place, source, tag):
        if not self._checked(source, tag, is_source=True):
            return Request._begun(message=_FROM_NOBODY)
        return Request._begun(self._matching.post(source, tag, place))

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
        self._send(_Part(bytes(elements)), dest, tag)
        return Request._begun()

    def Send(self, buf, dest, tag=0):
        self._send_at_once(sent(buf), dest, tag)

    def Ssend(self, buf, dest, tag=0):
        self.Issend(buf, dest, tag).wait()

    def Bsend(self, buf, dest, tag=0):
        self.Ibsend(buf, dest, tag)

    Rsend = Send

    def Irecv(self, buf, source=ANY_SOURCE, tag=ANY_TAG):
        return self._receive(sink(buf), source, tag)

    def Recv(self, buf, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Receives, and returns the source."""
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
        self.Isend(sendbuf, dest, sendtag)
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
        if self._checked(source, tag, is_source=True):
            tell(status, self._matching.wait_for_probe(source, tag).told())
        else:
            tell(status, _FROM_NOBODY)
        return True

    def Iprobe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Returns whether a message has come."""
        if not self._checked(source, tag, is_source=True):
            return self.Probe(source, tag, status)
        message = self._matching.probe(source, tag)
        if message is not None:
            tell(status, message.told())
        return message is not None

    def Mprobe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Takes a message, which nothing but the `Message` receives."""
        if not self._checked(source, tag, is_source=True):
            tell(status, _FROM_NOBODY)
            return MESSAGE_NO_PROC
        message = self._matching.wait_for_probe(source, tag, is_taken=True)
        tell(status, message.told())
        return Message(self._matching, message)

    def Improbe(self, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        """Takes a message if one has come, and returns None otherwise."""
        if not self._checked(source, tag, is_source=True):
            return self.Mprobe(source, tag, status)
        message = self._matching.probe(source, tag, is_taken=True)
        if message is None:
            return None
        tell(status, message.told())
        return Message(self._matching, message)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    # Objects ----------------------------------------------------------------------------------------------------------

    def isend(self, obj, dest, tag=0):
        return self._send(_pickled(obj), dest, tag)

    def issend(self, obj, dest, tag=0):
        return self._send(_pickled(obj), dest, tag, is_synchronous=True)

    def ibsend(self, obj, dest, tag=0):
        return self._copied(_pickled(obj), dest, tag)

    def send(self, obj, dest, tag=0):
        self._send_at_once(_pickled(obj), dest, tag)

    def ssend(self, obj, dest, tag=0):
        self.issend(obj, dest, tag).wait()

    def bsend(self, obj, dest, tag=0):
        self.ibsend(obj, dest, tag)

    def irecv(self, buf=None, source=ANY_SOURCE, tag=ANY_TAG):
        """`buf` is not needed: pickles are received into memory of their own length."""
        return self._receive(ObjectSink(), source, tag)

    def recv(self, buf=None, source=ANY_SOURCE, tag=ANY_TAG, status=None):
        return self.irecv(buf, source, tag).wait(status)

    def sendrecv(self, sendobj, dest, sendtag=0, recvbuf=None, source=ANY_SOURCE, recvtag=ANY_TAG, status=None):
        request = self.irecv(recvbuf, source, recvtag)
        self.send(sendobj, dest, sendtag)
        return request.wait(status)


def _pickled(obj):
    return _Part(pickle.dumps(obj), "uint8")
