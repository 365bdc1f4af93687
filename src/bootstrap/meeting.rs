//! The root's side of a meeting, until all ranks are there.
//!
//! A *connection* sends one message, JoinRequest, and claims a rank with it. Then it waits. The
//! first claim sets the terms: number of ranks, length of the heap, kind of backing, number of
//! ranks that are not joining. All other claims have to name the same terms. A *joiner* claims no
//! rank and names no terms. It gets the first free rank for joiners, as soon as the terms are
//! known.
//!
//! | a connection | then |
//! |---|---|
//! | of another user, or with another version or job | is refused; the others are not concerned |
//! | says nothing | is dropped when all are there, or first when there are too many |
//! | claims a rank twice, has other terms | the meeting fails: the ranks do not fit together |
//! | is a joiner too many                         | is told; the others are not concerned |
//! | hangs up without a rank, and lives            | is forgotten |
//! | of a process that ends without a rank         | the meeting fails: somebody is lost |
//! | hangs up, or speaks again, when it has a rank | the meeting fails: that rank is lost |
//! | reports the loss of another rank, and hangs up | the meeting fails: that other rank is lost |
//! | comes after the failure, but not after the deadline | is told why, like the others |
//! | has not come at the end of the shortest timeout | the meeting fails: that rank is missing |
//!
//! The timeout of a joiner without a rank does not count.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::join_request::{Rejection, Term, check_user, peer};
use super::message::{
    self, ANY_RANK, Bye, ControlMessage, Hosted, JoinRequest, LAYOUT_VERSION, Lost, MemberRefusal, Met,
    Misfit, Refused, Report, check_fit,
};
use super::process_mark::{CLOSING, ProcessMark};
use super::socket::{ControlSocket, Incoming, hang_up, poll_timeout, resource_error, send, try_receive};
use crate::error::{Error, Result};
use crate::logs::{MEETING, step};
use crate::rank::{MAX_RANKS, Rank, RankSet, check_n_ranks};
use crate::shm::HostKernel;
use crate::shm::unforked::Unforked;
use crate::sync::grace::Grace;

/// The most connections: one per rank, and as many again that say nothing.
const MAX_CONNECTIONS: usize = 2 * MAX_RANKS as usize;

/// How often the host looks whether a process that has hung up has ended.
const LEAVING_INTERVAL: Duration = Duration::from_millis(2);

/// Counts the rounds of a host after its deadline.
#[derive(Debug, Default)]
pub(super) struct LateRounds(u32);

impl LateRounds {
    /// The most rounds while there is something to hear: one to accept, one to read, one to spare.
    const MOST: u32 = 3;

    /// Counts another round, which heard nothing if it `is_quiet`, and returns whether it was the
    /// last.
    pub(super) fn is_last(&mut self, is_late: bool, is_quiet: bool) -> bool {
        let is_last = is_late && (self.0 == Self::MOST || is_quiet);
        self.0 += u32::from(is_late);
        is_last
    }

    /// Returns whether there was none.
    pub(super) fn is_none(&self) -> bool {
        self.0 == 0
    }
}

/// The ranks of a complete meeting.
#[derive(Debug)]
pub(super) struct AssembledRanks {
    /// The root's ends of the sockets, in order of rank. The next message on each is a Hello.
    pub(super) sockets: Vec<OwnedFd>,
    pub(super) heap_len: u64,
    /// What is left of the shortest timeout.
    pub(super) deadline: Option<Grace>,
}

/// A meeting that waits for its connections.
#[derive(Debug)]
pub(super) struct Meeting {
    listener: Unforked<UnixListener>,
    job_id: u64,
    connections: Vec<Connection>,
    terms: Option<ClaimedTerms>,
    /// The host's patience until a rank comes; then the shortest timeout among those with a rank.
    deadline: Option<Grace>,
    /// Whether those who come after a failure are told of it.
    lingers: bool,
    /// The rank that hosts it, which those who come are told. They know its name only.
    host: Option<Rank>,
    /// The processes that have hung up without a rank and may be about to end, and for how long
    /// that is looked at.
    leaving: Vec<(ProcessMark, Grace)>,
    /// A process that has ended without a rank.
    died: Option<u32>,
}

