"""What a receive tells of its message."""

from ._constants import ANY_SOURCE, ANY_TAG, SUCCESS, UNDEFINED
from ._datatypes import BYTE, typed


class Status:
    """Says which message a receive has taken. `count` is in bytes."""

    def __init__(self, status=None):
        told = (ANY_SOURCE, ANY_TAG, 0) if status is None else (status.source, status.tag, status.count)
        self.source, self.tag, self.count = told
        self.error, self.cancelled = SUCCESS, False

    def _set(self, source, tag, count):
        self.source, self.tag, self.count, self.error, self.cancelled = source, tag, count, SUCCESS, False

    def Get_source(self):
        return self.source

    def Set_source(self, source):
        self.source = source

    def Get_tag(self):
        return self.tag

    def Set_tag(self, tag):
        self.tag = tag

    def Get_error(self):
        return self.error

    def Set_error(self, error):
        self.error = error

    def Get_count(self, datatype=BYTE):
        size = typed(datatype).size
        return self.count // size if size and self.count % size == 0 else UNDEFINED

    Get_elements = Get_count

    def Set_elements(self, datatype, count):
        self.count = typed(datatype).size * count

    def Is_cancelled(self):
        return self.cancelled

    def Set_cancelled(self, flag):
        self.cancelled = bool(flag)


def tell(status, message):
    """Tells `status` which message it was, by its source, tag and bytes."""
    if status is not None:
        status._set(*message)
