use clap::CommandFactory;

use super::*;
use crate::failure::one_line;

fn parse<T: Args>(words: &[&str]) -> Result<T, String> {
    let command = T::augment_args(clap::Command::new("shmccl").no_binary_name(true));
    let matches = command.try_get_matches_from(words).map_err(|error| one_line(&error, "shmccl"))?;
    T::from_arg_matches(&matches).map_err(|error| one_line(&error, "shmccl"))
}

fn perf(words: &[&str]) -> PerfArgs {
    let command = PerfArgs::augment_args(clap::Command::new("shmccl").no_binary_name(true));
    let matches = command.try_get_matches_from(words).unwrap();
    PerfArgs { given: given(&matches), ..PerfArgs::from_arg_matches(&matches).unwrap() }
}

#[test]
fn the_definitions_are_consistent() {
    with_negative_numbers(Cli::command()).debug_assert();
    PerfArgs::augment_args(clap::Command::new("perf")).debug_assert();
    CompareArgs::augment_args(clap::Command::new("compare")).debug_assert();
    RunArgs::augment_args(clap::Command::new("run")).debug_assert();
}

#[test]
fn a_number_below_zero_is_laid_at_the_door_of_whatever_it_was_meant_for() {
    for (words, told) in [
        (&["ctl", "init", "-1"][..], "invalid value '-1' for '<N>': -1 is not in 1..=64; "),
        (&["ctl", "status", "-1"], "invalid value '-1' for '[COMM]': "),
        (
            &["ctl", "put-h2d", "7", "-4096"],
            "invalid value '-4096' for '<ADDRESS>': expected an address such as",
        ),
        (&["ctl", "group", "end", "-3"], "invalid value '-3' for '<COMM>': "),
        (&["coordinator", "-n", "-3"], "invalid value '-3' for '--number <N>': -3 is not in 1..=1024"),
        (&["coordinator", "--restart", "-1", "-n", "1"], "invalid value '-1' for '--restart <TIMES>': "),
        (&["device", "--core", "-1"], "invalid value '-1' for '--core <CORE>': "),
        (&["perf", "-c", "-1"], "invalid value '-1' for '--check <N>': "),
    ] {
        let words = ["shmccl"].iter().chain(words);
        let refused = with_negative_numbers(Cli::command()).try_get_matches_from(words).unwrap_err();
        let line = one_line(&refused, "shmccl");
        assert!(line.starts_with(told), "{line}");
    }
    let run = ["shmccl", "run", "-n", "2", "--", "./prog", "-1", "-n", "-2"];
    let matches = with_negative_numbers(Cli::command()).try_get_matches_from(run).unwrap();
    let Command::Run(args) = Cli::from_arg_matches(&matches).unwrap().command else { panic!("run") };
    assert_eq!(args.program, ["./prog", "-1", "-n", "-2"]);
}

#[test]
fn flags_in_the_manner_of_nccl_tests_are_understood() {
    let args = perf(&[
        "-b", "4K", "-e", "1M", "-f", "2", "-n", "100", "-w", "5", "-c", "0", "-g", "4", "--json", "x",
    ]);
    assert_eq!(args.sweep.sizes().unwrap().len(), 9);
    assert_eq!((args.sweep.iters, args.sweep.warmup_iters, args.sweep.check()), (Some(100), Some(5), false));
    assert_eq!((args.ranks, args.json), (Some(4), Some("x".into())));
    let long = perf(&[
        "--minbytes",
        "8",
        "--maxbytes",
        "64",
        "--stepfactor",
        "8",
        "--warmup_iters",
        "0",
        "--iters",
        "1",
    ]);
    assert_eq!(long.sweep.sizes().unwrap(), [8, 64]);
}

#[test]
fn no_test_named_means_all_and_a_test_named_twice_runs_once() {
    assert_eq!(perf(&[]).plan().unwrap().len(), 13);
    let plan = perf(&["overlap", "put_latency", "overlap"]).plan().unwrap();
    let both = vec![Channel::Memory, Channel::Port];
    assert_eq!(plan, [(Test::PutLatency, both.clone()), (Test::Overlap, both)]);
}

#[test]
fn a_channel_narrows_all_tests_but_contradicts_a_named_one_that_cannot_use_it() {
    let plan = perf(&["--channel", "port"]).plan().unwrap();
    assert!(plan.iter().all(|(test, _)| *test != Test::PacketLatency));
    assert!(plan.contains(&(Test::Barrier, vec![])));
    assert!(plan.contains(&(Test::PutLatency, vec![Channel::Port])));
    let error = perf(&["--channel", "port", "packet_latency"]).plan().unwrap_err();
    assert_eq!(
        error.to_string(),
        "packet_latency does not use the port channel; leave --channel out or say --channel memory"
    );
}

