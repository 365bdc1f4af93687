//! Models of the rounds in which survivors go on together, on a kernel whose barriers order nothing
//! that they need not.

use super::super::regroup::{OFFER_WORDS, OfferCell, Round, RoundCell, RoundOutcome};
use super::membarrier::Core;
use super::*;
use crate::rank::RankSet;

const N: usize = 3;

struct Table {
    round: RoundCell,
    offers: [OfferCell; N],
    park: ParkCell,
    cores: [Core; N],
    revoke: RevokeCell,
    lives: [LifeCell; N],
    /// What each rank did before it came, and before it was ready.
    came: [Ghost; N],
    prepared: [Ghost; N],
}

impl Table {
    fn new() -> Arc<Self> {
        let ghosts = || [Ghost::new(), Ghost::new(), Ghost::new()];
        Arc::new(Self {
            round: RoundCell::default(),
            offers: [OfferCell::default(), OfferCell::default(), OfferCell::default()],
            park: ParkCell::default(),
            cores: Core::all(),
            revoke: RevokeCell::default(),
            lives: [LifeCell::default(), LifeCell::default(), LifeCell::default()],
            came: ghosts(),
            prepared: ghosts(),
        })
    }

    fn side(&self, rank: usize) -> Round<'_, Core, impl Fn(Rank) -> bool> {
        Round {
            cell: &self.round,
            rank: known(rank as u32),
            kernel: &self.cores[rank],
            park: &self.park,
            gone: |rank: Rank| self.lives[rank.index()].status() == LifeStatus::Lost,
        }
    }

    fn wait<T>(&self, rank: usize, poll: impl FnMut() -> Option<T>) -> T {
        let waiting = Waiting::new(&self.cores[rank], &self.revoke, PARK, Duration::MAX);
        wait_until(&waiting, &self.park, poll).expect("nobody revokes, and time stands still")
    }
}

fn with_peer<T: 'static>(
    table: &Arc<Table>,
    body: impl FnOnce(&Table) -> T + 'static,
) -> thread::JoinHandle<T> {
    let table = Arc::clone(table);
    thread::spawn(move || body(&table))
}

#[test]
fn who_is_chosen_knows_what_the_others_did_before_they_came() {
    fn choose(table: &Table, rank: usize) {
        let side = table.side(rank);
        table.came[rank].write(1);
        side.come();
        let chosen = table.wait(rank, || side.choose(RankSet::all(2)));
        assert_eq!(chosen, RankSet::all(2));
        assert_eq!(table.came[1 - rank].read(), 1);
    }
    model(|| {
        let table = Table::new();
        let peer = with_peer(&table, |table| choose(table, 1));
        choose(&table, 0);
        peer.join().unwrap();
    });
}

#[test]
fn whoever_sees_all_offers_reads_what_they_say() {
    fn offer(table: &Table, rank: usize) {
        let side = table.side(rank);
        table.offers[rank].write([rank as u64 + 1; OFFER_WORDS]);
        side.offer();
        assert_eq!(table.wait(rank, || side.poll_offers(RankSet::all(2))), None);
        assert_eq!(table.offers[1 - rank].read(), [2 - rank as u64; OFFER_WORDS]);
    }
    model(|| {
        let table = Table::new();
        let peer = with_peer(&table, |table| offer(table, 1));
        offer(&table, 0);
        peer.join().unwrap();
    });
}

#[test]
fn those_who_are_together_find_what_all_have_prepared() {
    fn get_ready(table: &Table, rank: usize) {
        let side = table.side(rank);
        table.prepared[rank].write(1);
        side.ready();
        assert_eq!(table.wait(rank, || side.poll_outcome(RankSet::all(2))), RoundOutcome::Together);
        assert_eq!(table.prepared[1 - rank].read(), 1);
    }
    model(|| {
        let table = Table::new();
        let peer = with_peer(&table, |table| get_ready(table, 1));
        get_ready(&table, 0);
        peer.join().unwrap();
    });
}

#[test]
fn who_only_reads_the_outcome_finds_what_a_third_rank_has_prepared() {
    model(|| {
        let table = Table::new();
        let third = with_peer(&table, |table| {
            table.prepared[2].write(1);
            table.side(2).ready();
        });
        let reader = with_peer(&table, |table| {
            table.side(1).ready();
            if table.round.outcome() == Some(RoundOutcome::Together) {
                assert_eq!(table.prepared[2].read(), 1);
            }
        });
        table.side(0).ready();
        table.side(0).poll_outcome(RankSet::all(3));
        third.join().unwrap();
        reader.join().unwrap();
    });
}