#[derive(Debug)]
struct Connection {
    /// `None` once it was put out.
    socket: Option<ControlSocket>,
    /// Whether it has sent its request. With a request and without a rank it is a joiner that waits
    /// for one.
    has_asked: bool,
    claim: Option<ClaimedTerms>,
    /// Its timeout, while it is a joiner without a rank.
    until: Option<Grace>,
}

/// A claimed rank and its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClaimedTerms {
    rank: Rank,
    /// The terms in the order of [`Term::ALL`].
    terms: [u64; 4],
}

impl ClaimedTerms {
    fn term(&self, term: Term) -> u32 {
        // A term that no u32 holds was refused earlier.
        u32::try_from(self.terms[term as usize]).unwrap_or(u32::MAX)
    }
}

/// Why the meeting has failed for everybody.
#[derive(Debug)]
enum MeetingFailure {
    Lost(Rank),
    Taken(Rank),
    Missing(Rank),
    Differs(Term, ClaimedTerms),
    /// This process ended before it had a rank.
    Died(u32),
    Failed(Error),
}

impl From<Error> for MeetingFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Meeting {
    /// Makes a meeting that is over at the end of the shortest timeout, or of `deadline` if no rank
    /// comes.
    pub(super) fn new(listener: Unforked<UnixListener>, job_id: u64, deadline: Option<Grace>) -> Self {
        Self {
            listener,
            job_id,
            connections: Vec::new(),
            terms: None,
            deadline,
            lingers: true,
            host: None,
            leaving: Vec::new(),
            died: None,
        }
    }

    /// Lets it tell those who come that `rank` hosts it, and the number of the job.
    pub(super) fn hosted_by(self, rank: Rank) -> Self {
        Self { host: Some(rank), ..self }
    }

    /// Lets it end as it fails: who comes later finds nobody.
    pub(super) fn ending_as_it_fails(self) -> Self {
        Self { lingers: false, ..self }
    }

    /// Waits until all have come. Returns `None` when the meeting has failed and all members know
    /// why.
    ///
    /// Nobody can come any more when it returns.
    pub(super) fn assemble(mut self) -> Option<AssembledRanks> {
        let outcome = self.receive_all();
        if let Err(failure) = &outcome {
            // Telling the others is a courtesy, and an error of the socket ends it. Later ones then
            // find nobody.
            let _ = self.reject_until_deadline(failure);
        }
        self.stop_listening();
        outcome.is_ok().then(|| self.announce_all_met())
    }

    /// Hangs up on all connections that wait to be accepted, and on later ones. A process that was
    /// forked meanwhile keeps the listening socket, but nobody waits there.
    fn stop_listening(&self) {
        hang_up(&*self.listener);
        while let Ok((stream, _)) = self.listener.accept() {
            let socket = ControlSocket::new(stream.into());
            if self.host.is_some() {
                // Whoever hears nothing takes the host for dead.
                send_to(&socket, &Bye { header: Bye::header(self.job_id) });
            }
        }
    }

    /// Receives all who have come by the deadline, however late that is noticed. A host that did
    /// not run for a while finds requests waiting.
    fn receive_all(&mut self) -> Result<(), MeetingFailure> {
        let mut late_rounds = LateRounds::default();
        while !self.is_complete() {
            let is_late = self.is_late();
            let (requests, ready) = self.poll()?;
            if late_rounds.is_last(is_late, !requests && ready.is_empty()) {
                return Err(MeetingFailure::Missing(self.first_missing()));
            }
            for index in ready {
                self.receive(index)?;
            }
            self.connections.retain(|connection| connection.socket.is_some());
            if requests {
                self.accept_waiting()?;
            }
            self.check_leaving()?;
        }
        Ok(())
    }

    /// Looks whether somebody has died without a rank, and fails once another one has to be told.
    fn check_leaving(&mut self) -> Result<(), MeetingFailure> {
        let now = HostKernel::clock();
        let ended = self.leaving.iter().find(|(process, _)| process.has_ended());
        self.died = self.died.or(ended.map(|(process, _)| process.pid()));
        self.leaving.retain_mut(|(_, grace)| !grace.is_over(now));
        match self.died.filter(|_| self.connections.iter().any(|connection| connection.has_asked)) {
            Some(pid) => Err(MeetingFailure::Died(pid)),
            None => Ok(()),
        }
    }

    /// Puts out a connection that has hung up without a rank. Its process may have ended.
    fn forget(&mut self, index: usize) {
        let Some(socket) = self.connections[index].socket.take() else { return };
        if let Some(process) = peer(&socket).filter(|process| process.pid() != std::process::id()) {
            self.leaving.push((process, Grace::begin(CLOSING, HostKernel::clock())));
        }
    }

