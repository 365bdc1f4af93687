//! The data of the shortest operations, ready to be written and compared in one go: around an operation that takes as long as
//! a cache line takes from core to core, anything else would be most of the time.

use shmccl::Result;
use shmccl::collective::Operation;
use shmccl::shm::Span;

use super::number::Number;
use super::pattern::{Pattern, TURNS};
use super::workload::Task;

/// What a buffer of one word holds in each turn.
#[derive(Debug)]
pub(crate) struct Words {
    inputs: [u64; TURNS],
    results: [u64; TURNS],
}

impl Words {
    /// The words of `rank` in `task`, if every rank's input and output are just that.
    pub(crate) fn new<T: Number>(task: &Task, pattern: &Pattern<T>, rank: u32) -> Option<Self> {
        let count = size_of::<u64>() / size_of::<T>();
        let is_short = task.layout.send() == count as u64 && task.layout.recv() == count as u64;
        if task.operation != Operation::AllReduce || !is_short {
            return None;
        }
        let word = |data: &[T]| bytemuck::pod_read_unaligned(bytemuck::cast_slice(&data[..count]));
        Some(Self {
            inputs: std::array::from_fn(|turn| word(pattern.input(turn as u64, rank))),
            results: std::array::from_fn(|turn| word(pattern.reduced(turn as u64))),
        })
    }

    /// Writes the input of `turn` to the start of `buffer`.
    ///
    /// # Errors
    /// A buffer that is shorter.
    #[inline]
    pub(crate) fn write(&self, turn: u64, buffer: &Span) -> Result<()> {
        buffer.write(0, self.inputs[index(turn)])
    }

    /// Whether the result of `turn` is at the start of `buffer`.
    ///
    /// # Errors
    /// A buffer that is shorter.
    #[inline]
    pub(crate) fn are_in(&self, turn: u64, buffer: &Span) -> Result<bool> {
        Ok(buffer.read::<u64>(0)? == self.results[index(turn)])
    }
}

#[inline]
fn index(turn: u64) -> usize {
    usize::try_from(turn).map_or(0, |turn| turn % TURNS)
}
