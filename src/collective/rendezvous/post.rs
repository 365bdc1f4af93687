//! The posts of members: the words of a call as they lie in shared memory.
//!
//! All posts of a call are of one kind, since all members know what the call is before they post.
//!
//! | word | eager call, or several fused | other call with data | agreement |
//! |---|---|---|---|
//! | 0 | the signature: operation, type, root, choice, operator | as there | as there |
//! | 1 | bits 0..48 the count, 48..64 the history | as there | as there |
//! | 2 | bit 63, and bits 0..32 the CRC32C of the data; or 0 | [`BufferPlace`] of the input | 0 |
//! | 3 | the scalar, or 0; how many fused calls count | [`BufferPlace`] of the output | 0 |
//! | 4 | data | fragments sent less received | words |
//! | 5 | data | the scalar, or 0 | words |
//! | 6 | data | how long the last measured call took, in nanoseconds | words |
//! | 7..15 | data | unused | words |
//!
//! Some operations do not wait for all members, and then nobody may look at the post of the one
//! that differs. So a post has a history: a mixture of all the calls before it. The next post that
//! anybody looks at gives the difference away.
//!
//! Each word is written by the member before the stamp of its [`PostCell`], and read by the others
//! after it (C1). What is read is checked where it is used: a place by the heap, a number of calls
//! by how many there are; a scalar and a duration are any number.

use super::buffers::{BufferPlace, Buffers};
use crate::collective::call::CallSignature;
use crate::heap::HeapOffset;
use crate::sync::{POST_WORDS, PostCell};

/// The words of a post that come before its data.
pub(super) const HEAD: usize = 4;

/// The words of a post that can hold data.
pub(crate) const INLINE_WORDS: usize = POST_WORDS - HEAD;

/// Words of data in a [`LargePost`].
const LARGE_WORDS: usize = 3;

const CHECKSUM: usize = 2;
const EAGER_SCALAR: usize = 3;
const N_COUNTING: usize = 3;

const INPUT: usize = 2;
const OUTPUT: usize = 3;
const BALANCE: usize = HEAD;
const SCALAR: usize = HEAD + 1;
const DURATION: usize = HEAD + 2;

const _: () = assert!(HEAD + LARGE_WORDS <= POST_WORDS && DURATION == HEAD + LARGE_WORDS - 1);

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
        // Members in one exchange of blocks may tell different words of it.
        let [head, count] = CallSignature::general_words(self.0);
        let product = (head ^ count.rotate_left(29)).wrapping_mul(ODD);
        let [.., low, high] = product.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Returns whether members that post this and `other` are in one operation, and were in the
    /// same ones before.
    pub(super) fn meets(self, other: Self) -> bool {
        let is_history_alike = (self.0[1] ^ other.0[1]) >> CallSignature::COUNT_BITS == 0;
        is_history_alike && self.signature().meets(other.signature())
    }

    /// Returns whether a member that posts `next` can have posted this one before it, and nothing
    /// between them: by one chance in 65,536 when it has not.
    pub(super) fn precedes(self, next: Self) -> bool {
        next.0[1] >> CallSignature::COUNT_BITS == u64::from(self.mixed())
    }
}

/// What a member posts of a call whose data travel with the post or lie in its eager slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EagerPost<'d> {
    /// The word of the checksum, or 0.
    pub(crate) checksum: u64,
    /// What multiplies the input, or 0.
    pub(crate) scalar: u64,
    /// The data, if they do not lie in the slot.
    pub(crate) data: &'d [u64],
}

impl<'d> EagerPost<'d> {
    /// Makes a post of `data` alone.
    #[inline(always)]
    pub(crate) const fn of(data: &'d [u64]) -> Self {
        Self { checksum: 0, scalar: 0, data }
    }

    /// Makes a post of `data` of several calls, of which the first `n_counting` count.
    #[inline(always)]
    pub(crate) const fn of_several(n_counting: u64, data: &'d [u64]) -> Self {
        const { assert!(N_COUNTING == EAGER_SCALAR) };
        Self { checksum: 0, scalar: n_counting, data }
    }

    /// Returns the words before the data.
    #[inline(always)]
    pub(crate) const fn head(&self) -> [u64; 2] {
        [self.checksum, self.scalar]
    }
}