/// What three ranks find when each looks once in the middle and again at the end; the third one is
/// lost in between.
fn around_a_death<T: Copy + PartialEq + std::fmt::Debug + 'static>(
    take_part: impl Fn(&Table, usize) + Copy + 'static,
    look: impl Fn(&Table, usize) -> Option<T> + Copy + 'static,
) -> T {
    let table = Table::new();
    let survivor = move |table: &Table, rank: usize| {
        take_part(table, rank);
        look(table, rank)
    };
    let peer = with_peer(&table, move |table| survivor(table, 1));
    let dying = with_peer(&table, move |table| {
        take_part(table, 2);
        table.lives[2].mark_lost(&table.cores[2]);
    });
    let early = [survivor(&table, 0), peer.join().unwrap()];
    dying.join().unwrap();
    let late = [0, 1].map(|rank| look(&table, rank).expect("nobody is missing any more"));
    assert!(early.into_iter().flatten().chain(late).all(|found| found == late[0]), "{early:?} {late:?}");
    late[0]
}

#[test]
fn survivors_of_a_death_choose_the_same_ranks_whenever_it_comes() {
    model(|| {
        let come = |table: &Table, rank| table.side(rank).come();
        let chosen = around_a_death(come, |table, rank| table.side(rank).choose(RankSet::all(3)));
        assert_eq!(RankSet::all(2).without(chosen), RankSet::default(), "nobody who lives is left behind");
    });
}

#[test]
fn survivors_of_a_death_in_the_last_step_agree_on_whether_they_are_together() {
    model(|| {
        let ready = |table: &Table, rank| table.side(rank).ready();
        around_a_death(ready, |table, rank| table.side(rank).poll_outcome(RankSet::all(3)));
    });
}

#[test]
fn those_who_have_met_begin_together_or_name_the_same_loss() {
    model(|| {
        let ready = |table: &Table, rank| table.side(rank).ready();
        let outcome = around_a_death(ready, |table, rank| table.side(rank).poll_start(RankSet::all(3)));
        assert!(matches!(outcome, RoundOutcome::Together | RoundOutcome::Lost(_)), "{outcome:?}");
    });
}

#[test]
fn those_who_begin_together_find_what_all_have_prepared() {
    fn get_ready(table: &Table, rank: usize) {
        let side = table.side(rank);
        table.prepared[rank].write(1);
        side.ready();
        assert_eq!(table.wait(rank, || side.poll_start(RankSet::all(2))), RoundOutcome::Together);
        assert_eq!(table.prepared[1 - rank].read(), 1);
    }
    model(|| {
        let table = Table::new();
        let peer = with_peer(&table, |table| get_ready(table, 1));
        get_ready(&table, 0);
        peer.join().unwrap();
    });
}

#[test]
fn who_loses_patience_when_all_are_ready_learns_that_they_are_together() {
    model(|| {
        let table = Table::new();
        let impatient = with_peer(&table, |table| {
            let side = table.side(1);
            side.ready();
            let early = side.poll_outcome(RankSet::all(2));
            early.unwrap_or_else(|| side.conclude(RoundOutcome::Repeated))
        });
        let side = table.side(0);
        side.ready();
        let early = side.poll_outcome(RankSet::all(2));
        let theirs = impatient.join().unwrap();
        let mine = early.or_else(|| side.poll_outcome(RankSet::all(2)));
        assert_eq!(mine, Some(theirs));
    });
}

#[test]
fn whom_one_of_them_has_given_up_before_it_was_ready_does_not_go_on() {
    model(|| {
        let table = Table::new();
        table.side(2).ready();
        let peer = with_peer(&table, |table| {
            table.lives[2].mark_lost(&table.cores[2]);
            table.side(1).ready();
        });
        let side = table.side(0);
        side.ready();
        assert_ne!(side.poll_outcome(RankSet::all(3)), Some(RoundOutcome::Together));
        peer.join().unwrap();
        assert_eq!(side.poll_outcome(RankSet::all(3)), Some(RoundOutcome::Repeated));
    });
}
