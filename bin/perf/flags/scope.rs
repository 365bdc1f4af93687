//! Which flags of `shmccl perf` have an effect on which tests. A flag that has none on any named
//! test is refused, since it was given to have one.

use clap::ArgMatches;
use clap::parser::ValueSource;
use shmccl::collective::Operation;
use shmccl_harness::test::{Test, TestChannel};

use crate::failure::UsageError;
use crate::perf::flags::PerfArgs;

/// The id of a flag in clap, and whether it applies to a test.
type ScopedFlag = (&'static str, fn(Test) -> bool);

/// The flags that do not apply to every test.
const FLAGS: [ScopedFlag; 23] = [
    ("ranks", Test::starts_processes),
    ("channel", |test| !test.channels().is_empty() || test.is_collective()),
    ("minbytes", has_sizes),
    ("maxbytes", has_sizes),
    ("stepfactor", has_sizes),
    ("warmup_iters", |test| !matches!(test, Test::FifoRate | Test::Launch)),
    ("check", checks_on_request),
    ("proxy", |test| {
        test == Test::Launch || test.channels().contains(&TestChannel::Port) || test.is_collective()
    }),
    ("heap", Test::starts_processes),
    ("no_pin", Test::starts_processes),
    ("op", |test| test.operation().is_some_and(Operation::reduces)),
    ("root", |test| test.operation().is_some_and(Operation::has_root)),
    ("datatype", Test::is_collective),
    ("average", Test::is_collective),
    ("stepbytes", Test::is_collective),
    ("algo", Test::has_algorithms),
    ("plan", Test::has_algorithms),
    ("memory", Test::is_collective),
    ("bound", Test::is_collective),
    ("percentiles", Test::is_collective),
    ("bandwidth_bytes", is_matrix),
    ("latency_bytes", is_matrix),
    ("svg", is_matrix),
];

/// Returns the flags of [`FLAGS`] that stand on the command line, by their ids.
pub(crate) fn given(matches: &ArgMatches) -> Vec<&'static str> {
    let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    FLAGS.iter().map(|(id, _)| *id).filter(is_given).collect()
}

/// Checks that each flag applies to a named test.
///
/// # Errors
/// Names the first flag that applies to none.
pub(crate) fn check(args: &PerfArgs) -> Result<(), UsageError> {
    let tests = args.wanted();
    for (id, applies) in FLAGS.iter().filter(|(id, _)| args.given.contains(id)) {
        // Scripts for nccl-tests name the root 0 where there is none.
        let is_usual = *id == "root" && args.collective.has_usual_root();
        if is_usual || tests.iter().any(|test| applies(*test)) {
            continue;
        }
        if args.tests.is_empty() {
            let test = if applies(Test::P2p) { "p2p" } else { "a collective operation such as all_reduce" };
            return Err(UsageError::new(format!(
                "{} has no effect with all tests; leave it out, or name {test}",
                name(id)
            )));
        }
        let names: Vec<_> = args.tests.iter().map(|test| test.name()).collect();
        return Err(UsageError::no_effect(&name(id), &names.join(" and ")));
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

/// Returns the name of a flag on the command line.
fn name(id: &str) -> String {
    // nccl-tests spells this one with an underscore.
    if id == "warmup_iters" { format!("--{id}") } else { format!("--{}", id.replace('_', "-")) }
}

fn is_matrix(test: Test) -> bool {
    test == Test::P2p
}

fn has_sizes(test: Test) -> bool {
    !matches!(
        test,
        Test::SignalLatency
            | Test::MessageRate
            | Test::ElementPut
            | Test::ElementGet
            | Test::AtomicLatency
            | Test::AtomicRate
            | Test::WaitUntilLatency
            | Test::PutSignalLatency
            | Test::FifoRate
            | Test::ProxyRoundTrip
            | Test::Barrier
            | Test::Launch
            | Test::P2p
    )
}

/// Returns whether data are checked on request only. A signal, a barrier and a start carry none;
/// those of the fifo are always checked.
fn checks_on_request(test: Test) -> bool {
    !matches!(
        test,
        Test::SignalLatency | Test::WaitUntilLatency | Test::FifoRate | Test::Barrier | Test::Launch
    )
}
