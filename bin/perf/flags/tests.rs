use clap::FromArgMatches;

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
fn flags_that_scripts_for_nccl_tests_have_are_taken_where_they_change_nothing() {
    let words = "all_reduce -b 8 -e 128M -f 2 -g 2 -t 1 -n 20 -w 5 -m 1 -N 1 -a 1 -p 0 -c 1 -z 0 -G 0 -C 0 -S 0 -T 60 -J x";
    let args = perf(&words.split(' ').collect::<Vec<_>>());
    assert_eq!((args.job.timeout.as_secs(), args.json.as_deref()), (60, Some("x".as_ref())));
    let words = "--nthreads 1 --agg_iters 1 --run_cycles 1 --parallel_init 1 --blocking 1 --cudagraph 0 --report_cputime 1";
    assert_eq!(
        perf(&words.split(' ').collect::<Vec<_>>()).selected().unwrap(),
        perf(&[]).selected().unwrap()
    );
    for registered in ["0", "1", "2"] {
        let words =
            format!("all_reduce --ngpus 3 -T 0 --root 0 -n 0 -M 0 -x 0 -D 0 -V 16 -y 0 -R {registered}");
        let args = perf(&words.split(' ').collect::<Vec<_>>());
        assert_eq!((args.ranks, args.sweep.iters), (Some(3), Some(0)));
        assert!(args.job.timeout >= std::time::Duration::from_secs(24 * 3600), "0 is no timeout");
        assert_eq!(args.selected().unwrap(), perf(&["all_reduce"]).selected().unwrap());
    }
}

#[test]
fn no_test_named_means_all_and_a_test_named_twice_runs_once() {
    assert_eq!(perf(&[]).selected().unwrap().len(), 19);
    let selected = perf(&["overlap", "put_latency", "overlap"]).selected().unwrap();
    let both = vec![TestChannel::Memory, TestChannel::Port];
    assert_eq!(selected, [(Test::PutLatency, both), (Test::Overlap, vec![TestChannel::Port])]);
}

#[test]
fn a_channel_narrows_all_tests_but_contradicts_a_named_one_that_cannot_use_it() {
    let selected = perf(&["--channel", "port"]).selected().unwrap();
    assert!(selected.iter().all(|(test, _)| *test != Test::PacketLatency));
    assert!(selected.contains(&(Test::Barrier, vec![])));
    assert!(selected.contains(&(Test::PutLatency, vec![TestChannel::Port])));
    let error = perf(&["--channel", "port", "packet_latency"]).selected().unwrap_err();
    assert_eq!(
        error.to_string(),
        "packet_latency does not use the port channel; leave --channel out or say --channel memory"
    );
}

#[test]
fn a_flag_without_effect_on_any_named_test_is_refused() {
    let refusal = |words: &[&str]| perf(words).selected().unwrap_err().to_string();
    for (words, told) in [
        (&["fifo_rate", "--channel", "port"][..], "--channel has no effect with fifo_rate; leave it out"),
        (&["fifo_rate", "--heap", "64M"], "--heap has no effect with fifo_rate; leave it out"),
        (&["barrier", "--proxy", "process"], "--proxy has no effect with barrier; leave it out"),
        (&["barrier", "-b", "8"], "--minbytes has no effect with barrier; leave it out"),
        (&["p_latency", "-e", "8"], "--maxbytes has no effect with p_latency; leave it out"),
        (&["atomic_rate", "--channel", "memory"], "--channel has no effect with atomic_rate; leave it out"),
        (&["wait_until_latency", "-c", "1"], "--check has no effect with wait_until_latency; leave it out"),
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
        perf(words).selected().unwrap();
    }
}

#[test]
fn names_are_the_same_on_the_command_line_and_in_reports() {
    for test in Test::value_variants() {
        assert_eq!(test.to_possible_value().unwrap().get_name(), test.name());
        assert_eq!(serde_json::to_value(test).unwrap(), test.name());
    }
    for channel in TestChannel::value_variants() {
        assert_eq!(channel.to_possible_value().unwrap().get_name(), channel.name());
        assert_eq!(serde_json::to_value(channel).unwrap(), channel.name());
    }
}

#[test]
fn a_wrong_value_is_told_in_one_line_that_says_what_would_be_right() {
    for (words, part) in [
        (&["-b", "4Q"][..], "expected a whole number with K, M, G or T behind it"),
        (&["-b", "1.3K"], "expected a whole number"),
        (&["-f", "0"], "0 is not in 1.."),
        (&["-t", "2"], "each rank is a process (-g); expected 1, or leave it out"),
        (&["-G", "10"], "Graphs: there are none; expected 0, or leave it out"),
        (&["-N", "0"], "repeat the command for more; expected 1"),
        (&["-T", "soon"], "expected a whole number with us, ms, s or m"),
        (&["-c", "yes"], "expected 0 for no verifying"),
        (&["-g", "1"], "1 is not in 2..=256: a rank alone"),
        (&["-g", "two"], "expected a number from 2 to 256"),
        (&["-g", "257"], "257 is not in 2..=256"),
        (&["--channel", "pipe"], "[possible values: memory, port]"),
        (&["--proxy", "threads"], "thread"),
        (&["--timeout", "0ms"], "above zero"),
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
    assert!(sizes(&["-n", "0"]).unwrap_err().starts_with("-n 0 times nothing; leave it out"));
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
