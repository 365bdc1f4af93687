//! What is noted of collective calls, where this rank notes what it does.

use super::members::Members;
use crate::collective::call::{Call, ChannelKind, Choice, Operation};
use crate::collective::message::MessageEnd;
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
pub(crate) fn begin(members: &mut Members, operation: Operation) -> bool {
    members.draft.is_open = false;
    if members.board.context().recorder().is_none() || operation == Operation::AllToAllV {
        return false;
    }
    members.draft = Draft { is_open: true, begun: None, number: next_number(members), prepared: None };
    true
}

/// Whether the call that `members` is in is noted, and nobody has read the clock yet.
#[inline]
pub(crate) fn is_unclocked(members: &Members) -> bool {
    members.draft.is_open && members.draft.begun.is_none()
}

/// Reads the clock for the beginning of the call, if it is noted: before all that takes long, and no later than [`prepare`].
#[inline]
pub(crate) fn clock_in(members: &mut Members) {
    if !is_unclocked(members) {
        return;
    }
    if let Some(recorder) = members.board.context().any_recorder() {
        members.draft.begun = Some(recorder.now());
    }
}

/// Prepares the note of `call`, if there is to be one; of a small call, when the member has told the others all that they wait for. The
/// pieces of a call that was prepared as a whole have none.
#[inline]
pub(crate) fn prepare(members: &mut Members, call: &Call<'_>) {
    if !members.draft.is_open || members.draft.prepared.is_some() {
        return;
    }
    clock_in(members);
    if let Some(recorder) = members.board.context().any_recorder() {
        members.draft.prepared = Some(recorder.reserve(span_of(members, call, members.draft.number)));
    }
}

/// Ends `call`, which is noted, done in `choice`.
#[inline]
pub(crate) fn end(members: &mut Members, call: &Call<'_>, choice: Choice, has_failed: bool) {
    members.draft.is_open = false;
    if let Some(recorder) = members.board.context().any_recorder() {
        let Draft { begun, number, prepared, .. } = members.draft;
        let prepared = prepared.unwrap_or_else(|| recorder.reserve(span_of(members, call, number)));
        // What was refused before it did anything took no time.
        let begun = begun.unwrap_or_else(|| recorder.now());
        recorder.record_reserved(begun, prepared.done_in(code_of(choice)).failing(has_failed));
    }
}

/// An operation that has begun, if it is noted at all.
#[derive(Debug)]
pub(crate) struct Begun(Option<(u64, TraceSpan)>);

/// Begins an all-reduce of a word of `len` bytes.
#[inline]
pub(crate) fn begin_word(members: &Members, len: u64) -> Begun {
    let Begun(begun) = begin_operation(members, Operation::AllReduce);
    Begun(begun.map(|(begun, span)| (begun, span.of_bytes(len))))
}

/// Begins `operation`, which moves no data of the program's.
pub(crate) fn begin_operation(members: &Members, operation: Operation) -> Begun {
    let span = TraceSpan::of(Verb::operation(operation as u8)).numbered(next_number(members));
    Begun(members.board.context().recorder().map(|recorder| (recorder.now(), span)))
}

impl Begun {
    /// Ends it, done in `choice`, and hands on what came of it.
    #[inline(always)]
    pub(crate) fn end<T>(self, members: &Members, choice: Choice, done: Result<T>) -> Result<T> {
        match (self.0, members.board.context().recorder()) {
            (Some((begun, span)), Some(recorder)) => {
                recorder.ended(begun, span.done_in(code_of(choice)), done)
            }
            _ => done,
        }
    }
}

/// Calls that are executed together, if they are noted at all.
#[derive(Debug)]
pub(crate) struct Together {
    begun: Option<u64>,
    spans: Vec<TraceSpan>,
}

impl Together {
    /// Begins `calls`.
    pub(crate) fn begin(members: &Members, calls: &[Call<'_>]) -> Self {
        let begun = members.board.context().recorder().map(Recorder::now);
        let spans =
            begun.map(|_| calls.iter().map(|call| span_of(members, call, next_number(members))).collect());
        Self { begun, spans: spans.unwrap_or_default() }
    }

    /// Adds an operation that is done by messages.
    pub(crate) fn add_operation(&mut self, operation: Operation) {
        if self.begun.is_some() {
            self.spans.push(TraceSpan::of(Verb::operation(operation as u8)));
        }
    }

    /// Adds `message`, if it is a message of its own.
    pub(crate) fn add_message(&mut self, members: &Members, message: &MessageEnd<'_>) {
        if self.begun.is_some() && message.operation().has_peer() {
            let peer = members.ranks().get(message.peer()).copied();
            let span = TraceSpan::of(Verb::operation(message.operation() as u8)).of_bytes(message.len());
            self.spans.push(peer.map_or(span, |peer| span.with(peer)));
        }
    }

    /// Ends all of them at once, done in `choice`.
    pub(crate) fn end(self, members: &Members, choice: Choice, has_failed: bool) {
        if let (Some(begun), Some(recorder)) = (self.begun, members.board.context().recorder()) {
            let ended = recorder.now();
            for span in self.spans {
                recorder.record_until(begun, ended, span.done_in(code_of(choice)).failing(has_failed));
            }
        }
    }
}

#[inline]
fn span_of(members: &Members, call: &Call<'_>, number: u64) -> TraceSpan {
    let operation = call.operation;
    let span = TraceSpan::of(Verb::operation(operation as u8)).of_bytes(bytes_of(members, call));
    let span = if operation.has_peer() { span } else { span.numbered(number) };
    if !(operation.has_peer() || operation.has_root()) {
        return span;
    }
    members.ranks().get(call.root).map_or(span, |peer| span.with(*peer))
}

/// How many bytes this member contributes to `call`; as good as none where they cannot be counted, and the call fails.
#[inline]
fn bytes_of(members: &Members, call: &Call<'_>) -> u64 {
    let (blocks, _) = call.operation.blocks(members.n_members() as u64);
    let block = call.count.checked_mul(call.data_type.size() as u64);
    block.unwrap_or(0).saturating_mul(blocks)
}

/// The number that the next operation gets.
fn next_number(members: &Members) -> u64 {
    members.board.sequence().wrapping_add(1)
}

#[inline]
fn code_of(choice: Choice) -> u8 {
    let algorithm = choice.algorithm.map_or(0, |algorithm| algorithm as u8);
    algorithm | if choice.channel == ChannelKind::Port { PORT } else { 0 }
}
