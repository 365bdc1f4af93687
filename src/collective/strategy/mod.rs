//! How a call is done: decided here, and nowhere else.
//!
//! | step | by what | gives |
//! |---|---|---|
//! | [`Selector::propose`] | the caller's choice, the table, earlier calls | a [`Proposal`] |
//! | [`CallAttempt::settled`] | where all buffers lie, times of earlier calls | a [`Strategy`] |
//!
//! The first comes before anything is posted, the second once all members have posted. An
//! [`attempt`] leads from one to the other, and measures. An eager call is done as it is proposed,
//! since its post carries the data. What executes a strategy (`execute`)
//! decides nothing.
//!
//! # Invariants
//! - All members come to the same strategy. It follows from the calls of the communicator, from the
//!   table that all have agreed on, and from what members have posted. Only whether a member stages
//!   before it posts depends on its own buffers, which it posts.
//! - All ways to do a call without an algorithm that the caller, or a table from a file, has asked
//!   for combine elements in the same order.
//!
//! Tried by its unit tests, `scenarios tuning:: oversubscription:: repeated_words::` and `plan_runs
//! registered::`.

mod attempt;
pub(crate) mod library;
mod measured;
mod recent;
pub(crate) mod registered;
mod runnable;
mod trials;
pub mod tuning;

use std::sync::Arc;

use crate::collective::call::{Algorithm, Call, CallSignature, ChannelKind, Choice, Operation, Request};
use crate::collective::execute::custom::{CustomAlgorithm, Customs};
use crate::collective::execute::planned::CompiledPlan;
use crate::collective::region::EAGER_LEN;
use crate::collective::rendezvous::buffers::Buffers;
use crate::collective::rendezvous::post::Post;
use crate::collective::transport::{NONE_TO_BEGIN_WITH, check_balance};
use crate::error::Result;
use crate::reduce::Reducer;
use crate::shm::CacheHint;
use crate::shm::copy::fills_cache;
pub(crate) use attempt::CallAttempt;
use measured::MeasuredRoutes;
use recent::RecentWords;
pub(crate) use recent::{KnownWord, WORD_LEN, WordArguments};
use registered::{PlanEntry, RegisteredPlans};
use trials::Route;
use tuning::{BufferKind, CommTable, Tuning};

/// Decides how the calls of one communicator are done.
#[derive(Debug)]
pub(crate) struct Selector {
    n_members: usize,
    /// The part of the tuning that matters to this communicator.
    table: CommTable,
    tuning: Tuning,
    customs: Customs,
    registered: RegisteredPlans,
    routes: MeasuredRoutes,
    recent: RecentWords,
}

/// How a call is to be done, as far as that is known before anything is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) way: Way,
    /// The most that a member contributes, in bytes.
    pub(crate) len: u64,
    /// What the members agree on.
    pub(crate) signature: CallSignature,
    /// The route, where it may turn out that routes are measured.
    foreseen: Option<Route>,
    /// Whether this member stages its first pieces before it posts. Only this may differ between
    /// members.
    pub(crate) prestages: bool,
}

/// A way to do a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Data travel with the post.
    Eager,
    /// As the table says, once it is known where all buffers lie.
    ByTable(PlansByTable),
    TwoShot,
    OverPipes(Algorithm, ChannelKind),
    Custom(ChannelKind),
    /// By the execution plan with this number.
    ByPlan(usize),
}

/// The execution plans that the table has do a call, by where the buffers of all lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlansByTable {
    heap: Option<usize>,
    ordinary: Option<usize>,
}

/// How all members do a call, now that all of them have posted where their buffers lie.
#[derive(Clone, Copy)]
pub(crate) struct Strategy<'p> {
    pub(crate) execution: Execution<'p>,
    /// The same in words that all ranks know.
    pub(crate) choice: Choice,
    /// Whether members post how long it took.
    is_measured: bool,
}

/// The ways to execute a call.
#[derive(Clone, Copy)]
pub(crate) enum Execution<'p> {
    /// Each member posts its whole input.
    Eager,
    /// Members read and write each other's buffers where these lie.
    ZeroCopy,
    /// Members stage what others need.
    Staged { prestaged: Prestaged, hint: CacheHint, oversubscribed: bool },
    /// An algorithm sends fragments from member to member: over the buffers themselves, or, in this
    /// form, over chunks of these in the heap.
    OverPipes { algorithm: PipeAlgorithm<'p>, kind: ChannelKind, chunked: Option<ElementForm> },
    /// Thread blocks of the execution plan with this number, as it was compiled for the size.
    ByPlan { index: usize, compiled: &'p CompiledPlan },
}

/// Which members have staged their first pieces before they posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prestaged {
    /// Not this one.
    NotMe,
    /// This one, but not all.
    MeToo,
    All,
}

