use super::*;
use crate::heap::symmetric::SymmetricHeap;
use crate::heap::testing::{allocate, heaps};
use crate::rank::Rank;

/// A buffer of `count` elements on rank 0 of two, and that rank's heap.
fn buffer<T: Pod>(count: usize) -> (DeviceBuffer<T>, SymmetricHeap) {
    let mut heaps = heaps(2, 2 << 20);
    let region = allocate(&heaps, DeviceBuffer::<T>::bytes(count).unwrap(), DeviceBuffer::<T>::align());
    let heap = heaps.swap_remove(0);
    (DeviceBuffer::new(&heap, region).unwrap(), heap)
}

#[test]
fn elements_come_back_as_they_were_written() {
    let (buffer, _) = buffer::<f32>(1000);
    let data: Vec<f32> = (0..1000_u16).map(f32::from).collect();
    buffer.copy_from_slice(0, &data).unwrap();
    assert_eq!(buffer.to_vec(), data);
    buffer.set(999, -1.0).unwrap();
    assert_eq!((buffer.get(998).unwrap(), buffer.get(999).unwrap()), (998.0, -1.0));
    let mut middle = [0.0; 3];
    buffer.copy_to_slice(500, &mut middle).unwrap();
    assert_eq!(middle, [500.0, 501.0, 502.0]);
}

#[test]
fn elements_of_odd_size_lie_close_together() {
    let (buffer, _) = buffer::<[u8; 3]>(7);
    assert_eq!((buffer.len(), buffer.region().len), (7, 21));
    buffer.fill([1, 2, 3]);
    buffer.set(6, [4, 5, 6]).unwrap();
    assert_eq!(buffer.to_vec()[5..], [[1, 2, 3], [4, 5, 6]]);
}

#[test]
fn a_fill_reaches_every_element_of_a_long_buffer_and_nothing_else() {
    let (buffer, heap) = buffer::<u64>(100_003);
    let part = DeviceBuffer::<u64>::new(&heap, buffer.part(1, 100_001).unwrap()).unwrap();
    part.fill(u64::MAX - 1);
    let all = buffer.to_vec();
    assert_eq!((all[0], all[100_002]), (0, 0));
    assert!(all[1..100_002].iter().all(|element| *element == u64::MAX - 1));
}

#[test]
fn a_range_past_the_end_is_an_error_and_changes_nothing() {
    let (buffer, _) = buffer::<u32>(10);
    buffer.fill(7);
    assert!(matches!(
        buffer.copy_from_slice(5, &[1; 6]),
        Err(Error::OutOfRange { offset: 5, len: 6, limit: 10, .. })
    ));
    assert!(buffer.copy_from_slice(usize::MAX, &[1]).is_err());
    assert!(buffer.set(10, 1).is_err() && buffer.get(10).is_err() && buffer.get(usize::MAX).is_err());
    assert!(
        buffer.part(11, 0).is_err() && buffer.part(0, 11).is_err() && buffer.part(1, usize::MAX).is_err()
    );
    let mut target = [9; 11];
    assert!(buffer.copy_to_slice(0, &mut target).is_err());
    assert_eq!((target, buffer.to_vec()), ([9; 11], vec![7; 10]));
}

#[test]
fn an_empty_buffer_and_empty_copies_are_legal() {
    let (empty, _) = buffer::<u16>(0);
    assert!(empty.is_empty() && empty.to_vec().is_empty());
    empty.fill(1);
    empty.copy_from_slice(0, &[]).unwrap();
    assert!(empty.copy_from_slice(1, &[]).is_err());
    let (ten, _) = buffer::<u16>(10);
    ten.copy_to_slice(10, &mut []).unwrap();
    assert_eq!(ten.part(10, 0).unwrap().len, 0);
}

#[test]
fn a_part_names_the_same_bytes_on_a_peer() {
    let (buffer, heap) = buffer::<u64>(16);
    buffer.copy_from_slice(0, &(0..16).collect::<Vec<u64>>()).unwrap();
    let part = buffer.part(4, 8).unwrap();
    let own = heap.span(Rank::known(0), part).unwrap();
    assert_eq!((own.len(), own.read::<u64>(0).unwrap()), (64, 4));
    assert_eq!(heap.span(Rank::known(1), part).unwrap().read::<u64>(0).unwrap(), 0);
}

#[test]
fn a_count_that_cannot_be_measured_in_bytes_is_an_error() {
    assert!(matches!(DeviceBuffer::<u64>::bytes(usize::MAX), Err(Error::OutOfRange { .. })));
    assert_eq!(DeviceBuffer::<u64>::bytes(usize::MAX / 8).unwrap(), u64::MAX / 8 * 8);
    assert_eq!(DeviceBuffer::<u8>::bytes(usize::MAX).unwrap(), u64::MAX);
}

#[test]
fn a_region_that_no_element_can_start_at_or_that_nobody_allocated_is_refused() {
    let (buffer, heap) = buffer::<u32>(16);
    let at = |offset, len| Region::new(HeapOffset::new(offset), len);
    let start = buffer.region().offset.get();
    assert!(matches!(DeviceBuffer::<u32>::new(&heap, at(start + 2, 4)), Err(Error::Misaligned { .. })));
    assert!(DeviceBuffer::<u32>::new(&heap, at(0, u64::MAX)).is_err());
    assert_eq!(DeviceBuffer::<u32>::new(&heap, at(start, 7)).unwrap().len(), 1, "whole elements only");
}
