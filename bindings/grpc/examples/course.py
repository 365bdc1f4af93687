"""The course's flow from start to end, for a student to read.

    shmccl coordinator -n 4 &
    shmccl grpc --listen 127.0.0.1:60050 &
    pip install grpcio grpcio-tools
    python -m grpc_tools.protoc -I bindings/grpc/proto --python_out=. --grpc_python_out=. gpu_sim.proto
    python bindings/grpc/examples/course.py 127.0.0.1:60050
"""

import struct
import sys
import time

import grpc
import gpu_sim_pb2 as pb
import gpu_sim_pb2_grpc as services

DEVICES, COUNT = 4, 1000


def main(address):
    with grpc.insecure_channel(address) as channel:
        coordinator = services.GPUCoordinatorStub(channel)

        # A communicator: four devices of the pool, in the order of their ranks.
        comm = coordinator.CommInit(pb.CommInitRequest(numDevices=DEVICES))
        print(f"communicator {comm.commId} of devices {[device.deviceId.value for device in comm.devices]}")

        # Each device gets a vector of its own: rank + 1 in all places.
        for rank, device in enumerate(comm.devices):
            vector = struct.pack(f"<{COUNT}d", *[rank + 1.0] * COUNT)
            coordinator.Memcpy(pb.MemcpyRequest(hostToDevice=pb.MemcpyHostToDeviceRequest(
                hostSrcData=vector, dstDeviceId=device.deviceId, dstMemAddr=device.minMemAddr)))

        # A group of one all_reduce. GroupEnd returns when it has been executed.
        coordinator.GroupStart(pb.GroupStartRequest(commId=comm.commId))
        coordinator.AllReduceRing(pb.AllReduceRingRequest(
            commId=comm.commId, count=COUNT, op=pb.SUM,
            memAddrs={rank: device.minMemAddr for rank, device in enumerate(comm.devices)}))
        coordinator.GroupEnd(pb.GroupEndRequest(commId=comm.commId))

        # The handout polls; here the first look is enough.
        while coordinator.GetCommStatus(pb.GetCommStatusRequest(commId=comm.commId)).status == pb.IN_PROGRESS:
            time.sleep(0.01)

        # The sum is on every device.
        for device in comm.devices:
            copy = coordinator.Memcpy(pb.MemcpyRequest(deviceToHost=pb.MemcpyDeviceToHostRequest(
                srcDeviceId=device.deviceId, srcMemAddr=device.minMemAddr, numBytes=8 * COUNT)))
            result = struct.unpack(f"<{COUNT}d", copy.deviceToHost.dstData)
            assert result == (1.0 + 2.0 + 3.0 + 4.0,) * COUNT, result[:3]
        print(f"the sum is {result[0]} on all of them")

        coordinator.CommFinalize(pb.CommFinalizeRequest(commId=comm.commId))


if __name__ == "__main__":
    main(sys.argv[1])