#[test]
fn a_flag_without_effect_on_any_named_test_is_refused() {
    let refusal = |words: &[&str]| perf(words).plan().unwrap_err().to_string();
    for (words, told) in [
        (&["fifo_rate", "--channel", "port"][..], "--channel has no effect with fifo_rate; leave it out"),
        (&["fifo_rate", "--heap", "64M"], "--heap has no effect with fifo_rate; leave it out"),
        (&["barrier", "--proxy", "process"], "--proxy has no effect with barrier; leave it out"),
        (&["barrier", "-b", "8"], "--minbytes has no effect with barrier; leave it out"),
        (
            &["launch", "fifo_rate", "-w", "3"],
            "--warmup_iters has no effect with launch and fifo_rate; leave it out",
        ),
        (&["launch", "-c", "1"], "--check has no effect with launch; leave it out"),
        (
            &["put_latency", "--channel", "memory", "--proxy", "thread"],
            "--proxy has no effect with --channel memory; leave it out",
        ),
    ] {
        assert_eq!(refusal(words), told);
    }
    for words in [
        &["fifo_rate", "-n", "5", "--timeout", "5s"][..],
        &["barrier", "put_latency", "-b", "8", "--proxy", "process"],
        &["launch", "--proxy", "process"],
        &["--channel", "memory", "--proxy", "process", "-w", "1"],
        &["put_latency", "--channel", "port", "--proxy", "process", "--no-pin"],
    ] {
        perf(words).plan().unwrap();
    }
}

#[test]
fn names_are_the_same_on_the_command_line_and_in_reports() {
    for test in Test::value_variants() {
        assert_eq!(test.to_possible_value().unwrap().get_name(), test.name());
        assert_eq!(serde_json::to_value(test).unwrap(), test.name());
    }
    for channel in Channel::value_variants() {
        assert_eq!(channel.to_possible_value().unwrap().get_name(), channel.name());
        assert_eq!(serde_json::to_value(channel).unwrap(), channel.name());
    }
}

#[test]
fn a_wrong_value_is_told_in_one_line_that_says_what_would_be_right() {
    for (words, part) in [
        (&["-b", "4Q"][..], "expected a whole number with K, M, G or T behind it"),
        (&["-b", "1.5M"], "expected a whole number"),
        (&["-f", "0"], "0 is not in 1.."),
        (&["-n", "0"], "0 is not in 1.."),
        (&["-c", "yes"], "expected 0 for no verifying"),
        (&["-g", "1"], "1 is not in 2..=64: a rank alone"),
        (&["-g", "two"], "expected a number from 2 to 64"),
        (&["-g", "65"], "65 is not in 2..=64"),
        (&["--channel", "pipe"], "[possible values: memory, port]"),
        (&["--proxy", "threads"], "thread"),
        (&["--timeout", "0"], "above zero"),
        (&["put_latncy"], "a similar value exists: 'put_latency'"),
        (&["--minbyte", "8"], "--minbytes"),
    ] {
        let error = parse::<PerfArgs>(words).unwrap_err();
        assert!(error.contains(part) && !error.contains('\n'), "{words:?}: {error}");
    }
}

#[test]
fn sizes_that_contradict_each_other_are_refused() {
    let sizes = |words: &[&str]| perf(words).sweep.sizes().map_err(|error| error.to_string());
    assert!(
        sizes(&["-b", "2M", "-e", "1M"]).unwrap_err().contains("--minbytes 2 MiB is above --maxbytes 1 MiB")
    );
    assert!(sizes(&["-b", "0"]).unwrap_err().contains("start at 1"));
    assert_eq!(sizes(&["-b", "8", "-e", "8"]).unwrap(), [8]);
    assert!(sizes(&["-f", "1"]).unwrap_err().contains("--stepfactor 1 steps by bytes"));
}

