use super::*;
use crate::shm::Mapping;
use crate::sync::atomic::Ordering;

const LEN: u64 = 64;

/// A span of [`LEN`] bytes in the middle of a mapping, and the mapping.
fn span() -> (Mapping, Span) {
    let mapping = Mapping::boxed(3 * LEN).unwrap();
    let span = mapping.span(LEN, LEN).unwrap();
    (mapping, span)
}

/// Ranges that do not lie within [`LEN`] bytes.
const OUTSIDE: [(u64, u64); 8] =
    [(0, 65), (1, 64), (63, 2), (64, 1), (65, 0), (u64::MAX, 0), (u64::MAX, 1), (u64::MAX - 7, 8)];

#[test]
fn bytes_come_out_as_they_went_in_at_every_place() {
    let (_mapping, span) = span();
    for len in 0..=64_u8 {
        for offset in [0, 1, 64 - len] {
            if u64::from(offset) + u64::from(len) > LEN {
                continue;
            }
            let bytes: Vec<u8> = (1..=len).collect();
            span.copy_in(offset.into(), &bytes).unwrap();
            let mut out = vec![0; len.into()];
            span.copy_out(offset.into(), &mut out).unwrap();
            assert_eq!(out, bytes);
        }
    }
}

#[test]
fn bytes_are_compared_where_they_lie() {
    let (_mapping, span) = span();
    let bytes: Vec<u8> = (1..=64).collect();
    span.copy_in(0, &bytes).unwrap();
    for start in [0, 1, 63, 64] {
        assert!(span.equals(start as u64, &bytes[start..]).unwrap());
    }
    for wrong in [0, 7, 63] {
        let mut other = bytes.clone();
        other[wrong] ^= 0x80;
        assert!(!span.equals(0, &other).unwrap());
    }
    for (offset, len) in OUTSIDE {
        let bytes = vec![1; usize::try_from(len).unwrap()];
        assert!(matches!(span.equals(offset, &bytes), Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn a_range_outside_is_refused_and_changes_nothing() {
    let (mapping, span) = span();
    let whole = mapping.span(0, 3 * LEN).unwrap();
    for (offset, len) in OUTSIDE {
        let bytes = vec![1; usize::try_from(len).unwrap()];
        let refused = |result: Result<()>| {
            let limit_told = matches!(result, Err(Error::OutOfRange { limit: LEN, .. }));
            assert!(limit_told, "{len} at {offset}: {result:?}");
        };
        refused(span.copy_in(offset, &bytes));
        refused(span.copy_in_for(offset, &bytes, CacheHint::Bypass));
        refused(span.copy_out(offset, &mut bytes.clone()));
        refused(span.fill(offset, len, 1));
        refused(span.copy_to(offset, &whole, 0, len, CacheHint::Bypass));
        refused(span.part(offset, len).map(drop));
        refused(span.copy_to(0, &span, offset, len, CacheHint::Keep));
    }
    assert_eq!(whole.read::<[u64; 24]>(0).unwrap(), [0; 24]);
}

#[test]
fn a_length_beyond_the_integers_is_refused() {
    let (_mapping, span) = span();
    for len in [u64::MAX, u64::MAX - 1, 1 << 63] {
        assert!(matches!(span.fill(0, len, 1), Err(Error::OutOfRange { .. })));
        assert!(matches!(span.fill(1, len, 1), Err(Error::OutOfRange { .. })));
        assert!(matches!(span.atomics_u64(0, len), Err(Error::OutOfRange { .. })));
        // SAFETY: nobody else has the span.
        assert!(unsafe { span.as_slice::<u32>(0, len) }.is_err());
    }
}

#[test]
fn no_bytes_are_legal_up_to_the_end() {
    let (_mapping, span) = span();
    for offset in [0, 1, 63, 64] {
        span.copy_in(offset, &[]).unwrap();
        span.copy_out(offset, &mut []).unwrap();
        span.fill(offset, 0, 1).unwrap();
        span.copy_to(offset, &span, 0, 0, CacheHint::Keep).unwrap();
        assert!(span.part(offset, 0).unwrap().is_empty());
    }
}

#[test]
fn elements_need_no_alignment() {
    let (_mapping, span) = span();
    span.write(3, 0x0102_0304_0506_0708_u64).unwrap();
    assert_eq!(span.read::<u64>(3).unwrap(), 0x0102_0304_0506_0708);
    assert_eq!(span.read::<u8>(3).unwrap(), 0x08);
    span.write(1, 1.5_f32).unwrap();
    assert_eq!(span.read::<f32>(1).unwrap().to_bits(), 1.5_f32.to_bits());
    span.write(62, 7_u16).unwrap();
    assert!(span.write(63, 7_u16).is_err());
    assert!(span.read::<[u64; 9]>(0).is_err());
}

#[test]
fn places_in_memory_need_alignment() {
    let (_mapping, span) = span();
    for offset in [1, 4, 7, 60] {
        if offset != 60 {
            assert!(matches!(span.atomic_u64(offset), Err(Error::Misaligned { align: 8, .. })));
        }
    }
    assert!(matches!(span.atomic_u64(60), Err(Error::OutOfRange { .. })));
    assert!(matches!(span.atomic_u64(64), Err(Error::OutOfRange { .. })));
    span.atomic_u64(56).unwrap().store(9, Ordering::Relaxed); // same thread
    assert_eq!(span.read::<u64>(56).unwrap(), 9);
    // SAFETY: nobody else has the span.
    assert!(matches!(unsafe { span.as_slice::<u32>(2, 1) }, Err(Error::Misaligned { align: 4, .. })));
    // SAFETY: nobody else has the span, and the slice is gone before the next access.
    unsafe { span.as_mut_slice::<u32>(4, 2) }.unwrap().copy_from_slice(&[5, 6]);
    // SAFETY: nobody writes while the slice lives.
    assert_eq!(unsafe { span.as_slice::<u32>(0, 4) }.unwrap(), [0, 5, 6, 0]);
}

#[test]
fn copies_between_spans_may_overlap() {
    let (mapping, span) = span();
    let bytes: Vec<u8> = (0..64).collect();
    span.copy_in(0, &bytes).unwrap();
    span.copy_to(0, &span, 16, 48, CacheHint::Keep).unwrap();
    let mut out = [0; 64];
    span.copy_out(0, &mut out).unwrap();
    assert_eq!((&out[..16], &out[16..]), (&bytes[..16], &bytes[..48]));
    let later = mapping.span(LEN + 32, 64).unwrap();
    later.copy_to(0, &span, 0, 32, CacheHint::Keep).unwrap();
    span.copy_out(0, &mut out).unwrap();
    assert_eq!(out[..32], bytes[16..48]);
}

#[test]
fn a_part_sees_its_own_range_only() {
    let (_mapping, span) = span();
    let part = span.part(8, 8).unwrap();
    part.fill(0, 8, 0xFF).unwrap();
    assert!(part.fill(0, 9, 0xFF).is_err());
    assert_eq!(span.read::<[u64; 3]>(0).unwrap(), [0, u64::MAX, 0]);
}

#[test]
fn a_kernel_that_the_processor_lacks_is_refused() {
    let (mapping, span) = span();
    let source = mapping.span(2 * LEN, LEN).unwrap();
    source.fill(0, LEN, 7).unwrap();
    for kernel in CopyKernel::ALL {
        assert_eq!(source.copy_with(kernel, &span).is_ok(), kernel.is_supported());
    }
    assert_eq!(span.read::<[u8; 64]>(0).unwrap(), [7; 64]);
    assert!(span.copy_with(CopyKernel::Memcpy, &span).is_err(), "onto itself");
    assert!(span.copy_with(CopyKernel::Memcpy, &span.part(0, 8).unwrap()).is_err(), "into less");
}

#[test]
fn bytes_are_taken_and_others_put_in_their_place() {
    let mapping = Mapping::boxed(512).unwrap();
    let span = mapping.span(0, 512).unwrap();
    let old: Vec<u8> = (0..=255).chain(0..=255).collect();
    for (offset, len) in [(0, 0), (0, 1), (3, 63), (64, 64), (1, 129), (5, 507), (0, 512)] {
        for (cache_hint, skew) in [CacheHint::Keep, CacheHint::Bypass]
            .into_iter()
            .flat_map(|soon| [0, 3, 16].map(|skew| (soon, skew)))
        {
            span.copy_in(0, &old).unwrap();
            let given: Vec<u8> = old[..len].iter().map(|byte| byte ^ 0x5a).collect();
            let mut taken = vec![0; skew + len];
            span.exchange(offset as u64, &mut taken[skew..], &given, cache_hint).unwrap();
            assert_eq!(taken[skew..], old[offset..offset + len]);
            let mut after = vec![0; 512];
            span.copy_out(0, &mut after).unwrap();
            assert_eq!(after[offset..offset + len], given);
            assert_eq!((&after[..offset], &after[offset + len..]), (&old[..offset], &old[offset + len..]));
        }
    }
}

#[test]
fn either_half_of_an_exchange_moves_the_bytes_and_no_others() {
    let mapping = Mapping::boxed(2048).unwrap();
    let span = mapping.span(0, 2048).unwrap();
    let counted = |from: u8, len: usize| (from..251).chain(0..from).cycle().take(len).collect::<Vec<_>>();
    let old = counted(0, 2048);
    for (offset, len) in [(0, 0), (0, 1), (3, 63), (64, 64), (1, 129), (5, 507), (0, 2048), (7, 1999)] {
        for (cache_hint, skew) in [CacheHint::Keep, CacheHint::Bypass]
            .into_iter()
            .flat_map(|soon| [0, 3, 16].map(|skew| (soon, skew)))
        {
            span.copy_in(0, &old).unwrap();
            let (mut taken, given) = (vec![7; skew + len + 1], counted(100, skew + len));
            span.take(offset as u64, TakenBytes::Slice(&mut taken[skew..skew + len]), cache_hint).unwrap();
            assert_eq!(taken[skew..skew + len], old[offset..offset + len]);
            assert!(taken[..skew].iter().chain(&taken[skew + len..]).all(|byte| *byte == 7));
            span.give(offset as u64, GivenBytes::Slice(&given[skew..])).unwrap();
            let mut after = vec![0; 2048];
            span.copy_out(0, &mut after).unwrap();
            assert_eq!(after[offset..offset + len], given[skew..]);
            assert_eq!((&after[..offset], &after[offset + len..]), (&old[..offset], &old[offset + len..]));
        }
    }
    let (outside, mut none) = (span.give(2047, GivenBytes::Slice(&[9; 2])), [1; 2]);
    let last = span.read::<u8>(2047).unwrap();
    assert!(matches!(outside, Err(Error::OutOfRange { .. })), "{outside:?}");
    assert!(matches!(
        span.take(2047, TakenBytes::Slice(&mut none), CacheHint::Keep),
        Err(Error::OutOfRange { .. })
    ));
    assert_eq!((none, span.read::<u8>(2047).unwrap()), ([1; 2], last));
}

#[test]
fn an_exchange_within_shared_memory_moves_what_it_would_elsewhere() {
    let mapping = Mapping::boxed(3 * 2048).unwrap();
    let all = mapping.span(0, 3 * 2048).unwrap();
    let old: Vec<u8> = (0..251).cycle().take(3 * 2048).collect();
    // Places apart, side by side, and one over another.
    for [shared, taken, given] in
        [[0, 2048, 4096], [2011, 17, 4100], [500, 0, 1000], [0, 700, 300], [64, 64, 4096], [100, 90, 95]]
    {
        for (len, cache_hint) in
            [0, 1, 500, 1700].into_iter().flat_map(|len| [(len, CacheHint::Keep), (len, CacheHint::Bypass)])
        {
            all.copy_in(0, &old).unwrap();
            let (from, to) = (
                GivenBytes::Shared { span: &all, offset: given, len },
                TakenBytes::Shared { span: &all, offset: taken, len },
            );
            all.exchange_any(shared, to, from, cache_hint).unwrap();
            let mut expected = old.clone();
            let at = |place: u64| to_usize(place)..to_usize(place + len);
            expected.copy_within(at(shared), to_usize(taken));
            // What is given is read when what is taken is in its place.
            expected.copy_within(at(given), to_usize(shared));
            let mut found = vec![0; old.len()];
            all.copy_out(0, &mut found).unwrap();
            assert!(found == expected, "{shared} {taken} {given} {len}");
        }
    }
    let (beyond, span) = (3 * 2048 - 1, &all);
    for [shared, taken, given] in [[0, beyond, 4], [0, 4, beyond], [beyond, 0, 4]] {
        all.copy_in(0, &old).unwrap();
        let (from, to) = (
            GivenBytes::Shared { span, offset: given, len: 2 },
            TakenBytes::Shared { span, offset: taken, len: 2 },
        );
        let refused = all.exchange_any(shared, to, from, CacheHint::Keep);
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
        assert!(all.equals(0, &old).unwrap(), "nothing was changed");
    }
}

#[test]
fn an_exchange_of_different_lengths_or_out_of_range_changes_nothing() {
    let (_mapping, span) = span();
    span.fill(0, LEN, 7).unwrap();
    let mut taken = [1; 2];
    let uneven = span.exchange(0, &mut taken, &[9; 3], CacheHint::Keep);
    assert!(matches!(uneven, Err(Error::InvalidArgument { value: 3, .. })), "{uneven:?}");
    let outside = span.exchange(63, &mut taken, &[9; 2], CacheHint::Keep);
    assert!(matches!(outside, Err(Error::OutOfRange { .. })), "{outside:?}");
    assert_eq!((taken, span.read::<u8>(63).unwrap()), ([1; 2], 7));
}

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
