//! The trigger: what a device asks of a proxy, in two 64-bit words.
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 0..28 | len, bytes |
//! | 0 | 28..32 | semaphore id, the upper four bits |
//! | 0 | 32..64 | source offset, bytes |
//! | 1 | 0..32 | target offset, bytes |
//! | 1 | 32..41 | source memory id |
//! | 1 | 41..50 | target memory id |
//! | 1 | 50..60 | semaphore id, the lower ten bits |
//! | 1 | 60..63 | kind: DATA, SIGNAL, FLUSH |
//! | 1 | 63 | commit bit, owned by the fifo |
//!
//! A trigger without a kind may ask for a [`WordUpdate`], which has its fields in the same places:
//!
//! | word | bits | field |
//! |---|---|---|
//! | 0 | 0..64 | operand |
//! | 1 | 0..32 | target offset, bytes |
//! | 1 | 41..50 | target memory id |
//! | 1 | 50..55 | operation: 1 ADD, 2 AND, 3 OR, 4 XOR, 5 SET |
//! | 1 | 55 | whether the word has 8 bytes, not 4 |
//!
//! MSCCL++ has 32 bits for the length, and ten for the semaphore, in the same places. Four bits of
//! the length are the semaphore's here: it names one of sixteen channels to one of 1,024 ranks. The
//! rest is alike: triggers for semaphores below 1,024 differ in nothing.
//!
//! The words come back from shared memory, so decoding is total: any 128 bits are *some* trigger,
//! whose ids and ranges the handler checks. One without a kind that names no update asks for
//! nothing; the service refuses it. Encoding is strict: what does not fit its field is an error
//! where the value is made, and nothing is ever masked.

use core::fmt;
use core::ops::BitOr;

/// Bits of the length.
const LEN_BITS: u32 = 28;
/// Bits of the semaphore id in word 1; the others are in word 0, behind the length.
const LOW_BITS: u32 = 10;
/// Bits of the semaphore id in word 0.
const HIGH_BITS: u32 = 4;

const SOURCE_SHIFT: u32 = 32;
const TARGET_SHIFT: u32 = 41;
const SEMAPHORE_SHIFT: u32 = 50;
const KIND_SHIFT: u32 = 60;

/// Bits of the operation on a word, where a semaphore is otherwise.
const WORD_OP_BITS: u32 = 5;
const WORD_LEN_SHIFT: u32 = SEMAPHORE_SHIFT + WORD_OP_BITS;

/// Where the bit of word 1 is that belongs to the fifo.
pub(crate) const COMMIT_SHIFT: u32 = 63;

/// The bit of word 1 that belongs to the fifo.
pub(crate) const COMMIT_BIT: u64 = 1 << COMMIT_SHIFT;

/// Names a registered memory region: nine bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(u16);

impl MemoryId {
    /// How many ids there are.
    pub const LIMIT: u32 = 1 << 9;

    /// Makes the id `value`.
    ///
    /// # Errors
    /// [`TriggerError::OutOfRange`] unless `value` is below [`MemoryId::LIMIT`].
    pub const fn new(value: u32) -> Result<Self, TriggerError> {
        match small(value, Self::LIMIT) {
            Some(id) => Ok(Self(id)),
            None => Err(TriggerError::out_of_range("memory id", value, Self::LIMIT)),
        }
    }

    /// Returns the id as a number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// Names the semaphore that a SIGNAL goes to: fourteen bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SemaphoreId(u16);

impl SemaphoreId {
    /// How many ids there are.
    pub const LIMIT: u32 = 1 << (LOW_BITS + HIGH_BITS);

    /// Makes the id `value`.
    ///
    /// # Errors
    /// [`TriggerError::OutOfRange`] unless `value` is below [`SemaphoreId::LIMIT`].
    pub const fn new(value: u32) -> Result<Self, TriggerError> {
        match small(value, Self::LIMIT) {
            Some(id) => Ok(Self(id)),
            None => Err(TriggerError::out_of_range("semaphore id", value, Self::LIMIT)),
        }
    }

    /// Returns the id as a number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// How much a trigger copies, in bytes: 28 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferLen(u32);

impl TransferLen {
    /// One more than the longest.
    pub const LIMIT: u32 = 1 << LEN_BITS;

    /// Makes the length `value`.
    ///
    /// # Errors
    /// [`TriggerError::OutOfRange`] unless `value` is below [`TransferLen::LIMIT`].
    #[inline]
    pub const fn new(value: u32) -> Result<Self, TriggerError> {
        if value < Self::LIMIT {
            Ok(Self(value))
        } else {
            Err(TriggerError::out_of_range("length", value, Self::LIMIT))
        }
    }

