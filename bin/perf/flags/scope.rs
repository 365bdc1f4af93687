//! Which flags of `shmccl perf` have an effect on which tests. A flag that has none on any named
//! test is refused, since it was given to have one.

use clap::ArgMatches;
use clap::parser::ValueSource;
use shmccl::collective::Operation;

use crate::failure::UsageError;
use crate::perf::flags::PerfArgs;
use crate::perf::test::{Test, TestChannel};

/// A flag that does not apply to every test.
struct Flag {
    /// The id in clap.
    id: &'static str,
    /// The name on the command line.
    name: &'static str,
    applies: fn(Test) -> bool,
}

const FLAGS: [Flag; 22] = [
    Flag { id: "ranks", name: "--ranks", applies: Test::starts_processes },
    Flag {
        id: "channel",
        name: "--channel",
        applies: |test| !test.channels().is_empty() || test.is_collective(),
    },
    Flag { id: "minbytes", name: "--minbytes", applies: has_sizes },
    Flag { id: "maxbytes", name: "--maxbytes", applies: has_sizes },
    Flag { id: "stepfactor", name: "--stepfactor", applies: has_sizes },
    Flag {
        id: "warmup_iters",
        name: "--warmup_iters",
        applies: |test| !matches!(test, Test::FifoRate | Test::Launch),
    },
    Flag { id: "check", name: "--check", applies: checks_on_request },
    Flag {
        id: "proxy",
        name: "--proxy",
        applies: |test| {
            test == Test::Launch || test.channels().contains(&TestChannel::Port) || test.is_collective()
        },
    },
    Flag { id: "heap", name: "--heap", applies: Test::starts_processes },
    Flag { id: "no_pin", name: "--no-pin", applies: Test::starts_processes },
    Flag { id: "op", name: "--op", applies: |test| test.operation().is_some_and(Operation::reduces) },
    Flag { id: "root", name: "--root", applies: |test| test.operation().is_some_and(Operation::has_root) },
    Flag { id: "datatype", name: "--datatype", applies: Test::is_collective },
    Flag { id: "average", name: "--average", applies: Test::is_collective },
    Flag { id: "stepbytes", name: "--stepbytes", applies: Test::is_collective },
    Flag { id: "algo", name: "--algo", applies: Test::has_algorithms },
    Flag { id: "memory", name: "--memory", applies: Test::is_collective },
    Flag { id: "bound", name: "--bound", applies: Test::is_collective },
    Flag { id: "percentiles", name: "--percentiles", applies: Test::is_collective },
    Flag { id: "bandwidth_bytes", name: "--bandwidth-bytes", applies: is_matrix },
    Flag { id: "latency_bytes", name: "--latency-bytes", applies: is_matrix },
    Flag { id: "svg", name: "--svg", applies: is_matrix },
];

/// Returns the flags of [`FLAGS`] that stand on the command line, by their ids.
pub(crate) fn given(matches: &ArgMatches) -> Vec<&'static str> {
    let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    FLAGS.iter().map(|flag| flag.id).filter(is_given).collect()
}

/// Checks that each flag applies to a named test.
///
/// # Errors
/// Names the first flag that applies to none.
pub(crate) fn check(args: &PerfArgs) -> Result<(), UsageError> {
    let tests = args.wanted();
    for flag in FLAGS.iter().filter(|flag| args.given.contains(&flag.id)) {
        if tests.iter().any(|test| (flag.applies)(*test)) {
            continue;
        }
        if args.tests.is_empty() {
            let test =
                if (flag.applies)(Test::P2p) { "p2p" } else { "a collective operation such as all_reduce" };
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

/// Returns whether data are checked on request only. A signal, a barrier and a start carry none;
/// those of the fifo are always checked.
fn checks_on_request(test: Test) -> bool {
    !matches!(test, Test::SignalLatency | Test::FifoRate | Test::Barrier | Test::Launch)
}