    /// Tells all members why the meeting has failed, and later ones as well, until every rank or
    /// the deadline has come.
    fn reject_until_deadline(&mut self, failure: &MeetingFailure) -> Result<()> {
        let mut told = RankSet::default();
        loop {
            // Who else dies makes no difference any more.
            self.leaving.clear();
            for claim in self.claims() {
                told.insert(claim.rank);
            }
            self.reject_all(failure);
            self.connections.retain(|connection| !connection.has_asked && connection.socket.is_some());
            // While nobody knows how many there are, all of them may still come.
            let has_told_all = self.n_ranks().is_some_and(|n_ranks| told.len() >= n_ranks);
            if !self.lingers || self.is_late() || has_told_all {
                return Ok(());
            }
            let (requests, ready) = self.poll()?;
            for index in ready {
                // Whether it would have fitted makes no difference any more.
                let _ = self.receive(index);
            }
            if requests {
                self.accept_waiting()?;
            }
        }
    }

    /// Counts the time since the last look, and returns whether the shortest timeout is over.
    fn is_late(&mut self) -> bool {
        let now = HostKernel::clock();
        let joiners = self.connections.iter_mut().filter_map(|connection| connection.until.as_mut());
        // All of them count.
        joiners.chain(&mut self.deadline).filter_map(|grace| grace.is_over(now).then_some(())).count() > 0
    }

    /// Returns how long the host may wait until it looks again.
    fn patience(&self) -> Option<Duration> {
        let joiners = self.connections.iter().filter_map(|connection| connection.until);
        let patience = joiners.chain(self.deadline).map(|grace| grace.patience(HostKernel::clock())).min();
        let until_look = (!self.leaving.is_empty()).then_some(LEAVING_INTERVAL);
        patience.into_iter().chain(until_look).min()
    }

    fn n_ranks(&self) -> Option<u32> {
        self.terms.map(|claim| claim.term(Term::NRanks))
    }

    fn claims(&self) -> impl Iterator<Item = ClaimedTerms> {
        self.connections.iter().filter_map(|connection| connection.claim)
    }

    fn is_complete(&self) -> bool {
        self.n_ranks().is_some_and(|n_ranks| self.claims().count() == n_ranks as usize)
    }

    fn first_missing(&self) -> Rank {
        let is_here = |rank: &Rank| self.claims().any(|claim| claim.rank == *rank);
        // Joiners alone wait for the first rank.
        let mut ranks = (0..self.n_ranks().unwrap_or(1)).map(Rank::known);
        ranks.find(|rank| !is_here(rank)).expect("the meeting is not complete")
    }

