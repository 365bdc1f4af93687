//! Words that are raised behind a put.

use shmccl::heap::{HeapOffset, HeapPlace};
use shmccl::symmetric::{Comparison, WordSignal};
use shmccl::{Error, Result};

use crate::harness::{Job, rank};

const SIZES: [usize; 9] = [0, 1, 7, 8, 64, 65, 4097, 65_537, 1 << 20];

scenario!(whoever_sees_a_word_raised_finds_the_data, Job::of(2), |comm| {
    let data = comm.alloc::<u8>(1 << 20)?;
    let words = comm.alloc::<u64>(2)?;
    let (all, peer, own) = (comm.symmetric(), comm.right(), comm.rank());
    let (set, add) = (words.part(0, 1)?.offset, words.part(1, 1)?.offset);
    let mut rounds = 0_u64;
    for (len, turn) in SIZES.into_iter().flat_map(|len| (0..4).map(move |turn| (len, turn))) {
        rounds += 1;
        let fill = u8::try_from(rounds % 251).unwrap() + u8::try_from(own.get()).unwrap();
        let sent = vec![fill; len];
        let place = |rank| HeapPlace { rank, offset: data.region().offset };
        match turn {
            0 => all.put_signal(peer, place(peer).offset, &sent, WordSignal::set(set, rounds))?,
            1 => all.put_signal(peer, place(peer).offset, &sent, WordSignal::add(add, 5))?,
            2 => {
                all.put(peer, place(peer).offset, &sent)?;
                all.signal(peer, WordSignal::set(set, rounds))?;
            }
            _ => {
                // Out of the peer's heap, of what this rank has just received.
                let len = len as u64 / 2;
                let half =
                    HeapPlace { rank: peer, offset: HeapOffset::new(data.region().offset.get() + len) };
                all.copy_signal(place(own), half, len, WordSignal::add(add, 5))?;
            }
        }
        match turn {
            0 | 2 => assert_eq!(all.wait_until(set, Comparison::Equal, rounds)?, rounds),
            1 => _ = all.wait_until(add, Comparison::GreaterOrEqual, rounds.div_ceil(4) * 10 - 5)?,
            _ => _ = all.wait_until(add, Comparison::GreaterOrEqual, rounds.div_ceil(4) * 10)?,
        }
        let mut got = vec![0; len];
        data.copy_to_slice(0, &mut got)?;
        let theirs = u8::try_from(rounds % 251).unwrap() + u8::try_from(peer.get()).unwrap();
        match turn {
            3 => {}
            _ => assert!(got == vec![theirs; len], "{len} bytes, turn {turn}"),
        }
        comm.barrier()?;
    }
});

scenario!(a_word_that_is_added_to_has_many_senders, Job::of(4), |comm| {
    let data = comm.alloc::<u64>(4)?;
    let word = comm.alloc::<u64>(1)?;
    let (all, own, at) = (comm.symmetric(), comm.rank().get(), word.region().offset);
    for round in 1..100_u64 {
        for peer in 0..comm.n_ranks() {
            let target = data.part(own as usize, 1)?.offset;
            all.put_signal(rank(comm, peer), target, &[round * 10 + u64::from(own)], WordSignal::add(at, 1))?;
        }
        all.wait_until(at, Comparison::Equal, 4 * round)?;
        assert_eq!(data.to_vec(), [0, 1, 2, 3].map(|sender| round * 10 + sender));
        comm.barrier()?;
    }
});

scenario!(a_put_that_cannot_signal_moves_nothing, Job::of(2), |comm| {
    let cells = comm.alloc::<u64>(4)?;
    let (all, peer, here) = (comm.symmetric(), comm.right(), cells.region().offset);
    let end = HeapOffset::new(comm.heap_usage().len);
    let place = |offset| HeapPlace { rank: peer, offset };
    let odd = HeapOffset::new(here.get() + 4);
    for (target, word) in [(here, end), (end, here), (here, odd)] {
        let put = all.put_signal(peer, target, &[1_u64], WordSignal::set(word, 1));
        let copied = all.copy_signal(place(here), place(target), 8, WordSignal::add(word, 1));
        let is_refused =
            |result: Result<()>| matches!(result, Err(Error::OutOfRange { .. } | Error::Misaligned { .. }));
        assert!(is_refused(put) && is_refused(copied), "{target} {word}");
    }
    assert!(matches!(all.signal(peer, WordSignal::add(odd, 1)), Err(Error::Misaligned { .. })));
    comm.barrier()?;
    assert_eq!(cells.to_vec(), [0; 4]);
});
