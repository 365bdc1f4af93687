//! Traces of collective calls: a span begins before a call is executed and ends after it.
//!
//! Nothing below the engine knows of traces.

use crate::collective::call::{Algorithm, Call, ChannelKind, Choice, Operation};
use crate::collective::message::{MessageEnd, MessageState};
use crate::collective::rendezvous::members::Members;
use crate::error::Result;
use crate::trace::{CallNames, PORT, Recorder, TraceSpan, Verb};

/// How traces name operations and algorithms.
pub(crate) const CALL_NAMES: CallNames = CallNames {
    operation: |code| Operation::from_code(code.into()).map(Operation::name),
    has_tag: |code| Operation::from_code(code.into()).is_some_and(Operation::has_peer),
    algorithm: |code| {
        Algorithm::ALL.into_iter().find(|algorithm| *algorithm as u8 == code).map(Algorithm::name)
    },
};

/// One call, or one operation that moves no data, while it is executed; nothing where this rank
/// traces none.
#[derive(Debug)]
pub(crate) struct CallSpan(Option<(u64, TraceSpan)>);

impl CallSpan {
    /// Begins `call`. A call that is done by messages between all is traced as these are delivered.
    #[inline]
    pub(super) fn of_call(members: &Members, call: &Call<'_>) -> Self {
        match members.board.context().recorder() {
            Some(recorder) if call.operation != Operation::AllToAllV => {
                Self(Some((recorder.now(), span_of(members, call, next_number(members)))))
            }
            _ => Self(None),
        }
    }

    /// Begins `operation`, which moves no data of the program's.
    pub(super) fn of_operation(members: &Members, operation: Operation) -> Self {
        let span = TraceSpan::of(Verb::operation(operation as u8)).numbered(next_number(members));
        Self(members.board.context().recorder().map(|recorder| (recorder.now(), span)))
    }

    /// Begins an all-reduce of a word of `len` bytes.
    #[inline]
    pub(crate) fn of_word(members: &Members, len: u64) -> Self {
        let Self(begun) = Self::of_operation(members, Operation::AllReduce);
        Self(begun.map(|(begun, span)| (begun, span.of_bytes(len))))
    }

    /// Ends the span of what was done in `choice`, and hands on what came of it.
    #[inline(always)]
    pub(crate) fn end<T>(self, members: &Members, choice: Choice, done: Result<T>) -> Result<T> {
        match (self.0, members.board.context().any_recorder()) {
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

    /// Forgets all calls behind the first `n_calls`, which were not executed yet.
    pub(crate) fn keep_first(&mut self, n_calls: usize) {
        self.spans.truncate(n_calls);
    }

    /// Adds an operation that is done by messages.
    pub(crate) fn add_operation(&mut self, operation: Operation) {
        if self.begun.is_some() {
            self.spans.push(TraceSpan::of(Verb::operation(operation as u8)));
        }
    }

    /// Adds `message`, if it is a message of its own.
    pub(crate) fn add_message(&mut self, members: &Members, message: &MessageEnd<'_>) {
        if self.begun.is_some() && message.state.operation.has_peer() {
            let peer = members.ranks().get(message.state.peer).copied();
            let MessageState { operation, len, signature, .. } = message.state;
            let span = TraceSpan::of(Verb::operation(operation as u8)).of_bytes(len);
            let span = span.numbered(signature.tag().unwrap_or(0).into());
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
    // As good as none where the bytes cannot be counted, and the call fails.
    let len = call.input_len(members.n_members()).unwrap_or(0);
    let span = TraceSpan::of(Verb::operation(operation as u8)).of_bytes(len);
    let span = span.numbered(if operation.has_peer() { call.tag.into() } else { number });
    if !(operation.has_peer() || operation.has_root()) || operation == Operation::RecvAny {
        return span;
    }
    members.ranks().get(call.root).map_or(span, |peer| span.with(*peer))
}

/// Returns the number that the next operation gets.
fn next_number(members: &Members) -> u64 {
    members.board.sequence().wrapping_add(1)
}

#[inline]
fn code_of(choice: Choice) -> u8 {
    let algorithm = choice.algorithm.map_or(0, |algorithm| algorithm as u8);
    algorithm | if choice.channel == ChannelKind::Port { PORT } else { 0 }
}
