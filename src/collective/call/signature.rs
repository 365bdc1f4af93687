//! The signature of a call, by which a rank tells the others which call it is in.

use std::fmt;

use super::{Algorithm, ChannelKind, Choice, Operation};
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::reduce::{DataType, ReduceOp, Reducer, Scalar};

/// What all ranks have to agree on in a collective call, or the two ends of a message: the call as
/// one rank posts it.
///
/// In shared memory it is two words:
///
/// | word | bits | what |
/// |---|---|---|
/// | 0 | 0..8 | the operation |
/// | 0 | 8..16 | the code of the type + 1; 0 for none |
/// | 0 | 16..24 | the root, the peer, or the number of calls |
/// | 0 | 24..32 | the algorithm and the kind of channel that the caller has chosen |
/// | 0 | 32..64 | the code of the operator, the tag of a message |
/// | 1 | 0..48 | the count |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSignature {
    head: u64,
    count: u64,
}

impl CallSignature {
    /// No count has more bits: there is not as much memory. What stands for a count keeps to them,
    /// too.
    pub(crate) const COUNT_BITS: u32 = 48;
    const COUNT_MASK: u64 = (1 << Self::COUNT_BITS) - 1;

    /// Marks the first call of a job in the word of the count, where it is never posted.
    const FIRST: u64 = 1 << 63;

    /// Marks a receive that takes messages of any tag, in the word of the count, where it is never
    /// posted.
    const ANY_TAG: u64 = 1 << 62;

    /// No call at all.
    pub(crate) const NONE: Self = Self { head: 0, count: 0 };

    #[inline]
    pub(crate) const fn new(operation: Operation) -> Self {
        Self { head: operation as u64, count: 0 }
    }

    /// Returns the signature of all of `calls` at once. Two of these are alike if all their calls
    /// are, and in the same order.
    pub(crate) fn of_group(calls: impl Iterator<Item = Self>) -> Self {
        let mut group = Self::new(Operation::Group);
        let mut n_calls = 0;
        for call in calls {
            for word in call.words() {
                group.count = (group.count ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                group.count ^= group.count >> 32;
            }
            n_calls += 1;
        }
        group.head |= (n_calls & 0xff) << 16;
        // The other bits of the word are somebody else's where it is posted.
        group.count &= Self::COUNT_MASK;
        group
    }

    /// Says that the call is of `count` elements of `data_type`.
    #[inline]
    #[must_use]
    pub(crate) fn of(mut self, count: u64, data_type: DataType) -> Self {
        self.head |= (u64::from(data_type.code()) + 1) << 8;
        self.count = count;
        self
    }

    /// Says that each member tells the others `n_words` words.
    #[must_use]
    pub(crate) const fn of_words(mut self, n_words: usize) -> Self {
        self.count = n_words as u64;
        self
    }

    /// Says that the member `root` is at the root.
    #[inline]
    #[must_use]
    pub(crate) const fn rooted(mut self, root: u8) -> Self {
        self.head |= (root as u64) << 16;
        self
    }

    /// Says that the operator has the code `operator`.
    #[inline]
    #[must_use]
    pub(crate) const fn by(mut self, operator: u32) -> Self {
        self.head |= (operator as u64) << 32;
        self
    }

    /// Says that the message has this `tag`.
    #[inline]
    #[must_use]
    pub(crate) const fn tagged(self, tag: u32) -> Self {
        self.by(tag)
    }

    /// Says that it receives messages of any tag.
    #[inline]
    #[must_use]
    pub(crate) const fn of_any_tag(mut self) -> Self {
        self.count |= Self::ANY_TAG;
        self
    }

    /// Returns whether it receives messages of any tag.
    #[inline]
    pub(crate) const fn has_any_tag(self) -> bool {
        self.count & Self::ANY_TAG != 0
    }

    /// Returns the receive of a message that was sent like `sent`, which has a tag.
    #[inline]
    #[must_use]
    pub(crate) const fn told(self, sent: Self) -> Self {
        if !self.has_any_tag() {
            return self;
        }
        let head = self.head & 0xffff_ffff | sent.head & !0xffff_ffff;
        Self { head, count: self.count & !Self::ANY_TAG }
    }

    /// Says that the caller has made this `choice`.
    #[must_use]
    #[inline]
    pub(crate) const fn with_choice(mut self, choice: Choice) -> Self {
        self.head |= (choice.code() as u64) << 24;
        self
    }

    /// Says that this is the first collective call or message of a job: all ranks come to one, each
    /// to its own.
    #[must_use]
    pub(crate) const fn as_first(mut self) -> Self {
        self.count |= Self::FIRST;
        self
    }

    /// Returns whether this is the first call of a job.
    pub(crate) const fn is_first(self) -> bool {
        self.count & Self::FIRST != 0
    }

    /// Returns whether a message that was sent like `sent` is what this call receives.
    #[inline]
    pub(crate) const fn answers(self, sent: Self) -> bool {
        (self.sent_for() ^ sent.head) & (Self::KIND | Self::TYPE) == 0 && sent.count == self.count
    }

    /// Returns whether this call is to receive a message that was sent like `sent`, by operation
    /// and tag; if it does not [answer](Self::answers) that message, one of the two is wrong.
    #[inline]
    pub(crate) const fn receives(self, sent: Self) -> bool {
        let kind = if self.has_any_tag() { 0xff } else { Self::KIND };
        (self.sent_for() ^ sent.head) & kind == 0
    }

    /// Returns whether receives of other tags pass over what was sent like this.
    #[inline]
    pub(crate) const fn may_be_passed_over(self) -> bool {
        self.head & 0xff == Operation::Send as u64
    }

    /// The bits of the first word that say which receive a message is for.
    const KIND: u64 = 0xffff_ffff_0000_00ff;

    /// The bits of the first word that say of which type its elements are.
    const TYPE: u64 = 0xff00;

    /// Returns the first word of a message that this call receives, but for its peer.
    #[inline]
    const fn sent_for(self) -> u64 {
        let code = self.head & 0xff;
        let is_receive = code == Operation::Recv as u64 || code == Operation::RecvAny as u64;
        if is_receive { self.head & !0xff | Operation::Send as u64 } else { self.head }
    }

    /// Returns whether members in this call and in `other` are in one operation. An exchange of
    /// blocks that says no length ([`CallSignature::general`]) is the same as any that says one.
    pub(crate) fn meets(self, other: Self) -> bool {
        let is_general = self == self.general() || other == other.general();
        self == other || self.general() == other.general() && is_general
    }

    /// Returns the signature without the type and the count, if it is of an exchange of blocks:
    /// members say these only where all their own blocks are alike.
    pub(crate) const fn general(self) -> Self {
        let [head, count] = Self::general_words([self.head, self.count]);
        Self { head, count }
    }

    /// Returns whether this is an exchange of blocks that says no length.
    pub(crate) fn is_general(self) -> bool {
        self.operation() == Some(Operation::AllToAllV) && self == self.general()
    }

    /// Returns the words of [`CallSignature::general`], with what else is in the word of the count.
    #[inline(always)]
    pub(crate) const fn general_words([head, count]: [u64; 2]) -> [u64; 2] {
        if head & 0xff == Operation::AllToAllV as u64 {
            [head & !Self::TYPE, count & !Self::COUNT_MASK]
        } else {
            [head, count]
        }
    }

    /// Returns the words that are posted.
    #[inline]
    pub(crate) const fn words(self) -> [u64; 2] {
        [self.head, self.count & !Self::ANY_TAG]
    }

    #[inline]
    pub(crate) const fn from_words(words: [u64; 2]) -> Self {
        Self { head: words[0], count: words[1] & Self::COUNT_MASK }
    }

    /// Returns the operation; `None` when a peer has posted what is none.
    #[must_use]
    pub fn operation(self) -> Option<Operation> {
        Operation::from_code(self.head & 0xff)
    }

    /// Returns how many elements.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count & Self::COUNT_MASK
    }

