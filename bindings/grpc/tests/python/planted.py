"""Replays all clients of the course, and shows that each of four planted faults is noticed.

    planted.py SHMCCL SHMCCL_GRPC

A fault is a proxy between the clients and the front that changes what passes.
"""

import concurrent.futures
import sys

import grpc

import gpu_sim_pb2 as pb
from replay import OPTIONS, replay

COORDINATOR = "/gpu_sim.GPUCoordinator/"


def flipped_bit(method, request, call):
    """A bit of what is copied from a device is another one."""
    answer = call(request)
    if method == COORDINATOR + "Memcpy":
        copied = pb.MemcpyResponse.FromString(answer)
        data = bytearray(copied.deviceToHost.dstData)
        if data:
            data[len(data) // 2] ^= 1
            copied.deviceToHost.dstData = bytes(data)
            return copied.SerializeToString()
    return answer


def one_too_many(method, request, call):
    """An element more is reduced than was asked for."""
    if method == COORDINATOR + "AllReduceRing":
        reduction = pb.AllReduceRingRequest.FromString(request)
        if reduction.count > 1:
            reduction.count += 8
        request = reduction.SerializeToString()
    return call(request)


def sum_as_product(method, request, call):
    """Enumerations are those of another dialect."""
    if method == COORDINATOR + "AllReduceRing":
        reduction = pb.AllReduceRingRequest.FromString(request)
        reduction.op = reduction.op ^ 1
        request = reduction.SerializeToString()
    return call(request)


def ends_too_early(method, request, call):
    """GroupEnd answers, and nothing is executed."""
    if method == COORDINATOR + "GroupEnd":
        return pb.GroupEndResponse(success=True).SerializeToString()
    return call(request)


class Proxy(grpc.GenericRpcHandler):
    """Passes unary calls on to a front, through a fault. Streams are passed on as they are."""

    def __init__(self, address, fault):
        self.channel = grpc.insecure_channel(address, OPTIONS)
        self.fault = fault

    def service(self, details):
        method = details.method
        if method == "/shmccl.v1.Pool/Write":
            return grpc.stream_unary_rpc_method_handler(
                lambda requests, context: self.tried(context, self.channel.stream_unary(method), requests))
        if method in ("/shmccl.v1.Pool/Read", "/shmccl.v1.Pool/Watch"):
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self.channel.unary_stream(method)(request))
        call = self.channel.unary_unary(method)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.tried(context, lambda given: self.fault(method, given, call), request))

    @staticmethod
    def tried(context, call, request):
        try:
            return call(request)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())


def through(fault):
    """Returns what starts a proxy with a fault before an address, and returns its own."""

    def start(address):
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), [Proxy(address, fault)], options=OPTIONS)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        SERVERS.append(server)
        return f"127.0.0.1:{port}"

    return start


SERVERS = []


def main(shmccl, front):
    replay(shmccl, front, [])
    replay(shmccl, front, ["handout", "counts"], through(lambda _, request, call: call(request)))
    for fault in (flipped_bit, one_too_many, sum_as_product, ends_too_early):
        try:
            replay(shmccl, front, ["handout", "counts"], through(fault))
        except Exception as noticed:
            print(f"{fault.__name__}: noticed, as {type(noticed).__name__} in "
                  f"{noticed.__traceback__.tb_next.tb_frame.f_code.co_name}", flush=True)
        else:
            sys.exit(f"{fault.__name__} was not noticed")
        finally:
            while SERVERS:
                SERVERS.pop().stop(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