#[test]
fn a_factor_of_one_steps_by_bytes_as_in_nccl_tests() {
    let sizes = |words: &[&str]| perf(words).collective_sizes().map_err(|error| error.to_string());
    assert_eq!(sizes(&["-b", "8", "-e", "32", "-f", "1", "-i", "8"]).unwrap(), [8, 16, 24, 32]);
    assert_eq!(sizes(&["-b", "1M", "-e", "3M", "-f", "1"]).unwrap(), [1 << 20, 2 << 20, 3 << 20]);
    assert_eq!(sizes(&["-b", "8", "-e", "16", "-i", "8"]).unwrap(), [8, 16]);
    assert_eq!(sizes(&["-b", "8", "-e", "100", "-f", "4"]).unwrap(), [8, 32]);
    assert!(sizes(&["-f", "2", "-i", "8"]).unwrap_err().contains("say --stepfactor 1"));
    assert!(perf(&["-c", "5"]).sweep.check() && !perf(&["-c", "0"]).sweep.check());
}

#[test]
fn help_promises_nothing_that_another_command_does() {
    let help = |name: &str| Cli::command().find_subcommand_mut(name).unwrap().render_long_help().to_string();
    assert!(help("perf").contains("--stepbytes") && !help("compare").contains("--stepbytes"));
    let told = help("perf").split_whitespace().collect::<Vec<_>>().join(" ");
    let on_request =
        Test::value_variants().iter().filter(|test| test.is_on_request() && !test.is_collective());
    let names: Vec<_> = on_request.map(|test| test.name()).collect();
    let default = format!("[default: all but {} and the collective operations]", names.join(", "));
    assert!(told.contains(&default), "{default}");
}

#[test]
fn run_which_has_no_tests_says_so_of_its_heap() {
    let command = Cli::command();
    let heap = |name: &str| {
        let command = command.find_subcommand(name).unwrap();
        let arg = command.get_arguments().find(|arg| arg.get_id() == "heap").unwrap();
        arg.get_help().unwrap().to_string()
    };
    assert_eq!(heap("run"), "Symmetric heap of every rank [default: 256MiB]");
    assert_eq!(heap("perf"), "Symmetric heap of every rank [default: 256MiB, or what a test needs]");
}

#[test]
fn run_keeps_as_many_records_as_its_help_says() {
    let run: RunArgs = parse(&["-n", "1", "--", "true"]).unwrap();
    let command = Cli::command();
    let command = command.find_subcommand("run").unwrap();
    let arg = command.get_arguments().find(|arg| arg.get_id() == "trace_records").unwrap();
    let told = format!("[default: {}]", run.trace_records());
    assert!(arg.get_help().unwrap().to_string().ends_with(&told), "{told}");
}

#[test]
fn run_takes_everything_behind_the_dashes_as_the_program() {
    let run: RunArgs = parse(&["-n", "3", "--prefix", "--", "./prog", "-n", "9", "--prefix"]).unwrap();
    assert_eq!(run.ranks, 3);
    assert_eq!(run.program, ["./prog", "-n", "9", "--prefix"]);
    let none = parse::<RunArgs>(&["-n", "3"]).unwrap_err();
    assert!(none.contains("PROGRAM") && !none.contains('\n'), "{none}");
    assert!(parse::<RunArgs>(&["--", "./prog"]).unwrap_err().contains("--ranks"));
}

#[test]
fn compare_takes_every_collective_test_by_the_names_that_perf_takes() {
    let operation = |name: &str| parse::<CompareArgs>(&["--op", name]).map(|compare| compare.op);
    for test in Test::value_variants() {
        let found = operation(test.name());
        assert_eq!(found.is_ok_and(|op| op == Some(*test)), test.is_collective(), "{}", test.name());
        if test.is_collective() {
            assert_eq!(operation(test.nccl_tests_name()).unwrap(), Some(*test));
        }
    }
    let error = operation("alltoall_v").unwrap_err();
    assert!(error.contains("expected one of all_reduce, ") && error.contains("all_to_all_v, "), "{error}");
}

#[test]
fn compare_writes_the_files_that_are_named_and_three_where_none_is() {
    let files = |words: &[&str]| {
        let compare: CompareArgs = parse(words).unwrap();
        let name =
            |path: Option<PathBuf>| path.map_or(String::new(), |path| path.to_str().unwrap().to_owned());
        let Files { json, csv, svg } = compare.files();
        [json, csv, svg].map(name)
    };
    assert_eq!(files(&[]), ["compare.json", "compare.csv", "compare.svg"]);
    assert_eq!(files(&["--csv", "a.csv"]), ["", "a.csv", ""]);
    assert_eq!(files(&["--json", "-", "--svg", "b.svg"]), ["-", "", "b.svg"]);
    let compare: CompareArgs = parse(&[]).unwrap();
    let sizes = compare.sweep.sizes().unwrap();
    assert_eq!((sizes[0], sizes[sizes.len() - 1]), (8, 64 << 20));
}
