//! Which flags of `shmccl perf` have an effect on which test. One that has none on any named test is refused: whoever gives it
//! expects it to count.

use clap::ArgMatches;
use clap::parser::ValueSource;
use shmccl::collective::Operation;

use crate::failure::UsageError;
use crate::perf::flags::PerfArgs;
use crate::perf::test::{Test, TestChannel};

/// A flag that not every test heeds.
struct Flag {
    /// What clap knows it by.
    id: &'static str,
    /// What the user knows it by.
    name: &'static str,
    heeds: fn(Test) -> bool,
}

const FLAGS: [Flag; 22] = [
    Flag { id: "ranks", name: "--ranks", heeds: Test::starts_processes },
    Flag {
        id: "channel",
        name: "--channel",
        heeds: |test| !test.channels().is_empty() || test.is_collective(),
    },
    Flag { id: "minbytes", name: "--minbytes", heeds: has_sizes },
    Flag { id: "maxbytes", name: "--maxbytes", heeds: has_sizes },
    Flag { id: "stepfactor", name: "--stepfactor", heeds: has_sizes },
    Flag {
        id: "warmup_iters",
        name: "--warmup_iters",
        heeds: |test| !matches!(test, Test::FifoRate | Test::Launch),
    },
    Flag { id: "check", name: "--check", heeds: checks_on_request },
    Flag {
        id: "proxy",
        name: "--proxy",
        heeds: |test| {
            test == Test::Launch || test.channels().contains(&TestChannel::Port) || test.is_collective()
        },
    },
    Flag { id: "heap", name: "--heap", heeds: Test::starts_processes },
    Flag { id: "no_pin", name: "--no-pin", heeds: Test::starts_processes },
    Flag { id: "op", name: "--op", heeds: |test| test.operation().is_some_and(Operation::reduces) },
    Flag { id: "root", name: "--root", heeds: |test| test.operation().is_some_and(Operation::has_root) },
    Flag { id: "datatype", name: "--datatype", heeds: Test::is_collective },
    Flag { id: "average", name: "--average", heeds: Test::is_collective },
    Flag { id: "stepbytes", name: "--stepbytes", heeds: Test::is_collective },
    Flag { id: "algo", name: "--algo", heeds: Test::has_algorithms },
    Flag { id: "memory", name: "--memory", heeds: Test::is_collective },
    Flag { id: "bound", name: "--bound", heeds: Test::is_collective },
    Flag { id: "percentiles", name: "--percentiles", heeds: Test::is_collective },
    Flag { id: "bandwidth_bytes", name: "--bandwidth-bytes", heeds: is_matrix },
    Flag { id: "latency_bytes", name: "--latency-bytes", heeds: is_matrix },
    Flag { id: "svg", name: "--svg", heeds: is_matrix },
];

/// The flags of [`FLAGS`] that stand on the command line, by their ids.
pub(crate) fn given(matches: &ArgMatches) -> Vec<&'static str> {
    let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    FLAGS.iter().map(|flag| flag.id).filter(is_given).collect()
}

/// # Errors
/// Names the first flag that none of the named tests heeds.
pub(crate) fn check(args: &PerfArgs) -> Result<(), UsageError> {
    let tests = args.wanted();
    for flag in FLAGS.iter().filter(|flag| args.given.contains(&flag.id)) {
        if tests.iter().any(|test| (flag.heeds)(*test)) {
            continue;
        }
        if args.tests.is_empty() {
            let test =
                if (flag.heeds)(Test::P2p) { "p2p" } else { "a collective operation such as all_reduce" };
            return Err(UsageError::new(format!(
                "{} has no effect with all tests; leave it out, or name {test}",
                flag.name
            )));
        }
        let names: Vec<_> = args.tests.iter().map(|test| test.name()).collect();
        return Err(UsageError::no_effect(flag.name, &names.join(" and ")));
    }
    // Collective operations go over memory channels unless told otherwise.
    let direct = match args.channel {
        Some(channel) => channel == TestChannel::Memory,
        None => tests.iter().all(|test| test.is_collective()),
    };
    let no_proxy = direct && !args.tests.contains(&Test::Launch);
    if no_proxy && !args.tests.is_empty() && args.given.contains(&"proxy") {
        return Err(UsageError::no_effect("--proxy", "--channel memory"));
    }
    Ok(())
}

fn is_matrix(test: Test) -> bool {
    test == Test::P2p
}

fn has_sizes(test: Test) -> bool {
    match test {
        Test::Limits
        | Test::PutLatency
        | Test::PacketLatency
        | Test::GetLatency
        | Test::PutBandwidth
        | Test::PutBidirectional
        | Test::Overlap
        | Test::TraceCost => true,
        Test::SignalLatency
        | Test::MessageRate
        | Test::FifoRate
        | Test::ProxyRoundTrip
        | Test::Barrier
        | Test::Launch
        | Test::P2p => false,
        collective => collective.is_collective(),
    }
}

/// A signal, a barrier and a start carry no data; those of the fifo are always checked.
fn checks_on_request(test: Test) -> bool {
    !matches!(test, Test::SignalLatency | Test::FifoRate | Test::Barrier | Test::Launch)
}
