use std::os::fd::{AsFd, OwnedFd};

use bytemuck::bytes_of;

use super::*;
use crate::Communicator;
use crate::bootstrap::message::{ControlMessage, Lost, PROXY};
use crate::bootstrap::{Options, pair, send};

const JOB: u64 = 7;

/// A job of three, of which this process is a rank, in two epochs: what the launcher tells is heard in the first.
struct Job {
    /// The launcher's end of the line.
    launcher_end: Option<OwnedFd>,
    launcher: LauncherLink,
    /// Those of all ranks, of which none has left.
    first: Vec<Communicator>,
    next: Vec<Communicator>,
}

impl Job {
    fn begin() -> Self {
        let (launcher_end, own) = pair().unwrap();
        let (first, next) = (communicators(3), communicators(2));
        let link = ControlLink::new(own, JOB, 3);
        let launcher = LauncherLink::begin(link, None, true, mapped(&first), Incarnation::first(3)).unwrap();
        Self { launcher_end: Some(launcher_end), launcher, first, next }
    }

    fn tell(&self, member: u32, restarts: u32, hangs: bool) {
        let lost = Lost { header: Lost::header(JOB), member, restarts, hangs: hangs.into(), reserved: 0 };
        send(self.launcher_end.as_ref().unwrap().as_fd(), bytes_of(&lost), &[]).unwrap();
    }

    /// Waits until the first epoch has ended, and returns why.
    fn first_ends(&self) -> Revocation {
        loop {
            match mapped(&self.first).revocation().read() {
                Some(reason) => return reason,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Goes on into the next epoch, whose ranks the launcher has these numbers for, and returns why it has ended, if it has.
    fn goes_on(&self, incarnations: [Option<Incarnation>; 2]) -> Option<Revocation> {
        let next = mapped(&self.next);
        self.launcher.follow(next, incarnations.to_vec());
        next.revocation().read()
    }
}

fn communicators(n_ranks: u32) -> Vec<Communicator> {
    let options = Options { heap_len: 4 << 20, ..Options::default() };
    Communicator::init_all_with(n_ranks, &options).unwrap()
}

fn mapped(comms: &[Communicator]) -> &Arc<EpochMapping> {
    comms[0].context().mapped()
}

fn number(rank: u32, restarts: u32) -> Option<Incarnation> {
    Some(Incarnation { rank: Rank::known(rank), restarts })
}

#[test]
fn a_launcher_that_dies_between_two_epochs_has_ended_the_next_one_as_it_begins() {
    let mut job = Job::begin();
    drop(job.launcher_end.take());
    assert_eq!(job.first_ends(), Revocation::Aborted(None));
    assert_eq!(job.goes_on([number(0, 0), number(1, 0)]), Some(Revocation::Aborted(None)));
}

#[test]
fn a_rank_that_is_found_to_hang_between_two_epochs_is_lost_to_the_next_one_as_it_begins() {
    let job = Job::begin();
    job.tell(2, 0, true);
    assert_eq!(job.first_ends(), Revocation::PeerLost(Rank::known(2)));
    let lost = Rank::known(1);
    assert_eq!(job.goes_on([number(0, 0), number(2, 0)]), Some(Revocation::PeerLost(lost)));
    assert_eq!(mapped(&job.next).life(lost).status(), LifeStatus::Lost);
}

#[test]
fn an_epoch_of_others_than_those_who_were_lost_before_goes_on() {
    let job = Job::begin();
    job.tell(2, 0, false);
    job.tell(PROXY, 0, false);
    // Heard after both of them.
    job.tell(0, 0, true);
    assert_eq!(job.first_ends(), Revocation::PeerLost(Rank::known(2)));
    while mapped(&job.first).life(Rank::known(0)).status() != LifeStatus::Lost {
        std::thread::yield_now();
    }
    assert_eq!(job.goes_on([number(1, 0), number(2, 1)]), None);
}