/// An algorithm that does a call over pipes.
#[derive(Clone, Copy)]
pub(crate) enum PipeAlgorithm<'p> {
    BuiltIn(Algorithm),
    Custom(&'p dyn CustomAlgorithm),
}

/// How elements lie in the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementForm {
    /// As they are.
    Own,
    /// As `f32`, where that is what their type is accumulated in.
    Widened,
}

impl PipeAlgorithm<'_> {
    /// Returns as what the elements of `call` have to be passed on.
    fn form(self, call: &Call<'_>) -> ElementForm {
        let is_short = || call.reducer.as_ref().is_some_and(|reducer| reducer.data_type().is_short_float());
        match self {
            // Inputs are multiplied in the staging area: short ones as `f32`, or they would be
            // rounded there.
            _ if call.is_scaled() => ElementForm::Widened,
            // Each source is added once, all at once.
            Self::BuiltIn(algorithm) if algorithm.keeps_rank_order() => ElementForm::Own,
            _ if is_short() => ElementForm::Widened,
            _ => ElementForm::Own,
        }
    }
}

impl Way {
    /// Returns the kind of the pipes that have to be open before the call is posted.
    pub(crate) const fn pipes(self) -> Option<ChannelKind> {
        match self {
            Self::OverPipes(_, kind) | Self::Custom(kind) => Some(kind),
            _ => None,
        }
    }

    /// Returns the way in words that all ranks know.
    fn choice(self) -> Choice {
        match self {
            Self::Eager => Choice::direct(Algorithm::OneShot),
            Self::TwoShot => Choice::direct(Algorithm::TwoShot),
            Self::OverPipes(algorithm, channel) => Choice { algorithm: Some(algorithm), channel },
            Self::ByTable(_) | Self::ByPlan(_) => Choice::default(),
            Self::Custom(channel) => Choice { algorithm: None, channel },
        }
    }
}

impl Proposal {
    /// Proposes a way in which nothing is measured or left to a table.
    #[inline]
    const fn new(way: Way, len: u64, signature: CallSignature) -> Self {
        Self { way, len, signature, foreseen: None, prestages: false }
    }
}

impl Selector {
    /// Makes the selector of `n_members`, which have agreed on `tuning`.
    pub(crate) fn new(tuning: Tuning, n_members: usize) -> Self {
        Self {
            n_members,
            table: CommTable::new(&tuning, n_members, |_| false),
            tuning,
            customs: Customs::default(),
            registered: RegisteredPlans::default(),
            routes: MeasuredRoutes::default(),
            recent: RecentWords::default(),
        }
    }

    /// Returns what all members have agreed on.
    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Makes the selector of a derived communicator, with the same tuning and the same algorithms
    /// of the user's own.
    pub(crate) fn derived(&self, n_members: usize) -> Self {
        Self { customs: self.customs.clone(), ..Self::new(self.tuning.clone(), n_members) }
    }

