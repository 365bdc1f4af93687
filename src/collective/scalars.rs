//! The scalars of a scaled sum: each member tells its own, and whoever combines inputs multiplies each by that of its member.
//!
//! Inputs stay as they are, also where the call is in place: they are multiplied in the registers of whoever has loaded them. So
//! a scaled sum goes as a sum does wherever one member combines the inputs of all, and takes no more hand-overs. Algorithms that pass
//! partial results on know no scalars but their own; what they add is multiplied before ([`staged`](super::staged)).

use super::board::Post;
use super::call::Call;
use super::per_member::PerMember;
use super::team::Team;
use crate::reduce::Reducer;

/// This member's own, as it tells it in its post; 0 where it multiplies nothing. The post of a small call has it for the second of
/// its places, that of another one for the second word of its data.
#[inline]
pub(super) fn own(call: &Call<'_>) -> u64 {
    call.reducer.as_ref().map_or(0, Reducer::scalar)
}

/// Puts those of all members, which have posted `call`, into `scalars`, in the order of the members; none where inputs are not
/// multiplied. Each is found in its post by `told`.
#[inline]
pub(super) fn gather(
    team: &Team,
    call: &Call<'_>,
    scalars: &mut PerMember<u64>,
    told: impl Fn(Post<'_>) -> u64,
) {
    if call.is_scaled() {
        let of_member =
            |member| if member == team.me() { own(call) } else { told(team.board.post_of(member)) };
        scalars.extend((0..team.n_members()).map(of_member));
    }
}

/// The scalar in the post of a small call.
#[inline]
pub(super) fn of_small(post: Post<'_>) -> u64 {
    post.places()[1]
}

/// The scalar in the post of a call that is not small.
#[inline]
pub(super) fn of_large(post: Post<'_>) -> u64 {
    post.data(1)
}
