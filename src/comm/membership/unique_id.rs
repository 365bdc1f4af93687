//! The id under which processes meet that no launcher started.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::str::FromStr;
use std::time::Duration;

use crate::bootstrap::{MeetingHost, MeetingPoint};
use crate::channel::Control;
use crate::epoch_id::{EpochId, FIRST_EPOCH};
use crate::error::{Error, Result};

/// The beginning of the text of an id.
const PREFIX: &str = "shmccl-";

/// How long an id is good for if no rank comes, unless its maker says otherwise.
const UNUSED: Duration = Duration::from_secs(3600);

/// Hexadecimal digits of the random words.
const DIGITS: usize = 32;

/// The id of one meeting. One process makes it and hands it to the others in any way.
///
/// It prints as [`UniqueId::TEXT_LEN`] ASCII characters without blanks, and parses from them. They
/// fit into a file, an environment variable or an argument.
///
/// The process that makes an id hosts the meeting. One thread of it sleeps until a process comes
/// to any of its meetings. It need not be a rank, but must not end before all have met. An id
/// serves one meeting, whether that succeeds or fails. It is valid on this machine, within one
/// network namespace, for processes of the same effective user. Knowing it lets no other user in.
///
/// An id that no rank uses within an hour is used up, so that its socket does not stay.
/// [`UniqueId::new_within`] takes another time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId {
    words: [u64; 2],
}

impl UniqueId {
    /// Length of the text of an id.
    pub const TEXT_LEN: usize = PREFIX.len() + DIGITS;

    /// Length of an id as bytes: that of an `ncclUniqueId`.
    pub const BYTES_LEN: usize = 128;

    /// Makes a new id, and begins to host its meeting.
    ///
    /// # Errors
    /// [`Error::ResourceLimit`] or [`Error::Os`] when there is no socket, thread or random number
    /// to be had.
    pub fn new() -> Result<Self> {
        Self::new_within(UNUSED)
    }

    /// Makes an id like [`UniqueId::new`] that is used up if no rank has come within `patience`.
    /// From the first rank on, the timeouts of the ranks count.
    ///
    /// # Errors
    /// Fails as [`UniqueId::new`] does.
    pub fn new_within(patience: Duration) -> Result<Self> {
        Self::good_for(patience, FIRST_EPOCH)
    }

    /// Makes an id like [`UniqueId::new_within`] whose meeting ends as it fails. A rank that comes
    /// later finds nobody, and is not told why.
    ///
    /// # Errors
    /// Fails as [`UniqueId::new`] does.
    pub fn brief_within(patience: Duration) -> Result<Self> {
        Self::hosted(patience, FIRST_EPOCH, MeetingHost::ending_as_it_fails)
    }

    /// Returns whether somebody receives under this id now. It costs a connection.
    #[must_use]
    pub fn is_hosted(&self) -> bool {
        crate::bootstrap::is_hosted(&self.meeting_point())
    }

    /// Makes an id like [`UniqueId::new_within`], but for ranks of `epoch`.
    ///
    /// # Errors
    /// Fails as [`UniqueId::new`] does.
    pub(crate) fn good_for(patience: Duration, epoch: u64) -> Result<Self> {
        Self::hosted(patience, epoch, |host| host)
    }

    fn hosted(
        patience: Duration,
        epoch: u64,
        settle: impl FnOnce(MeetingHost) -> MeetingHost,
    ) -> Result<Self> {
        let mut words = [0; 2];
        let bytes = bytemuck::bytes_of_mut(&mut words);
        let random = File::open("/dev/urandom").and_then(|mut source| source.read_exact(bytes));
        random.map_err(|error| crate::bootstrap::resource_error("drawing a random number", error))?;
        let id = Self { words };
        let point = MeetingPoint { epoch, ..id.meeting_point() };
        let epoch_id = EpochId { job: point.job_id, epoch: point.epoch };
        settle(MeetingHost::open(point)?)
            .for_at_most(patience)
            .start(move |n_ranks| Control::create(n_ranks, epoch_id).map(|(_, segment)| segment))?;
        Ok(id)
    }