/// What a member posts of any other call that moves data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargePost {
    pub(crate) buffers: Buffers,
    /// Fragments of messages that the member has sent, less those that it has received.
    pub(crate) balance: u64,
    /// What multiplies the input, or 0.
    pub(crate) scalar: u64,
    /// How long the last call took whose route was measured.
    pub(crate) last_duration: u64,
}

impl LargePost {
    #[inline(always)]
    pub(crate) const fn to_words(self) -> ([u64; 2], [u64; LARGE_WORDS]) {
        let Self { buffers: Buffers { input, output }, balance, scalar, last_duration } = self;
        ([input.to_word(), output.to_word()], [balance, scalar, last_duration])
    }
}

/// What one member has posted: an [`EagerPost`], a [`LargePost`], or the words of an agreement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Post<'a>(pub(crate) &'a PostCell);

impl Post<'_> {
    pub(super) fn call(self) -> CallWithHistory {
        CallWithHistory([self.0.word(0), self.0.word(1)])
    }

    /// Returns whether the member has announced blocks of any lengths: the words of its post are
    /// those of an agreement, and not those of a call.
    pub(crate) fn announces_blocks(self) -> bool {
        self.call().signature().is_general()
    }

    /// Returns word `index` of an agreement, or of the data of an eager call.
    #[inline]
    pub(crate) fn word(self, index: usize) -> u64 {
        self.0.word(HEAD + index)
    }

    /// Returns the word of the checksum of an eager call.
    #[inline]
    pub(crate) fn checksum(self) -> u64 {
        self.0.word(CHECKSUM)
    }

    /// Returns what multiplies the input of an eager call.
    #[inline]
    pub(crate) fn eager_scalar(self) -> u64 {
        self.0.word(EAGER_SCALAR)
    }

    /// Returns how many of several fused calls count; to be checked before use.
    #[inline]
    pub(crate) fn n_counting(&self) -> u64 {
        self.0.word(N_COUNTING)
    }

    /// Returns where both buffers lie.
    #[inline]
    pub(crate) fn buffers(self) -> Buffers {
        let place = |word| BufferPlace::from_word(self.0.word(word));
        Buffers { input: place(INPUT), output: place(OUTPUT) }
    }

    /// Returns where in the heap the input starts; to be checked before use.
    #[inline]
    pub(crate) fn input(self) -> HeapOffset {
        HeapOffset::new(self.0.word(INPUT))
    }

    /// Returns where in the heap the output starts; to be checked before use.
    #[inline]
    pub(crate) fn output(self) -> HeapOffset {
        HeapOffset::new(self.0.word(OUTPUT))
    }

    /// Returns how many fragments of messages the member has sent, less those that it has received.
    #[inline]
    pub(crate) fn balance(self) -> u64 {
        self.0.word(BALANCE)
    }

    /// Returns what multiplies the input.
    #[inline]
    pub(crate) fn scalar(self) -> u64 {
        self.0.word(SCALAR)
    }

    /// Returns how long the last call took whose route was measured.
    #[inline]
    pub(crate) fn last_duration(self) -> u64 {
        self.0.word(DURATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Operation;
    use crate::reduce::DataType;

    #[test]
    fn a_post_reads_back_as_it_was_written() {
        let cell = PostCell::default();
        let (input, output) = (BufferPlace::heap(HeapOffset::new(4096)), BufferPlace::elsewhere(17));
        let large =
            LargePost { buffers: Buffers { input, output }, balance: u64::MAX, scalar: 3, last_duration: 4 };
        let (places, data) = large.to_words();
        cell.post(1, [7, 8, places[0], places[1]], &data);
        let read = Post(&cell);
        assert_eq!(Post(&cell).call().0, [7, 8]);
        assert_eq!((read.buffers(), read.input().get()), (large.buffers, 4096));
        assert_eq!([read.balance(), read.scalar(), read.last_duration()], [u64::MAX, 3, 4]);

        let eager = EagerPost { checksum: 9, scalar: 10, data: &[11, 12] };
        let [checksum, scalar] = eager.head();
        cell.post(2, [7, 8, checksum, scalar], eager.data);
        assert_eq!([read.checksum(), read.eager_scalar(), read.word(0), read.word(1)], [9, 10, 11, 12]);
    }

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
