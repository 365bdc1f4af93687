use super::*;

/// Copies with guard bytes all round, and compares with the plain thing.
fn check(len: usize, source_offset: usize, target_offset: usize, copy: impl Fn(*const u8, *mut u8)) {
    const GUARD: u8 = 0xEE;
    let source: Vec<u8> = (0..source_offset + len).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let mut target = vec![GUARD; target_offset + len + 64];
    copy(source[source_offset..].as_ptr(), target[target_offset..].as_mut_ptr());
    assert_eq!(target[target_offset..target_offset + len], source[source_offset..], "len {len}");
    assert!(target[..target_offset].iter().all(|&byte| byte == GUARD), "before, len {len}");
    assert!(target[target_offset + len..].iter().all(|&byte| byte == GUARD), "behind, len {len}");
}

/// All short lengths, and long ones around the turns of the loops and the limits of the strategy.
fn lengths() -> impl Iterator<Item = usize> {
    const LONG: [usize; 13] =
        [511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097, 65_535, 65_536, 70_001, 1 << 20];
    let (short, long) = if cfg!(miri) { (40, &LONG[..6]) } else { (330, &LONG[..]) };
    (0..=short).chain(long.iter().copied())
}

#[test]
fn every_kernel_copies_exactly_the_bytes_it_is_given() {
    for kernel in CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()) {
        for len in lengths() {
            for (source_offset, target_offset) in [(0, 0), (1, 0), (0, 1), (7, 33), (63, 64)] {
                check(len, source_offset, target_offset, |source, target| {
                    // SAFETY: `check` hands out `len` bytes of two vectors; the kernel is
                    // supported.
                    unsafe { kernel.run(source, target, len) }
                });
            }
        }
    }
}

#[test]
fn a_copy_of_any_length_and_purpose_copies_exactly_the_bytes_it_is_given() {
    for purpose in [StorePurpose::PutReadSoon, StorePurpose::Put, StorePurpose::Get] {
        for len in lengths() {
            // Often enough for the tuner to have both ways in trial.
            for _ in 0..if len < strategy::SHORT || cfg!(miri) { 1 } else { 20 } {
                check(len, 3, 5, |source, target| {
                    // SAFETY: `check` hands out `len` bytes of two vectors.
                    unsafe { copy(source, target, len, purpose) }
                });
            }
        }
    }
}

#[test]
fn ranges_that_overlap_are_moved_as_if_through_a_buffer() {
    for len in [1, 8, 100, 5000] {
        for distance in [0, 1, 7, 8, len - 1, len, len + 1] {
            let mut bytes: Vec<u8> = (0..2 * len + 1).map(|i| u8::try_from(i % 253).unwrap()).collect();
            let original = bytes.clone();
            let start = bytes.as_mut_ptr();
            if distance > len + 1 {
                continue;
            }
            // SAFETY: `distance + len` is at most the length of the vector.
            let later = unsafe { start.add(distance) };
            // SAFETY: `len` bytes from both pointers are within the vector.
            unsafe { copy_overlapping(start, later, len, StorePurpose::Put) };
            assert_eq!(bytes[distance..distance + len], original[..len]);
            let original = bytes.clone();
            let start = bytes.as_mut_ptr();
            // SAFETY: as above.
            let later = unsafe { start.add(distance) };
            // SAFETY: as above.
            unsafe { copy_overlapping(later, start, len, StorePurpose::Put) };
            assert_eq!(bytes[..len], original[distance..distance + len]);
        }
    }
}

#[test]
fn kernels_have_distinct_names() {
    let names: std::collections::HashSet<_> =
        CopyKernel::ALL.iter().map(|kernel| kernel.to_string()).collect();
    assert_eq!(names.len(), CopyKernel::ALL.len());
}
