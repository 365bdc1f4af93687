//! The executor over a mapped of two ranks, without a fifo: what it does, and what it refuses.

use std::time::Duration;

use shmccl_proxy::{Transfer, TransferLen};

use super::super::testing::{ALLOCATED, bytes, context, mapped};
use super::*;
use crate::channel::context::RankContext;
use crate::heap::{HeapOffset, Region};
use crate::sync::SemaphoreCell;

struct Bench {
    mapped: Arc<EpochMapping>,
    context: Arc<RankContext>,
    executor: Executor,
}

/// Rank 0 pushes, through fifo 0 of an executor that serves both ranks.
fn bench() -> Bench {
    let mapped = mapped(2, |mapped| mapped);
    let context = context(&mapped, Rank::known(0), Duration::from_secs(5));
    let executor = Executor::new(&mapped, &[Rank::known(0), Rank::known(1)]).unwrap();
    Bench { mapped, context, executor }
}

fn id(value: u32) -> MemoryId {
    MemoryId::new(value).unwrap()
}

fn transfer(ids: (u32, u32), offsets: (u64, u64), len: u32) -> Transfer {
    let (source_offset, target_offset) = (offsets.0.try_into().unwrap(), offsets.1.try_into().unwrap());
    let len = TransferLen::new(len).unwrap();
    Transfer { len, source: id(ids.0), source_offset, target: id(ids.1), target_offset }
}

impl Bench {
    fn execute(
        &mut self,
        kind: TriggerKind,
        transfer: Transfer,
        semaphore: SemaphoreId,
    ) -> Result<(), RefusalReason> {
        self.executor.execute(0, &Trigger::new(kind, transfer, semaphore).unwrap())
    }

    fn all(&self) -> [Vec<u8>; 2] {
        [0, 1].map(|rank| bytes(&self.context, Rank::known(rank), Region::new(HeapOffset::new(0), ALLOCATED)))
    }

    fn signals(&self) -> Vec<u64> {
        let ranks = [Rank::known(0), Rank::known(1)];
        ranks.iter().flat_map(|rank| self.mapped.semaphores(*rank).iter().map(SemaphoreCell::value)).collect()
    }
}

#[test]
fn a_trigger_copies_and_then_raises_the_semaphore_that_the_pusher_has_at_the_target() {
    let mut bench = bench();
    bench
        .context
        .heap()
        .view()
        .span(Rank::known(0), Region::new(HeapOffset::new(8), 3))
        .unwrap()
        .fill(0, 3, 9)
        .unwrap();
    let (kind, semaphore) = (TriggerKind::DATA | TriggerKind::SIGNAL, semaphore_id(Rank::known(1), 5));
    bench.execute(kind, transfer((0, 1), (8, 100), 3), semaphore).unwrap();
    assert_eq!(bytes(&bench.context, Rank::known(1), Region::new(HeapOffset::new(99), 5)), [0, 9, 9, 9, 0]);
    let raised: Vec<_> = (0..).zip(bench.signals()).filter(|(_, value)| *value > 0).collect();
    assert_eq!(raised, [(4096 + 5, 1)], "of rank 1, from rank 0, slot 5");
    // The same slot, pushed by rank 1 for itself, is another semaphore.
    bench.executor.execute(1, &Trigger::signal(semaphore)).unwrap();
    let raised: Vec<_> = (0..).zip(bench.signals()).filter(|(_, value)| *value > 0).collect();
    assert_eq!(raised, [(4096 + 5, 1), (4096 + 16 + 5, 1)]);
}

#[test]
fn what_a_trigger_must_not_name_is_refused_and_nothing_changes() {
    let mut bench = bench();
    let fine = semaphore_id(Rank::known(1), 0);
    let (last, beyond) = (ALLOCATED - 1, ALLOCATED);
    let bad_places = [
        (RefusalReason::Source, transfer((2, 1), (0, 0), 1)),
        (RefusalReason::Source, transfer((511, 511), (0, 0), 1)),
        (RefusalReason::Target, transfer((0, 2), (0, 0), 1)),
        (RefusalReason::Source, transfer((0, 1), (last, 0), 2)),
        (RefusalReason::Source, transfer((0, 1), (beyond, 0), 1)),
        (RefusalReason::Target, transfer((0, 1), (0, last), 2)),
        (RefusalReason::Target, transfer((0, 1), (0, beyond), 1)),
        (RefusalReason::Target, transfer((0, 1), (0, u32::MAX.into()), 1)),
        (RefusalReason::Source, transfer((0, 1), (u32::MAX.into(), 0), TransferLen::LIMIT - 1)),
        (RefusalReason::Source, transfer((0, 1), (0, 0), TransferLen::LIMIT - 1)),
    ];
    let before = (bench.all(), bench.signals());
    for (reason, transfer) in bad_places {
        for kind in [
            TriggerKind::DATA,
            TriggerKind::DATA | TriggerKind::SIGNAL,
            TriggerKind::DATA | TriggerKind::SIGNAL | TriggerKind::FLUSH,
        ] {
            assert_eq!(bench.execute(kind, transfer, fine), Err(reason), "{transfer:?}");
        }
    }
    for semaphore in [2 * 16, 1023] {
        let semaphore = SemaphoreId::new(semaphore).unwrap();
        for kind in [TriggerKind::SIGNAL, TriggerKind::DATA | TriggerKind::SIGNAL] {
            let refused = bench.execute(kind, transfer((0, 1), (0, 0), 8), semaphore);
            assert_eq!(refused, Err(RefusalReason::Semaphore));
        }
    }
    assert!((bench.all(), bench.signals()) == before, "a refused trigger has changed something");
}

#[test]
fn memory_that_only_another_rank_has_allocated_is_out_of_reach() {
    let mut bench = bench();
    // Rank 1, in whose name fifo 1 is served, has allocated nothing.
    let refused = bench.executor.execute(1, &Trigger::put(transfer((0, 1), (0, 0), 1)));
    assert_eq!(refused, Err(RefusalReason::Source));
    assert_eq!(bench.execute(TriggerKind::DATA, transfer((0, 1), (0, 0), 1), SemaphoreId::default()), Ok(()));
}

#[test]
fn an_empty_transfer_names_no_memory() {
    let mut bench = bench();
    assert_eq!(
        bench.execute(TriggerKind::DATA, transfer((511, 300), (7, 7), 0), SemaphoreId::default()),
        Ok(())
    );
}

#[test]
fn a_fifo_that_the_proxy_does_not_serve_is_refused() {
    let bench = bench();
    assert_eq!(bench.executor.execute(2, &Trigger::flush()), Err(RefusalReason::Source));
    assert_eq!((bench.executor.producer(1), bench.executor.producer(2)), (Some(Rank::known(1)), None));
}

#[test]
fn every_reason_is_found_by_its_code_and_reads_well() {
    use RefusalReason::{NoKind, Semaphore, Source, Target};
    for reason in [NoKind, Source, Target, Semaphore] {
        assert_eq!(RefusalReason::from_code(reason.refusal().code().into()), Some(reason));
        assert!(reason.to_string().starts_with("it"));
    }
    assert_eq!(RefusalReason::from_code(TriggerRefusal::NO_KIND.code().into()), Some(NoKind));
    assert_eq!(RefusalReason::from_code(0), None);
    assert_eq!(RefusalReason::from_code(u64::MAX), None);
}
