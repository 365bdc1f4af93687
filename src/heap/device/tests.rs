use proptest::prelude::*;

use super::*;

const MAX: u64 = MIN_ADDRESS + 3 * CHUNK;

fn create(max_address: u64) -> Result<DeviceMemory> {
    DeviceMemory::create(&Backing::Anonymous, at(max_address), Identity::default())
}

#[test]
fn what_was_written_is_known_by_whole_chunks_and_reading_takes_no_memory() {
    let device = device();
    let used = || device.used().iter().map(|it| (it.offset.get(), it.len)).collect::<Vec<_>>();
    assert_eq!(used(), []);
    device.copy_host_to_device(at(3 * CHUNK), &[1]).unwrap();
    assert_eq!(used(), [(3 * CHUNK, MIN_ADDRESS)]);
    let mut all = read(&device, MIN_ADDRESS, usize::try_from(MAX - MIN_ADDRESS).unwrap());
    let written = usize::try_from(3 * CHUNK - MIN_ADDRESS).unwrap();
    assert_eq!(std::mem::take(&mut all[written]), 1);
    assert!(all.iter().all(|byte| *byte == 0));
    assert_eq!(used(), [(3 * CHUNK, MIN_ADDRESS)]);
    device.copy_host_to_device(at(MIN_ADDRESS), &[1]).unwrap();
    assert_eq!(used(), [(MIN_ADDRESS, CHUNK - MIN_ADDRESS), (3 * CHUNK, MIN_ADDRESS)]);
    assert_eq!(read(&device, CHUNK - 2, 4), [0; 4], "it ends where no memory is");
    device.fill(at(MIN_ADDRESS), MAX - MIN_ADDRESS, 0).unwrap();
    assert_eq!(used(), [(MIN_ADDRESS, MAX - MIN_ADDRESS)]);
}

fn device() -> DeviceMemory {
    create(MAX).unwrap()
}

fn at(address: u64) -> DeviceAddress {
    DeviceAddress::new(address)
}

fn read(device: &DeviceMemory, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    device.copy_device_to_host(at(address), &mut bytes).unwrap();
    bytes
}

#[test]
fn what_the_host_writes_it_reads_back_and_fresh_memory_is_zero() {
    let device = device();
    assert_eq!((MIN_ADDRESS, device.max_address().get()), (0x1000, MAX));
    for (address, len) in [(MIN_ADDRESS, 1), (MAX - 1, 1), (CHUNK - 3, 7), (CHUNK + 100, 70_001)] {
        assert_eq!(read(&device, address, len), vec![0; len], "fresh");
        let data: Vec<u8> = (1..=251).cycle().take(len).collect();
        device.copy_host_to_device(at(address), &data).unwrap();
        assert_eq!(read(&device, address, len), data);
    }
}

#[test]
fn an_address_out_of_range_is_an_error_and_changes_nothing() {
    let device = device();
    device.fill(at(MIN_ADDRESS), MAX - MIN_ADDRESS, 7).unwrap();
    for (address, len) in
        [(0, 1), (0xfff, 1), (0xfff, 2), (MAX, 1), (MAX - 1, 2), (u64::MAX, 1), (MIN_ADDRESS, 4 * CHUNK)]
    {
        let mut host = vec![1; usize::try_from(len).unwrap()];
        let refused = |result: Result<()>| {
            assert!(
                matches!(result, Err(Error::OutOfRange { offset, limit: MAX, .. }) if offset == address),
                "{len} at {address:#x}"
            );
        };
        refused(device.copy_host_to_device(at(address), &host));
        refused(device.copy_device_to_host(at(address), &mut host));
        refused(device.copy_device_to_device(at(address), &device, at(MIN_ADDRESS), len));
        refused(device.copy_device_to_device(at(MIN_ADDRESS), &device, at(address), len));
        refused(device.fill(at(address), len, 1));
        assert!(host.iter().all(|byte| *byte == 1));
    }
    assert!(device.fill(at(MIN_ADDRESS), u64::MAX, 1).is_err());
    assert!(device.copy_device_to_device(at(MIN_ADDRESS), &device, at(MAX - 1), u64::MAX).is_err());
    let all = read(&device, MIN_ADDRESS, usize::try_from(MAX - MIN_ADDRESS).unwrap());
    assert!(all.iter().all(|byte| *byte == 7));
}

