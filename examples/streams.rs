//! Sums the gradients of layers over all ranks while those of the next layer are computed, as in
//! training. One stream computes, another one sums. Events say which sum may begin, and when memory
//! may be used again.
//!
//! Each rank checks every sum, and prints when the last gradient was computed and the last sum was
//! there. Run it alone (`cargo run --release --example streams`), or under `shmccl run -n N -- ...`
//! for any N.

#![allow(clippy::print_stdout, reason = "examples print")]

use shmccl::comm::stream::{Event, HostBuffer, Stream};
use shmccl::heap::DeviceBuffer;
use shmccl::launch::launch;
use shmccl::reduce::ReduceOp;
use shmccl::{Collectives, Communicator};

const LAYERS: u8 = 16;
const GRADIENTS: usize = 1 << 17;
const PASSES: usize = 8;

/// Memory for the gradients of a layer. There are two: one layer is computed while the other is
/// summed.
struct Place {
    host: HostBuffer<f32>,
    device: DeviceBuffer<f32>,
    /// The sum was copied to its destination, and the next layer may use the memory.
    free: Event,
}

/// Returns gradient `index` of a layer on a rank, the slow way. Small whole numbers keep the sums
/// exact.
fn gradient(layer: u8, rank: u32, index: usize) -> f32 {
    let seed = (usize::from(layer) * 31 + rank as usize * 7 + index) % 64;
    let mut value = seed as f32;
    for _ in 0..PASSES {
        value = value.mul_add(0.5, seed as f32 * 0.5); // stays what it is
    }
    value
}

/// Enqueues a layer: its gradients on `compute`, their sum on `sums`, and the copy of the sum to
/// `result`.
fn enqueue(
    comm: &mut Communicator,
    (compute, sums): (&Stream, &Stream),
    layer: u8,
    place: &Place,
    result: &HostBuffer<f32>,
) -> shmccl::Result<()> {
    let (rank, host, computed) = (comm.rank().get(), place.host.clone(), Event::new());
    compute.wait(&place.free)?;
    compute.call(move || {
        host.with(|all| {
            all.iter_mut().enumerate().for_each(|(index, value)| *value = gradient(layer, rank, index));
        });
    })?;
    compute.copy_host_to_device(&place.host, &place.device)?;
    compute.record(&computed)?;

    sums.wait(&computed)?;
    sums.on(comm).all_reduce_in_place(&place.device, &ReduceOp::Sum)?;
    sums.copy_device_to_host(&place.device, result)?;
    sums.record(&place.free)
}

fn main() -> shmccl::Result<()> {
    launch(2, |comm| {
        let (compute, sums) = (comm.stream()?, comm.stream()?);
        let mut places = Vec::new();
        for _ in 0..2 {
            let (host, device) = (HostBuffer::zeroed(GRADIENTS), comm.alloc(GRADIENTS)?);
            places.push(Place { host, device, free: Event::new() });
        }
        let results: Vec<_> = (0..LAYERS).map(|_| HostBuffer::<f32>::zeroed(GRADIENTS)).collect();

        let (start, computed, end) = (Event::new(), Event::new(), Event::new());
        compute.record(&start)?;
        for (layer, result) in (0..LAYERS).zip(&results) {
            enqueue(comm, (&compute, &sums), layer, &places[usize::from(layer) % 2], result)?;
        }
        compute.record(&computed)?;
        sums.record(&end)?;
        // The program is free to do something else until it needs the result.
        end.synchronise()?;

        for (layer, result) in (0..LAYERS).zip(&results) {
            let sum = |index| (0..comm.n_ranks()).map(|rank| gradient(layer, rank, index)).sum::<f32>();
            let right = result.with(|sums| sums.iter().enumerate().all(|(index, &found)| found == sum(index)));
            assert!(right, "the sums of layer {layer} are wrong");
        }
        println!(
            "rank {}: {LAYERS} layers of {GRADIENTS} gradients, all sums right; computed after {:.1?}, summed after {:.1?}",
            comm.rank(),
            computed.elapsed_since(&start)?,
            end.elapsed_since(&start)?,
        );
        Ok(())
    })
    .map(drop)
}
