//! What each device of a pool gets by each operation, by commands alone.

use crate::coordinator::pool::Pool;
use crate::coordinator::walk::ranks;

/// Where the devices have their inputs and their outputs.
const SEND: u64 = 0x1000;
const RECV: u64 = 0x2000;

/// A pool whose three devices are in communicator 1, by rank.
struct Devices {
    pool: Pool,
    by_rank: Vec<u32>,
}

impl Devices {
    fn start(name: &str) -> Self {
        let pool = Pool::start(name, 3);
        let by_rank = ranks(&pool.ctl("init 3").line());
        Self { pool, by_rank }
    }

    /// Writes the bytes of each rank to its device.
    fn put(&self, address: u64, bytes: [&[u8]; 3]) {
        for (device, bytes) in self.by_rank.iter().zip(bytes) {
            self.pool.ctl_with(&format!("put-h2d {device} {address}"), bytes).line();
        }
    }

    fn get(&self, address: u64, len: usize) -> Vec<Vec<u8>> {
        let get = |device| self.pool.ctl(&format!("get-d2h {device} {address} {len}")).stdout;
        self.by_rank.iter().map(get).collect()
    }

    /// Calls `words`, and waits until that is done.
    fn call(&self, words: &str) {
        assert!(self.pool.ctl(&format!("call 1 {words}")).line().ends_with("in progress"));
        self.settle();
    }

    fn settle(&self) {
        let status = self.pool.ctl("status 1 --wait").line();
        assert!(status.ends_with("succeeded"), "{status}");
    }

    /// Calls `words` from inputs to outputs, whose bytes are all 9 before. Returns these.
    fn results(&self, words: &str, inputs: [&[u8]; 3], len: usize) -> Vec<Vec<u8>> {
        self.put(SEND, inputs);
        self.put(RECV, [&vec![9; len]; 3]);
        self.call(&format!("{words} --send {SEND} --recv {RECV}"));
        self.get(RECV, len)
    }
}

#[test]
fn devices_get_prefixes_and_the_blocks_of_roots() {
    let devices = Devices::start("operations");
    let inputs: [&[u8]; 3] = [&[1, 2, 3], &[10, 20, 30], &[100, 50, 0]];
    let of = |words: &str, len| devices.results(words, inputs, len);
    assert_eq!(of("scan -d uint8 -n 3", 3), [[1, 2, 3], [11, 22, 33], [111, 72, 33]]);
    assert_eq!(of("exscan -d uint8 -n 3", 3), [[9, 9, 9], [1, 2, 3], [11, 22, 33]]);
    assert_eq!(of("exscan -d uint8 -n 2 --op max", 3), [[9, 9, 9], [1, 2, 9], [10, 20, 9]]);
    assert_eq!(of("scan -d uint8 -n 1 --op bxor", 1), [[1], [11], [111]]);
    let whole = [1, 2, 10, 20, 100, 50];
    assert_eq!(of("gather -d uint8 -n 2 --root 2", 6), [[9; 6], [9; 6], whole]);
    assert_eq!(of("scatter -d uint8 -n 1 --root 1", 1), [[10], [20], [30]]);
    // In place, on whatever the outputs are.
    devices.put(SEND, inputs);
    devices.call(&format!("exscan -d uint8 -n 3 --send {SEND}"));
    assert_eq!(devices.get(SEND, 3), [[1, 2, 3], [1, 2, 3], [11, 22, 33]]);
}

#[test]
fn devices_combine_truth_values_complex_numbers_and_short_integers() {
    let devices = Devices::start("types");
    let truths = devices.results("scan -d bool -n 2", [&[0, 0], &[1, 0], &[0, 0]], 2);
    assert_eq!(truths, [[0, 0], [1, 0], [1, 0]]);
    let number = |re: f32, im: f32| [re.to_ne_bytes(), im.to_ne_bytes()].concat();
    let numbers = [number(1.0, 2.0), number(0.5, -1.0), number(3.0, 0.0)];
    let numbers = [&*numbers[0], &*numbers[1], &*numbers[2]];
    let sums = [number(1.0, 2.0), number(1.5, 1.0), number(4.5, 1.0)];
    assert_eq!(devices.results("scan -d complex64 -n 1", numbers, 8), sums);
    let short = [300_i16, -1000, 7].map(i16::to_ne_bytes);
    let short = [&short[0][..], &short[1], &short[2]];
    let most = [300_i16, 300, 300].map(|most| most.to_ne_bytes().to_vec());
    assert_eq!(devices.results("scan -d int16 -n 1 --op max", short, 2), most);
    let sums =
        [None, Some(300_i16), Some(-700)].map(|sum| sum.map_or(vec![9; 2], |sum| sum.to_ne_bytes().to_vec()));
    assert_eq!(devices.results("exscan -d int16 -n 1", short, 2), sums);
    let refused = devices.pool.ctl("call 1 scan -d complex64 -n 1 --op max --send 0x1000");
    assert!(refused.error().contains("operator max is not defined on complex64"), "{}", refused.stderr);
}

#[test]
fn prefixes_of_a_group_on_the_same_memory_are_done_one_after_the_other() {
    let devices = Devices::start("overlapping");
    devices.put(SEND, [&[1], &[2], &[3]]);
    devices.put(RECV, [&[0; 3]; 3]);
    devices.pool.ctl("group start 1").line();
    for words in [
        format!("scan -d uint8 -n 1 --send {SEND} --recv {RECV}"),
        // Of what the first one leaves, to where that has its input.
        format!("exscan -d uint8 -n 1 --send {RECV} --recv {SEND}"),
        format!("gather -d uint8 -n 1 --root 1 --send {SEND} --recv {RECV}"),
        format!("scatter -d uint8 -n 1 --root 1 --send {RECV} --recv {SEND}"),
        format!("scan -d uint8 -n 1 --op prod --send {SEND}"),
    ] {
        assert!(devices.pool.ctl(&format!("call 1 {words}")).line().contains("which is open"), "{words}");
    }
    devices.pool.ctl("group end 1").line();
    devices.settle();
    assert_eq!(devices.get(RECV, 3), [[1, 0, 0], [1, 1, 4], [6, 0, 0]]);
    assert_eq!(devices.get(SEND, 1), [[1], [1], [4]]);
}

#[test]
fn operations_and_flags_that_devices_do_not_have_are_refused_with_those_that_they_have() {
    let pool = Pool::start("refused-operations", 0);
    let refused = pool.ctl("call 1 send -n 1 --send 0x1000");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("gather, scatter, scan, exscan"), "{}", refused.stderr);
    let refused = pool.ctl("call 1 scan -n 1 --root 1 --send 0x1000");
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--root"), "{}", refused.stderr);
    let help = pool.ctl("call --help").line();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("gather, scatter, scan, exscan"), "{help}");
}
