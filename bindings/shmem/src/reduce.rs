//! Reductions and prefix sums. Members are folded in the order of their numbers, so the result is
//! the same on all, bit by bit.
//!
//! A member reduces its part of the elements for all, and writes it to all. It alone reads and
//! writes that part, so source and target may be the same.

use std::ffi::c_int;

use crate::collectives::{TeamOperands, of_team as for_team};
use crate::numbers::{Complex, LongDouble};
use crate::sync::TeamGroup;
use crate::teams::Team;

/// Elements that are reduced at once.
const BLOCK: usize = 512;

/// What makes one number of two.
pub(crate) trait PairOperator<T> {
    fn apply(left: T, right: T) -> T;
}

/// A type whose elements are added up.
pub(crate) trait Summed: Copy {
    const ZERO: Self;
}

pub(crate) struct And;
pub(crate) struct Or;
pub(crate) struct Xor;
pub(crate) struct Max;
pub(crate) struct Min;
pub(crate) struct Plus;
pub(crate) struct Times;

macro_rules! operators {
    ($type:ty, $zero:expr; $($operator:ident: $apply:expr),*) => {
        impl Summed for $type {
            const ZERO: Self = $zero;
        }
        $(impl PairOperator<$type> for $operator {
            #[inline]
            fn apply(left: $type, right: $type) -> $type {
                let apply: fn($type, $type) -> $type = $apply;
                apply(left, right)
            }
        })*
    };
}

macro_rules! integers {
    ($($type:ty),*) => {$(operators! {
        $type, 0;
        And: |left, right| left & right,
        Or: |left, right| left | right,
        Xor: |left, right| left ^ right,
        Max: |left, right| left.max(right),
        Min: |left, right| left.min(right),
        Plus: |left, right| left.wrapping_add(right),
        Times: |left, right| left.wrapping_mul(right)
    })*};
}

macro_rules! floats {
    ($($type:ty),*) => {$(operators! {
        $type, 0.0;
        Max: |left, right| if left < right { right } else { left },
        Min: |left, right| if right < left { right } else { left },
        Plus: |left, right| left + right,
        Times: |left, right| left * right
    })*};
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);
floats!(f32, f64);
operators! {
    LongDouble, Self::ZERO;
    Max: |left, right| if left.is_less(&right) { right } else { left },
    Min: |left, right| if right.is_less(&left) { right } else { left },
    Plus: |left, right| left + right,
    Times: |left, right| left * right
}
operators! { Complex<f32>, Self::ZERO; Plus: |left, right| left + right, Times: |left, right| left * right }
operators! { Complex<f64>, Self::ZERO; Plus: |left, right| left + right, Times: |left, right| left * right }

impl TeamGroup {
    /// Folds `count` elements of members 0 to `members`, from element `first` on, into `result`.
    ///
    /// # Safety
    /// These members have the elements.
    unsafe fn fold<O: PairOperator<T>, T: Copy>(
        &self,
        source: *const T,
        result: &mut Vec<T>,
        members: usize,
        range: std::ops::Range<usize>,
    ) {
        result.clear();
        for member in 0..members {
            let source = self.at(source, member).wrapping_add(range.start);
            if member == 0 {
                // SAFETY: the caller answers for the elements.
                result.extend((0..range.len()).map(|index| unsafe { source.wrapping_add(index).read() }));
            } else {
                for (index, value) in result.iter_mut().enumerate() {
                    // SAFETY: as above.
                    *value = O::apply(*value, unsafe { source.wrapping_add(index).read() });
                }
            }
        }
    }

    /// Reduces the elements of all members to all.
    ///
    /// # Safety
    /// All members have the elements at both ends, which are the same or apart.
    pub(crate) unsafe fn reduce<O: PairOperator<T>, T: Copy>(&self, ends: TeamOperands<T>) {
        const CALL: &str = "a reduction";
        self.sync(CALL);
        let size = self.ranks.size;
        let part = ends.count.div_ceil(size);
        let end = ends.count.min(part * (self.me + 1));
        let mut result = Vec::with_capacity(part.min(BLOCK));
        for first in (part * self.me..end).step_by(BLOCK) {
            // SAFETY: the caller answers for the elements of all members.
            unsafe { self.fold::<O, T>(ends.source, &mut result, size, first..end.min(first + BLOCK)) };
            for member in 0..size {
                let target = self.at(ends.dest, member).wrapping_add(first);
                // SAFETY: as above; nobody else reads or writes this part.
                unsafe { target.copy_from_nonoverlapping(result.as_ptr(), result.len()) };
            }
        }
        self.sync(CALL);
    }

    /// Adds up the elements of the first `members` members.
    ///
    /// # Safety
    /// As for [`TeamGroup::reduce`].
    unsafe fn prefix<T: Summed>(&self, ends: TeamOperands<T>, members: usize)
    where
        Plus: PairOperator<T>,
    {
        const CALL: &str = "a prefix sum";
        self.sync(CALL);
        let mut result = Vec::with_capacity(ends.count);
        if members == 0 {
            result.resize(ends.count, T::ZERO);
        } else if ends.count > 0 {
            // SAFETY: the caller answers for the elements of all members.
            unsafe { self.fold::<Plus, T>(ends.source, &mut result, members, 0..ends.count) };
        }
        // All have read the sources then, of which one may be this target.
        self.sync(CALL);
        if ends.count > 0 {
            // SAFETY: the caller answers for the target.
            unsafe { ends.dest.copy_from_nonoverlapping(result.as_ptr(), result.len()) };
        }
    }
}

/// # Safety
/// As for [`TeamGroup::reduce`].
pub(crate) unsafe fn of_team<O: PairOperator<T>, T: Copy>(
    team: Team,
    dest: *mut T,
    source: *const T,
    count: usize,
) -> c_int {
    // SAFETY: the caller's duties are the same.
    for_team(team, |group| unsafe { group.reduce::<O, T>(TeamOperands::new(dest, source, count)) })
}

/// # Safety
/// As for [`TeamGroup::reduce`].
pub(crate) unsafe fn inscan<T: Summed>(team: Team, dest: *mut T, source: *const T, count: usize) -> c_int
where
    Plus: PairOperator<T>,
{
    // SAFETY: the caller's duties are the same.
    for_team(team, |group| unsafe { group.prefix(TeamOperands::new(dest, source, count), group.me + 1) })
}

/// # Safety
/// As for [`TeamGroup::reduce`].
pub(crate) unsafe fn exscan<T: Summed>(team: Team, dest: *mut T, source: *const T, count: usize) -> c_int
where
    Plus: PairOperator<T>,
{
    // SAFETY: the caller's duties are the same.
    for_team(team, |group| unsafe { group.prefix(TeamOperands::new(dest, source, count), group.me) })
}