    /// Polls. Returns whether a connection waits to be accepted, and which connections have sent
    /// something.
    fn poll(&self) -> Result<(bool, Vec<usize>)> {
        let sockets = self.connections.iter().filter_map(|connection| connection.socket.as_ref());
        let mut polled: Vec<_> = std::iter::once(self.listener.as_fd())
            .chain(sockets.map(|socket| socket.as_fd()))
            .map(|socket| PollFd::new(socket, PollFlags::POLLIN))
            .collect();
        match poll(&mut polled, poll_timeout(self.patience())) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(Error::os("waiting at a meeting", errno)),
        }
        let mut ready = polled.iter().map(|polled| polled.any().unwrap_or(true));
        let requests = ready.next().unwrap_or(false);
        Ok((requests, (0..).zip(ready).filter_map(|(index, ready)| ready.then_some(index)).collect()))
    }

    /// Accepts waiting connections. When there are too many, it drops the first silent one, or else
    /// one without a rank.
    fn accept_waiting(&mut self) -> Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((stream, _)) => ControlSocket::new(stream.into()),
                Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::EAGAIN) => return Ok(()),
                    Some(Errno::EINTR | Errno::ECONNABORTED) => continue,
                    _ => return Err(resource_error("receiving a guest", error)),
                },
            };
            setsockopt(&*socket, sockopt::PassCred, &true)
                .map_err(|errno| Error::os("receiving a guest", errno))?;
            if let Err(Error::Layout { expected, found, .. }) = check_user(&socket) {
                send_to(&socket, &Refused::new(self.job_id, (MemberRefusal::User, expected, found)));
                continue;
            }
            if let Some(rank) = self.host {
                let header = Hosted::header(self.job_id);
                send_to(&socket, &Hosted { header, rank: rank.get(), reserved: 0 });
            }
            if self.connections.len() == MAX_CONNECTIONS {
                let silent = self.connections.iter().position(|connection| !connection.has_asked);
                let rankless = || self.connections.iter().position(|connection| connection.claim.is_none());
                silent.or_else(rankless).map(|index| self.connections.remove(index));
            }
            self.connections.push(Connection {
                socket: Some(socket),
                has_asked: false,
                claim: None,
                until: None,
            });
        }
    }

    /// Takes what a connection says.
    fn receive(&mut self, index: usize) -> Result<(), MeetingFailure> {
        let connection = &self.connections[index];
        let Some(socket) = &connection.socket else { return Ok(()) };
        let incoming = try_receive(socket.as_fd());
        match (incoming, connection.claim) {
            (Ok(Incoming::Nothing), _) => Ok(()),
            (Ok(Incoming::Message(bytes, _)), None) if !connection.has_asked => match self.read(&bytes) {
                Ok((claim, patience)) => self.place(index, claim, patience),
                Err(refusal) => {
                    if let Some(refusal) = refusal {
                        send_to(socket, &Refused::new(self.job_id, refusal));
                    }
                    self.connections[index].socket = None;
                    Ok(())
                }
            },
            (Ok(Incoming::Message(..)), None) => {
                self.connections[index].socket = None;
                Ok(())
            }
            (_, None) => {
                self.forget(index);
                Ok(())
            }
            (Ok(Incoming::Message(bytes, _)), Some(claim)) => {
                Err(MeetingFailure::Lost(reported(&bytes).unwrap_or(claim.rank)))
            }
            (_, Some(claim)) => Err(MeetingFailure::Lost(claim.rank)),
        }
    }

    /// Reads a JoinRequest: its claim, or `None` for a joiner, and its sender's timeout. The error
    /// is the answer, if there can be one.
    fn read(&self, bytes: &[u8]) -> Result<(Option<ClaimedTerms>, Duration), Option<Misfit>> {
        let header = message::header_of(bytes).ok_or(None)?;
        check_fit(MemberRefusal::Version, message::VERSION.into(), header.version.into())?;
        let request = message::read::<JoinRequest>(bytes).ok_or(None)?;
        check_fit(MemberRefusal::Layout, LAYOUT_VERSION.into(), request.layout_version.into())?;
        check_fit(MemberRefusal::Job, self.job_id, header.job_id)?;
        let patience = Duration::from_millis(request.timeout_ms);
        if request.rank == ANY_RANK {
            return Ok((None, patience));
        }
        check_n_ranks(request.n_ranks).map_err(|_| None)?;
        if request.n_members > request.n_ranks {
            return Err(None);
        }
        let rank = Rank::new(request.rank, request.n_members).map_err(|_| None)?;
        let terms =
            [request.n_ranks.into(), request.heap_len, request.backing.into(), request.n_members.into()];
        Ok((Some(ClaimedTerms { rank, terms }), patience))
    }

    /// Gives a connection that has sent its request a rank, if there is one.
    fn place(
        &mut self,
        index: usize,
        claim: Option<ClaimedTerms>,
        patience: Duration,
    ) -> Result<(), MeetingFailure> {
        let until = Some(Grace::begin(patience, HostKernel::clock()));
        self.connections[index].has_asked = true;
        if let Some(claim) = claim {
            self.wait_until(until);
            self.take(index, claim)?;
        } else {
            self.connections[index].until = until;
        }
        self.place_joiners();
        Ok(())
    }

    fn wait_until(&mut self, until: Option<Grace>) {
        // The first rank ends the host's patience.
        let others = self.deadline.filter(|_| self.terms.is_some());
        self.deadline = [others, until].into_iter().flatten().min();
    }

    /// Gives a connection the rank that it claims.
    fn take(&mut self, index: usize, claim: ClaimedTerms) -> Result<(), MeetingFailure> {
        let has_it = |connection: &Connection| connection.claim.is_some_and(|other| other.rank == claim.rank);
        let holder = self.connections.iter().position(has_it);
        self.connections[index].claim = Some(claim);
        let agreed = self.terms.get_or_insert(claim).terms;
        let differs = |term: &Term| agreed[*term as usize] != claim.terms[*term as usize];
        match (Term::ALL.into_iter().find(differs), holder) {
            (Some(term), _) => Err(MeetingFailure::Differs(term, claim)),
            // One that has died since it came is lost, and has been started anew.
            (None, Some(holder)) => self.receive(holder).and(Err(MeetingFailure::Taken(claim.rank))),
            (None, None) => Ok(()),
        }
    }

    /// Gives joiners their ranks once the terms are known, and drops those that are too many.
    fn place_joiners(&mut self) {
        let Some(terms) = self.terms else { return };
        let (n_members, n_ranks) = (terms.term(Term::Members), terms.term(Term::NRanks));
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            // One that has hung up keeps its place until all that have sent something were heard.
            let waits = connection.has_asked && connection.claim.is_none() && connection.socket.is_some();
            if !waits {
                continue;
            }
            let is_free = |rank: &Rank| !self.claims().any(|claim| claim.rank == *rank);
            let free = (n_members..n_ranks).map(Rank::known).find(is_free);
            let connection = &mut self.connections[index];
            let until = connection.until.take();
            connection.claim = free.map(|rank| ClaimedTerms { rank, ..terms });
            if connection.claim.is_some() {
                self.wait_until(until);
            } else if let Some(socket) = connection.socket.take() {
                send_to(&socket, &Rejection::Full(n_ranks - n_members).message(self.job_id));
            }
        }
    }

    /// Sends Met to all members, since all have come.
    fn announce_all_met(mut self) -> AssembledRanks {
        let heap_len = self.terms.map_or(0, |claim| claim.terms[Term::HeapLen as usize]);
        self.connections.retain(|connection| connection.claim.is_some());
        self.connections.sort_by_key(|connection| connection.claim.map(|claim| claim.rank));
        let n_ranks = self.n_ranks().unwrap_or(0);
        let sockets: Vec<_> = self
            .connections
            .into_iter()
            .filter_map(|connection| Some(connection.socket?.into_socket()))
            .collect();
        for (rank, socket) in (0..).zip(&sockets) {
            tracing::debug!(target: MEETING, rank, n_ranks, "met");
            send_to(socket, &Met { header: Met::header(self.job_id), rank, n_ranks });
        }
        step("told all that they have met");
        AssembledRanks { sockets, heap_len, deadline: self.deadline }
    }

    /// Sends all members the reason why the meeting has failed. Different terms are named from each
    /// one's own side.
    fn reject_all(&self, failure: &MeetingFailure) {
        tracing::warn!(target: MEETING, ?failure, "a meeting has failed");
        for connection in &self.connections {
            let Some(socket) = connection.socket.as_ref().filter(|_| connection.has_asked) else { continue };
            let rejection = match failure {
                MeetingFailure::Lost(rank) => {
                    let (header, member) = (Lost::header(self.job_id), rank.get());
                    send_to(socket, &Lost { header, member, restarts: 0, hangs: 0, reserved: 0 });
                    continue;
                }
                MeetingFailure::Taken(rank) => Rejection::Taken(*rank),
                MeetingFailure::Missing(rank) => Rejection::Missing(*rank),
                MeetingFailure::Died(pid) => Rejection::Died(*pid),
                MeetingFailure::Failed(error) => Rejection::of_error(error),
                MeetingFailure::Differs(term, odd) => {
                    let agreed = self.terms.expect("set by the first claim");
                    // A joiner has no terms of its own.
                    let own = connection.claim.unwrap_or(agreed);
                    let index = *term as usize;
                    let other = if own.terms[index] == agreed.terms[index] { *odd } else { agreed };
                    let (mine, theirs) = (own.terms[index], other.terms[index]);
                    Rejection::Differs { term: *term, mine, rank: other.rank, theirs }
                }
            };
            send_to(socket, &rejection.message(self.job_id));
        }
    }
}

/// Returns the rank that a message reports lost, if it is a report.
fn reported(bytes: &[u8]) -> Option<Rank> {
    Rank::new(message::read::<Report>(bytes)?.member, MAX_RANKS).ok()
}

/// Sends a message to a connection. It has room, because it was sent nothing before. A hang-up does
/// not matter.
pub(super) fn send_to<M: ControlMessage>(socket: &OwnedFd, message: &M) {
    let _ = send(socket.as_fd(), bytemuck::bytes_of(message), &[]);
}

#[cfg(test)]
mod tests;
