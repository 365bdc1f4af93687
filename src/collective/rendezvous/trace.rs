//! What is noted of collective calls, where this rank notes what it does.

use super::members::Members;
use crate::collective::call::{Call, ChannelKind, Choice, Operation};
use crate::collective::message::MessageEnd;
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
pub(crate) fn begin(members: &mut Members, operation: Operation) -> bool {
    members.draft.is_open = false;
    if members.board.fabric().recorder().is_none() || operation == Operation::AllToAllV {
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
    if let Some(recorder) = members.board.fabric().any_recorder() {
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
    if let Some(recorder) = members.board.fabric().any_recorder() {
        members.draft.prepared = Some(recorder.prepare(note_of(members, call, members.draft.number)));
    }
}

/// Ends `call`, which is noted, done in `choice`.
#[inline]
pub(crate) fn end(members: &mut Members, call: &Call<'_>, choice: Choice, has_failed: bool) {
    members.draft.is_open = false;
    if let Some(recorder) = members.board.fabric().any_recorder() {
        let Draft { begun, number, prepared, .. } = members.draft;
        let prepared = prepared.unwrap_or_else(|| recorder.prepare(note_of(members, call, number)));
        // What was refused before it did anything took no time.
        let begun = begun.unwrap_or_else(|| recorder.now());
        recorder.note_prepared(begun, prepared.done_in(code_of(choice)).failing(has_failed));
    }
}

/// An operation that has begun, if it is noted at all.
#[derive(Debug)]
pub(crate) struct Begun(Option<(u64, Note)>);

/// Begins an all-reduce of a word of `len` bytes.
#[inline]
pub(crate) fn begin_word(members: &Members, len: u64) -> Begun {
    let Begun(begun) = begin_operation(members, Operation::AllReduce);
    Begun(begun.map(|(begun, note)| (begun, note.of_bytes(len))))
}

/// Begins `operation`, which moves no data of the program's.
pub(crate) fn begin_operation(members: &Members, operation: Operation) -> Begun {
    let note = Note::of(Verb::operation(operation as u8)).numbered(next_number(members));
    Begun(members.board.fabric().recorder().map(|recorder| (recorder.now(), note)))
}

impl Begun {
    /// Ends it, done in `choice`, and hands on what came of it.
    #[inline(always)]
    pub(crate) fn end<T>(self, members: &Members, choice: Choice, done: Result<T>) -> Result<T> {
        match (self.0, members.board.fabric().recorder()) {
            (Some((begun, note)), Some(recorder)) => {
                recorder.ended(begun, note.done_in(code_of(choice)), done)
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
    pub(crate) fn begin(members: &Members, calls: &[Call<'_>]) -> Self {
        let begun = members.board.fabric().recorder().map(Recorder::now);
        let notes =
            begun.map(|_| calls.iter().map(|call| note_of(members, call, next_number(members))).collect());
        Self { begun, notes: notes.unwrap_or_default() }
    }

    /// Adds an operation that is done by messages.
    pub(crate) fn add_operation(&mut self, operation: Operation) {
        if self.begun.is_some() {
            self.notes.push(Note::of(Verb::operation(operation as u8)));
        }
    }

    /// Adds `message`, if it is a message of its own.
    pub(crate) fn add_message(&mut self, members: &Members, message: &MessageEnd<'_>) {
        if self.begun.is_some() && message.operation().has_peer() {
            let peer = members.ranks().get(message.peer()).copied();
            let note = Note::of(Verb::operation(message.operation() as u8)).of_bytes(message.len());
            self.notes.push(peer.map_or(note, |peer| note.with(peer)));
        }
    }

    /// Ends all of them at once, done in `choice`.
    pub(crate) fn end(self, members: &Members, choice: Choice, has_failed: bool) {
        if let (Some(begun), Some(recorder)) = (self.begun, members.board.fabric().recorder()) {
            let ended = recorder.now();
            for note in self.notes {
                recorder.note_until(begun, ended, note.done_in(code_of(choice)).failing(has_failed));
            }
        }
    }
}

#[inline]
fn note_of(members: &Members, call: &Call<'_>, number: u64) -> Note {
    let operation = call.operation;
    let note = Note::of(Verb::operation(operation as u8)).of_bytes(bytes_of(members, call));
    let note = if operation.has_peer() { note } else { note.numbered(number) };
    if !(operation.has_peer() || operation.has_root()) {
        return note;
    }
    members.ranks().get(call.root).map_or(note, |peer| note.with(*peer))
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