    /// Returns the type of the elements, where there are any.
    #[must_use]
    pub fn data_type(self) -> Option<DataType> {
        let code = (self.head >> 8 & 0xff).checked_sub(1)?;
        DataType::ALL.into_iter().find(|data_type| u64::from(data_type.code()) == code)
    }

    /// Returns the root, where the operation has one.
    #[must_use]
    pub fn root(self) -> Option<u64> {
        self.operation().filter(|operation| operation.has_root()).map(|_| self.head >> 16 & 0xff)
    }

    /// Returns the other end of a message.
    #[must_use]
    pub fn peer(self) -> Option<u64> {
        let named = |operation: &Operation| operation.has_peer() && *operation != Operation::RecvAny;
        self.operation().filter(named).map(|_| self.head >> 16 & 0xff)
    }

    /// Returns the tag of a message.
    #[must_use]
    pub fn tag(self) -> Option<u32> {
        let tag = u32::try_from(self.head >> 32).expect("32 bits are left");
        self.operation().filter(|operation| operation.has_peer()).map(|_| tag)
    }

    /// Returns how many calls it has, where it is a group.
    #[must_use]
    pub fn calls(self) -> Option<u64> {
        self.operation().filter(|operation| *operation == Operation::Group).map(|_| self.head >> 16 & 0xff)
    }

    /// Returns what it reduces by, where it does: a built-in operator by its name, another one as
    /// `an operator of the program's own (0x8000002a)`, with the number that stands for its name
    /// and type between ranks.
    #[must_use]
    pub fn operator_name(self) -> Option<String> {
        self.operator_named().map(|name| name.to_string())
    }

    /// Returns the algorithm that the caller wants; `None` where any will do.
    #[must_use]
    pub fn algorithm(self) -> Option<Algorithm> {
        self.choice()?.algorithm
    }

    /// Returns the kind of channels that it goes over; `None` when a peer has posted what is none.
    #[must_use]
    pub fn channel_kind(self) -> Option<ChannelKind> {
        self.choice().map(|choice| choice.channel)
    }

