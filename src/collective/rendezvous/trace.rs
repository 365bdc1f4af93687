//! What is noted of collective calls, where this rank notes what it does.

use super::members::Team;
use crate::collective::call::{Call, ChannelKind, Manner, Operation};
use crate::collective::message::Parcel;
use crate::error::Result;
use crate::trace::{Note, PORT, Prepared, Recorder, Verb};

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
    prepared: Option<Prepared>,
}

/// Begins a call of `operation`; says whether it is noted. What is done by messages between all is not.
#[inline]
pub(crate) fn begin(team: &mut Team, operation: Operation) -> bool {
    team.draft.is_open = false;
    if team.board.fabric().recorder().is_none() || operation == Operation::AllToAllV {
        return false;
    }
    team.draft = Draft { is_open: true, begun: None, number: next_number(team), prepared: None };
    true
}

/// Whether the call that `team` is in is noted, and nobody has read the clock yet.
#[inline]
pub(crate) fn is_unclocked(team: &Team) -> bool {
    team.draft.is_open && team.draft.begun.is_none()
}

/// Reads the clock for the beginning of the call, if it is noted: before all that takes long, and no later than [`prepare`].
#[inline]
pub(crate) fn clock_in(team: &mut Team) {
    if !is_unclocked(team) {
        return;
    }
    if let Some(recorder) = team.board.fabric().any_recorder() {
        team.draft.begun = Some(recorder.now());
    }
}

/// Prepares the note of `call`, if there is to be one; of a small call, when the member has told the others all that they wait for. The
/// pieces of a call that was prepared as a whole have none.
#[inline]
pub(crate) fn prepare(team: &mut Team, call: &Call<'_>) {
    if !team.draft.is_open || team.draft.prepared.is_some() {
        return;
    }
    clock_in(team);
    if let Some(recorder) = team.board.fabric().any_recorder() {
        team.draft.prepared = Some(recorder.prepare(note_of(team, call, team.draft.number)));
    }
}

/// Ends `call`, which is noted, done in `manner`.
#[inline]
pub(crate) fn end(team: &mut Team, call: &Call<'_>, manner: Manner, has_failed: bool) {
    team.draft.is_open = false;
    if let Some(recorder) = team.board.fabric().any_recorder() {
        let Draft { begun, number, prepared, .. } = team.draft;
        let prepared = prepared.unwrap_or_else(|| recorder.prepare(note_of(team, call, number)));
        // What was refused before it did anything took no time.
        let begun = begun.unwrap_or_else(|| recorder.now());
        recorder.note_prepared(begun, prepared.done_in(code_of(manner)).failing(has_failed));
    }
}

/// An operation that has begun, if it is noted at all.
#[derive(Debug)]
pub(crate) struct Begun(Option<(u64, Note)>);

/// Begins an all-reduce of a word of `len` bytes.
#[inline]
pub(crate) fn begin_word(team: &Team, len: u64) -> Begun {
    let Begun(begun) = begin_operation(team, Operation::AllReduce);
    Begun(begun.map(|(begun, note)| (begun, note.of_bytes(len))))
}

/// Begins `operation`, which moves no data of the program's.
pub(crate) fn begin_operation(team: &Team, operation: Operation) -> Begun {
    let note = Note::of(Verb::operation(operation as u8)).numbered(next_number(team));
    Begun(team.board.fabric().recorder().map(|recorder| (recorder.now(), note)))
}

impl Begun {
    /// Ends it, done in `manner`, and hands on what came of it.
    #[inline(always)]
    pub(crate) fn end<T>(self, team: &Team, manner: Manner, done: Result<T>) -> Result<T> {
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