    /// Goes by `tuning` from now on.
    pub(crate) fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.reconsider();
    }

    /// Looks anew what the table means, with the plans that there are now.
    fn reconsider(&mut self) {
        self.recent = RecentWords::default();
        let is_registered = |name: &str| self.registered.position(name).is_some();
        self.table = CommTable::new(&self.tuning, self.n_members, is_registered);
    }

    /// Has `operation` done by `algorithm`, where the caller has not chosen one.
    pub(crate) fn register(&mut self, operation: Operation, algorithm: Option<Arc<dyn CustomAlgorithm>>) {
        self.recent = RecentWords::default();
        self.customs.set(operation, algorithm);
    }

    /// Has the calls that an execution plan fits done by it, where the caller has not chosen an
    /// algorithm.
    pub(crate) fn register_plan(&mut self, plan: PlanEntry) {
        self.registered.push(plan);
        self.reconsider();
    }

    /// Returns the place of the first plan called `name`, if there is one.
    pub(crate) fn registered(&self, name: &str) -> Option<usize> {
        self.registered.position(name)
    }

    /// Returns the names of all plans, and by which numbers calls name them, in their order.
    pub(crate) fn names(&self) -> Vec<(String, u32)> {
        self.registered.names().map(|(name, number)| (name.to_owned(), number)).collect()
    }

    /// Returns the number by which calls name the first plan called `name`, if there is one.
    pub(crate) fn named(&self, name: &str) -> Option<u32> {
        self.registered.names().find(|&(of, _)| of == name).map(|(_, number)| number)
    }

    /// Removes the plan with this number; those behind it move up.
    pub(crate) fn unregister_plan(&mut self, index: usize) {
        self.registered.remove(index);
        self.reconsider();
    }

    /// Returns the algorithm of an operation to which no member contributes more than `len` bytes,
    /// where the caller has not chosen one.
    pub(crate) fn algorithm_for(&self, operation: Operation, buffers: BufferKind, len: u64) -> Algorithm {
        if self.table.is_eager(operation, len) {
            return Algorithm::OneShot;
        }
        self.table.algorithm(operation, buffers, len)
    }

    /// Finds the word that `request` reduces once more, done as `choice` says.
    #[inline]
    pub(crate) fn known(&self, request: &Request<'_, '_>, choice: Choice) -> Option<&KnownWord> {
        self.recent.find(request, choice)
    }

    /// Keeps the reduction of a word that was executed, if it can be repeated.
    #[inline]
    pub(crate) fn keep_word(&mut self, call: &Call<'_>, signature: CallSignature, len: u64) {
        self.recent.keep(call, signature, len);
    }

    /// Proposes how `call` is done, for which the caller has made this `choice`.
    ///
    /// # Errors
    /// [`crate::Error::UnsupportedAlgorithm`] when the algorithm cannot do the operation;
    /// [`crate::Error::OutOfRange`] when the length cannot be counted.
    #[inline]
    pub(crate) fn propose(&mut self, call: &Call<'_>, choice: Choice) -> Result<Proposal> {
        let signature = call.signature().with_choice(choice);
        let len = call.input_len(self.n_members)?;
        if let Some(index) = self.plan_for(call, choice)? {
            return Ok(Proposal::new(Way::ByPlan(index), len, signature));
        }
        let way = self.way(call.operation, len, choice)?;
        if way == Way::Eager {
            // Its address goes nowhere, so it stays in registers.
            return Ok(Proposal::new(way, len, signature));
        }
        let way = if let Way::ByTable(_) = way { Way::ByTable(self.plans_by_table(call, len)) } else { way };
        Ok(self.complete(Proposal::new(way, len, signature), call))
    }

    /// Proposes how an exchange of even blocks, `call`, is done as `all_to_all`: by one shot or
    /// two. `None` where that would go over pipes or by what else the program has provided.
    pub(crate) fn propose_even(&mut self, call: &Call<'_>) -> Option<Proposal> {
        let proposal = self.propose(call, Choice::default()).ok()?;
        let goes_directly = |buffers| match self.by_table(call, proposal.len, buffers) {
            Algorithm::OneShot => proposal.len <= EAGER_LEN,
            algorithm => algorithm == Algorithm::TwoShot,
        };
        let is_direct = match proposal.way {
            Way::Eager => true,
            Way::ByTable(plans) => {
                plans == PlansByTable::default() && BufferKind::ALL.into_iter().all(goes_directly)
            }
            _ => false,
        };
        is_direct.then_some(proposal)
    }

    /// Says whether `call` travels with its post, and may do so with others.
    ///
    /// # Errors
    /// Those of [`Selector::propose`].
    pub(crate) fn is_eager(&self, call: &Call<'_>, choice: Choice) -> Result<bool> {
        let len = call.input_len(self.n_members)?;
        let may_be_planned =
            self.asks_registered(call.operation, choice) && self.registered.may_fit(call, self.n_members);
        Ok(self.way(call.operation, len, choice)? == Way::Eager && !may_be_planned)
    }

    /// Says whether the first execution plan that fits does a call: neither the caller nor an
    /// algorithm of the user's own nor the table says otherwise.
    fn asks_registered(&self, operation: Operation, choice: Choice) -> bool {
        !self.registered.is_empty()
            && choice == Choice::default()
            && !self.customs.has(operation)
            && !self.table.names_plans(operation)
    }

    /// Returns the execution plan that does `call`: the one that it names, or else one that fits if
    /// nothing else is to do it.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for a length that the named one does not do.
    #[inline]
    fn plan_for(&mut self, call: &Call<'_>, choice: Choice) -> Result<Option<usize>> {
        if call.operation == Operation::RunPlan {
            return self.registered.named(call, self.n_members).map(Some);
        }
        let asks = self.asks_registered(call.operation, choice);
        Ok(if asks { self.registered.find(call, self.n_members, |_| true) } else { None })
    }

    /// Returns the execution plans that the table has do `call`, to which no member contributes
    /// more than `len` bytes, by the kind of the buffers.
    fn plans_by_table(&mut self, call: &Call<'_>, len: u64) -> PlansByTable {
        let mut plan_for = |buffers| {
            let name = self.table.plan(call.operation, buffers, len)?;
            self.registered.find(call, self.n_members, |other| other == name)
        };
        PlansByTable { heap: plan_for(BufferKind::Heap), ordinary: plan_for(BufferKind::Ordinary) }
    }

    /// Returns how an operation is done to which a member contributes at most `len` bytes.
    #[inline]
    fn way(&self, operation: Operation, len: u64, choice: Choice) -> Result<Way> {
        let simple = if self.table.is_eager(operation, len) {
            Way::Eager
        } else {
            Way::ByTable(PlansByTable::default())
        };
        if self.customs.has(operation) && choice.algorithm.is_none() && self.n_members > 1 {
            return Ok(Way::Custom(choice.channel));
        }
        if choice == Choice::default() {
            return Ok(simple);
        }
        if let Some(algorithm) = choice.algorithm {
            algorithm.check(operation)?;
        }
        Ok(match (choice.algorithm, choice.channel) {
            _ if self.n_members == 1 => simple,
            (Some(Algorithm::OneShot), ChannelKind::Memory) if len <= EAGER_LEN => Way::Eager,
            (Some(Algorithm::TwoShot), ChannelKind::Memory) => Way::TwoShot,
            (Some(algorithm), kind) => Way::OverPipes(algorithm, kind),
            (None, kind) => Way::OverPipes(over_proxies(operation, len), kind),
        })
    }

    /// Completes the proposal of a call that is not eager.
    #[inline(never)]
    fn complete(&mut self, proposal: Proposal, call: &Call<'_>) -> Proposal {
        let foreseen = self.routes.foresee(call, proposal.signature, proposal.len);
        let proposal = Proposal { foreseen, ..proposal };
        Proposal { prestages: self.is_prestaged(&proposal, call, Buffers::of(call)), ..proposal }
    }

    /// Says whether a member with these `buffers` stages before it posts: all members know it of
    /// each other.
    fn is_prestaged(&self, proposal: &Proposal, call: &Call<'_>, buffers: Buffers) -> bool {
        let reachable = buffers.are_reachable(call.operation);
        let is_staged = !reachable || proposal.foreseen == Some(Route::Second) && !buffers.are_in_place();
        is_staged && self.settled_way(proposal, call, reachable) == Way::TwoShot
    }

    /// Settles how a proposed call is done, now that its `posts`, by the numbers of the members,
    /// are there.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when messages are left in pipes, for all members alike.
    fn settle<'p>(
        &mut self,
        proposal: &Proposal,
        call: &Call<'_>,
        me: usize,
        posts: impl Fn(usize) -> Post<'p> + Copy,
    ) -> Result<Strategy<'_>> {
        let n = self.n_members;
        let in_heap = (0..n).all(|member| posts(member).buffers().are_reachable(call.operation));
        let way = self.settled_way(proposal, call, in_heap);
        let (execution, is_measured) = match way {
            Way::TwoShot => self.two_shots(proposal, call, in_heap, me, posts),
            Way::OverPipes(..) | Way::Custom(_) => {
                check_balance((0..n).map(|member| posts(member).balance()), NONE_TO_BEGIN_WITH)?;
                (self.over_pipes(way, call, in_heap), false)
            }
            Way::Eager | Way::ByTable(_) => (Execution::Eager, false),
            Way::ByPlan(index) => {
                (Execution::ByPlan { index, compiled: self.registered.compiled(index, call, n) }, false)
            }
        };
        Ok(Strategy { execution, choice: way.choice(), is_measured })
    }

    /// Settles how members do a call by two shots: over each other's buffers, or over what each
    /// stages; and whether that is measured.
    fn two_shots<'p>(
        &mut self,
        proposal: &Proposal,
        call: &Call<'_>,
        in_heap: bool,
        me: usize,
        posts: impl Fn(usize) -> Post<'p>,
    ) -> (Execution<'static>, bool) {
        let (n, len, signature) = (self.n_members, proposal.len, proposal.signature);
        let some_are_in_place = || (0..n).any(|member| posts(member).buffers().are_in_place());
        // In place there is only one route, and alone as well.
        let longest = || {
            let durations = (0..n).map(|member| posts(member).last_duration());
            if n == 1 || some_are_in_place() { None } else { durations.max() }
        };
        let (is_staged, is_measured, hint) = if in_heap {
            let route = self.routes.pick(proposal.foreseen, signature, len, longest);
            (route == Some(Route::Second), route.is_some(), None)
        } else {
            let hint = self.routes.pick_hint(call, signature, len, n as u64, longest);
            (true, hint.is_some(), hint)
        };
        if !is_staged {
            return (Execution::ZeroCopy, is_measured);
        }
        let has_prestaged = |member| self.is_prestaged(proposal, call, posts(member).buffers());
        let prestaged = match has_prestaged(me) {
            true if (0..n).all(has_prestaged) => Prestaged::All,
            true => Prestaged::MeToo,
            false => Prestaged::NotMe,
        };
        let hint = hint.unwrap_or_else(|| by_length(call, n as u64));
        let oversubscribed = self.tuning.oversubscribed;
        (Execution::Staged { prestaged, hint, oversubscribed }, is_measured)
    }

    /// Settles what does a call over pipes, and whether the buffers themselves can be worked on.
    fn over_pipes(&self, way: Way, call: &Call<'_>, in_heap: bool) -> Execution<'_> {
        let (algorithm, kind) = match way {
            Way::Custom(kind) => {
                let custom =
                    self.customs.get(call.operation).expect("an algorithm that was proposed is registered");
                (PipeAlgorithm::Custom(custom.as_ref()), kind)
            }
            Way::OverPipes(algorithm, kind) => (PipeAlgorithm::BuiltIn(algorithm), kind),
            way => unreachable!("{way:?} takes no pipes"),
        };
        let form = algorithm.form(call);
        let chunked = if in_heap && form == ElementForm::Own { None } else { Some(form) };
        Execution::OverPipes { algorithm, kind, chunked }
    }

    /// Returns how a proposed call is done, once it is known whether its buffers are all in the
    /// heap.
    fn settled_way(&self, proposal: &Proposal, call: &Call<'_>, in_heap: bool) -> Way {
        let Way::ByTable(PlansByTable { heap, ordinary }) = proposal.way else { return proposal.way };
        let (plan, buffers) =
            if in_heap { (heap, BufferKind::Heap) } else { (ordinary, BufferKind::Ordinary) };
        if let Some(index) = plan {
            return Way::ByPlan(index);
        }
        match self.by_table(call, proposal.len, buffers) {
            Algorithm::TwoShot => Way::TwoShot,
            Algorithm::OneShot if proposal.len <= EAGER_LEN => Way::Eager,
            algorithm => Way::OverPipes(algorithm, ChannelKind::Memory),
        }
    }

    /// Returns the algorithm that the table has for `call`, to which no member contributes more
    /// than `len` bytes, in `buffers` of this kind.
    ///
    /// It is two_shot instead where it matters that an algorithm passes partial results on. It
    /// matters to operators that need an order, and to elements that would have to be widened, of
    /// whose cost a table knows nothing.
    fn by_table(&self, call: &Call<'_>, len: u64, buffers: BufferKind) -> Algorithm {
        let algorithm = self.table.algorithm(call.operation, buffers, len);
        let needs_order = |reducer: &Reducer| reducer.is_custom() || reducer.data_type().is_short_float();
        if !algorithm.keeps_rank_order() && call.reducer.as_ref().is_some_and(needs_order) {
            return Algorithm::TwoShot;
        }
        algorithm
    }
}

/// Returns the algorithm for `operation` over proxied channels, where a member contributes `len`
/// bytes: one that combines in the order of the ranks, so that the results are those of direct
/// channels.
fn over_proxies(operation: Operation, len: u64) -> Algorithm {
    match operation {
        Operation::AllReduce if len > EAGER_LEN => Algorithm::TwoShot,
        Operation::Broadcast => Algorithm::Tree,
        _ => Algorithm::OneShot,
    }
}

/// Returns where results of `call` go by their length. They bypass the cache where all that members
/// read and write would drive them out before they are read. A store through the cache would first
/// read what it overwrites.
fn by_length(call: &Call<'_>, n_members: u64) -> CacheHint {
    let len = call.count.saturating_mul(call.data_type.size() as u64);
    let n_outputs = if call.operation == Operation::Reduce { 1 } else { n_members };
    // By half, as a copy reads as much as it writes.
    let is_full = fills_cache(len.saturating_mul(n_members + n_outputs) / 2);
    if is_full { CacheHint::Bypass } else { CacheHint::Keep }
}

#[cfg(test)]
mod tests;