    /// Returns the length as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// What a trigger asks for; the bits combine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TriggerKind(u8);

impl TriggerKind {
    /// Asks for no copy, no signal and no flush. A trigger of this kind changes a word, or was
    /// forged.
    pub const NONE: Self = Self(0);
    /// Copies the transfer.
    pub const DATA: Self = Self(1);
    /// Signals the semaphore, after the copy.
    pub const SIGNAL: Self = Self(2);
    /// Publishes the completed position, after everything else.
    pub const FLUSH: Self = Self(4);

    /// Returns whether every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether no bit is set.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for TriggerKind {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One copy from a range of registered memory to another: offsets in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// How much.
    pub len: TransferLen,
    /// Copied from this region ...
    pub source: MemoryId,
    /// ... starting here.
    pub source_offset: u32,
    /// Copied into this region ...
    pub target: MemoryId,
    /// ... starting here.
    pub target_offset: u32,
}

/// What is done to a word, atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WordOp {
    /// Adds the operand, modulo the size of the word.
    Add = 1,
    /// Keeps those bits that the operand has.
    And = 2,
    /// Sets those bits that the operand has.
    Or = 3,
    /// Turns those bits over that the operand has.
    Xor = 4,
    /// Writes the operand.
    Set = 5,
}

impl WordOp {
    const ALL: [Self; 5] = [Self::Add, Self::And, Self::Or, Self::Xor, Self::Set];

    const fn from_code(code: u32) -> Option<Self> {
        match code {
            1..=5 => Some(Self::ALL[code as usize - 1]),
            _ => None,
        }
    }
}

/// The size of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordLen {
    /// 4 bytes; of the operand the lower half is meant.
    Four,
    /// 8 bytes.
    Eight,
}

impl WordLen {
    /// Returns it in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// One atomic change of a word of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WordUpdate {
    /// What is done.
    pub op: WordOp,
    /// To a word of this size.
    pub len: WordLen,
    /// By this number.
    pub operand: u64,
    /// It lies in this region ...
    pub target: MemoryId,
    /// ... at this offset, in bytes.
    pub target_offset: u32,
}

/// What a device asks of a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trigger {
    word0: u64,
    /// The second word, with the commit bit clear.
    word1: u64,
}

impl Trigger {
    /// Combines a kind with the transfer and the semaphore that it speaks of.
    ///
    /// The transfer is carried but means nothing without [`TriggerKind::DATA`], and the semaphore
    /// likewise without [`TriggerKind::SIGNAL`].
    ///
    /// # Errors
    /// [`TriggerError::NoKind`] when `kind` is [`TriggerKind::NONE`].
    pub const fn new(
        kind: TriggerKind,
        transfer: Transfer,
        semaphore: SemaphoreId,
    ) -> Result<Self, TriggerError> {
        if kind.is_none() {
            return Err(TriggerError::NoKind);
        }
        Ok(Self::encode(kind, transfer, semaphore))
    }

    /// Asks for a copy.
    #[must_use]
    pub const fn put(transfer: Transfer) -> Self {
        Self::encode(TriggerKind::DATA, transfer, SemaphoreId(0))
    }

    /// Asks for a signal.
    #[must_use]
    pub const fn signal(semaphore: SemaphoreId) -> Self {
        Self::encode(TriggerKind::SIGNAL, NOTHING, semaphore)
    }

    /// Asks for a copy, then a signal.
    #[must_use]
    pub const fn put_with_signal(transfer: Transfer, semaphore: SemaphoreId) -> Self {
        Self::encode(TriggerKind(TriggerKind::DATA.0 | TriggerKind::SIGNAL.0), transfer, semaphore)
    }

    /// Asks for the completed position to be published.
    #[must_use]
    pub const fn flush() -> Self {
        Self::encode(TriggerKind::FLUSH, NOTHING, SemaphoreId(0))
    }

    /// Asks for a copy, then a signal, then the completed position.
    #[must_use]
    pub const fn put_with_signal_and_flush(transfer: Transfer, semaphore: SemaphoreId) -> Self {
        Self::encode(
            TriggerKind(TriggerKind::DATA.0 | TriggerKind::SIGNAL.0 | TriggerKind::FLUSH.0),
            transfer,
            semaphore,
        )
    }

    /// Asks for an atomic change of a word.
    #[must_use]
    #[allow(clippy::cast_lossless, reason = "u64::from is not const")]
    pub const fn update(update: WordUpdate) -> Self {
        let len = matches!(update.len, WordLen::Eight) as u64;
        let word1 = update.target_offset as u64
            | (update.target.0 as u64) << TARGET_SHIFT
            | (update.op as u64) << SEMAPHORE_SHIFT
            | len << WORD_LEN_SHIFT;
        Self { word0: update.operand, word1 }
    }

