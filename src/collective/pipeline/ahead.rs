//! Staging before a call is posted.
//!
//! Who knows that its input will be needed in its scratch stages the first pieces *ahead*, before it posts. Nobody touches its scratch
//! then: each operation ends when all that is read or written in it has been. Where all members have, the post tells of the first steps,
//! and nobody waits for these apart: one hand-over of three is saved where all is one piece, which is most of what a short call takes,
//! above all where members take turns on their cores.
//!
//! Who stages ahead follows from what is posted, and from what all members know before: so all know of each other whether they have. It
//! is in vain where others turn out to have their buffers elsewhere: in place in the heap, or where a table has another algorithm for
//! all. Calls in which some members are in place and others are not pay for that each time.

use super::staging::Staging;
use crate::collective::call::Call;
use crate::collective::team::Team;
use crate::error::Result;

/// Which members have staged the first pieces before they posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// Not this one.
    NotMe,
    /// This one, but not all.
    MeToo,
    All,
}

/// Stages the first pieces of `call`, which this member has not posted yet; `crowded` ones share cores.
///
/// # Errors
/// [`crate::Error::OutOfRange`] for a buffer that is not allocated.
pub(crate) fn stage_ahead(call: &Call<'_>, team: &Team, crowded: bool) -> Result<()> {
    let staging = Staging::new(call, team, crowded);
    (0..staging.slots.lag).try_for_each(|number| staging.stage(team, call, number))
}
