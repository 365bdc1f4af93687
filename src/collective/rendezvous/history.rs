//! What posts are compared by.
//!
//! Some operations do not wait for all members, and then nobody may look at the post of the one that differs. So a post also
//! tells of all the calls before it, and the next one that anybody looks at gives the difference away.

use crate::collective::call::Summary;

/// The words of a summary, with a mixture of all the calls before in the bits that no count has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(pub(super) [u64; 2]);

impl Mark {
    /// That of a post of `summary` after the calls that `history` is mixed of; 0 for none.
    #[inline]
    pub(super) fn new(summary: Summary, history: u16) -> Self {
        let [signature, count] = summary.words();
        Self([signature, count | u64::from(history) << Summary::COUNT_BITS])
    }

    /// The call.
    pub(super) fn summary(self) -> Summary {
        Summary::from_words(self.0)
    }

    /// The history after it.
    #[inline]
    pub(super) fn mixed(self) -> u16 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = (self.0[0] ^ self.0[1].rotate_left(29)).wrapping_mul(ODD);
        let [.., low, high] = product.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Whether a member that posts `next` can have posted this one before it, and nothing between them: by one chance in 65,536 when it
    /// has not.
    pub(super) fn precedes(self, next: Self) -> bool {
        next.0[1] >> Summary::COUNT_BITS == u64::from(self.mixed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Operation;
    use crate::reduce::DataType;

    #[test]
    fn calls_that_differ_are_told_apart_afterwards_and_their_order_is() {
        let [one, two] = [Operation::Reduce, Operation::Broadcast].map(Summary::new);
        let after =
            |calls: &[Summary]| calls.iter().fold(0, |history, &call| Mark::new(call, history).mixed());
        let histories = [after(&[]), after(&[one]), after(&[two]), after(&[one, two]), after(&[two, one])];
        for (index, history) in histories.iter().enumerate() {
            assert!(!histories[..index].contains(history), "{histories:x?}");
            let mark = Mark::new(one.rooted(3), *history);
            assert_eq!(mark.summary(), one.rooted(3));
        }
    }

    #[test]
    fn a_group_hides_no_difference_before_it() {
        let group = |count| {
            Summary::of_group([Summary::new(Operation::AllReduce).of(count, DataType::F32); 2].into_iter())
        };
        for mark in (1..1000).map(|count| Mark::new(group(count), 0)) {
            assert_eq!(mark.0[1] >> Summary::COUNT_BITS, 0, "{mark:x?}");
            assert_eq!(mark.summary().words(), mark.0);
        }
        for bit in 0..16 {
            let [plain, differs] = [0x5a3c, 0x5a3c ^ 1 << bit].map(|history| Mark::new(group(7), history));
            assert_ne!(plain, differs);
            assert_ne!(plain.mixed(), differs.mixed());
            assert_eq!(plain.summary(), differs.summary());
        }
        assert_ne!(group(7), group(8));
    }
}
