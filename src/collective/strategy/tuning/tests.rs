//! Tables: looked up at every boundary, written and read, and refused with the line that is at
//! fault.

use std::path::PathBuf;

use super::*;
use crate::collective::{Algorithm, AlgorithmName, Operation};
use crate::error::Error;

fn case(n_ranks: u32, buffers: BufferKind, steps: &[(u64, Algorithm)], last: Algorithm) -> Case {
    named_case(
        n_ranks,
        buffers,
        &steps.iter().map(|&(most, name)| (most, name.into())).collect::<Vec<_>>(),
        last.into(),
    )
}

fn named_case(
    n_ranks: u32,
    buffers: BufferKind,
    steps: &[(u64, AlgorithmName)],
    last: AlgorithmName,
) -> Case {
    let limited = steps.iter().cloned().map(|(most, algorithm)| Step { up_to: Some(most), algorithm });
    let steps = limited.chain([Step { up_to: None, algorithm: last }]).collect();
    Case { operation: Operation::AllReduce, n_ranks, oversubscribed: false, buffers, steps }
}

fn choices(cases: &[Case], n_members: usize) -> CommTable {
    CommTable::new(&Tuning { table: Table::new(cases).unwrap(), oversubscribed: false }, n_members, |name| {
        name == "known"
    })
}

#[test]
fn a_size_belongs_to_the_first_step_that_reaches_it() {
    let steps = [(100, Algorithm::Naive), (4096, Algorithm::Ring)];
    let choices = choices(&[case(2, BufferKind::Heap, &steps, Algorithm::Tree)], 2);
    let at = |len| choices.algorithm(Operation::AllReduce, BufferKind::Heap, len);
    assert_eq!([0, 1, 100].map(at), [Algorithm::Naive; 3]);
    assert_eq!([101, 4096].map(at), [Algorithm::Ring; 2]);
    assert_eq!([4097, u64::MAX].map(at), [Algorithm::Tree; 2]);
    assert!(!choices.is_eager(Operation::AllReduce, 0));
}

#[test]
fn one_shot_travels_with_the_announcement_where_both_kinds_of_buffers_have_it() {
    use Algorithm::{OneShot, Ring, TwoShot};
    let heap = |steps: &[_], last| case(2, BufferKind::Heap, steps, last);
    let ordinary = |steps: &[_], last| case(2, BufferKind::Ordinary, steps, last);
    let largest = |cases: &[Case]| {
        let choices = choices(cases, 2);
        let small = |len: &u64| choices.is_eager(Operation::AllReduce, *len);
        (0..=ONE_SHOT_LEN + 1).filter(small).max()
    };
    assert_eq!(largest(&[]), Some(ONE_SHOT_LEN));
    assert_eq!(largest(&[heap(&[], OneShot), ordinary(&[], OneShot)]), Some(ONE_SHOT_LEN));
    assert_eq!(largest(&[heap(&[(99, OneShot)], Ring)]), Some(99));
    assert_eq!(largest(&[heap(&[(99, OneShot)], Ring), ordinary(&[(98, OneShot)], TwoShot)]), Some(98));
    assert_eq!(largest(&[heap(&[(7, OneShot), (99, OneShot)], Ring)]), Some(99));
    assert_eq!(largest(&[ordinary(&[], Ring)]), None);
}

#[test]
fn what_has_no_case_is_as_built_in() {
    let table = Table::new(&[case(2, BufferKind::Heap, &[], Algorithm::Ring)]).unwrap();
    let steps = |table: &Table, oversubscribed, buffers, operation| {
        table
            .steps(operation, 2, oversubscribed, buffers)
            .iter()
            .map(|step| step.algorithm.clone())
            .collect::<Vec<_>>()
    };
    let built_in = [Algorithm::OneShot, Algorithm::TwoShot].map(AlgorithmName::from);
    assert_eq!(steps(&table, false, BufferKind::Heap, Operation::AllReduce), [Algorithm::Ring.into()]);
    assert_eq!(steps(&table, true, BufferKind::Heap, Operation::AllReduce), built_in);
    assert_eq!(steps(&table, false, BufferKind::Ordinary, Operation::AllReduce), built_in);
    assert_eq!(steps(&table, false, BufferKind::Heap, Operation::Scatter), built_in);
}

