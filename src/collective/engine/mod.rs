//! Runs the collective calls of one communicator: picks the way, tells the others, goes.

pub(crate) mod agreements;
pub(crate) mod group;
pub(crate) mod meet;
pub(crate) mod trace;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::channel::Fabric;
use crate::collective::call::{Algorithm, Call, CallSignature, ChannelKind, Choice, Operation};
use crate::collective::execute::cached::{Again, Arguments, Kept, Repeat};
use crate::collective::execute::chunked::{self, ElementForm};
use crate::collective::execute::custom::Customs;
use crate::collective::execute::over_pipes::Doer;
use crate::collective::execute::staged::StagedCall;
use crate::collective::execute::{eager, fused, zero_copy};
use crate::collective::message::progress::{self, MessageBatch};
use crate::collective::message::{InPlaceBlock, MessageEnd};
use crate::collective::plan::measured::{MeasuredRoutes, Shorts};
use crate::collective::plan::tuning::{BufferKind, CommTable, Tuning};
use crate::collective::region::EAGER_LEN;
use crate::collective::region::lease::{Lease, RegionOwner};
use crate::collective::rendezvous::at_barrier::AtBarrier;
use crate::collective::rendezvous::buffers;
use crate::collective::rendezvous::members::Members;
use crate::collective::transport::{OpenPorts, Pipework};
use crate::error::{Error, Result};
use crate::heap::HeapOffset;
use crate::rank::Rank;
use crate::shm::CellSlice;
use crate::sync::ProgressCell;
use agreements::{NONE_TO_BEGIN_WITH, check_balance};
use group::GroupShare;
use meet::Outset;
use trace::{CallSpan, Together};

/// What runs the collective calls of one member, one after the other.
#[derive(Debug)]
pub(crate) struct Engine {
    members: Members,
    pipework: Pipework,
    table: CommTable,
    /// What the choices were made by.
    tuning: Tuning,
    customs: Customs,
    routes: MeasuredRoutes,
    shorts: Shorts,
    /// How the call that is being executed is done, for whoever notes it.
    taken: Choice,
    /// The last call that reduced a word.
    again: Kept,
    /// The last field, since it lets go of what the others use.
    lease: Lease,
}

/// A way to do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Eager,
    /// As the table says, once it is known where all buffers are.
    AsTabled,
    ZeroCopy,
    /// What [`Shorts`] has not sent by mail.
    Short,
    OverPipes(Algorithm, ChannelKind),
    Custom(ChannelKind),
}

impl Way {
    /// The same in words that all ranks know.
    fn choice(self) -> Choice {
        let (algorithm, channel) = match self {
            Self::Eager => (Some(Algorithm::OneShot), ChannelKind::Memory),
            Self::ZeroCopy | Self::Short => (Some(Algorithm::TwoShot), ChannelKind::Memory),
            Self::OverPipes(algorithm, kind) => (Some(algorithm), kind),
            Self::AsTabled => (None, ChannelKind::Memory),
            Self::Custom(kind) => (None, kind),
        };
        Choice { algorithm, channel }
    }
}

