//! Runs the collective calls of one communicator: picks the way, tells the others, goes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::algorithm::{Algorithm, ChannelKind, Manner};
use super::board::INLINE_WORDS;
use super::call::Call;
use super::custom::{CustomAlgorithm, Customs, Registration};
use super::delivery::{self, Batch};
use super::elsewhere::Elsewhere;
use super::group::{self, Share};
use super::lease::{Landlord, Lease};
use super::operation::{Operation, Summary};
use super::parcel::Parcel;
use super::pipeline::Pipeline;
use super::pipework::{Doer, OpenPorts, Pipework};
use super::region::MAIL_LEN;
use super::team::Team;
use super::tuning::{BufferKind, Choices, Table, Tuning};
use super::{direct, fused, small, staged};
use crate::channel::Fabric;
use crate::error::{Error, Result};
use crate::heap::HeapOffset;
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::ProgressCell;

/// What runs the collective calls of one member, one after the other.
#[derive(Debug)]
pub(crate) struct Engine {
    team: Team,
    pipework: Pipework,
    choices: Choices,
    /// What the choices were made by.
    tuning: Tuning,
    customs: Customs,
    /// The last field, since it lets go of what the others use.
    lease: Lease,
}

/// A way to do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Small,
    /// As the table says, once it is known where all buffers are.
    AsTabled,
    Direct,
    Piped(Algorithm, ChannelKind),
    Custom(ChannelKind),
}

