"""How objects become bytes, for the lower-case calls."""

import os as _os
import pickle as _pickle


class Pickle:
    """Two functions, as `pickle.dumps` and `pickle.loads`, and the protocol of the former."""

    def __init__(self, dumps=_pickle.dumps, loads=_pickle.loads, protocol=None):
        self._dumps, self._loads = dumps, loads
        self.PROTOCOL = _pickle.HIGHEST_PROTOCOL if protocol is None else protocol

    def dumps(self, obj):
        return self._dumps(obj, self.PROTOCOL)

    def loads(self, data):
        return self._loads(data)


pickle = Pickle(protocol=int(_os.environ.get("MPI4PY_PICKLE_PROTOCOL", _pickle.HIGHEST_PROTOCOL)))
