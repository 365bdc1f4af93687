//! Traces of collective calls: a span begins before a call is executed and ends after it.
//!
//! Nothing below the engine knows of traces.

use crate::collective::call::{Call, ChannelKind, Manner, Operation};
use crate::collective::message::Parcel;
use crate::collective::rendezvous::members::Team;
use crate::error::Result;
use crate::trace::{Note, PORT, Recorder, Verb};

/// One call, or one operation that moves no data, while it is executed; nothing where this rank
/// traces none.
#[derive(Debug)]
pub(crate) struct CallSpan(Option<(u64, Note)>);

impl CallSpan {
    /// Begins `call`. A call that is done by messages between all is traced as these are delivered.
    #[inline]
    pub(super) fn of_call(team: &Team, call: &Call<'_>) -> Self {
        match team.board.fabric().recorder() {
            Some(recorder) if call.operation != Operation::AllToAllV => {
                Self(Some((recorder.now(), note_of(team, call, next_number(team)))))
            }
            _ => Self(None),
        }
    }

    /// Begins `operation`, which moves no data of the program's.
    pub(super) fn of_operation(team: &Team, operation: Operation) -> Self {
        let note = Note::of(Verb::operation(operation as u8)).numbered(next_number(team));
        Self(team.board.fabric().recorder().map(|recorder| (recorder.now(), note)))
    }

    /// Begins an all-reduce of a word of `len` bytes.
    #[inline]
    pub(crate) fn of_word(team: &Team, len: u64) -> Self {
        let Self(begun) = Self::of_operation(team, Operation::AllReduce);
        Self(begun.map(|(begun, note)| (begun, note.of_bytes(len))))
    }

    /// Ends the span of what was done in `manner`, and hands on what came of it.
    #[inline(always)]
    pub(crate) fn end<T>(self, team: &Team, manner: Manner, done: Result<T>) -> Result<T> {
        match (self.0, team.board.fabric().any_recorder()) {
            (Some((begun, note)), Some(recorder)) => {
                recorder.ended(begun, note.done_in(code_of(manner)), done)
            }
            _ => done,
        }
    }
}

/// Calls that are executed together, if they are noted at all.
#[derive(Debug)]
pub(crate) struct Together {
    begun: Option<u64>,
    notes: Vec<Note>,
}

impl Together {
    /// Begins `calls`.
    pub(crate) fn begin(team: &Team, calls: &[Call<'_>]) -> Self {
        let begun = team.board.fabric().recorder().map(Recorder::now);
        let notes = begun.map(|_| calls.iter().map(|call| note_of(team, call, next_number(team))).collect());
        Self { begun, notes: notes.unwrap_or_default() }
    }

    /// Adds an operation that is done by messages.
    pub(crate) fn add_operation(&mut self, operation: Operation) {
        if self.begun.is_some() {
            self.notes.push(Note::of(Verb::operation(operation as u8)));
        }
    }

    /// Adds `parcel`, if it is a message of its own.
    pub(crate) fn add_message(&mut self, team: &Team, parcel: &Parcel<'_>) {
        if self.begun.is_some() && parcel.operation().has_peer() {
            let peer = team.members().get(parcel.peer()).copied();
            let note = Note::of(Verb::operation(parcel.operation() as u8)).of_bytes(parcel.len());
            self.notes.push(peer.map_or(note, |peer| note.with(peer)));
        }
    }

    /// Ends all of them at once, done in `manner`.
    pub(crate) fn end(self, team: &Team, manner: Manner, has_failed: bool) {
        if let (Some(begun), Some(recorder)) = (self.begun, team.board.fabric().recorder()) {
            let ended = recorder.now();
            for note in self.notes {
                recorder.note_until(begun, ended, note.done_in(code_of(manner)).failing(has_failed));
            }
        }
    }
}

#[inline]
fn note_of(team: &Team, call: &Call<'_>, number: u64) -> Note {
    let operation = call.operation;
    let note = Note::of(Verb::operation(operation as u8)).of_bytes(bytes_of(team, call));
    let note = if operation.has_peer() { note } else { note.numbered(number) };
    if !(operation.has_peer() || operation.has_root()) {
        return note;
    }
    team.members().get(call.root).map_or(note, |peer| note.with(*peer))
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