    fn operator_named(self) -> Option<OperatorName> {
        let code = u32::try_from(self.head >> 32).expect("32 bits are left");
        let named = OperatorName { code, data_type: self.data_type() };
        self.operation().filter(|operation| operation.reduces()).map(|_| named)
    }

    /// Returns how it is done; `None` when a peer has posted what is no choice.
    fn choice(self) -> Option<Choice> {
        let [_, _, _, code, ..] = self.head.to_le_bytes();
        Choice::from_code(code)
    }
}

/// An operator by its code, for elements of a type: `sum`, `mulsum`,
/// `an operator of the program's own (0x8000002a)`.
struct OperatorName {
    code: u32,
    data_type: Option<DataType>,
}

impl fmt::Display for OperatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = usize::try_from(self.code).ok().and_then(|code| ReduceOp::PLAIN.get(code));
        // The code of a sum that is multiplied before tells of the type, and not of the scalar.
        let scaled = |data_type: DataType| ReduceOp::PreMulSum(Scalar::zero(data_type.real_type()));
        let scaled = self.data_type.map(|data_type| (data_type, scaled(data_type)));
        let is_meant = |(data_type, op): &(DataType, ReduceOp)| {
            Reducer::new(*data_type, op, 1).is_ok_and(|reducer| reducer.code() == self.code)
        };
        match plain.or(scaled.as_ref().filter(|scaled| is_meant(scaled)).map(|(_, op)| op)) {
            Some(op) => op.fmt(f),
            None => write!(f, "an operator of the program's own ({:#x})", self.code),
        }
    }
}

impl fmt::Display for CallSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(operation) = self.operation() else {
            return write!(f, "an unknown operation ({:#x})", self.head);
        };
        write!(f, "{operation}")?;
        if let Some(calls) = self.calls() {
            write!(f, " of {calls} calls")?;
        }
        if let Some(data_type) = self.data_type() {
            write!(f, " of {} {}", self.count(), data_type.name())?;
        }
        if let Some(operator) = self.operator_named() {
            write!(f, " by {operator}")?;
        }
        if let Some(root) = self.root() {
            write!(f, " with root {root}")?;
        }
        if let Some(peer) = self.peer() {
            let preposition = if operation == Operation::Send { "to" } else { "from" };
            write!(f, " {preposition} rank {peer}")?;
        }
        if self.has_any_tag() {
            write!(f, " with any tag")?;
        } else if let Some(tag) = self.tag().filter(|&tag| tag != 0 || self.peer().is_none()) {
            write!(f, " with tag {tag}")?;
        }
        match self.choice() {
            Some(choice) if choice == Choice::default() => {}
            Some(choice) => write!(f, " by {choice}")?,
            None => write!(f, " by an unknown algorithm")?,
        }
        if self.is_first() {
            write!(f, " (the first collective call or message of a job, to which all its ranks come)")?;
        }
        Ok(())
    }
}

/// Two ranks that are in different calls: what [`Error::CallMismatch`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ranks disagree: this rank is in {mine}, rank {rank} in {theirs}")]
pub struct CallMismatch {
    /// The call of this rank.
    pub mine: CallSignature,
    /// The other rank.
    pub rank: Rank,
    /// The call of the other rank.
    pub theirs: CallSignature,
}

impl CallMismatch {
    /// Returns the mismatch by which `outcome` failed, if it did.
    #[must_use]
    pub fn of<T>(outcome: &Result<T>) -> Option<Self> {
        outcome.as_ref().err()?.detail().copied()
    }
}

impl From<CallMismatch> for Error {
    fn from(mismatch: CallMismatch) -> Self {
        Self::CallMismatch { mismatch: Box::new(mismatch) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::CustomOp;

    #[test]
    fn an_operator_is_named_by_its_code_and_the_type_of_its_elements() {
        let name = |data_type, op: &ReduceOp| {
            let code = Reducer::new(data_type, op, 4).unwrap().code();
            CallSignature::new(Operation::AllReduce).of(4, data_type).by(code).operator_name().unwrap()
        };
        for data_type in DataType::ALL {
            let scaled = ReduceOp::PreMulSum(Scalar::zero(data_type.real_type()));
            for op in ReduceOp::PLAIN.into_iter().chain([scaled]).filter(|op| op.supports(data_type)) {
                assert_eq!(name(data_type, &op), op.name());
            }
        }
        assert_eq!(name(DataType::F32, &ReduceOp::PreMulSum(Scalar::new(0.5_f32))), "mulsum");
        let own = name(DataType::F32, &ReduceOp::Custom(CustomOp::new::<f32>("mulsum", |_, _| ())));
        assert!(own.starts_with("an operator of the program's own (0x"), "{own}");
        let of_another_type = Reducer::new(DataType::F64, &ReduceOp::PreMulSum(Scalar::new(1.0)), 4).unwrap();
        let odd = CallSignature::new(Operation::AllReduce).of(4, DataType::F32).by(of_another_type.code());
        assert_ne!(odd.operator_name().unwrap(), "mulsum");
    }
}
