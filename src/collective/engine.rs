//! Runs the collective calls of one communicator: picks the way, tells the others, goes.

mod agreements;
mod meeting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use agreements::{NONE_TO_BEGIN_WITH, check_balance};
use meeting::Outset;

use super::again::{Again, Arguments, Kept, Repeat};
use super::algorithm::{Algorithm, ChannelKind, Manner};
use super::call::Call;
use super::custom::Customs;
use super::delivery::{self, Batch};
use super::detour::{Detours, Shorts};
use super::elsewhere::Elsewhere;
use super::group::{self, Share};
use super::lease::{Landlord, Lease};
use super::noting::{self, Together};
use super::operation::{Operation, Summary};
use super::parcel::{Parcel, Replaced};
use super::pipeline::Pipeline;
use super::pipework::{Doer, OpenPorts, Pipework};
use super::region::MAIL_LEN;
use super::staged::Form;
use super::team::Team;
use super::tuning::{BufferKind, Choices, Tuning};
use super::{direct, fused, small, staged};
use crate::channel::RankContext;
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
    detours: Detours,
    shorts: Shorts,
    /// How the call that is being executed is done, for whoever notes it.
    taken: Manner,
    /// The last call that reduced a word.
    again: Kept,
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
    /// What [`Shorts`] has not sent by mail.
    Short,
    Piped(Algorithm, ChannelKind),
    Custom(ChannelKind),
}

impl Way {
    /// The same in words that all ranks know.
    fn manner(self) -> Manner {
        let (algorithm, channel) = match self {
            Self::Small => (Some(Algorithm::OneShot), ChannelKind::Memory),
            Self::Direct | Self::Short => (Some(Algorithm::TwoShot), ChannelKind::Memory),
            Self::Piped(algorithm, kind) => (Some(algorithm), kind),
            Self::AsTabled => (None, ChannelKind::Memory),
            Self::Custom(kind) => (None, kind),
        };
        Manner { algorithm, channel }
    }
}

