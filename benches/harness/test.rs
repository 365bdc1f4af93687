//! What `shmccl perf` can measure, and over which channels.

use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::{Deserialize, Serialize};
use shmccl::collective::Operation;
use shmccl::comm::CollectiveCall;

/// Declares [`Test`]: what each test that is no operation measures, and its name.
macro_rules! tests {
    ($($(#[doc = $measures:literal])+ $test:ident $name:literal $($default:ident)?,)+) => {
        /// The tests of `shmccl perf`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum Test {
            $($(#[doc = $measures])+ $(#[$default])? $test,)+
            /// A collective operation, or messages: a [send](Operation::Send) of every rank to the
            /// next.
            Operation(Operation),
        }

        /// Those that are no operations, each with its name and what it measures.
        const OTHERS: &[(Test, &str, &str)] = &[$((Test::$test, $name, concat!($($measures),+))),+];
    };
}

tests! {
    /// What the machine can do at best: the limits of all other tests
    Limits "limits" default,
    /// signal to wait, one way
    SignalLatency "signal_latency",
    /// put_with_signal to wait, one way, by size
    PutLatency "put_latency",
    /// put_packets to unpack_packets, one way, by size
    PacketLatency "packet_latency",
    /// get, by size
    GetLatency "get_latency",
    /// put in one direction, by size
    PutBandwidth "put_bandwidth",
    /// put in both directions at once, by size
    PutBidirectional "put_bidirectional",
    /// Small puts with signal per second
    MessageRate "message_rate",
    /// An element written by rank and offset, again and again, while its line stays in the cache
    ElementPut "p_latency",
    /// An element read by rank and offset, of which each tells where the next one is
    ElementGet "g_latency",
    /// An atomic operation on a word whose line stays in the cache
    AtomicLatency "atomic_latency",
    /// Atomic operations of all ranks on one word, per second
    AtomicRate "atomic_rate",
    /// Setting a word by rank and offset to the end of wait_until for it, one way
    WaitUntilLatency "wait_until_latency",
    /// put_signal of 8 bytes to the end of wait_until for its word, one way
    PutSignalLatency "put_signal_latency",
    /// Triggers pushed and served per second, by producers and fifos
    FifoRate "fifo_rate",
    /// Push of a trigger until the peer has its data, one way, and until the device that pushed
    /// knows it is done
    ProxyRoundTrip "proxy_round_trip",
    /// barrier, by ranks: the mean of 8 in a row, from return to return on rank 0
    Barrier "barrier",
    /// From starting processes to all ranks ready
    Launch "launch",
    /// How much of a proxied transfer hides behind computation, with the proxy on another core; the
    /// device copies a direct one itself, and nothing hides
    Overlap "overlap",
    /// What a trace costs: traced operations against untraced ones
    TraceCost "trace_cost",
    /// Every rank to every other: a matrix of bandwidths and latencies
    P2p "p2p",
}

/// All tests, in the order in which they run.
static ALL: LazyLock<Vec<Test>> = LazyLock::new(|| {
    let is_tested = |operation: &Operation| match operation {
        Operation::Send => true,
        _ => !operation.has_peer() && *operation != Operation::RunPlan,
    };
    let operations = CollectiveCall::OPERATIONS.into_iter().filter(is_tested).map(Test::Operation);
    OTHERS.iter().map(|(test, ..)| *test).chain(operations).collect()
});

impl ValueEnum for Test {
    fn value_variants<'a>() -> &'a [Self] {
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let value = PossibleValue::new(self.name()).help(self.told().1);
        let alias = Some(self.nccl_tests_name()).filter(|alias| *alias != self.name());
        Some(alias.into_iter().fold(value, PossibleValue::alias))
    }
}

impl From<Test> for String {
    fn from(test: Test) -> Self {
        test.name().to_owned()
    }
}

impl TryFrom<String> for Test {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let named = ALL.iter().copied().find(|test| test.name() == name);
        named.ok_or_else(|| format!("no such test: {name}"))
    }
}

impl Test {
    /// Returns the name on the command line and in reports.
    pub fn name(self) -> &'static str {
        self.told().0
    }

    /// Returns its name, and what it measures.
    fn told(self) -> (&'static str, &'static str) {
        match self {
            Self::Operation(Operation::AllToAllV) => (
                Operation::AllToAllV.name(),
                "An all_to_all with blocks of several lengths: of n ranks, r sends s as many as 1 + (r + s) mod n of \
                 n (n + 1) / 2 parts",
            ),
            Self::Operation(Operation::Send) => {
                ("sendrecv", "The input of the rank before: each sends to the next")
            }
            Self::Operation(operation) => (operation.name(), operation.description().trim_end_matches('.')),
            _ => {
                let (_, name, measures) =
                    OTHERS.iter().find(|(test, ..)| *test == self).expect("all others are there");
                (name, measures.trim_ascii())
            }
        }
    }

    /// Returns the name of the program of nccl-tests or rccl-tests for this test, without `_perf`.
    pub fn nccl_tests_name(self) -> &'static str {
        match self {
            Self::Operation(Operation::AllToAll) => "alltoall",
            Self::Operation(Operation::AllToAllV) => "alltoallv",
            _ => self.name(),
        }
    }

    /// Returns whether it measures a collective operation, and prints the table of nccl-tests.
    pub fn is_collective(self) -> bool {
        self.operation().is_some()
    }

    /// Returns whether device processes do it: all but the fifo between threads of the launcher.
    pub fn starts_processes(self) -> bool {
        self != Self::FifoRate
    }

    /// Returns whether it runs only when named: it prints a table of its own, or takes long.
    pub fn is_on_request(self) -> bool {
        matches!(self, Self::TraceCost | Self::P2p) || self.is_collective()
    }

    /// Returns whether its rows go into the table of all tests.
    pub fn is_in_table(self) -> bool {
        self != Self::P2p && !self.is_collective()
    }

    /// Returns whether there is a choice of algorithms. Messages have none: only two ranks know
    /// their lengths, so that all could not choose alike.
    pub fn has_algorithms(self) -> bool {
        self.operation().is_some_and(Operation::has_algorithms)
    }

    /// Returns the channels that the test can use; none for a test that uses no channel.
    pub fn channels(self) -> &'static [TestChannel] {
        match self {
            Self::PacketLatency | Self::GetLatency => &[TestChannel::Memory],
            Self::ProxyRoundTrip | Self::Overlap => &[TestChannel::Port],
            Self::SignalLatency
            | Self::PutLatency
            | Self::PutBandwidth
            | Self::PutBidirectional
            | Self::MessageRate
            | Self::P2p => &[TestChannel::Memory, TestChannel::Port],
            _ => &[],
        }
    }

    /// Returns the operation that the test measures, if it is a collective one. `sendrecv` is a
    /// send of every rank to the next.
    pub fn operation(self) -> Option<Operation> {
        match self {
            Self::Operation(operation) => Some(operation),
            _ => None,
        }
    }
}

/// A kind of channel: what moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestChannel {
    /// The device thread itself: direct
    Memory,
    /// A proxy, told by a trigger: proxied
    Port,
}

impl TestChannel {
    /// Returns the name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Port => "port",
        }
    }
}
