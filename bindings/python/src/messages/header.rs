//! Headers: what goes before each message, and the elements of a short one.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | the length of the elements in bytes |
//! | 8..16 | the number of the message among those of its sender |
//! | 16..20 | its tag |
//! | 20..24 | the rank that has sent it |
//! | 24..28 | how many headers that rank has taken of the receiver's |
//! | 28..32 | what it is: a [`HeaderKind`] |
//! | 32..256 | the elements, where they have room |
//!
//! The number in an acknowledgement is that of a message of the rank that gets it.

/// The bytes of a header.
pub const HEADER_LEN: usize = 256;

const FIELDS_LEN: usize = 32;

/// The most bytes of elements in a header.
pub const ROOM: usize = HEADER_LEN - FIELDS_LEN;

/// What a header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKind {
    /// A message comes.
    Message = 0,
    /// A message comes whose sender waits for the match.
    Synchronous = 1,
    /// The message of that number was matched.
    Acknowledgement = 2,
    /// The communicator is closed.
    Last = 3,
    /// The sender ends.
    Ended = 4,
}

/// The header of a message.
#[derive(Clone, Debug)]
pub struct EagerHeader(pub [u8; HEADER_LEN]);

impl EagerHeader {
    /// Makes one that only tells something of the message with `number`.
    pub fn new(kind: HeaderKind, number: u64) -> Self {
        let mut header = Self([0; HEADER_LEN]);
        header.set(8, number.to_le_bytes());
        header.set(28, (kind as u32).to_le_bytes());
        header
    }

    /// Makes that of a message of `len` bytes with `tag`.
    pub fn of_message(is_synchronous: bool, number: u64, tag: u32, len: usize) -> Self {
        let kind = if is_synchronous { HeaderKind::Synchronous } else { HeaderKind::Message };
        let mut header = Self::new(kind, number);
        header.set(0, (len as u64).to_le_bytes());
        header.set(16, tag.to_le_bytes());
        header
    }

    /// Writes into it who sends it, and how many headers of the receiver were taken.
    pub fn stamp(&mut self, source: u32, taken: u32) {
        self.set(20, source.to_le_bytes());
        self.set(24, taken.to_le_bytes());
    }

    /// Returns the kind; that of a message for one that nobody writes.
    pub fn kind(&self) -> HeaderKind {
        match self.word(28) {
            1 => HeaderKind::Synchronous,
            2 => HeaderKind::Acknowledgement,
            3 => HeaderKind::Last,
            4 => HeaderKind::Ended,
            _ => HeaderKind::Message,
        }
    }

    /// Returns the length of the elements in bytes.
    pub fn len(&self) -> u64 {
        u64::from_le_bytes(self.field(0))
    }

    /// Returns the number of the message.
    pub fn number(&self) -> u64 {
        u64::from_le_bytes(self.field(8))
    }

    /// Returns the tag.
    pub fn tag(&self) -> u32 {
        self.word(16)
    }

    /// Returns who has sent it.
    pub fn source(&self) -> u32 {
        self.word(20)
    }

    /// Returns how many headers the sender had taken of this rank.
    pub fn taken(&self) -> u32 {
        self.word(24)
    }

    /// Returns the elements, if they have room.
    pub fn elements(&self) -> Option<&[u8]> {
        let len = usize::try_from(self.len()).ok()?;
        self.0[FIELDS_LEN..].get(..len)
    }

    /// Returns where `len` bytes of elements go, if they have room.
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0[FIELDS_LEN..].get_mut(..len)
    }

    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|byte| self.0[at + byte])
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.field(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_keeps_what_it_was_made_of() {
        let mut header = EagerHeader::of_message(true, 1 << 40, u32::MAX >> 1, ROOM);
        header.stamp(255, u32::MAX);
        header.room(ROOM).unwrap().fill(7);
        assert_eq!((header.kind(), header.number()), (HeaderKind::Synchronous, 1 << 40));
        assert_eq!((header.tag(), header.source(), header.taken()), (u32::MAX >> 1, 255, u32::MAX));
        assert_eq!(header.elements(), Some(&[7; ROOM][..]));
    }

    #[test]
    fn elements_that_have_no_room_are_not_in_the_header() {
        let mut header = EagerHeader::of_message(false, 1, 0, ROOM + 1);
        assert!(header.room(ROOM + 1).is_none() && header.elements().is_none());
        assert_eq!(EagerHeader::of_message(false, 1, 0, 0).elements(), Some(&[][..]));
    }
}
