//! Combines inputs into an output, each multiplied by the scalar of its member in a scaled sum.
//! Each member posts its own scalar.
//!
//! Inputs stay as they are, also where the call is in place: they are multiplied in the registers
//! of whoever has loaded them. So a scaled sum goes as a sum does wherever one member combines the
//! inputs of all, and takes no more hand-overs. Algorithms that pass partial results on know no
//! scalars but their own; what they add is multiplied before ([`chunked`](super::chunked)).

use crate::collective::call::Call;
use crate::collective::rendezvous::members::{Members, PerMember};
use crate::collective::rendezvous::post::Post;
use crate::error::Result;
use crate::reduce::{Reducer, Source};

/// Returns this member's own scalar, as it stands in its post; 0 where it multiplies nothing.
#[inline]
pub(crate) fn own_scalar(call: &Call<'_>) -> u64 {
    call.reducer.as_ref().map_or(0, Reducer::scalar)
}

/// Puts those of all members, which have posted `call`, into `scalars`, in the order of the
/// members; none where inputs are not multiplied. Each is found in its post by `told`.
#[inline]
pub(crate) fn gather_scalars(
    members: &Members,
    call: &Call<'_>,
    scalars: &mut PerMember<u64>,
    told: impl Fn(Post<'_>) -> u64,
) {
    if call.is_scaled() {
        let of_member = |member| {
            if member == members.me() { own_scalar(call) } else { told(members.board.post_of(member)) }
        };
        scalars.extend((0..members.n_members()).map(of_member));
    }
}

impl Call<'_> {
    /// Combines `sources`, all of them fresh inputs of one block, each multiplied by its own one of
    /// `scalars`, if there are any, into the start of the output.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn combine(
        &mut self,
        members: &Members,
        scalars: &[u64],
        sources: &[Source<'_>],
    ) -> Result<()> {
        let len = self.block_len()?;
        let reducer = self.reducer.as_ref().expect("an operation that reduces has a reducer");
        let Some(target) = self.output.target(members.view(), 0, len)? else { return Ok(()) };
        reducer.combine_scaled(scalars, sources, &mut [target], self.count)
    }
}
