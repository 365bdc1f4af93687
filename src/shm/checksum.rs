//! Checksums of payload: CRC32C, which finds every flipped bit, and every run of up to 32.

use super::view::Span;
use crate::error::Result;

/// Bytes that are looked at a time: they stay in the nearest cache.
const CHUNK: usize = 8 << 10;

impl Span {
    /// The CRC32C of the `len` bytes at `offset`, as if they followed bytes whose checksum is `before`; 0 stands for none.
    ///
    /// Bytes that somebody writes meanwhile are seen as they were, as they are, or as a mixture.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`].
    pub fn crc32c(&self, before: u32, offset: u64, len: u64) -> Result<u32> {
        let (mut checksum, mut at, mut left) = (before, offset, len);
        let mut buffer = [0; CHUNK];
        // A range out of bounds is refused as a whole.
        self.part(offset, len)?;
        while left > 0 {
            let now = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
            self.copy_out(at, &mut buffer[..now])?;
            checksum = crc32c::crc32c_append(checksum, &buffer[..now]);
            at += now as u64;
            left -= now as u64;
        }
        Ok(checksum)
    }
}

#[cfg(test)]
mod tests {
    use crate::shm::Mapping;

    #[test]
    fn it_is_the_checksum_that_everybody_means_in_one_go_or_in_parts() {
        let span = Mapping::boxed(40_000).unwrap().span(0, 40_000).unwrap();
        span.copy_in(100, b"123456789").unwrap();
        assert_eq!(span.crc32c(0, 100, 9).unwrap(), 0xe306_9283);
        let bytes: Vec<_> = (0..40_000_u32).map(|index| (index / 8).to_le_bytes()[0]).collect();
        span.copy_in(0, &bytes).unwrap();
        for (offset, len) in [(0, 40_000), (1, 8191), (3, 8193), (39_999, 1), (7, 0), (40_000, 0)] {
            let whole = crc32c::crc32c(&bytes[offset..offset + len]);
            let (offset, len) = (offset as u64, len as u64);
            assert_eq!(span.crc32c(0, offset, len).unwrap(), whole);
            let first = span.crc32c(0, offset, len / 3).unwrap();
            assert_eq!(span.crc32c(first, offset + len / 3, len - len / 3).unwrap(), whole);
        }
        assert!(span.crc32c(0, 39_999, 2).is_err() && span.crc32c(0, u64::MAX, 2).is_err());
    }
}
