//! The elements that can be changed atomically.

use bytemuck::Pod;

use crate::shm::SharedLayout;
use crate::sync::AtomicWord;
use crate::sync::atomic::{AtomicU32, AtomicU64};

/// An element that is read and written as one word of 4 or 8 bytes, by whatever ranks at once.
///
/// Sums of integers wrap around. Sums of floats are made by comparing and exchanging until no other
/// rank has come between.
pub trait Atom: Pod + PartialOrd + sealed::AsWord {}

/// An atom whose bits are counted and combined.
pub trait IntegerAtom: Atom {}

pub(super) mod sealed {
    use super::{AtomicWord, SharedLayout};

    /// How an element is kept in a word.
    pub trait AsWord: Sized {
        /// The word.
        type Word: AtomicWord + SharedLayout;

        /// Returns the bits of the word that stand for it.
        fn into_bits(self) -> <Self::Word as AtomicWord>::Bits;

        /// Returns what the bits of a word stand for.
        fn from_bits(bits: <Self::Word as AtomicWord>::Bits) -> Self;

        /// Adds to `word`, and returns what it was before.
        fn add_to(self, word: &Self::Word) -> Self;
    }
}

use sealed::AsWord;

macro_rules! integers {
    ($($atom:ident in $word:ident as $into:ident, $from:ident;)*) => {$(
        impl AsWord for $atom {
            type Word = $word;

            #[inline]
            fn into_bits(self) -> <$word as AtomicWord>::Bits {
                self.$into()
            }

            #[inline]
            fn from_bits(bits: <$word as AtomicWord>::Bits) -> Self {
                bits.$from()
            }

            #[inline]
            fn add_to(self, word: &$word) -> Self {
                Self::from_bits(AtomicWord::fetch_add(word, self.into_bits()))
            }
        }

        impl Atom for $atom {}
        impl IntegerAtom for $atom {}
    )*};
}

macro_rules! floats {
    ($($atom:ident in $word:ident;)*) => {$(
        impl AsWord for $atom {
            type Word = $word;

            #[inline]
            fn into_bits(self) -> <$word as AtomicWord>::Bits {
                self.to_bits()
            }

            #[inline]
            fn from_bits(bits: <$word as AtomicWord>::Bits) -> Self {
                <$atom>::from_bits(bits)
            }

            #[inline]
            fn add_to(self, word: &$word) -> Self {
                let mut seen = word.fetch();
                loop {
                    let before = <$atom>::from_bits(seen);
                    let found = word.compare_swap(seen, (before + self).to_bits());
                    if found == seen {
                        return before;
                    }
                    seen = found;
                }
            }
        }

        impl Atom for $atom {}
    )*};
}

integers! {
    u32 in AtomicU32 as into, into;
    i32 in AtomicU32 as cast_unsigned, cast_signed;
    u64 in AtomicU64 as into, into;
    i64 in AtomicU64 as cast_unsigned, cast_signed;
}

floats! {
    f32 in AtomicU32;
    f64 in AtomicU64;
}