    /// Decodes any two words; the commit bit is ignored.
    #[must_use]
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self { word0: words[0], word1: words[1] & !COMMIT_BIT }
    }

    /// Returns the two words, with the commit bit clear.
    #[must_use]
    pub const fn words(&self) -> [u64; 2] {
        [self.word0, self.word1]
    }

    /// Returns what is asked for.
    #[must_use]
    pub const fn kind(&self) -> TriggerKind {
        TriggerKind(bits(self.word1, KIND_SHIFT, 3).to_le_bytes()[0])
    }

    /// Returns the change of a word that is asked for, where there is no kind.
    #[must_use]
    pub const fn word_update(&self) -> Option<WordUpdate> {
        let op = WordOp::from_code(bits(self.word1, SEMAPHORE_SHIFT, WORD_OP_BITS));
        match op {
            Some(op) if self.kind().is_none() => Some(WordUpdate {
                op,
                len: if bits(self.word1, WORD_LEN_SHIFT, 1) == 1 { WordLen::Eight } else { WordLen::Four },
                operand: self.word0,
                target: MemoryId(low_u16(bits(self.word1, TARGET_SHIFT, 9))),
                target_offset: bits(self.word1, 0, 32),
            }),
            _ => None,
        }
    }

    /// Returns whether nothing is asked for.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.kind().is_none() && self.word_update().is_none()
    }

    /// Returns the copy; means something only with [`TriggerKind::DATA`].
    #[must_use]
    pub const fn transfer(&self) -> Transfer {
        Transfer {
            len: TransferLen(bits(self.word0, 0, LEN_BITS)),
            source_offset: bits(self.word0, 32, 32),
            target_offset: bits(self.word1, 0, 32),
            source: MemoryId(low_u16(bits(self.word1, SOURCE_SHIFT, 9))),
            target: MemoryId(low_u16(bits(self.word1, TARGET_SHIFT, 9))),
        }
    }

    /// Returns the semaphore; means something only with [`TriggerKind::SIGNAL`].
    #[must_use]
    pub const fn semaphore(&self) -> SemaphoreId {
        let low = bits(self.word1, SEMAPHORE_SHIFT, LOW_BITS);
        SemaphoreId(low_u16(low | bits(self.word0, LEN_BITS, HIGH_BITS) << LOW_BITS))
    }

    #[allow(clippy::cast_lossless, reason = "u64::from is not const")]
    const fn encode(kind: TriggerKind, transfer: Transfer, semaphore: SemaphoreId) -> Self {
        let semaphore = semaphore.0 as u64;
        let word0 =
            transfer.len.0 as u64 | semaphore >> LOW_BITS << LEN_BITS | (transfer.source_offset as u64) << 32;
        let word1 = transfer.target_offset as u64
            | (transfer.source.0 as u64) << SOURCE_SHIFT
            | (transfer.target.0 as u64) << TARGET_SHIFT
            | (semaphore & ((1 << LOW_BITS) - 1)) << SEMAPHORE_SHIFT
            | (kind.0 as u64) << KIND_SHIFT;
        Self { word0, word1 }
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(update) = self.word_update() {
            return f.debug_tuple("Trigger").field(&update).finish();
        }
        f.debug_struct("Trigger")
            .field("kind", &self.kind())
            .field("transfer", &self.transfer())
            .field("semaphore", &self.semaphore())
            .finish()
    }
}

/// Why a trigger, or a part of one, cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TriggerError {
    /// A value does not fit its field.
    OutOfRange {
        /// The field.
        field: &'static str,
        /// The value.
        value: u32,
        /// It has to be below this.
        limit: u32,
    },
    /// The kind asks for nothing.
    NoKind,
}

impl TriggerError {
    const fn out_of_range(field: &'static str, value: u32, limit: u32) -> Self {
        Self::OutOfRange { field, value, limit }
    }
}

impl fmt::Display for TriggerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { field, value, limit } => {
                write!(f, "{field} {value} does not fit a trigger: it has to be below {limit}")
            }
            Self::NoKind => write!(f, "the trigger asks for nothing"),
        }
    }
}

impl core::error::Error for TriggerError {}

const NOTHING: Transfer = Transfer {
    len: TransferLen(0),
    source: MemoryId(0),
    source_offset: 0,
    target: MemoryId(0),
    target_offset: 0,
};

/// Returns `value` as sixteen bits when it is below `limit`, which is at most 2^16.
const fn small(value: u32, limit: u32) -> Option<u16> {
    if value < limit { Some(low_u16(value)) } else { None }
}

/// Returns the low half of a value that has a high half of zero.
const fn low_u16(value: u32) -> u16 {
    let bytes = value.to_le_bytes();
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// Returns `width` bits (at most 32) of `word`, from bit `shift`.
#[allow(clippy::cast_possible_truncation, reason = "the mask leaves at most 32 bits")]
const fn bits(word: u64, shift: u32, width: u32) -> u32 {
    ((word >> shift) & ((1 << width) - 1)) as u32
}