#[test]
fn the_built_in_end_of_one_shot_follows_from_the_operation_the_ranks_and_whether_each_has_a_core() {
    use Operation::{AllGather, AllReduce, Reduce};
    for (operation, n_ranks, oversubscribed, end) in [
        (AllReduce, 2, false, 8 << 10),
        (AllReduce, 4, false, 8 << 10),
        (AllReduce, 7, false, 8 << 10),
        (AllReduce, 8, false, 1 << 10),
        (AllReduce, 16, false, 1 << 10),
        (AllReduce, 256, false, 1 << 10),
        (AllReduce, 8, true, 8 << 10),
        (AllReduce, 16, true, 8 << 10),
        (AllGather, 16, false, 8 << 10),
        (Reduce, 8, false, 8 << 10),
    ] {
        let at = |len| built_in(operation, n_ranks, oversubscribed, len);
        let what = format!("{operation} among {n_ranks}, {oversubscribed}");
        assert_eq!([end, end + 1].map(at), [Algorithm::OneShot, Algorithm::TwoShot], "{what}");
        let tuning = Tuning { table: Table::default(), oversubscribed };
        let table = CommTable::new(&tuning, n_ranks as usize, |_| false);
        assert_eq!([end, end + 1].map(|len| table.is_eager(operation, len)), [true, false], "{what}");
        for buffers in BufferKind::ALL {
            let of_table = [0, end, end + 1, u64::MAX].map(|len| table.algorithm(operation, buffers, len));
            assert_eq!(of_table, [0, end, end + 1, u64::MAX].map(at), "{what}");
        }
    }
}

#[test]
fn behind_a_plan_stands_what_is_built_in_for_as_many_ranks() {
    for (name, n_members) in [("known", 8), ("unknown", 8), ("known", 4), ("unknown", 4)] {
        let case = named_case(8, BufferKind::Heap, &[(1 << 16, plan(name))], Algorithm::Ring.into());
        let choices = choices(&[case], n_members);
        let n_ranks = u32::try_from(n_members).unwrap();
        for len in [1 << 10, (1 << 10) + 1, ONE_SHOT_LEN, ONE_SHOT_LEN + 1, 1 << 16] {
            let expected = built_in(Operation::AllReduce, n_ranks, false, len);
            let chosen = choices.algorithm(Operation::AllReduce, BufferKind::Heap, len);
            assert_eq!(chosen, expected, "{name}, {n_members} members, {len} bytes");
        }
    }
}

#[test]
fn the_number_of_ranks_that_is_nearest_by_factor_counts() {
    let cases = [(2, Algorithm::Ring), (4, Algorithm::Tree), (16, Algorithm::Naive)]
        .map(|(n_ranks, algorithm)| case(n_ranks, BufferKind::Heap, &[], algorithm));
    let table = Table::new(&cases).unwrap();
    let at =
        |n_ranks| table.steps(Operation::AllReduce, n_ranks, false, BufferKind::Heap)[0].algorithm.clone();
    assert_eq!([2, 3, 4, 7, 8, 9, 64].map(at), {
        use Algorithm::{Naive, Ring, Tree};
        [Ring, Tree, Tree, Tree, Tree, Naive, Naive].map(AlgorithmName::from)
    });
}

fn plan(name: &str) -> AlgorithmName {
    AlgorithmName::Plan(name.to_owned())
}

#[test]
fn a_plan_that_is_registered_has_its_sizes_and_the_built_in_choice_is_behind_it() {
    let steps = [(64, Algorithm::OneShot.into()), (1 << 16, plan("known"))];
    let choices = choices(&[named_case(2, BufferKind::Heap, &steps, Algorithm::Ring.into())], 2);
    let plan = |buffers, len| choices.plan(Operation::AllReduce, buffers, len);
    assert_eq!([64, 65, 1 << 16, (1 << 16) + 1].map(|len| plan(BufferKind::Heap, len)), {
        [None, Some("known"), Some("known"), None]
    });
    assert_eq!(plan(BufferKind::Ordinary, 65), None);
    let behind = |len| choices.algorithm(Operation::AllReduce, BufferKind::Heap, len);
    assert_eq!([65, ONE_SHOT_LEN].map(behind), [Algorithm::OneShot; 2]);
    assert_eq!(behind(ONE_SHOT_LEN + 1), Algorithm::TwoShot);
    assert!(choices.is_eager(Operation::AllReduce, 64) && !choices.is_eager(Operation::AllReduce, 65));
    assert!(choices.names_plans(Operation::AllReduce) && !choices.names_plans(Operation::AllGather));
}

#[test]
fn a_plan_that_is_not_registered_is_as_if_the_built_in_choice_were_there() {
    for (limit, next) in [(64, Algorithm::Tree), (1 << 16, Algorithm::OneShot)] {
        let steps = [(limit, plan("unknown"))];
        let choices = choices(&[named_case(2, BufferKind::Heap, &steps, next.into())], 2);
        let at = |len| choices.algorithm(Operation::AllReduce, BufferKind::Heap, len);
        assert_eq!(at(limit), built_in(Operation::AllReduce, 2, false, limit));
        assert_eq!(at(limit + 1), next);
        assert!(choices.is_eager(Operation::AllReduce, limit.min(ONE_SHOT_LEN)));
        assert!(!choices.is_eager(Operation::AllReduce, limit.min(ONE_SHOT_LEN) + 1));
        assert!(!choices.names_plans(Operation::AllReduce));
        assert_eq!(choices.plan(Operation::AllReduce, BufferKind::Heap, 1), None);
    }
}

