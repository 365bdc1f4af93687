//! Flags of nccl-tests that scripts have, for those values that mean what is done here anyway.

use clap::Arg;

/// A flag: its letter, its name, the values that change nothing, and what it means here.
type CompatibleFlag = (char, &'static str, &'static [&'static str], &'static str);

const FLAGS: [CompatibleFlag; 14] = [
    ('t', "nthreads", &["1"], "Threads of a process: each rank is a process (-g)"),
    ('m', "agg_iters", &["1"], "Operations in a group: each is one by itself"),
    ('N', "run_cycles", &["1"], "Runs of the whole table: one; repeat the command for more"),
    ('p', "parallel_init", &["0", "1"], "Initialisation: all ranks start at once"),
    ('z', "blocking", &["0", "1"], "Blocking calls: each returns when it is done"),
    ('G', "cudagraph", &["0"], "Graphs: there are none"),
    ('C', "report_cputime", &["0", "1"], "Time of the CPU: it does the operations, so it is the time"),
    ('S', "report_timestamps", &["0"], "Time of day in each line: not shown"),
    ('M', "memory_report", &["0"], "Report of memory: there is none"),
    ('y', "stream_null", &["0", "1"], "Null stream: there are no streams"),
    ('R', "local_register", &["0", "1", "2"], "Registration: the heap is shared from the start (--memory)"),
    ('x', "cta_policy", &["0"], "Policy of thread blocks: there are none"),
    ('D', "device_implementation", &["0"], "Kernels of the test's own: the library does the operation"),
    ('V', "device_cta_count", &["16"], "Thread blocks of such kernels: there are none"),
];

/// Returns the flags for clap.
pub(super) fn flags() -> impl Iterator<Item = Arg> {
    FLAGS.into_iter().map(|(letter, name, values, meaning)| {
        let expected = format!("{meaning}; expected {}, or leave it out", values.join(" or "));
        let parse = move |text: &str| {
            if values.contains(&text) { Ok(text.to_owned()) } else { Err(expected.clone()) }
        };
        Arg::new(name)
            .short(letter)
            .long(name)
            .value_name("N")
            .value_parser(parse)
            .help(format!("{meaning} [possible values: {}]", values.join(", ")))
            .help_heading("Options of nccl-tests that change nothing here, for scripts that have them")
    })
}