    /// Returns the id as bytes: its text, and zeros.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES_LEN] {
        let mut bytes = [0; Self::BYTES_LEN];
        bytes[..Self::TEXT_LEN].copy_from_slice(self.to_string().as_bytes());
        bytes
    }

    /// Reads what [`UniqueId::to_bytes`] has written.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the first byte that is not one of an id.
    pub fn from_bytes(bytes: &[u8; Self::BYTES_LEN]) -> Result<Self> {
        let (text, rest) = bytes.split_at(Self::TEXT_LEN);
        let id = parse(text)?;
        match rest.iter().position(|byte| *byte != 0) {
            Some(index) => Err(malformed(Self::TEXT_LEN + index)),
            None => Ok(id),
        }
    }

    /// Returns the id as numbers.
    pub(in crate::comm) fn words(&self) -> [u64; 2] {
        self.words
    }

    /// Returns the id with these [`UniqueId::words`].
    pub(in crate::comm) fn from_words(words: [u64; 2]) -> Self {
        Self { words }
    }

    pub(in crate::comm) fn meeting_point(&self) -> MeetingPoint {
        // A job without a number would be no job.
        MeetingPoint { name: self.to_string(), job_id: self.words[0].max(1), epoch: FIRST_EPOCH }
    }
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [high, low] = self.words;
        write!(f, "{PREFIX}{high:016x}{low:016x}")
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for UniqueId {
    type Err = Error;

    /// Reads what its `Display` has written; blanks around it do not matter.
    fn from_str(text: &str) -> Result<Self> {
        parse(text.trim().as_bytes())
    }
}

fn parse(text: &[u8]) -> Result<UniqueId> {
    let prefix = PREFIX.as_bytes();
    let is_right = |index: usize, byte: u8| match prefix.get(index) {
        Some(expected) => byte == *expected,
        None => matches!(byte, b'0'..=b'9' | b'a'..=b'f') && index < UniqueId::TEXT_LEN,
    };
    if let Some(wrong) = (0..).zip(text).find_map(|(index, byte)| (!is_right(index, *byte)).then_some(index))
    {
        return Err(malformed(wrong));
    }
    let digits = text.get(prefix.len()..).and_then(|digits| std::str::from_utf8(digits).ok());
    let digits = digits.filter(|digits| digits.len() == DIGITS).ok_or(malformed(text.len()))?;
    let half = |digits| u64::from_str_radix(digits, 16).map_err(|_| malformed(prefix.len()));
    let (high, low) = digits.split_at(DIGITS / 2);
    Ok(UniqueId { words: [half(high)?, half(low)?] })
}

/// Returns the error for an id that is wrong from the byte with this index on.
fn malformed(index: usize) -> Error {
    let expected = "`shmccl-`, 32 hexadecimal digits in lower case, and zeros to the end of its bytes";
    Error::invalid("the number of the first byte of a unique id that is wrong", index as u64, expected)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_survives_text_and_bytes(words in any::<[u64; 2]>()) {
            let id = UniqueId { words };
            let text = id.to_string();
            prop_assert_eq!(text.len(), UniqueId::TEXT_LEN);
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(format!(" {text}\n").parse::<UniqueId>().unwrap(), id);
            prop_assert_eq!(UniqueId::from_bytes(&id.to_bytes()).unwrap(), id);
            prop_assert_eq!(UniqueId::from_words(id.words()), id);
        }

        #[test]
        fn no_text_makes_the_parser_panic_and_what_it_takes_it_prints(text in "(shmccl-)?[0-9a-fA-F+é-]{0,40}") {
            if let Ok(id) = text.parse::<UniqueId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn an_id_that_no_rank_uses_in_time_is_used_up() {
        let id = UniqueId::new_within(Duration::from_millis(20)).unwrap();
        crate::testing::wait_until("nobody hosts it any more", || {
            let joined = crate::Communicator::join_within(&id, Duration::from_secs(60));
            matches!(joined, Err(Error::NoMeeting { .. }))
        });
    }

    /// How many threads this process has.
    fn threads() -> usize {
        std::fs::read_dir("/proc/self/task").unwrap().count()
    }

    #[test]
    fn ids_that_nobody_uses_take_one_thread_together_and_each_of_them_is_good() {
        let before = threads();
        let ids: Vec<_> = (0..200).map(|_| UniqueId::new().unwrap()).collect();
        // Other tests start threads, too.
        assert!(threads() < before + 100, "{before} before, {} now", threads());
        for id in [&ids[0], &ids[100], &ids[199]] {
            let comm = crate::Communicator::init_rank(1, id, 0).unwrap();
            assert_eq!(comm.n_ranks(), 1);
        }
    }

    #[test]
    fn what_is_no_id_is_refused_with_the_place_where_it_goes_wrong() {
        let id = UniqueId { words: [0xabab_abab_abab_abab; 2] }.to_string();
        let upper = id.replace('b', "B");
        let cases = [("", 0), ("shmccl", 6), (&id[..38], 38), (&format!("{id}0"), 39), (&upper, 8)];
        for (text, wrong) in cases {
            let error = text.parse::<UniqueId>().unwrap_err();
            assert!(
                matches!(error, Error::InvalidArgument { value, .. } if value == wrong),
                "{text}: {error}"
            );
        }
        let mut bytes = UniqueId { words: [1; 2] }.to_bytes();
        bytes[100] = 1;
        assert!(matches!(UniqueId::from_bytes(&bytes), Err(Error::InvalidArgument { value: 100, .. })));
    }
}