impl Engine {
    /// The engine of `members`, ranks of the job, whose zeroed regions start at `bases`. This rank's was taken from `host` and
    /// goes back there; operations over proxied channels get these from it, too. Algorithms are chosen by `tuning`, which is the
    /// same on all members.
    ///
    /// # Errors
    /// Those of [`Team::new`].
    pub(crate) fn new<H: OpenPorts + Landlord + 'static>(
        fabric: &Arc<Fabric>,
        members: Arc<[Rank]>,
        bases: Vec<HeapOffset>,
        host: Arc<H>,
        tuning: Tuning,
    ) -> Result<Self> {
        let choices = Choices::new(&tuning, members.len());
        let (team, lease) = Team::new(fabric, members, bases, host.clone())?;
        Ok(Self { team, pipework: Pipework::new(host), choices, tuning, customs: Customs::default(), lease })
    }

    /// Looks in every wait whether members are where all ranks of the job meet. For a communicator that meets there, too.
    pub(crate) fn watch_meeting(&mut self) {
        let board = &mut self.team.board;
        let elsewhere = Elsewhere::new(board.fabric());
        board.look_elsewhere(elsewhere);
    }

    /// The members that are in an operation which this one has not come to.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = (Rank, Summary)> {
        self.team.board.ahead()
    }

    /// The error of a wait, or, where the epoch was ended because members disagree, what it is that they disagree on.
    pub(crate) fn explain(&self, error: crate::Error) -> crate::Error {
        self.team.board.explain(error)
    }

    /// The words that say which members have left.
    pub(crate) fn departures(&self) -> &CellSlice<ProgressCell> {
        self.lease.departures()
    }

    /// What algorithms are chosen by.
    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Compares this member's table with those of the others, if it has one, and goes by it from now on. Called by all members.
    ///
    /// # Errors
    /// What kept this member from reading its table; [`Error::FailedElsewhere`]; [`Error::TuningMismatch`]; those of
    /// [`Engine::run`]. All end the epoch.
    pub(crate) fn tune(&mut self, table: Result<Table>, crowded: bool) -> Result<()> {
        let agreed = self.agree(table, crowded);
        self.tuning = agreed.inspect_err(|_| self.team.board.revoke())?;
        self.choices = Choices::new(&self.tuning, self.team.n_members());
        Ok(())
    }

    fn agree(&mut self, table: Result<Table>, crowded: bool) -> Result<Tuning> {
        let mine = table.as_ref().map_or(0, Table::checksum);
        let words = [u64::from(table.is_ok()), mine, u64::from(crowded)];
        let told = self.exchange(Operation::Barrier, &words)?;
        let table = table?;
        for (words, &rank) in told.iter().zip(self.team.members().iter()) {
            match *words.as_slice() {
                [1, theirs, _] if theirs == mine => {}
                [1, theirs, _] => return Err(Error::TuningMismatch { mine, rank, theirs }),
                _ => return Err(Error::FailedElsewhere { operation: "reading the tuning table", rank }),
            }
        }
        Ok(Tuning { table, crowded: told.iter().any(|words| words[2] == 1) })
    }

    /// What an operation to which no member contributes more than `len` bytes is done by, where the caller has not said.
    pub(crate) fn choice(&self, operation: Operation, buffers: BufferKind, len: u64) -> Algorithm {
        if self.choices.is_small(operation, len) {
            return Algorithm::OneShot;
        }
        self.choices.algorithm(operation, buffers, len)
    }

    /// Has `operation` done by `algorithm` from now on, where the caller has not said by what; by `None`, as before. Called by all
    /// members.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what cannot be registered; [`Error::AlgorithmMismatch`], which all members get, and nothing
    /// has changed; those of [`Engine::run`].
    pub(crate) fn register(
        &mut self,
        operation: Operation,
        algorithm: Option<Arc<dyn CustomAlgorithm>>,
    ) -> Result<()> {
        let mine = Registration::new(operation, algorithm.as_deref())?;
        let told = self.exchange(Operation::RegisterAlgorithm, &mine.words())?;
        for (words, &rank) in told.iter().zip(self.team.members().iter()) {
            let theirs = Registration::told(words);
            if theirs != mine {
                return Err(Error::AlgorithmMismatch { mine, rank, theirs });
            }
        }
        self.customs.set(operation, algorithm);
        Ok(())
    }

    /// The algorithms that are registered.
    pub(crate) fn customs(&self) -> &Customs {
        &self.customs
    }

    /// The same engine with the algorithms that are registered with another one; all members take the same.
    pub(crate) fn with_customs(mut self, customs: Customs) -> Self {
        self.customs = customs;
        self
    }

    /// Executes `call` in `manner`.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when the algorithm cannot do the operation; [`crate::Error::CallMismatch`] when the
    /// members are in different calls; [`crate::Error::OutOfRange`] for buffers that are not allocated;
    /// [`crate::Error::Timeout`], [`crate::Error::PeerLost`], [`crate::Error::ProxyLost`], [`crate::Error::Revoked`];
    /// [`crate::Error::Panicked`] when an operator of the program's own did. All but those of the arguments end the epoch.
    pub(crate) fn run(&mut self, call: &mut Call<'_>, manner: Manner) -> Result<()> {
        if !call.has_custom_operator() {
            return self.execute(call, manner);
        }
        // What the operator leaves behind as it panics is what a peer that died would.
        match catch_unwind(AssertUnwindSafe(|| self.execute(call, manner))) {
            Ok(done) => done,
            Err(_) => self.team.board.or_revoke(Err(crate::Error::Panicked)),
        }
    }

    #[inline]
    fn execute(&mut self, call: &mut Call<'_>, manner: Manner) -> Result<()> {
        if call.operation.has_peer() {
            return self.deliver(call, manner.channel);
        }
        if call.operation.is_by_messages() {
            return group::run(&mut [Share { engine: self, manner, calls: vec![call.take()] }]);
        }
        let summary = call.summary().in_manner(manner);
        let len = small::input_len(call, self.team.n_members())?;
        match self.way(call, len, manner)? {
            Way::Small => {
                let done = small::run(&mut self.team, call, summary, len);
                self.team.board.or_revoke(done)
            }
            way => self.run_large(call, summary, len, way),
        }
    }

    /// How `call`, to which a member contributes at most `len` bytes, is done: the same on all members.
    #[inline]
    fn way(&self, call: &Call<'_>, len: u64, manner: Manner) -> Result<Way> {
        let simple = if self.choices.is_small(call.operation, len) { Way::Small } else { Way::AsTabled };
        if self.customs.has(call.operation) && manner.algorithm.is_none() && self.team.n_members() > 1 {
            return Ok(Way::Custom(manner.channel));
        }
        if manner == Manner::default() {
            return Ok(simple);
        }
        if let Some(algorithm) = manner.algorithm {
            algorithm.check(call.operation)?;
        }
        Ok(match (manner.algorithm, manner.channel) {
            _ if self.team.n_members() == 1 => simple,
            (None, ChannelKind::Memory) => simple,
            (Some(Algorithm::OneShot), ChannelKind::Memory) if len <= MAIL_LEN => Way::Small,
            (Some(Algorithm::TwoShot), ChannelKind::Memory) => Way::Direct,
            (Some(algorithm), kind) => Way::Piped(algorithm, kind),
            (None, kind) => Way::Piped(suited(call.operation, len), kind),
        })
    }

    /// Executes `call` once all members have told where their buffers are.
    #[inline(never)]
    fn run_large(&mut self, call: &mut Call<'_>, summary: Summary, len: u64, way: Way) -> Result<()> {
        let Self { team, pipework, .. } = self;
        if let Way::Piped(_, kind) | Way::Custom(kind) = way {
            pipework.require(team, kind)?;
        }
        let met = meet(team, call, summary, &[pipework.balance()]);
        team.board.or_revoke(met)?;
        let way = self.settle(call, len, way)?;
        let done = self.run_met(call, summary, len, way);
        self.team.board.or_revoke(done)
    }

    /// How `call` is done, now that all members have told where their buffers are, and how many messages they have sent.
    fn settle(&mut self, call: &Call<'_>, len: u64, way: Way) -> Result<Way> {
        let way = match way {
            Way::AsTabled => self.tabled(call, len, direct::applies(&self.team, call.operation))?,
            way => way,
        };
        if let Way::Piped(..) | Way::Custom(_) = way {
            check_balance(&self.team, |member| self.team.board.post_of(member).data(0))?;
        }
        Ok(way)
    }

    /// Executes `call` after [`meet`].
    fn run_met(&mut self, call: &mut Call<'_>, summary: Summary, len: u64, way: Way) -> Result<()> {
        let Self { team, pipework, customs, .. } = self;
        let in_heap = direct::applies(team, call.operation);
        let piped = match way {
            Way::Piped(algorithm, kind) => Some((Doer::BuiltIn(algorithm), kind)),
            Way::Custom(kind) => {
                customs.get(call.operation).map(|algorithm| (Doer::Custom(algorithm.as_ref()), kind))
            }
            _ => None,
        };
        if let Some((doer, kind)) = piped {
            let mut execute = |team: &mut Team, piece: &Call<'_>| pipework.run(team, piece, doer, kind);
            return if in_heap { execute(team, call) } else { staged::run(team, call, execute) };
        }
        match way {
            Way::Small => small::run(team, call, summary, len),
            _ if in_heap => direct::run(team, call),
            _ => Pipeline::new(call, team.n_members()).run(team, call),
        }
    }

    /// How `call` is done by the table, which is no longer a question of the caller's word.
    fn tabled(&mut self, call: &Call<'_>, len: u64, in_heap: bool) -> Result<Way> {
        let buffers = if in_heap { BufferKind::Heap } else { BufferKind::Ordinary };
        match self.choices.algorithm(call.operation, buffers, len) {
            Algorithm::TwoShot => Ok(Way::Direct),
            Algorithm::OneShot if len <= MAIL_LEN => Ok(Way::Small),
            algorithm => {
                // Direct pipes need no agreement.
                self.pipework.require(&self.team, ChannelKind::Memory)?;
                Ok(Way::Piped(algorithm, ChannelKind::Memory))
            }
        }
    }

    /// Executes a send or a receive over channels of `kind`.
    fn deliver(&mut self, call: &mut Call<'_>, kind: ChannelKind) -> Result<()> {
        if call.root == self.team.me() {
            return Err(Error::InvalidArgument {
                name: "the peer of a message",
                value: call.root as u64,
                expected: "another rank; to oneself, a send and a receive in one group",
            });
        }
        let mut parcels = [Parcel::of(call)?];
        let done = delivery::run(&mut [self.batch(kind, &mut parcels)?]);
        self.team.board.or_revoke(done)
    }

    /// What delivers `parcels` over channels of `kind`.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] when nobody has chosen proxied channels before.
    pub(crate) fn batch<'e, 'p, 'a>(
        &'e mut self,
        kind: ChannelKind,
        parcels: &'p mut [Parcel<'a>],
    ) -> Result<Batch<'e, 'p, 'a>> {
        let Self { team, pipework, .. } = self;
        pipework.require(team, kind)?;
        Ok(Batch { team, pipework, kind, parcels })
    }

    /// Executes `calls`, operations of all members, one after the other, or together where they are small.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn run_all(&mut self, calls: &mut [Call<'_>], manner: Manner) -> Result<()> {
        let mut rest = calls;
        while !rest.is_empty() {
            let mut n_small = 0;
            while n_small < rest.len() && self.can_be_fused(&rest[n_small], manner)? {
                n_small += 1;
            }
            let n_fused =
                fused::fitting(&rest[..n_small], self.team.n_members(), self.tuning.crowded)?.max(1);
            let (now, later) = rest.split_at_mut(n_fused);
            match now {
                [call] => self.run(call, manner)?,
                calls => {
                    let done = fused::run(&mut self.team, calls, manner);
                    self.team.board.or_revoke(done)?;
                }
            }
            rest = later;
        }
        Ok(())
    }

    fn can_be_fused(&self, call: &Call<'_>, manner: Manner) -> Result<bool> {
        if call.has_custom_operator() {
            return Ok(false);
        }
        let len = small::input_len(call, self.team.n_members())?;
        Ok(self.way(call, len, manner)? == Way::Small)
    }

    /// What tells this engine's communicator from all others, the same on all its members, and has an order.
    pub(crate) fn identity(&self) -> (Rank, HeapOffset) {
        (self.team.members()[0], self.team.base(0))
    }

    /// Waits until all members are in `call`, which is done by messages, and compares it.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn announce(&mut self, summary: Summary, operation: Operation) -> Result<()> {
        let board = &mut self.team.board;
        let met = board.meet(summary, operation, [0; 2], &[]);
        board.or_revoke(met)
    }

    /// The members.
    pub(crate) fn team(&self) -> &Team {
        &self.team
    }

    /// Returns when all members have called it for `operation`: a barrier, or one that begins or ends with it.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn barrier(&mut self, operation: Operation) -> Result<()> {
        self.announce(Summary::new(operation), operation)
    }

    /// Tells all members `words`, at most [`super::board::INLINE_WORDS`] of them, and returns what each has told: as many.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn exchange(&mut self, operation: Operation, words: &[u64]) -> Result<Vec<Vec<u64>>> {
        self.team.exchange(operation, Summary::new(operation), words)
    }

    /// Has all members agree that data move over channels of `kind` from now on, and opens those that need an agreement. To be
    /// called by all of them before they execute a call in such a manner.
    ///
    /// # Errors
    /// [`crate::Error::Exhausted`], [`crate::Error::Os`] and [`crate::Error::FailedElsewhere`] when some member cannot open the
    /// channels, and [`crate::Error::InvalidArgument`] when messages are left in pipes: all members learn of it, and may try again.
    /// Otherwise those of [`Engine::run`].
    pub(crate) fn choose_channels(&mut self, kind: ChannelKind) -> Result<()> {
        let Self { team, pipework, .. } = self;
        let operation = Operation::SetChannelKind;
        let summary = Summary::new(operation).in_manner(Manner { algorithm: None, channel: kind });
        let opening = pipework.open(team, kind)?;
        let words: ArrayVec<u64, INLINE_WORDS> =
            opening.notice().into_iter().chain([pipework.balance()]).collect();
        let told = team.exchange(operation, summary, &words)?;
        check_balance(team, |member| told[member][words.len() - 1])?;
        pipework.agree(team, opening, &told)
    }
}

/// Refuses a call over pipes in which messages are left, after all members have told their [`Pipework::balance`]: all of them do.
fn check_balance(team: &Team, told: impl Fn(usize) -> u64) -> Result<()> {
    match (0..team.n_members()).map(told).fold(0, u64::wrapping_add) {
        0 => Ok(()),
        value => Err(Error::InvalidArgument {
            name: "the number of messages that were sent and not received",
            value,
            expected: "none when all ranks make a call over the same channels",
        }),
    }
}

/// The algorithm for `operation` over proxied channels, where a member contributes `len` bytes: one that combines in the order of
/// the ranks, so that the results are those of direct channels.
fn suited(operation: Operation, len: u64) -> Algorithm {
    match operation {
        Operation::AllReduce if len > MAIL_LEN => Algorithm::TwoShot,
        Operation::Broadcast => Algorithm::Tree,
        _ => Algorithm::OneShot,
    }
}

/// Tells the other members which call this is and where its buffers are, and waits until they have told the same call.
fn meet(team: &mut Team, call: &Call<'_>, summary: Summary, data: &[u64]) -> Result<()> {
    team.board.meet(summary, call.operation, direct::places(call), data)
}
