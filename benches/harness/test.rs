//! What `shmccl perf` can measure, and over which channels.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shmccl::collective::{Algorithm, Operation};

use crate::cores::allowed_cpus;

/// The tests of `shmccl perf`, in the order in which they run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// What the machine can do at best: the limits of all other tests
    #[default]
    Limits,
    /// signal to wait, one way
    SignalLatency,
    /// put_with_signal to wait, one way, by size
    PutLatency,
    /// put_packets to unpack_packets, one way, by size
    PacketLatency,
    /// get, by size
    GetLatency,
    /// put in one direction, by size
    PutBandwidth,
    /// put in both directions at once, by size
    PutBidirectional,
    /// Small puts with signal per second
    MessageRate,
    /// Triggers pushed and served per second, by producers and fifos
    FifoRate,
    /// Push of a trigger until the peer has its data, one way, and until the device that pushed
    /// knows it is done
    ProxyRoundTrip,
    /// barrier, by ranks: the mean of 8 in a row, from return to return on rank 0
    Barrier,
    /// From starting processes to all ranks ready
    Launch,
    /// How much of a proxied transfer hides behind computation, with the proxy on another core; the
    /// device copies a direct one itself, and nothing hides
    Overlap,
    /// What a trace costs: traced operations against untraced ones
    TraceCost,
    /// Every rank to every other: a matrix of bandwidths and latencies
    P2p,
    /// The reduction of all inputs, everywhere
    AllReduce,
    /// The reduction of all inputs, at the root
    Reduce,
    /// The root's input, everywhere
    Broadcast,
    /// All inputs, everywhere
    AllGather,
    /// The reduction of all inputs, divided among the ranks
    ReduceScatter,
    /// A block of each input for each rank
    #[value(alias = "alltoall")]
    AllToAll,
    /// An all_to_all with blocks of several lengths: of n ranks, r sends s as many as 1 + (r + s)
    /// mod n of n (n + 1) / 2 parts
    #[value(alias = "alltoallv")]
    AllToAllV,
    /// All inputs, at the root
    Gather,
    /// The root's input, divided among the ranks
    Scatter,
    /// The reduction of the inputs of all ranks up to each
    Scan,
    /// The reduction of the inputs of all ranks before each
    #[value(name = "exscan")]
    #[serde(rename = "exscan")]
    ExScan,
    /// The input of the rank before: each sends to the next
    #[value(name = "sendrecv")]
    #[serde(rename = "sendrecv")]
    SendRecv,
}

impl Test {
    /// Returns the name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limits => "limits",
            Self::SignalLatency => "signal_latency",
            Self::PutLatency => "put_latency",
            Self::PacketLatency => "packet_latency",
            Self::GetLatency => "get_latency",
            Self::PutBandwidth => "put_bandwidth",
            Self::PutBidirectional => "put_bidirectional",
            Self::MessageRate => "message_rate",
            Self::FifoRate => "fifo_rate",
            Self::ProxyRoundTrip => "proxy_round_trip",
            Self::Barrier => "barrier",
            Self::Launch => "launch",
            Self::Overlap => "overlap",
            Self::TraceCost => "trace_cost",
            Self::P2p => "p2p",
            Self::SendRecv => "sendrecv",
            _ => self.operation().expect("all others measure an operation").name(),
        }
    }

    /// Returns the name of the program of nccl-tests or rccl-tests for this test, without `_perf`.
    pub fn nccl_tests_name(self) -> &'static str {
        match self {
            Self::AllToAll => "alltoall",
            Self::AllToAllV => "alltoallv",
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

    /// Says which cores it lacks, where this process has too few for it to show anything.
    pub fn lack_of_cores(self) -> Option<String> {
        let (needed, words) = match self {
            Self::FifoRate => (2, "two cores, one to push and one to serve"),
            Self::Overlap => (3, "three cores, one for the proxy beside those of two devices"),
            _ => return None,
        };
        let cores = allowed_cpus().len();
        let told = || format!("{} needs {words}; this process may use {cores}", self.name());
        (cores < needed).then(told)
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
        let supported = |operation| Algorithm::ALL.into_iter().any(|algorithm| algorithm.supports(operation));
        self.operation().is_some_and(supported)
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
        Some(match self {
            Self::AllReduce => Operation::AllReduce,
            Self::Reduce => Operation::Reduce,
            Self::Broadcast => Operation::Broadcast,
            Self::AllGather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::AllToAll => Operation::AllToAll,
            Self::AllToAllV => Operation::AllToAllV,
            Self::Gather => Operation::Gather,
            Self::Scatter => Operation::Scatter,
            Self::Scan => Operation::Scan,
            Self::ExScan => Operation::ExScan,
            Self::SendRecv => Operation::Send,
            _ => return None,
        })
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