#[test]
fn a_rank_alone_goes_by_no_table() {
    let choices = choices(&[case(2, BufferKind::Heap, &[], Algorithm::Ring)], 1);
    assert!(choices.is_eager(Operation::AllReduce, ONE_SHOT_LEN));
    assert_eq!(choices.algorithm(Operation::AllReduce, BufferKind::Heap, 1 << 20), Algorithm::TwoShot);
}

#[test]
fn a_table_is_read_as_it_was_written_and_the_order_of_its_cases_does_not_matter() {
    let mut cases = vec![
        case(8, BufferKind::Heap, &[(8192, Algorithm::OneShot)], Algorithm::HalvingDoubling),
        case(2, BufferKind::Ordinary, &[], Algorithm::DoubleTree),
        Case {
            operation: Operation::Gather,
            oversubscribed: true,
            ..case(3, BufferKind::Heap, &[], Algorithm::OneShot)
        },
        named_case(3, BufferKind::Heap, &[(64, plan("my plan"))], plan("ring: \"4\"")),
    ];
    let table = Table::new(&cases).unwrap();
    let again = format::parse(&table.to_string()).unwrap();
    assert_eq!((&again, again.checksum()), (&table, table.checksum()));
    cases.reverse();
    assert_eq!(Table::new(&cases).unwrap().checksum(), table.checksum());
    assert_eq!(format::parse("version = 1").unwrap(), Table::default());
}

#[test]
fn tables_that_differ_in_anything_have_different_checksums() {
    let base = case(4, BufferKind::Heap, &[(64, Algorithm::Ring)], Algorithm::Tree);
    let different = [
        Case { n_ranks: 5, ..base.clone() },
        Case { oversubscribed: true, ..base.clone() },
        Case { buffers: BufferKind::Ordinary, ..base.clone() },
        case(4, BufferKind::Heap, &[(65, Algorithm::Ring)], Algorithm::Tree),
        case(4, BufferKind::Heap, &[(64, Algorithm::Naive)], Algorithm::Tree),
        case(4, BufferKind::Heap, &[], Algorithm::Ring),
        named_case(4, BufferKind::Heap, &[], plan("ring")),
        named_case(4, BufferKind::Heap, &[], plan("rings")),
        base,
    ];
    let mut sums: Vec<_> =
        different.into_iter().map(|case| Table::new(&[case]).unwrap().checksum()).collect();
    sums.push(Table::default().checksum());
    let count = sums.len();
    sums.sort_unstable();
    sums.dedup();
    assert_eq!(sums.len(), count);
}

/// Returns a table of one case, with one of its lines replaced.
fn table_with(line: &str) -> String {
    let key = line.split(' ').next().unwrap();
    let lines = [
        "[[case]]",
        "operation = \"reduce\"",
        "ranks = 2",
        "oversubscribed = false",
        "buffers = \"heap\"",
        "up_to = [8, 64]",
        "algorithms = [\"one_shot\", \"tree\", \"naive\"]",
    ];
    let chosen = lines.map(|own| if own.starts_with(&format!("{key} ")) { line } else { own });
    format!("version = 1\n\n{}\n", chosen.join("\n"))
}

#[test]
fn whatever_is_wrong_with_a_table_is_told_with_its_line() {
    let no_algorithm = "\"rings\" is no such algorithm, expected one_shot";
    for (text, line, words) in [
        ("version = 2".to_owned(), 1, "is of version 2, and this is a reader of version 1"),
        ("".to_owned(), 1, "missing field `version`"),
        ("version = 1\nversions = 1".to_owned(), 2, "unknown field `versions`"),
        ("version = 1\n[[case".to_owned(), 2, "unclosed"),
        (
            table_with("operation = \"barrier\""),
            4,
            "no algorithms to choose from for the operation \"barrier\"",
        ),
        (table_with("ranks = 1"), 5, "ranks is 1, expected 2 to 256"),
        (table_with("ranks = 257"), 5, "ranks is 257"),
        (table_with("ranks = -2"), 5, "invalid value"),
        (table_with("buffers = \"heaps\""), 7, "unknown variant `heaps`, expected `heap` or `ordinary`"),
        (table_with("up_to = [8]"), 8, "up_to has 1 sizes for 3 algorithms"),
        (table_with("up_to = [8, 8]"), 8, "do not ascend"),
        (table_with("algorithms = [\"one_shot\", \"rings\", \"naive\"]"), 9, no_algorithm),
        (table_with("algorithms = [\"one_shot\", \"tree\", \"ring\"]"), 9, "ring cannot do reduce"),
        (table_with("algorithms = [\"one_shot\", \"plan:\", \"tree\"]"), 9, "or naive, or plan:NAME"),
        (table_with("algorithms = [\"one_shot\", \"tree\", \"plan:x\"]"), 9, "plan:x cannot do reduce"),
    ] {
        let (found, fault) = format::parse(&text).expect_err(&text);
        let told = fault.to_string();
        assert!(told.contains(words) && !told.contains('\n'), "{text}: {told}");
        assert_eq!(found, Some(line), "{text}: {told}");
    }
    let twice = format!("{}{}", table_with("ranks = 2"), &table_with("ranks = 2")["version = 1\n".len()..]);
    let (line, fault) = format::parse(&twice).unwrap_err();
    assert!(matches!(fault, TuningFault::Twice) && line == Some(12), "{line:?}: {fault}");
}

