//! The output of the commands around a pool, for people and for programs.

use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::process::Stdio;

use serde_json::Value;
use shmccl::coordinator::{Client, CommId, CoordinatorError, DeviceId, RequestError};

use crate::coordinator::pool::{Pool, Told};
use crate::coordinator::walk::ranks;

/// Takes the JSON out of a file, and removes that.
fn take(pool: &Pool, name: &str) -> Value {
    let path = pool.parent.join(name);
    let value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(path).unwrap();
    value
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

#[test]
fn ps_shows_the_communicator_of_the_pool_for_a_job() {
    let pool = Pool::start("ps", 3);
    let devices = ranks(&pool.ctl("init 2").line());
    let file = pool.parent.join("ps.json");
    let mut ps = pool.command();
    let table = ps.args(["ps", "--json"]).arg(&file).output().unwrap().stdout;
    let table = String::from_utf8(table).unwrap();
    let list = take(&pool, "ps.json");
    let is_its = |job: &&Value| job["processes"][0] == devices[0];
    let job = list.as_array().unwrap().iter().find(is_its).unwrap_or_else(|| panic!("{list}"));
    let directory = pool.parent.join("shmccl");
    assert_eq!((&job["communicator"], job["pool"].as_str()), (&1.into(), directory.to_str()), "{job}");
    let line = table.lines().find(|line| line.starts_with(job["job"].as_str().unwrap())).unwrap();
    assert!(line.contains(&format!(" 1 of {} ", directory.display())), "{table}");
    assert!(table.lines().next().unwrap().contains(" communicator "), "{table}");
}

#[test]
fn tables_of_ctl_are_written_as_json_as_well() {
    let pool = Pool::start("json", 3);
    let devices = ranks(&pool.ctl("init 2").line());
    let path = |name: &str| pool.parent.join(name).to_str().unwrap().to_owned();
    let table = pool.ctl(&format!("devices --json {}", path("devices"))).line();
    let list = take(&pool, "devices");
    let found: Vec<_> = list.as_array().unwrap().iter().map(|it| it["device"].as_u64().unwrap()).collect();
    assert_eq!(found, pool.devices().into_iter().map(u64::from).collect::<Vec<_>>(), "{list}");
    assert!(table.starts_with("device") && table.lines().count() == 4, "{table}");
    for (words, name) in [("status", "all"), ("status 1", "one")] {
        let line = pool.ctl(&format!("{words} --json {}", path(name))).line();
        let list = take(&pool, name);
        assert_eq!(
            (&list[0]["comm"], &list[0]["state"], &list[1]),
            (&1.into(), &"ready".into(), &Value::Null)
        );
        assert_eq!(numbers(&list[0]["devices"]), devices.iter().copied().map(u64::from).collect::<Vec<_>>());
        assert!(line.starts_with("communicator 1: ready"), "{line}");
    }
    let told = pool.ctl("devices --json -");
    let list: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((told.code, list.as_array().unwrap().len()), (0, 3));
    assert!(told.stderr.starts_with("device"), "{}", told.stderr);
}

#[test]
fn lengths_are_given_as_sizes_or_in_hexadecimal() {
    let pool = Pool::start("lengths", 1);
    let device = ranks(&pool.ctl("init 1").line())[0];
    for (len, bytes) in [("16", 16), ("0x10", 16), ("4K", 4096)] {
        let told = pool.ctl(&format!("get-d2h {device} 0x1000 {len}"));
        assert_eq!((told.code, told.stdout.len()), (0, bytes), "{len}: {}", told.stderr);
    }
    assert_eq!(pool.ctl(&format!("get-d2h {device} 0x1000 4Q")).code, 2);
}

#[test]
fn a_group_whose_operands_are_too_much_is_refused_before_anything_is_executed() {
    let pool = Pool::start("operands", 2);
    let device = ranks(&pool.ctl("init 2").line())[0];
    let group = pool.ctl("group start 1").line();
    // All of the memory, read and written.
    let call = format!("call 1 all_reduce -n 16777216 --send 0x1000 --group {group}");
    assert!(pool.ctl(&call).line().starts_with(&format!("communicator 1: call 1 of group {group}")));
    let refused = pool.ctl(&call);
    let why = format!(
        "the operands of the group would have 268435456 bytes on device {device}, and 134217728 is the most, 2 times its memory; end \
         it and start another one"
    );
    assert!(refused.error().ends_with(&why), "{}", refused.stderr);
    assert_eq!(pool.ctl("group end 1").line(), "communicator 1: group 1 in progress", "without that call");
    assert!(pool.ctl("status 1 --wait").line().ends_with("group 1 succeeded"));
}

/// Starts a pool of one device of 4 MiB, which is in communicator 1.
fn small(name: &str) -> (Pool, u32) {
    let mut pool = Pool::empty(name);
    drop(pool.start_fleet(1, &["-n", "1", "--memory", "4M"]));
    let device = ranks(&pool.ctl("init 1").line())[0];
    (pool, device)
}

/// Runs `put-h2d DEVICE ADDRESS` with this input.
fn put(pool: &Pool, device: u32, address: &str, input: impl Into<Stdio>) -> Told {
    let mut command = pool.command();
    let output =
        command.args(["ctl", "put-h2d", &device.to_string(), address]).stdin(input).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Told { code: output.status.code().unwrap(), stdout: output.stdout, stderr }
}

#[test]
fn a_file_is_copied_to_a_device_piece_by_piece_be_it_named_or_the_standard_input_and_read_in_part() {
    let (pool, device) = small("put");
    let path = pool.parent.join("file");
    let content: Vec<u8> = (0..(3_u32 << 20) + 5).map(|index| (index % 251) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let get = |address: u64, len: usize| pool.ctl(&format!("get-d2h {device} {address:#x} {len}")).stdout;
    assert_eq!(pool.ctl(&format!("put-h2d {device} 0x1003 {}", path.display())).line(), "");
    assert!(get(0x1003, content.len()) == content);
    let mut rest = File::open(&path).unwrap();
    rest.read_exact(&mut [0; 7]).unwrap();
    assert_eq!(put(&pool, device, "0x1000", rest).line(), "");
    assert!(get(0x1000, content.len() - 7) == content[7..]);
    // The kernel does not say how long this is.
    let made_up = std::fs::read("/proc/version").unwrap();
    assert_eq!(pool.ctl(&format!("put-h2d {device} 0x1000 /proc/version")).line(), "");
    assert_eq!(get(0x1000, made_up.len()), made_up);
}

#[test]
fn more_than_a_device_has_addresses_for_is_an_error_that_changes_nothing_wherever_it_comes_from() {
    let (pool, device) = small("put-beyond");
    let long = pool.parent.join("long");
    File::create(&long).unwrap().set_len((4 << 20) + 1).unwrap();
    pool.ctl_with(&format!("put-h2d {device} 0x1000"), b"here").line();
    let exact = "4194305 bytes at 0x1000 of device";
    let named = pool.ctl(&format!("put-h2d {device} 0x1000 {}", long.display()));
    assert!(named.error().contains(exact) && named.stderr.contains("out of range"), "{}", named.stderr);
    assert!(put(&pool, device, "0x1000", File::open(&long).unwrap()).error().contains(exact));
    let endless = format!(
        "has more than the 4194304 bytes that device {device} has from 0x1000 on: its addresses are 0x1000 to 0x401000; nothing was copied"
    );
    let zero = pool.ctl(&format!("put-h2d {device} 0x1000 /dev/zero"));
    assert_eq!(zero.error(), format!("error: /dev/zero {endless}"));
    let zero = put(&pool, device, "0x1000", File::open("/dev/zero").unwrap());
    assert_eq!(zero.error(), format!("error: the standard input {endless}"));
    for address in ["0xfff", "0x401001", "0"] {
        let beyond = put(&pool, device, address, File::open(&long).unwrap());
        assert!(beyond.error().contains("4194305 bytes at "), "{}", beyond.stderr);
        assert!(
            put(&pool, device, address, File::open("/dev/zero").unwrap())
                .error()
                .contains("than the 0 bytes")
        );
    }
    assert!(
        put(&pool, device, "0x1000", File::open(&pool.parent).unwrap()).error().contains("Is a directory")
    );
    assert_eq!(pool.ctl(&format!("get-d2h {device} 0x1000 5")).stdout, b"here\0");
}

#[test]
fn a_device_that_takes_nothing_is_told_of_before_the_standard_input_is_read() {
    let (pool, device) = small("put-unread");
    // It stays open, and nothing comes.
    let (input, _nobody_writes) = std::io::pipe().unwrap();
    let told = put(&pool, device + 1, "0x1000", input.try_clone().unwrap());
    assert!(told.error().contains("there is no device"), "{}", told.stderr);
    pool.ctl("finalize 1").line();
    assert!(put(&pool, device, "0x1000", input).error().contains("belongs to no communicator"));
}

/// A source of zeros that ends a communicator after so many.
struct Ending {
    left: usize,
    ender: Client,
}

impl Read for Ending {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        buffer.fill(0);
        let was = self.left;
        self.left = was.saturating_sub(buffer.len());
        if was > 0 && self.left == 0 {
            self.ender.destroy(CommId::new(1)).unwrap();
        }
        Ok(buffer.len())
    }
}

#[test]
fn a_copy_to_a_device_that_is_taken_away_meanwhile_fails_by_that_and_not_by_the_hang_up() {
    let pool = Pool::start("put-taken", 1);
    let device = DeviceId::new(ranks(&pool.ctl("init 1").line())[0]);
    let (mut client, ender) = (pool.client(), pool.client());
    let source = Ending { left: 8 << 20, ender };
    let refused = client.write_device(device, 0x1000, 64 << 20, source).unwrap_err();
    let is_told = matches!(refused, CoordinatorError::Refused(RequestError::NotAllocated { .. }));
    assert!(is_told, "{refused:?}");
    assert_eq!(client.devices().unwrap()[0].comm, None);
}

#[test]
fn a_client_that_keeps_to_a_communicator_copies_nothing_of_the_one_that_has_its_device_next() {
    let (pool, device) = small("kept-to");
    let mut client = pool.client();
    let device = DeviceId::new(device);
    client.keep_to(Some(CommId::new(1)));
    client.copy_host_to_device(device, 0x1000, b"mine").unwrap();
    client.destroy(CommId::new(1)).unwrap();
    client.init(1, false).unwrap();
    let is_refused = |copied: Result<(), CoordinatorError>| {
        matches!(copied, Err(CoordinatorError::Refused(RequestError::NotAllocated { .. })))
    };
    assert!(is_refused(client.copy_host_to_device(device, 0x1000, b"mine")));
    assert!(is_refused(client.read_device(device, 0x1000, 4).map(drop)));
    client.keep_to(None);
    assert_eq!(client.read_device(device, 0x1000, 4).unwrap(), [0; 4]);
}

#[test]
fn a_source_that_ends_too_soon_is_an_error_and_the_device_has_whole_mebibytes_of_it() {
    let (pool, device) = small("put-short");
    let mut client = pool.client();
    let device = DeviceId::new(device);
    let source = std::io::repeat(7).take((1 << 20) + 9);
    let error = client.write_device(device, 0x1000, 2 << 20, source).unwrap_err();
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(why, "it has ended before 2097152 bytes");
    // The bytes may still be on their way.
    while client.read_device(device, 0x10_0fff, 1).unwrap() != [7] {}
    assert_eq!(client.read_device(device, 0x10_0fff, 10).unwrap(), [&[7][..], &[0; 9]].concat());
    let refused = client.write_device(device, 0x40_0fff, 2, std::io::empty()).unwrap_err();
    assert!(refused.to_string().contains("out of range"), "{refused}");
    client.write_device(device, 0x40_1000, 0, std::io::empty()).unwrap();
}

#[test]
fn a_device_is_read_piece_by_piece_until_the_reader_has_enough() {
    let (pool, device) = small("get-pieces");
    let mut client = pool.client();
    let device = DeviceId::new(device);
    client.copy_host_to_device(device, 0x1000, b"abcdefghij").unwrap();
    for (piece, enough, wanted) in
        [(4, 9, &["abcd", "efgh", "ij"][..]), (4, 2, &["abcd", "efgh"]), (10, 9, &["abcdefghij"])]
    {
        let mut pieces = Vec::new();
        let sink = |piece| {
            pieces.push(String::from_utf8(piece).unwrap());
            if pieces.len() < enough { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        client.read_device_in_pieces(device, 0x1000, 10, piece, sink).unwrap();
        assert_eq!(pieces, wanted);
    }
}

#[test]
fn numbers_that_cannot_be_are_wrong_usage_and_others_are_refused_and_none_of_them_changes_anything() {
    let pool = Pool::start("numbers", 1);
    for (words, told) in [
        ("init 0", "0 is not in 1..=256; try 'shmccl ctl init --help'"),
        ("init 257", "257 is not in 1..=256; try 'shmccl ctl init --help'"),
        ("init -1", "'-1' for '<N>': -1 is not in 1..=256; try 'shmccl ctl init --help'"),
        ("put-h2d -1 0x1000", "invalid value '-1' for '<DEVICE>'"),
        ("get-d2h 1 0x1000 -1", "invalid value '-1' for '<LEN>'"),
        ("group end one", "try 'shmccl ctl group end --help'"),
    ] {
        let told_here = pool.ctl(words);
        assert_eq!((told_here.code, told_here.stderr.lines().count()), (2, 1), "{}", told_here.stderr);
        assert!(told_here.stderr.contains(told), "{}", told_here.stderr);
    }
    let device = pool.command().args(["device", "--core", "99999"]).output().unwrap();
    let stderr = String::from_utf8(device.stderr).unwrap();
    assert_eq!((device.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
    assert!(pool.ctl("status 18446744073709551615").error().contains("there is no communicator"));
    assert_eq!(pool.ctl("status").line(), "");
}

#[test]
fn a_wait_for_what_has_failed_says_so_by_its_code_though_nobody_reads_what_it_prints() {
    let pool = Pool::start("unread", 1);
    pool.ctl("init 1").line();
    pool.ctl(&format!("restore 1 {}", pool.parent.display())).error();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = pool.command();
    let output = command.args(["ctl", "status", "1", "--wait"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
}
