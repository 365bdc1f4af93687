//! Whatever is sent to the sockets, the coordinator and its devices live on and serve valid
//! requests.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};
use support::{Random, long, seed};

use crate::coordinator::pool::{Pool, lists};
use crate::coordinator::strangers::{device_socket, frame};

/// Random positions in messages.
struct RandomIndex(Random);

impl RandomIndex {
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.below(end as u64)).unwrap()
    }
}

/// Messages that are valid, more or less, after a greeting.
const MESSAGES: [&str; 16] = [
    r#""heartbeat""#,
    r#"{"number":1,"request":{"list":{"from":0}}}"#,
    r#"{"number":1,"request":{"init":{"devices":2,"keep_going":true}}}"#,
    r#"{"number":1,"request":{"init":{"devices":4294967295,"keep_going":false}}}"#,
    r#"{"number":18446744073709551615,"request":{"status":{"comm":1,"settled":true}}}"#,
    r#"{"number":2,"request":{"group_start":{"comm":1,"repeats":true}}}"#,
    r#"{"number":3,"request":{"call":{"comm":1,"group":null,"call":{"collective":"all_gather","data_type":"f64","op":"sum","root":4294967295,"count":18446744073709551615,"send":[0,18446744073709551615],"recv":[4096,4096]}}}}"#,
    r#"{"number":4,"request":{"group_end":{"comm":1,"group":{"incarnation":18446744073709551615,"number":0}}}}"#,
    r#"{"number":5,"request":{"destroy":1}}"#,
    r#"{"number":6,"request":{"checkpoint":{"comm":1,"directory":"/dev/null/nowhere"}}}"#,
    r#"{"number":7,"request":{"restore":{"comm":1,"directory":"nowhere"}}}"#,
    r#"{"state":{"version":1,"heard":0,"timeout_ms":0,"range":{"min":0,"max":18446744073709551615},"socket":"","membership":null}}"#,
    r#"{"state":{"version":2,"heard":0,"timeout_ms":0,"range":{"min":9,"max":1},"socket":"x","membership":{"formation":{"comm":281474976710654,"incarnation":0,"epoch":18446744073709551615,"members":[],"keep_going":true},"has_met":true,"groups":18446744073709551615,"phase":{"ready":null},"last":null}}}"#,
    r#"{"state":{"version":3,"heard":0,"timeout_ms":0,"range":{"min":9,"max":1},"socket":"x","membership":{"formation":{"comm":0,"incarnation":0,"epoch":0,"members":[1,1,1],"keep_going":true},"has_met":false,"groups":0,"phase":{"going_on":4294967295},"last":null}}}"#,
    r#"{"state":{"version":1,"heard":0,"timeout_ms":0,"range":{"min":9,"max":1},"socket":"x","membership":{"formation":{"comm":281474976710655,"incarnation":0,"epoch":1,"members":[4294967295],"keep_going":true},"has_met":true,"groups":0,"phase":{"ready":null},"last":null}}}"#,
    r#"{"device":1,"comm":1,"bytes":{"address":18446744073709551615,"len":18446744073709551615},"direction":"put"}"#,
];

fn draw(random: &mut RandomIndex) -> Vec<u8> {
    let role = ["client", "device", "neither"][random.below(3)];
    let greeting = frame(&format!(r#"{{"shmccl":"{}","role":"{role}"}}"#, shmccl::coordinator::VERSION));
    let mut bytes = if random.below(4) == 0 { Vec::new() } else { greeting };
    for _ in 0..random.below(8) {
        bytes.extend(frame(MESSAGES[random.below(MESSAGES.len())]));
    }
    for _ in 0..random.below(4) * random.below(4) {
        let at = random.below(bytes.len() + 1);
        let byte = u8::try_from(random.below(256)).unwrap();
        match bytes.get_mut(at) {
            Some(place) => *place = byte,
            None => bytes.push(byte),
        }
    }
    bytes.truncate(random.below(2 * bytes.len() + 2));
    bytes
}

#[test]
fn garbage_takes_neither_the_coordinator_nor_a_device_down() {
    let time = Duration::from_secs(if long() { 60 } else { 1 });
    let mut pool = Pool::start("garbage", 2);
    let address = SocketAddr::from_abstract_name(device_socket(pool.devices()[0])).unwrap();
    let seed = seed();
    println!("garbage for {time:?}, SHMCCL_SEED={seed}");
    each_state_is_understood(&pool);
    let (mut random, began, mut tries) = (RandomIndex(Random(seed)), Instant::now(), 0_u64);
    while began.elapsed() < time {
        tries += 1;
        let to_device = random.below(3) == 0;
        let stream =
            if to_device { UnixStream::connect_addr(&address) } else { UnixStream::connect(pool.socket()) };
        let mut stream = stream.unwrap_or_else(|error| panic!("seed {seed}, try {tries}: {error}"));
        // The other side may have hung up in the middle.
        let _ = stream.write_all(&draw(&mut random));
        if !to_device && random.below(4) == 0 {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
            let _ = stream.read(&mut [0; 4096]);
        }
    }
    assert!(pool.has_coordinator(), "seed {seed}: the coordinator is dead after {tries} tries");
    let told = pool.ctl("devices").line();
    for device in pool.devices() {
        assert!(lists(&told, device), "seed {seed}: {told}");
    }
    serves_valid_requests(&pool);
    println!("{tries} conversations of garbage");
}

/// Registers once with each state as it stands, so that none is refused for its form alone.
fn each_state_is_understood(pool: &Pool) {
    let registered = || {
        let metrics = pool.ctl("metrics").line();
        let line = metrics.lines().find(|line| line.starts_with("shmccl_devices_registered_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    for state in MESSAGES.into_iter().filter(|message| message.starts_with(r#"{"state""#)) {
        let before = registered();
        let mut stream = UnixStream::connect(pool.socket()).unwrap();
        let greeting = format!(r#"{{"shmccl":"{}","role":"device"}}"#, shmccl::coordinator::VERSION);
        stream.write_all(&[frame(&greeting), frame(state)].concat()).unwrap();
        let began = Instant::now();
        while registered() == before {
            assert!(began.elapsed() < Duration::from_secs(20), "not understood: {state}");
        }
    }
}

/// Makes a communicator of both devices, when no other one has them any more, and copies to and
/// from one of them.
fn serves_valid_requests(pool: &Pool) {
    let began = Instant::now();
    loop {
        for line in pool.ctl("status").line().lines() {
            let comm = line.trim_start_matches("communicator ").split(':').next().unwrap();
            // The communicator may end by itself first.
            pool.ctl(&format!("destroy {comm}"));
        }
        if pool.ctl("init 2").code == 0 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no communicator can be made any more");
    }
    let device = pool.devices()[0];
    assert_eq!(pool.ctl_with(&format!("put-h2d {device} 0x1000"), b"sense").line(), "");
    assert_eq!(pool.ctl(&format!("get-d2h {device} 0x1000 5")).stdout, b"sense");
}
