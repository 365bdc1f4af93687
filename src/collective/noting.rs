//! What is noted of collective calls, where this rank notes what it does.

use super::algorithm::{ChannelKind, Manner};
use super::call::Call;
use super::operation::Operation;
use super::parcel::Parcel;
use super::small::input_len;
use super::team::Team;
use crate::error::Result;
use crate::trace::{Note, PORT, Recorder, Verb};

/// A call of `team` that has begun, if it is noted at all.
#[derive(Debug)]
pub(super) struct Begun(Option<(u64, Note)>);

/// Begins `call`.
#[inline]
pub(super) fn begin(team: &Team, call: &Call<'_>) -> Begun {
    Begun(team.board.fabric().recorder().map(|recorder| (recorder.now(), note_of(team, call))))
}

/// Begins an all-reduce of a word of `len` bytes.
#[inline]
pub(super) fn begin_word(team: &Team, len: u64) -> Begun {
    let Begun(begun) = begin_operation(team, Operation::AllReduce);
    Begun(begun.map(|(begun, note)| (begun, note.of_bytes(len))))
}

/// Begins `operation`, which moves no data of the program's.
pub(super) fn begin_operation(team: &Team, operation: Operation) -> Begun {
    let note = Note::of(Verb::operation(operation as u8)).numbered(next_number(team));
    Begun(team.board.fabric().recorder().map(|recorder| (recorder.now(), note)))
}

impl Begun {
    /// Ends it, done in `manner`, and hands on what came of it.
    #[inline(always)]
    pub(super) fn end<T>(self, team: &Team, manner: Manner, done: Result<T>) -> Result<T> {
        match (self.0, team.board.fabric().recorder()) {
            (Some((begun, note)), Some(recorder)) => {
                recorder.ended(begun, note.done_in(code_of(manner)), done)
            }
            _ => done,
        }
    }
}

/// Calls that are executed together, if they are noted at all.
#[derive(Debug)]
pub(super) struct Together {
    begun: Option<u64>,
    notes: Vec<Note>,
}

impl Together {
    /// Begins `calls`.
    pub(super) fn begin(team: &Team, calls: &[Call<'_>]) -> Self {
        let begun = team.board.fabric().recorder().map(Recorder::now);
        let notes = begun.map(|_| calls.iter().map(|call| note_of(team, call)).collect());
        Self { begun, notes: notes.unwrap_or_default() }
    }

    /// Adds an operation that is done by messages.
    pub(super) fn add_operation(&mut self, operation: Operation) {
        if self.begun.is_some() {
            self.notes.push(Note::of(Verb::operation(operation as u8)));
        }
    }

    /// Adds `parcel`, if it is a message of its own.
    pub(super) fn add_message(&mut self, team: &Team, parcel: &Parcel<'_>) {
        if self.begun.is_some() && parcel.operation().has_peer() {
            let peer = team.members().get(parcel.peer()).copied();
            let note = Note::of(Verb::operation(parcel.operation() as u8)).of_bytes(parcel.len());
            self.notes.push(peer.map_or(note, |peer| note.with(peer)));
        }
    }

    /// Ends all of them at once, done in `manner`.
    pub(super) fn end(self, team: &Team, manner: Manner, has_failed: bool) {
        if let (Some(begun), Some(recorder)) = (self.begun, team.board.fabric().recorder()) {
            let ended = recorder.now();
            for note in self.notes {
                recorder.note_until(begun, ended, note.done_in(code_of(manner)).failing(has_failed));
            }
        }
    }
}

fn note_of(team: &Team, call: &Call<'_>) -> Note {
    let operation = call.operation;
    let note = Note::of(Verb::operation(operation as u8));
    let note = note.of_bytes(input_len(call, team.n_members()).unwrap_or(0));
    let note = if operation.has_peer() { note } else { note.numbered(next_number(team)) };
    match team.members().get(call.root) {
        Some(peer) if operation.has_peer() || operation.has_root() => note.with(*peer),
        _ => note,
    }
}

/// The number that the next operation gets.
fn next_number(team: &Team) -> u64 {
    team.board.sequence().wrapping_add(1)
}

fn code_of(manner: Manner) -> u8 {
    let algorithm = manner.algorithm.map_or(0, |algorithm| algorithm as u8);
    algorithm | if manner.channel == ChannelKind::Port { PORT } else { 0 }
}