#[test]
fn an_empty_copy_is_legal_from_the_first_address_to_one_past_the_last() {
    let device = device();
    for address in [MIN_ADDRESS, MIN_ADDRESS + 1, MAX - 1, MAX] {
        device.copy_host_to_device(at(address), &[]).unwrap();
        device.copy_device_to_host(at(address), &mut []).unwrap();
        device.copy_device_to_device(at(address), &device, at(MAX), 0).unwrap();
        device.fill(at(address), 0, 1).unwrap();
    }
    for address in [0, MIN_ADDRESS - 1, MAX + 1, u64::MAX] {
        assert!(device.copy_host_to_device(at(address), &[]).is_err(), "{address:#x}");
        assert!(device.copy_device_to_device(at(MAX), &device, at(address), 0).is_err());
    }
}

#[test]
fn a_device_copies_to_another_and_onto_itself_with_overlap() {
    let (one, other) = (device(), device());
    let data: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    one.copy_host_to_device(at(0x1234), &data).unwrap();
    one.copy_device_to_device(at(0x1234), &other, at(CHUNK - 5000), 10_000).unwrap();
    assert_eq!(read(&other, CHUNK - 5000, 10_000), data);
    one.copy_device_to_device(at(0x1234), &one, at(0x1235), 9_999).unwrap();
    assert_eq!(read(&one, 0x1235, 9_999), data[..9_999]);
}

#[test]
fn a_copy_to_a_peer_checks_the_peers_own_range() {
    let (large, small) = (device(), create(0x2000).unwrap());
    assert!(large.copy_device_to_device(at(0x1000), &small, at(0x1000), 4097).is_err());
    large.copy_device_to_device(at(0x1000), &small, at(0x1000), 4096).unwrap();
    assert!(small.copy_device_to_device(at(0x1000), &large, at(0x1000), 4097).is_err());
}

#[test]
fn a_range_that_ends_below_the_lowest_address_or_within_a_page_is_refused() {
    for max in [0, 1, MIN_ADDRESS - 1, MIN_ADDRESS + 1, u64::MAX] {
        assert!(matches!(create(max), Err(Error::InvalidArgument { name: "max_address", .. })));
    }
    assert!(matches!(create(1 << 41), Err(Error::InvalidArgument { .. })));
    let none = create(MIN_ADDRESS).unwrap();
    none.copy_host_to_device(at(MIN_ADDRESS), &[]).unwrap();
    assert!(none.copy_host_to_device(at(MIN_ADDRESS), &[1]).is_err());
}

#[test]
fn memory_that_the_machine_does_not_have_is_an_error_of_the_copy_and_the_device_goes_on() {
    let (device, other) = (device(), create(1 << 40).unwrap());
    let all = (1 << 40) - MIN_ADDRESS;
    assert!(matches!(other.fill(at(MIN_ADDRESS), all, 1), Err(Error::ResourceLimit { .. })));
    assert_eq!(read(&other, (1 << 40) - 2, 2), [0, 0], "the far end costs no more than the near one");
    other.copy_host_to_device(at(1 << 39), &[1, 2, 3]).unwrap();
    other.copy_device_to_device(at(1 << 39), &device, at(MIN_ADDRESS), 3).unwrap();
    assert_eq!(read(&device, MIN_ADDRESS, 3), [1, 2, 3]);
}

#[test]
fn two_views_of_one_segment_are_one_memory() {
    let one = device();
    let other = DeviceMemory::new(Arc::clone(one.segment())).unwrap();
    one.copy_host_to_device(at(CHUNK), &[1, 2, 3]).unwrap();
    assert_eq!(read(&other, CHUNK, 3), [1, 2, 3]);
    other.copy_host_to_device(at(2 * CHUNK), &[4, 5, 6]).unwrap();
    assert_eq!(read(&one, 2 * CHUNK, 3), [4, 5, 6]);
}

