//! One of something for each member, on the stack.

use arrayvec::ArrayVec;

use crate::error::Result;
use crate::rank::MAX_RANKS;

/// One of something for each member at most.
pub(crate) type PerMember<T> = ArrayVec<T, { MAX_RANKS as usize }>;

/// Puts `items`, of which there are few enough, behind what is in `all`, up to the first that is an error.
///
/// It fills a table where that stays. One that is collected into a `Result` is moved several times, all of its 64 places, which takes
/// as long as the rest of a short call.
///
/// # Errors
/// That of the first item that is one.
#[inline]
pub(crate) fn fill<T>(all: &mut PerMember<T>, items: impl IntoIterator<Item = Result<T>>) -> Result<()> {
    for item in items {
        all.push(item?);
    }
    Ok(())
}