impl Engine {
    /// The engine of `ranks` of the job, whose zeroed regions start at `bases`. This rank's was taken from `host` and
    /// goes back there; operations over proxied channels get these from it, too. Algorithms are chosen by `tuning`, which is the
    /// same on all members.
    ///
    /// # Errors
    /// Those of [`Members::new`].
    pub(crate) fn new<H: OpenPorts + RegionOwner + 'static>(
        fabric: &Arc<Fabric>,
        ranks: Arc<[Rank]>,
        bases: Vec<HeapOffset>,
        host: Arc<H>,
        tuning: Tuning,
    ) -> Result<Self> {
        let table = CommTable::new(&tuning, ranks.len());
        let (members, lease) = Members::new(fabric, ranks, bases, host.clone())?;
        Ok(Self {
            members,
            pipework: Pipework::new(host),
            table,
            tuning,
            customs: Customs::default(),
            routes: MeasuredRoutes::default(),
            shorts: Shorts::default(),
            taken: Choice::default(),
            again: Kept::default(),
            lease,
        })
    }

    /// Looks in every wait whether members are where all ranks of the job meet. For a communicator that meets there, too.
    pub(crate) fn watch_barrier(&mut self) {
        let board = &mut self.members.board;
        let at_barrier = AtBarrier::new(board.fabric());
        board.watch_barrier(at_barrier);
    }

    /// The members that are in an operation which this one has not come to.
    pub(crate) fn gone_on(&self) -> impl Iterator<Item = (Rank, CallSignature)> {
        self.members.board.gone_on()
    }

    /// The error of a wait in the call `mine`, or, where the epoch was ended because members disagree, what it is that they disagree
    /// on.
    pub(crate) fn explain(&self, mine: CallSignature, error: Error) -> Error {
        self.members.board.explain(mine, error)
    }

    /// What members are known to disagree on when the epoch has ended, for this one in the call `mine`.
    pub(crate) fn known_mismatch(&self, mine: CallSignature) -> Option<Error> {
        self.members.board.known_mismatch(mine)
    }

    /// What members have disagreed on first, in calls for which they did not wait for each other.
    pub(crate) fn first_mismatch(&self) -> Option<Error> {
        self.members.board.first_mismatch()
    }

    /// Ends the epoch, since this member, in the call `mine`, has found `rank` in the call `theirs`, or since members have disagreed
    /// before. All members are told.
    pub(crate) fn end_by_mismatch(&self, rank: Rank, mine: CallSignature, theirs: CallSignature) {
        self.members.board.end_by_mismatch(rank, mine, theirs);
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
    pub(crate) fn algorithm_for(&self, operation: Operation, buffers: BufferKind, len: u64) -> Algorithm {
        if self.table.is_eager(operation, len) {
            return Algorithm::OneShot;
        }
        self.table.algorithm(operation, buffers, len)
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
        self.again.repeat(&mut self.members, arguments)
    }

    /// Executes `call` in `choice`.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when the algorithm cannot do the operation; [`crate::Error::CallMismatch`] when the
    /// members are in different calls; [`crate::Error::OutOfRange`] for buffers that are not allocated;
    /// [`crate::Error::Timeout`], [`crate::Error::PeerLost`], [`crate::Error::ProxyLost`], [`crate::Error::Revoked`];
    /// [`crate::Error::Panicked`] when an operator of the program's own did. All but those of the arguments end the epoch.
    #[inline]
    pub(crate) fn run(&mut self, call: &mut Call<'_>, choice: Choice) -> Result<()> {
        let span = CallSpan::of_call(&self.members, call);
        let simple = Choice { algorithm: None, channel: choice.channel };
        self.taken = if call.operation.has_peer() { simple } else { Way::Eager.choice() };
        let done = self.run_guarded(call, choice);
        span.end(&self.members, self.taken, done)
    }

    fn run_guarded(&mut self, call: &mut Call<'_>, choice: Choice) -> Result<()> {
        if call.has_plain_operator() || call.is_scaled() {
            return self.execute(call, choice);
        }
        // What the operator leaves behind as it panics is what a peer that died would.
        match catch_unwind(AssertUnwindSafe(|| self.execute(call, choice))) {
            Ok(done) => done,
            Err(_) => self.members.board.or_revoke(Err(crate::Error::Panicked)),
        }
    }

    #[inline]
    fn execute(&mut self, call: &mut Call<'_>, choice: Choice) -> Result<()> {
        if call.operation.has_peer() {
            return self.deliver(call, choice.channel);
        }
        if call.operation.is_by_messages() {
            return group::run(&mut [GroupShare { engine: self, choice, calls: vec![call.take()] }]);
        }
        let signature = call.signature().with_choice(choice);
        let len = eager::input_len(call, self.members.n_members())?;
        match self.way(call, len, choice)? {
            Way::Eager if choice == Choice::default() && self.table.is_open(call.operation, len) => {
                self.run_short(call, signature, len)
            }
            Way::Eager => {
                let done = eager::run(&mut self.members, call, signature, len);
                if len <= eager::WORD_LEN && call.operation == Operation::AllReduce && done.is_ok() {
                    self.keep(call, signature, len);
                }
                self.members.board.or_revoke(done)
            }
            way => self.run_large(call, signature, len, way),
        }
    }

    /// Executes `call`, of which only measurement can tell whether it is to travel with its announcement.
    #[inline(never)]
    fn run_short(&mut self, call: &mut Call<'_>, signature: CallSignature, len: u64) -> Result<()> {
        let begun = self.shorts.begin();
        let done = if self.shorts.is_eager() {
            let told = self.shorts.last_duration(self.members.is_watched());
            let done = eager::run_telling(&mut self.members, call, signature, len, told);
            // As by the other way: whether who comes late is told of the end is not to hang on the way.
            let board = &self.members.board;
            let done = done.and_then(|()| board.check_epoch(call.operation));
            board.or_revoke(done).map(|()| self.hear_of_shorts(told, 0))
        } else {
            self.run_large(call, signature, len, Way::Short)
        };
        self.shorts.end(begun, len);
        done
    }

    /// Takes in what the two members have told of short calls, this one `mine`, in that word of the posts that are up.
    fn hear_of_shorts(&mut self, mine: u64, word: usize) {
        let theirs = self.members.board.post_of(1 - self.members.me()).data(word);
        self.shorts.note([mine, theirs]);
    }

    /// Keeps `call`, which has been executed, for when it is made again.
    #[inline(never)]
    fn keep(&mut self, call: &Call<'_>, signature: CallSignature, len: u64) {
        // Every call is looked at where one is: none is repeated without.
        if let Some(again) = Again::of(call, signature, len).filter(|_| !self.members.is_watched()) {
            self.again.keep(again);
        }
    }

    /// How `call`, to which a member contributes at most `len` bytes, is done: the same on all members.
    #[inline]
    fn way(&self, call: &Call<'_>, len: u64, choice: Choice) -> Result<Way> {
        let simple = if self.table.is_eager(call.operation, len) { Way::Eager } else { Way::AsTabled };
        if self.customs.has(call.operation) && choice.algorithm.is_none() && self.members.n_members() > 1 {
            return Ok(Way::Custom(choice.channel));
        }
        if choice == Choice::default() {
            return Ok(simple);
        }
        if let Some(algorithm) = choice.algorithm {
            algorithm.check(call.operation)?;
        }
        Ok(match (choice.algorithm, choice.channel) {
            _ if self.members.n_members() == 1 => simple,
            (None, ChannelKind::Memory) => simple,
            (Some(Algorithm::OneShot), ChannelKind::Memory) if len <= EAGER_LEN => Way::Eager,
            (Some(Algorithm::TwoShot), ChannelKind::Memory) => Way::ZeroCopy,
            (Some(algorithm), kind) => Way::OverPipes(algorithm, kind),
            (None, kind) => Way::OverPipes(suited(call.operation, len), kind),
        })
    }

    /// Executes `call` once all members have told where their buffers are.
    #[inline(never)]
    fn run_large(&mut self, call: &mut Call<'_>, signature: CallSignature, len: u64, way: Way) -> Result<()> {
        let Self { members, pipework, .. } = self;
        if let Way::OverPipes(_, kind) | Way::Custom(kind) = way {
            pipework.require(members, kind)?;
        }
        let outset = Outset { way, len, route: self.routes.foresee(call, signature, len) };
        let presumed = self.meet(call, signature, outset)?;
        let in_heap = buffers::applies(&self.members, call.operation);
        let settled = self.settle(call, len, way, in_heap);
        if settled.is_err() {
            self.members.board.report_refused();
        }
        let settled = settled?;
        self.taken = settled.choice();
        if self.taken != presumed {
            self.members.board.report_choice(signature.with_choice(self.taken));
        }
        let done = self.run_met(call, signature, outset, settled, in_heap);
        if done.is_ok() {
            self.members.board.report_done();
        }
        self.members.board.or_revoke(done)
    }

    /// How `call` is done, now that all members have told where their buffers are, and how many messages they have sent.
    fn settle(&mut self, call: &Call<'_>, len: u64, way: Way, in_heap: bool) -> Result<Way> {
        let way = match way {
            Way::AsTabled => self.tabled(call, len, in_heap)?,
            way => way,
        };
        if let Way::OverPipes(..) | Way::Custom(_) = way {
            let balance = |member| self.members.board.post_of(member).data(0);
            check_balance((0..self.members.n_members()).map(balance), NONE_TO_BEGIN_WITH)?;
        }
        Ok(way)
    }

    /// Executes `call` after [`meet`](Self::meet).
    fn run_met(
        &mut self,
        call: &mut Call<'_>,
        signature: CallSignature,
        outset: Outset,
        way: Way,
        in_heap: bool,
    ) -> Result<()> {
        let len = outset.len;
        let Self { members, pipework, customs, table, tuning, routes, .. } = self;
        let piped = match way {
            Way::OverPipes(algorithm, kind) => Some((Doer::BuiltIn(algorithm), kind)),
            Way::Custom(kind) => {
                customs.get(call.operation).map(|algorithm| (Doer::Custom(algorithm.as_ref()), kind))
            }
            _ => None,
        };
        if let Some((doer, kind)) = piped {
            let mut execute =
                |members: &mut Members, piece: &mut Call<'_>| pipework.run(members, piece, doer, kind);
            let form = doer.form(call);
            return if in_heap && form == ElementForm::Own {
                execute(members, call)
            } else {
                chunked::run(members, call, form, execute)
            };
        }
        let stage = |members: &mut Members, call: &mut Call<'_>, cache_hint| {
            let prestaged = outset.who_has_prestaged(members, call, table);
            StagedCall::new(call, members, tuning.oversubscribed, cache_hint).run(members, call, prestaged)
        };
        match way {
            Way::Eager => {
                members.board.count_inner_steps(1);
                eager::run(members, call, signature, len)
            }
            Way::Short if in_heap && buffers::some_are_in_place(members) => zero_copy::run(members, call),
            Way::Short => stage(members, call, None),
            _ if in_heap => match routes.pick(members, outset.route, signature, len) {
                Some(true) => routes.time(|| stage(members, call, None)),
                Some(false) => routes.time(|| zero_copy::run(members, call)),
                None => zero_copy::run(members, call),
            },
            _ => match routes.pick_results(members, call, signature, len) {
                None => stage(members, call, None),
                picked => routes.time(|| stage(members, call, picked)),
            },
        }
    }

    /// How `call` is done by the table, which is no longer a question of the caller's word.
    fn tabled(&mut self, call: &Call<'_>, len: u64, in_heap: bool) -> Result<Way> {
        match by_table(&self.table, call, len, in_heap) {
            Algorithm::TwoShot => Ok(Way::ZeroCopy),
            Algorithm::OneShot if len <= EAGER_LEN => Ok(Way::Eager),
            algorithm => {
                // Direct pipes need no agreement.
                self.pipework.require(&self.members, ChannelKind::Memory)?;
                Ok(Way::OverPipes(algorithm, ChannelKind::Memory))
            }
        }
    }

    /// Executes a send or a receive over channels of `kind`.
    fn deliver(&mut self, call: &mut Call<'_>, kind: ChannelKind) -> Result<()> {
        call.check_peer(self.members.me())?;
        let mut messages = [MessageEnd::of(call)?];
        let done = progress::run(&mut [self.batch(kind, &mut messages, &[])?]);
        self.members.board.or_revoke(done)
    }

    /// What delivers `messages`, which share the blocks `replaced`, over channels of `kind`.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] when nobody has chosen proxied channels before.
    pub(crate) fn batch<'e, 'p, 'a>(
        &'e mut self,
        kind: ChannelKind,
        messages: &'p mut [MessageEnd<'a>],
        in_place: &'p [InPlaceBlock<'a>],
    ) -> Result<MessageBatch<'e, 'p, 'a>> {
        let Self { members, pipework, .. } = self;
        pipework.require(members, kind)?;
        Ok(MessageBatch { members, pipework, kind, messages, in_place })
    }

    /// Executes `calls`, operations of all members, one after the other, or together where they are small.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub(crate) fn run_all(&mut self, calls: &mut [Call<'_>], choice: Choice) -> Result<()> {
        let mut rest = calls;
        while !rest.is_empty() {
            let mut n_eager = 0;
            while n_eager < rest.len().min(fused::MOST) && self.can_be_fused(&rest[n_eager], choice)? {
                n_eager += 1;
            }
            let n_fused =
                fused::fitting(&rest[..n_eager], self.members.n_members(), self.tuning.oversubscribed)?
                    .max(1);
            let (now, later) = rest.split_at_mut(n_fused);
            match now {
                [call] => self.run(call, choice)?,
                calls => {
                    let begun = Together::begin(&self.members, calls);
                    let done = fused::run(&mut self.members, calls, choice);
                    begun.end(&self.members, Way::Eager.choice(), done.is_err());
                    self.members.board.or_revoke(done)?;
                }
            }
            rest = later;
        }
        Ok(())
    }

    fn can_be_fused(&self, call: &Call<'_>, choice: Choice) -> Result<bool> {
        // Nothing looks into calls that are fused.
        if !call.has_plain_operator() || self.members.is_watched() {
            return Ok(false);
        }
        let len = eager::input_len(call, self.members.n_members())?;
        Ok(self.way(call, len, choice)? == Way::Eager)
    }

    /// What tells this engine's communicator from all others, the same on all its members, and has an order.
    pub(crate) fn identity(&self) -> (Rank, HeapOffset) {
        (self.members.ranks()[0], self.members.base(0))
    }

    /// The members.
    pub(crate) fn members(&self) -> &Members {
        &self.members
    }
}

/// The algorithm that a table has for `call`, to which no member contributes more than `len` bytes, in the heap or not.
fn by_table(table: &CommTable, call: &Call<'_>, len: u64, in_heap: bool) -> Algorithm {
    let buffers = if in_heap { BufferKind::Heap } else { BufferKind::Ordinary };
    call.by_table(table.algorithm(call.operation, buffers, len))
}

/// The algorithm for `operation` over proxied channels, where a member contributes `len` bytes: one that combines in the order of
/// the ranks, so that the results are those of direct channels.
fn suited(operation: Operation, len: u64) -> Algorithm {
    match operation {
        Operation::AllReduce if len > EAGER_LEN => Algorithm::TwoShot,
        Operation::Broadcast => Algorithm::Tree,
        _ => Algorithm::OneShot,
    }
}