#[test]
fn threads_that_touch_fresh_memory_together_all_find_their_bytes() {
    let device = device();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let device = &device;
            scope.spawn(move || {
                for start in (u64::from(thread)..3 * CHUNK).step_by(4096) {
                    device.copy_host_to_device(at(MIN_ADDRESS + start), &[thread + 1]).unwrap();
                }
            });
        }
    });
    for start in (0..3 * CHUNK).step_by(4096) {
        assert_eq!(read(&device, MIN_ADDRESS + start, 4), [1, 2, 3, 4]);
    }
}

#[test]
fn a_device_in_a_file_holds_its_bytes_when_it_is_made_again() {
    let path = std::env::temp_dir().join(format!("shmccl-device-{}", std::process::id()));
    let make = || DeviceMemory::create(&Backing::File(path.clone()), at(MAX), Identity::default());
    let first = make().unwrap();
    first.copy_host_to_device(at(MAX - 3), &[1, 2, 3]).unwrap();
    drop(first);
    let again = make().map(|device| (read(&device, MAX - 3, 3), read(&device, CHUNK, 3)));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(again.unwrap(), (vec![1, 2, 3], vec![0, 0, 0]));
}

#[derive(Clone, Debug)]
enum Step {
    Write { address: u64, len: usize, byte: u8 },
    Read { address: u64, len: usize },
    Copy { source: u64, target: u64, len: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let near = || prop_oneof![4 => prop_oneof![0x0ff0..0x1100_u64, 0x1f80..0x2010_u64], 1 => Just(0), 1 => (u64::MAX - 8)..=u64::MAX];
    prop_oneof![
        (near(), 0..100_usize, any::<u8>()).prop_map(|(address, len, byte)| Step::Write {
            address,
            len,
            byte
        }),
        (near(), 0..100_usize).prop_map(|(address, len)| Step::Read { address, len }),
        (near(), near(), prop_oneof![9 => 0..300_u64, 1 => Just(u64::MAX)])
            .prop_map(|(source, target, len)| Step::Copy { source, target, len }),
    ]
}

proptest! {
    #[test]
    fn a_device_is_an_array_that_starts_at_the_lowest_address(steps in prop::collection::vec(step(), 1..60)) {
        const SMALL: u64 = 0x2000;
        let device = create(SMALL).unwrap();
        let mut oracle = vec![0_u8; 0x1000];
        let index = |address: u64, len: u64| {
            let (address, len) = (u128::from(address), u128::from(len));
            let legal = address >= 0x1000 && address + len <= u128::from(SMALL);
            legal.then(|| usize::try_from(address - 0x1000).unwrap())
        };
        for step in steps {
            match step {
                Step::Write { address, len, byte } => {
                    let done = device.copy_host_to_device(at(address), &vec![byte; len]);
                    let start = index(address, len as u64);
                    prop_assert_eq!(done.is_ok(), start.is_some());
                    if let Some(start) = start {
                        oracle[start..start + len].fill(byte);
                    }
                }
                Step::Read { address, len } => {
                    let mut bytes = vec![0xee; len];
                    let done = device.copy_device_to_host(at(address), &mut bytes);
                    match index(address, len as u64) {
                        Some(start) => prop_assert_eq!(&bytes[..], &oracle[start..start + len]),
                        None => prop_assert!(done.is_err() && bytes.iter().all(|byte| *byte == 0xee)),
                    }
                }
                Step::Copy { source, target, len } => {
                    let done = device.copy_device_to_device(at(source), &device, at(target), len);
                    let both = index(source, len).zip(index(target, len));
                    prop_assert_eq!(done.is_ok(), both.is_some());
                    if let Some((source, target)) = both {
                        oracle.copy_within(source..source + usize::try_from(len).unwrap(), target);
                    }
                }
            }
        }
        prop_assert_eq!(read(&device, MIN_ADDRESS, 0x1000), oracle);
    }
}