#[test]
fn an_error_names_the_file_the_line_and_the_remedy() {
    let file = PathBuf::from("/nonexistent/tuning.toml");
    let error = Error::Tuning { file: file.clone(), line: Some(7), fault: Box::new(TuningFault::Order) };
    let told = error.to_string();
    assert!(told.starts_with("tuning table /nonexistent/tuning.toml, line 7: the sizes in up_to"), "{told}");
    assert!(told.contains("`shmccl tune`") && told.contains("SHMCCL_TUNING"), "{told}");
    let missing = Table::find(Some(file.into_os_string()), None).unwrap_err().to_string();
    assert!(missing.contains("cannot be read: No such file"), "{missing}");
}

#[test]
fn a_usual_file_that_cannot_be_read_and_an_empty_name_mean_the_built_in_table() {
    let too_long = format!("/{}/tuning.toml", "x".repeat(300));
    for usual in ["/nonexistent/tuning.toml", "/dev/null/tuning.toml", "/dev", "/dev/null", &too_long] {
        assert_eq!(Table::find(None, Some(usual.into())).unwrap(), Table::default(), "{usual}");
        assert!(Table::find(Some(usual.into()), None).is_err(), "{usual} was asked for");
    }
    assert_eq!(Table::find(None, None).unwrap(), Table::default());
    assert_eq!(Table::find(Some("".into()), Some(PathBuf::from("/dev"))).unwrap(), Table::default());
}

#[test]
fn a_usual_file_with_something_wrong_in_it_is_passed_over_and_one_that_was_named_is_refused() {
    let directory = std::env::temp_dir().join(format!("shmccl-passed-over-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let too_long = format!("version = 1\n{}", "#".repeat(1 << 20));
    let files: [(&str, &[u8]); 5] = [
        ("newer", b"version = 2\n\n[[case]]\nwhat = \"nobody knows\"\n"),
        ("empty", b""),
        ("no text", b"\xff\xfe\0"),
        ("torn", b"version = 1\n[[case"),
        ("long", too_long.as_bytes()),
    ];
    for (name, content) in files {
        let file = directory.join(name);
        std::fs::write(&file, content).unwrap();
        assert_eq!(Table::find(None, Some(file.clone())).unwrap(), Table::default(), "{name}");
        assert!(Table::find(Some(file.into_os_string()), None).is_err(), "{name} was asked for");
    }
    let newer = Table::read(directory.join("newer")).unwrap_err().to_string();
    assert!(newer.contains("line 1: is of version 2, and this is a reader of version 1"), "{newer}");
    let dangling = directory.join("dangling");
    std::os::unix::fs::symlink("/nonexistent", &dangling).unwrap();
    assert_eq!(Table::find(None, Some(dangling.clone())).unwrap(), Table::default());
    assert!(Table::find(Some(dangling.into_os_string()), None).is_err());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_is_no_regular_file_of_a_sensible_length_is_refused_by_name_and_nobody_waits_for_it() {
    let directory = std::env::temp_dir().join(format!("shmccl-tuning-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let [pipe, long, full] = ["pipe", "long", "full"].map(|name| directory.join(name));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::write(&long, format!("version = 1\n{}", "#".repeat(1 << 20))).unwrap();
    let content = format!("version = 1\n{}", "#".repeat((1 << 20) - 12));
    std::fs::write(&full, content).unwrap();
    let zero = PathBuf::from("/dev/zero");
    for (file, told) in [
        (&pipe, "is no regular file"),
        (&zero, "is no regular file"),
        (&directory, "is no regular file"),
        (&long, "has more than 1048576 bytes"),
    ] {
        let error = Table::find(Some(file.clone().into_os_string()), None).unwrap_err().to_string();
        let beginning = format!("tuning table {}: {told}", file.display());
        assert!(error.starts_with(&beginning), "{error}");
    }
    assert_eq!(Table::read(full).unwrap(), Table::default());
    std::fs::remove_dir_all(directory).unwrap();
}
