//! What is noted of collective calls, where this rank notes what it does.

use super::algorithm::{ChannelKind, Manner};
use super::call::Call;
use super::operation::Operation;
use super::parcel::Parcel;
use super::team::Team;
use crate::error::Result;
use crate::trace::{PORT, Recorder, ReservedSpan, TraceSpan, Verb};

/// What is known of the call that a member is in, if it is noted.
///
/// Of a small call, the note is prepared while the member waits for the others anyhow, and where it has little to do before that, the
/// clock is read then, too: a trace costs little more than the look at the clock at the end.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    is_open: bool,
    /// Ticks at the beginning, once the clock was read.
    begun: Option<u64>,
    /// That of the operation.
    number: u64,
    prepared: Option<ReservedSpan>,
}

/// Begins a call of `operation`; says whether it is noted. What is done by messages between all is not.
#[inline]
pub(super) fn begin(team: &mut Team, operation: Operation) -> bool {
    team.draft.is_open = false;
    if team.board.context().recorder().is_none() || operation == Operation::AllToAllV {
        return false;
    }
    team.draft = Draft { is_open: true, begun: None, number: next_number(team), prepared: None };
    true
}

/// Whether the call that `team` is in is noted, and nobody has read the clock yet.
#[inline]
pub(super) fn is_unclocked(team: &Team) -> bool {
    team.draft.is_open && team.draft.begun.is_none()
}

/// Reads the clock for the beginning of the call, if it is noted: before all that takes long, and no later than [`prepare`].
#[inline]
pub(super) fn clock_in(team: &mut Team) {
    if !is_unclocked(team) {
        return;
    }
    if let Some(recorder) = team.board.context().any_recorder() {
        team.draft.begun = Some(recorder.now());
    }
}

/// Prepares the note of `call`, if there is to be one; of a small call, when the member has told the others all that they wait for. The
/// pieces of a call that was prepared as a whole have none.
#[inline]
pub(super) fn prepare(team: &mut Team, call: &Call<'_>) {
    if !team.draft.is_open || team.draft.prepared.is_some() {
        return;
    }
    clock_in(team);
    if let Some(recorder) = team.board.context().any_recorder() {
        team.draft.prepared = Some(recorder.reserve(span_of(team, call, team.draft.number)));
    }
}

/// Ends `call`, which is noted, done in `manner`.
#[inline]
pub(super) fn end(team: &mut Team, call: &Call<'_>, manner: Manner, has_failed: bool) {
    team.draft.is_open = false;
    if let Some(recorder) = team.board.context().any_recorder() {
        let Draft { begun, number, prepared, .. } = team.draft;
        let prepared = prepared.unwrap_or_else(|| recorder.reserve(span_of(team, call, number)));
        // What was refused before it did anything took no time.
        let begun = begun.unwrap_or_else(|| recorder.now());
        recorder.record_reserved(begun, prepared.done_in(code_of(manner)).failing(has_failed));
    }
}

/// An operation that has begun, if it is noted at all.
#[derive(Debug)]
pub(super) struct Begun(Option<(u64, TraceSpan)>);

/// Begins an all-reduce of a word of `len` bytes.
#[inline]
pub(super) fn begin_word(team: &Team, len: u64) -> Begun {
    let Begun(begun) = begin_operation(team, Operation::AllReduce);
    Begun(begun.map(|(begun, span)| (begun, span.of_bytes(len))))
}

/// Begins `operation`, which moves no data of the program's.
pub(super) fn begin_operation(team: &Team, operation: Operation) -> Begun {
    let span = TraceSpan::of(Verb::operation(operation as u8)).numbered(next_number(team));
    Begun(team.board.context().recorder().map(|recorder| (recorder.now(), span)))
}

impl Begun {
    /// Ends it, done in `manner`, and hands on what came of it.
    #[inline(always)]
    pub(super) fn end<T>(self, team: &Team, manner: Manner, done: Result<T>) -> Result<T> {
        match (self.0, team.board.context().recorder()) {
            (Some((begun, span)), Some(recorder)) => {
                recorder.ended(begun, span.done_in(code_of(manner)), done)
            }
            _ => done,
        }
    }
}

/// Calls that are executed together, if they are noted at all.
#[derive(Debug)]
pub(super) struct Together {
    begun: Option<u64>,
    spans: Vec<TraceSpan>,
}

impl Together {
    /// Begins `calls`.
    pub(super) fn begin(team: &Team, calls: &[Call<'_>]) -> Self {
        let begun = team.board.context().recorder().map(Recorder::now);
        let spans = begun.map(|_| calls.iter().map(|call| span_of(team, call, next_number(team))).collect());
        Self { begun, spans: spans.unwrap_or_default() }
    }

    /// Adds an operation that is done by messages.
    pub(super) fn add_operation(&mut self, operation: Operation) {
        if self.begun.is_some() {
            self.spans.push(TraceSpan::of(Verb::operation(operation as u8)));
        }
    }

    /// Adds `parcel`, if it is a message of its own.
    pub(super) fn add_message(&mut self, team: &Team, parcel: &Parcel<'_>) {
        if self.begun.is_some() && parcel.operation().has_peer() {
            let peer = team.members().get(parcel.peer()).copied();
            let span = TraceSpan::of(Verb::operation(parcel.operation() as u8)).of_bytes(parcel.len());
            self.spans.push(peer.map_or(span, |peer| span.with(peer)));
        }
    }

    /// Ends all of them at once, done in `manner`.
    pub(super) fn end(self, team: &Team, manner: Manner, has_failed: bool) {
        if let (Some(begun), Some(recorder)) = (self.begun, team.board.context().recorder()) {
            let ended = recorder.now();
            for span in self.spans {
                recorder.record_until(begun, ended, span.done_in(code_of(manner)).failing(has_failed));
            }
        }
    }
}

#[inline]
fn span_of(team: &Team, call: &Call<'_>, number: u64) -> TraceSpan {
    let operation = call.operation;
    let span = TraceSpan::of(Verb::operation(operation as u8)).of_bytes(bytes_of(team, call));
    let span = if operation.has_peer() { span } else { span.numbered(number) };
    if !(operation.has_peer() || operation.has_root()) {
        return span;
    }
    team.members().get(call.root).map_or(span, |peer| span.with(*peer))
}

/// How many bytes this member contributes to `call`; as good as none where they cannot be counted, and the call fails.
#[inline]
fn bytes_of(team: &Team, call: &Call<'_>) -> u64 {
    let (blocks, _) = call.operation.blocks(team.n_members() as u64);
    let block = call.count.checked_mul(call.data_type.size() as u64);
    block.unwrap_or(0).saturating_mul(blocks)
}

/// The number that the next operation gets.
fn next_number(team: &Team) -> u64 {
    team.board.sequence().wrapping_add(1)
}

#[inline]
fn code_of(manner: Manner) -> u8 {
    let algorithm = manner.algorithm.map_or(0, |algorithm| algorithm as u8);
    algorithm | if manner.channel == ChannelKind::Port { PORT } else { 0 }
}
