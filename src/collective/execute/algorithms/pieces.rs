//! Bytes in a row, cut into pieces that travel one after the other.

/// The ends of pieces are multiples of so many bytes: of elements, and of pairs of cache lines.
pub(crate) const ALIGN: u64 = 128;

/// How many pieces are wanted, so that pipelines fill. They are fewer where they would be shorter
/// than [`WORTH_SENDING`].
const WANTED: u64 = 8;

/// The least bytes of a piece: these take longer to copy than to announce.
pub(crate) const WORTH_SENDING: u64 = 4 << 10;

/// Bytes in a row, cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceCut {
    total: u64,
    piece: u64,
}

impl PieceCut {
    /// Cuts `total` bytes into pieces of `piece`.
    pub(crate) fn into_pieces_of(total: u64, piece: u64) -> Self {
        Self { total, piece }
    }

    /// Cuts `total` bytes for a pipeline, into pieces of at most `longest`.
    pub(crate) fn for_pipeline(total: u64, longest: u64) -> Self {
        let fair = total.div_ceil(WANTED).next_multiple_of(ALIGN);
        Self { total, piece: fair.max(WORTH_SENDING).min(longest) }
    }

    /// Returns how many pieces there are.
    pub(crate) fn n(self) -> u64 {
        self.total.div_ceil(self.piece)
    }

    /// Returns where piece number `index` starts, and how long it is: nothing past the end.
    pub(crate) fn piece(self, index: u64) -> (u64, u64) {
        let start = index.saturating_mul(self.piece).min(self.total);
        (start, self.piece.min(self.total - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        for total in [0, 1, 4095, 4096, 4097, 65536, 1 << 20, (1 << 20) + 4] {
            let cut = PieceCut::for_pipeline(total, 16 << 10);
            let mut end = 0;
            for index in 0..cut.n() {
                let (start, len) = cut.piece(index);
                assert!(start == end && len > 0 && len <= 16 << 10 && start.is_multiple_of(ALIGN));
                end += len;
            }
            assert_eq!((end, cut.piece(cut.n())), (total, (total, 0)));
        }
    }
}