impl Engine {
    /// The engine of `members`, ranks of the job, whose zeroed regions start at `bases`. This rank's was taken from `host` and
    /// goes back there; operations over proxied channels get these from it, too. Algorithms are chosen by `tuning`, which is the
    /// same on all members.
    ///
    /// # Errors
    /// Those of [`Team::new`].
    pub(crate) fn new<H: OpenPorts + Landlord + 'static>(
        context: &Arc<RankContext>,
        members: Arc<[Rank]>,
        bases: Vec<HeapOffset>,
        host: Arc<H>,
        tuning: Tuning,
    ) -> Result<Self> {
        let choices = Choices::new(&tuning, members.len());
        let (team, lease) = Team::new(context, members, bases, host.clone())?;
        Ok(Self {
            team,
            pipework: Pipework::new(host),
            choices,
            tuning,
            customs: Customs::default(),
            detours: Detours::default(),
            shorts: Shorts::default(),
            taken: Manner::default(),
            again: Kept::default(),
            lease,
        })
    }

    /// Looks in every wait whether members are where all ranks of the job meet. For a communicator that meets there, too.
    pub(crate) fn watch_meeting(&mut self) {
        let board = &mut self.team.board;
        let elsewhere = Elsewhere::new(board.context());
        board.look_elsewhere(elsewhere);
    }

    /// The members that are in an operation which this one has not come to.
    pub(crate) fn gone_on(&self) -> impl Iterator<Item = (Rank, Summary)> {
        self.team.board.gone_on()
    }

    /// The error of a wait in the call `mine`, or, where the epoch was ended because members disagree, what it is that they disagree
    /// on.
    pub(crate) fn explain(&self, mine: Summary, error: Error) -> Error {
        self.team.board.explain(mine, error)
    }

    /// What members are known to disagree on when the epoch has ended, for this one in the call `mine`.
    pub(crate) fn told(&self, mine: Summary) -> Option<Error> {
        self.team.board.told(mine)
    }

    /// What members have disagreed on first, in calls for which they did not wait for each other.
    pub(crate) fn disagreement(&self) -> Option<Error> {
        self.team.board.disagreement()
    }

    /// Ends the epoch, since this member, in the call `mine`, has found `rank` in the call `theirs`, or since members have disagreed
    /// before. All members are told.
    pub(crate) fn convict(&self, rank: Rank, mine: Summary, theirs: Summary) {
        self.team.board.convict(rank, mine, theirs);
    }

    /// The words that say which members have left.
    pub(crate) fn departures(&self) -> &CellSlice<ProgressCell> {
        self.lease.departures()
    }

    /// What algorithms are chosen by.
    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// What an operation to which no member contributes more than `len` bytes is done by, where the caller has not said.
    pub(crate) fn choice(&self, operation: Operation, buffers: BufferKind, len: u64) -> Algorithm {
        if self.choices.is_small(operation, len) {
            return Algorithm::OneShot;
        }
        self.choices.algorithm(operation, buffers, len)
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

    /// One of the last calls that can be repeated, if it had these `arguments`.
    #[inline]
    pub(crate) fn repeat(&mut self, arguments: &Arguments) -> Option<Repeat<'_>> {
        self.again.repeat(&mut self.team, arguments)
    }

    /// Executes `call` in `manner`.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when the algorithm cannot do the operation; [`crate::Error::CallMismatch`] when the
    /// members are in different calls; [`crate::Error::OutOfRange`] for buffers that are not allocated;
    /// [`crate::Error::Timeout`], [`crate::Error::PeerLost`], [`crate::Error::ProxyLost`], [`crate::Error::Revoked`];
    /// [`crate::Error::Panicked`] when an operator of the program's own did. All but those of the arguments end the epoch.
    #[inline]
    pub(crate) fn run(&mut self, call: &mut Call<'_>, manner: Manner) -> Result<()> {
        let is_noted = self.begin_note(call, manner);
        let done = self.run_guarded(call, manner);
        if is_noted {
            noting::end(&mut self.team, call, self.taken, done.is_err());
        }
        done
    }

    /// Begins to note `call`, if it is to be: what is done by messages between all is noted as these are delivered.
    #[inline]
    fn begin_note(&mut self, call: &Call<'_>, manner: Manner) -> bool {
        if !noting::begin(&mut self.team, call.operation) {
            return false;
        }
        let simple = Manner { algorithm: None, channel: manner.channel };
        self.taken = if call.operation.has_peer() { simple } else { Way::Small.manner() };
        true
    }

    fn run_guarded(&mut self, call: &mut Call<'_>, manner: Manner) -> Result<()> {
        if call.has_plain_operator() || call.is_scaled() {
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
            noting::clock_in(&mut self.team);
            return self.deliver(call, manner.channel);
        }
        if call.operation.is_by_messages() {
            return group::run(&mut [Share { engine: self, manner, calls: vec![call.take()] }]);
        }
        let summary = call.summary().in_manner(manner);
        let len = small::input_len(call, self.team.n_members())?;
        match self.way(call, len, manner)? {
            Way::Small if manner == Manner::default() && self.choices.is_open(call.operation, len) => {
                self.run_short(call, summary, len)
            }
            Way::Small => {
                let done = small::run(&mut self.team, call, summary, len);
                if len <= small::WORD_LEN && call.operation == Operation::AllReduce && done.is_ok() {
                    self.keep(call, summary, len);
                }
                self.team.board.or_revoke(done)
            }
            way => self.run_large(call, summary, len, way),
        }
    }

    /// Executes `call`, of which only measurement can tell whether it is to travel with its announcement.
    #[inline(never)]
    fn run_short(&mut self, call: &mut Call<'_>, summary: Summary, len: u64) -> Result<()> {
        let begun = self.shorts.begin();
        let done = if self.shorts.is_mailed() {
            let told = self.shorts.told(self.team.is_watched());
            let done = small::run_telling(&mut self.team, call, summary, len, told);
            // As by the other way: whether who comes late is told of the end is not to hang on the way.
            let board = &self.team.board;
            let done = done.and_then(|()| board.check_epoch(call.operation));
            board.or_revoke(done).map(|()| self.hear_of_shorts(told, 0))
        } else {
            self.run_large(call, summary, len, Way::Short)
        };
        self.shorts.end(begun, len);
        done
    }

    /// Takes in what the two members have told of short calls, this one `mine`, in that word of the posts that are up.
    fn hear_of_shorts(&mut self, mine: u64, word: usize) {
        let theirs = self.team.board.post_of(1 - self.team.me()).data(word);
        self.shorts.note([mine, theirs]);
    }

    /// Keeps `call`, which has been executed, for when it is made again.
    #[inline(never)]
    fn keep(&mut self, call: &Call<'_>, summary: Summary, len: u64) {
        // Every call is looked at where one is: none is repeated without.
        if let Some(again) = Again::of(call, summary, len).filter(|_| !self.team.is_watched()) {
            self.again.keep(again);
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
        noting::clock_in(team);
        if let Way::Piped(_, kind) | Way::Custom(kind) = way {
            pipework.require(team, kind)?;
        }
        let outset = Outset { way, len, route: self.detours.foresee(call, summary, len) };
        let presumed = self.meet(call, summary, outset)?;
        let in_heap = direct::applies(&self.team, call.operation);
        let settled = self.settle(call, len, way, in_heap);
        if settled.is_err() {
            self.team.board.tell_refused();
        }
        let settled = settled?;
        self.taken = settled.manner();
        if self.taken != presumed {
            self.team.board.tell_again(summary.in_manner(self.taken));
        }
        let done = self.run_met(call, summary, outset, settled, in_heap);
        if done.is_ok() {
            self.team.board.tell_done();
        }
        self.team.board.or_revoke(done)
    }

    /// How `call` is done, now that all members have told where their buffers are, and how many messages they have sent.
    fn settle(&mut self, call: &Call<'_>, len: u64, way: Way, in_heap: bool) -> Result<Way> {
        let way = match way {
            Way::AsTabled => self.tabled(call, len, in_heap)?,
            way => way,
        };
        if let Way::Piped(..) | Way::Custom(_) = way {
            let balance = |member| self.team.board.post_of(member).data(0);
            check_balance((0..self.team.n_members()).map(balance), NONE_TO_BEGIN_WITH)?;
        }
        Ok(way)
    }

    /// Executes `call` after [`meet`](Self::meet).
    fn run_met(
        &mut self,
        call: &mut Call<'_>,
        summary: Summary,
        outset: Outset,
        way: Way,
        in_heap: bool,
    ) -> Result<()> {
        let len = outset.len;
        let Self { team, pipework, customs, choices, tuning, detours, .. } = self;
        let piped = match way {
            Way::Piped(algorithm, kind) => Some((Doer::BuiltIn(algorithm), kind)),
            Way::Custom(kind) => {
                customs.get(call.operation).map(|algorithm| (Doer::Custom(algorithm.as_ref()), kind))
            }
            _ => None,
        };
        if let Some((doer, kind)) = piped {
            let mut execute = |team: &mut Team, piece: &mut Call<'_>| pipework.run(team, piece, doer, kind);
            let form = doer.form(call);
            return if in_heap && form == Form::Own {
                execute(team, call)
            } else {
                staged::run(team, call, form, execute)
            };
        }
        let stage = |team: &mut Team, call: &mut Call<'_>, cache_hint| {
            let ahead = outset.who_is_ahead(team, call, choices);
            Pipeline::new(call, team, tuning.crowded, cache_hint).run(team, call, ahead)
        };
        match way {
            Way::Small => {
                team.board.set_aside(1);
                small::run(team, call, summary, len)
            }
            Way::Short if in_heap && direct::some_are_in_place(team) => direct::run(team, call),
            Way::Short => stage(team, call, None),
            _ if in_heap => match detours.pick(team, outset.route, summary, len) {
                Some(true) => detours.time(|| stage(team, call, None)),
                Some(false) => detours.time(|| direct::run(team, call)),
                None => direct::run(team, call),
            },
            _ => match detours.pick_results(team, call, summary, len) {
                None => stage(team, call, None),
                picked => detours.time(|| stage(team, call, picked)),
            },
        }
    }

    /// How `call` is done by the table, which is no longer a question of the caller's word.
    fn tabled(&mut self, call: &Call<'_>, len: u64, in_heap: bool) -> Result<Way> {
        match by_table(&self.choices, call, len, in_heap) {
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
        call.check_peer(self.team.me())?;
        let mut parcels = [Parcel::of(call)?];
        let done = delivery::run(&mut [self.batch(kind, &mut parcels, &[])?]);
        self.team.board.or_revoke(done)
    }

    /// What delivers `parcels`, which share the blocks `replaced`, over channels of `kind`.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] when nobody has chosen proxied channels before.
    pub(crate) fn batch<'e, 'p, 'a>(
        &'e mut self,
        kind: ChannelKind,
        parcels: &'p mut [Parcel<'a>],
        replaced: &'p [Replaced<'a>],
    ) -> Result<Batch<'e, 'p, 'a>> {
        let Self { team, pipework, .. } = self;
        pipework.require(team, kind)?;
        Ok(Batch { team, pipework, kind, parcels, replaced })
    }

    /// Executes `calls`, operations of all members, one after the other, or together where they are small.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn run_all(&mut self, calls: &mut [Call<'_>], manner: Manner) -> Result<()> {
        let mut rest = calls;
        while !rest.is_empty() {
            let mut n_small = 0;
            while n_small < rest.len().min(fused::MOST) && self.can_be_fused(&rest[n_small], manner)? {
                n_small += 1;
            }
            let n_fused =
                fused::fitting(&rest[..n_small], self.team.n_members(), self.tuning.crowded)?.max(1);
            let (now, later) = rest.split_at_mut(n_fused);
            match now {
                [call] => self.run(call, manner)?,
                calls => {
                    let begun = Together::begin(&self.team, calls);
                    let done = fused::run(&mut self.team, calls, manner);
                    begun.end(&self.team, Way::Small.manner(), done.is_err());
                    self.team.board.or_revoke(done)?;
                }
            }
            rest = later;
        }
        Ok(())
    }

    fn can_be_fused(&self, call: &Call<'_>, manner: Manner) -> Result<bool> {
        // What is fused has no checksum.
        if !call.has_plain_operator() || self.team.checksums {
            return Ok(false);
        }
        let len = small::input_len(call, self.team.n_members())?;
        Ok(self.way(call, len, manner)? == Way::Small)
    }

    /// What tells this engine's communicator from all others, the same on all its members, and has an order.
    pub(crate) fn identity(&self) -> (Rank, HeapOffset) {
        (self.team.members()[0], self.team.base(0))
    }

    /// The members.
    pub(crate) fn team(&self) -> &Team {
        &self.team
    }
}

/// The algorithm that a table has for `call`, to which no member contributes more than `len` bytes, in the heap or not.
fn by_table(choices: &Choices, call: &Call<'_>, len: u64, in_heap: bool) -> Algorithm {
    let buffers = if in_heap { BufferKind::Heap } else { BufferKind::Ordinary };
    call.by_table(choices.algorithm(call.operation, buffers, len))
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
