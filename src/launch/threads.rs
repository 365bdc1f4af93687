//! Devices as threads of one process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::error::{DeviceName, Error, ExitCause, Result};
use crate::rank::{Rank, check_n_ranks};

/// Runs `body` in one thread per argument, the argument's index being the rank, and returns what they return in order
/// of rank.
///
/// # Errors
/// The first cause when some fail: a panic ([`Error::DeviceFailed`]) before any error, and a failure of a rank's own
/// before one that only tells of the loss or the failure of another; [`Error::InvalidArgument`] for a number of arguments out of
/// range; [`Error::ResourceLimit`] when a thread cannot be started. All threads have ended then.
pub fn spawn_threads<A: Send, R: Send>(
    arguments: Vec<A>,
    body: impl Fn(Rank, A) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let n_ranks = u32::try_from(arguments.len()).unwrap_or(u32::MAX);
    check_n_ranks(n_ranks)?;
    let failures = Mutex::new(Vec::new());
    let run = |rank: Rank, argument: A| {
        let result = catch_unwind(AssertUnwindSafe(|| body(rank, argument))).unwrap_or_else(|_| {
            Err(Error::DeviceFailed { device: DeviceName::Rank(rank), cause: ExitCause::Panicked })
        });
        let note = |error| failures.lock().unwrap_or_else(PoisonError::into_inner).push(error);
        result.map_err(note).ok()
    };
    let results: Vec<Option<R>> = std::thread::scope(|scope| {
        let run = &run;
        let mut threads = Vec::new();
        for (rank, argument) in (0..n_ranks).map(Rank::known).zip(arguments) {
            let builder = std::thread::Builder::new().name(format!("rank {rank}"));
            match builder.spawn_scoped(scope, move || run(rank, argument)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    let error = crate::bootstrap::resource_error("starting a thread", error);
                    failures.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                    break;
                }
            }
        }
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failures.into_iter().min_by_key(remoteness) {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

/// How far an error is from the cause; of equals the earlier one counts.
fn remoteness(error: &Error) -> u8 {
    match error.origin() {
        Error::DeviceFailed { cause: ExitCause::Panicked, .. } => 0,
        Error::PeerLost { .. } | Error::ProxyLost | Error::Revoked { .. } | Error::FailedElsewhere { .. } => {
            2
        }
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_return_in_order_of_rank() {
        let doubled = spawn_threads(vec![3, 4, 5], |rank, value| Ok((rank.get(), value * 2))).unwrap();
        assert_eq!(doubled, [(0, 6), (1, 8), (2, 10)]);
    }

    #[test]
    fn a_panic_counts_before_the_errors_it_causes() {
        let barrier = std::sync::Barrier::new(2);
        let error = spawn_threads(vec![(), ()], |rank, ()| {
            if rank.get() == 1 {
                // The error is recorded first or last; the panic is named in both cases.
                barrier.wait();
                panic!("on purpose");
            }
            barrier.wait();
            Err::<(), _>(Error::PeerLost { rank: Rank::known(1) })
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "rank 1 panicked");
    }

    #[test]
    fn no_ranks_or_too_many_are_refused() {
        assert!(spawn_threads(Vec::<()>::new(), |_, ()| Ok(())).is_err());
        assert!(spawn_threads(vec![(); 65], |_, ()| Ok(())).is_err());
    }
}
