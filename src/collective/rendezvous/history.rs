//! The words by which posts are compared.
//!
//! Some operations do not wait for all members, and then nobody may look at the post of the one
//! that differs. So a post also tells of all the calls before it, and the next one that anybody
//! looks at gives the difference away.

use crate::collective::call::CallSignature;

/// The words of a signature, with a mixture of all the calls before in the bits that no count has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallWithHistory(pub(super) [u64; 2]);

impl CallWithHistory {
    /// Makes that of a post of `signature` after the calls that `history` is mixed of; 0 for none.
    #[inline]
    pub(super) fn new(signature: CallSignature, history: u16) -> Self {
        let [signature, count] = signature.words();
        Self([signature, count | u64::from(history) << CallSignature::COUNT_BITS])
    }

    /// Returns the call.
    pub(super) fn signature(self) -> CallSignature {
        CallSignature::from_words(self.0)
    }

    /// Returns the history after it.
    #[inline]
    pub(super) fn mixed(self) -> u16 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = (self.0[0] ^ self.0[1].rotate_left(29)).wrapping_mul(ODD);
        let [.., low, high] = product.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Returns whether a member that posts `next` can have posted this one before it, and nothing
    /// between them: by one chance in 65,536 when it has not.
    pub(super) fn precedes(self, next: Self) -> bool {
        next.0[1] >> CallSignature::COUNT_BITS == u64::from(self.mixed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Operation;
    use crate::reduce::DataType;

    #[test]
    fn calls_that_differ_are_told_apart_afterwards_and_their_order_is() {
        let [one, two] = [Operation::Reduce, Operation::Broadcast].map(CallSignature::new);
        let after = |calls: &[CallSignature]| {
            calls.iter().fold(0, |history, &call| CallWithHistory::new(call, history).mixed())
        };
        let histories = [after(&[]), after(&[one]), after(&[two]), after(&[one, two]), after(&[two, one])];
        for (index, history) in histories.iter().enumerate() {
            assert!(!histories[..index].contains(history), "{histories:x?}");
            let call = CallWithHistory::new(one.rooted(3), *history);
            assert_eq!(call.signature(), one.rooted(3));
        }
    }

    #[test]
    fn a_group_hides_no_difference_before_it() {
        let group = |count| {
            CallSignature::of_group(
                [CallSignature::new(Operation::AllReduce).of(count, DataType::F32); 2].into_iter(),
            )
        };
        for call in (1..1000).map(|count| CallWithHistory::new(group(count), 0)) {
            assert_eq!(call.0[1] >> CallSignature::COUNT_BITS, 0, "{call:x?}");
            assert_eq!(call.signature().words(), call.0);
        }
        for bit in 0..16 {
            let [plain, differs] =
                [0x5a3c, 0x5a3c ^ 1 << bit].map(|history| CallWithHistory::new(group(7), history));
            assert_ne!(plain, differs);
            assert_ne!(plain.mixed(), differs.mixed());
            assert_eq!(plain.signature(), differs.signature());
        }
        assert_ne!(group(7), group(8));
    }
}
