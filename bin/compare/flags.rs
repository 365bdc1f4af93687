//! Flags of `shmccl compare`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use shmccl_harness::test::Test;

use crate::flags::{JobArgs, SweepArgs, parse_ranks};

/// Flags of `shmccl compare`.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("maxbytes", |arg| arg.help("Largest size")))]
#[command(mut_arg("stepfactor", |arg| arg.help("Factor from one size to the next, 2 at least")))]
pub(crate) struct CompareArgs {
    /// Compare all algorithms of a collective operation instead of puts, direct and proxied:
    /// all_reduce, all_gather, ... Between two ranks a chain and naive are the tree. Operations by
    /// messages between pairs, such as sendrecv and all_to_all_v, have no choice of algorithms.
    /// Puts of a program's own, by which each rank puts its part and signals, take turns with
    /// all_reduce, all_gather, reduce_scatter, all_to_all, reduce, broadcast, gather and scatter.
    /// They are left out at sizes at which there is no room for them to land
    #[arg(long, value_name = "OP", value_parser = parse_operation)]
    pub(crate) op: Option<Test>,
    /// Device processes of the operation [default: 2]
    #[arg(short = 'g', long, value_name = "N", value_parser = parse_ranks, requires = "op")]
    pub(crate) ranks: Option<u32>,
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
    #[command(flatten)]
    pub(crate) job: JobArgs,
    #[command(flatten)]
    files: CompareFiles,
}

/// The files of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct CompareFiles {
    /// Write the report to a file; - is standard output, and sends the tables to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the table to a file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the plot to a file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

impl CompareArgs {
    /// Whether a file is named.
    pub(crate) fn names_files(&self) -> bool {
        self.files != CompareFiles::default()
    }

    /// Returns the named files, or three in the current directory if none is named.
    pub(crate) fn files(&self) -> CompareFiles {
        let usual = |kind: &str| Some(PathBuf::from(format!("compare.{kind}")));
        match self.names_files() {
            true => self.files.clone(),
            false => CompareFiles { json: usual("json"), csv: usual("csv"), svg: usual("svg") },
        }
    }
}

/// Reads the name of a collective operation, as `perf` does.
fn parse_operation(text: &str) -> Result<Test, String> {
    let named = Test::from_str(text, false).ok().filter(|test| test.is_collective());
    named.ok_or_else(|| {
        let operations = Test::value_variants().iter().copied().filter(|test| test.is_collective());
        let names: Vec<_> = operations.map(Test::name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::failure::one_line;

    fn parse(words: &[&str]) -> Result<CompareArgs, String> {
        let command = CompareArgs::augment_args(clap::Command::new("shmccl").no_binary_name(true));
        let matches = command.try_get_matches_from(words).map_err(|error| one_line(&error, "shmccl"))?;
        CompareArgs::from_arg_matches(&matches).map_err(|error| one_line(&error, "shmccl"))
    }

    #[test]
    fn compare_takes_every_collective_test_by_the_names_that_perf_takes() {
        let operation = |name: &str| parse(&["--op", name]).map(|compare| compare.op);
        for test in Test::value_variants() {
            let found = operation(test.name());
            assert_eq!(found.is_ok_and(|op| op == Some(*test)), test.is_collective(), "{}", test.name());
            if test.is_collective() {
                assert_eq!(operation(test.nccl_tests_name()).unwrap(), Some(*test));
            }
        }
        let error = operation("alltoall_v").unwrap_err();
        assert!(
            error.contains("expected one of all_reduce, ") && error.contains("all_to_all_v, "),
            "{error}"
        );
    }

    #[test]
    fn compare_writes_the_files_that_are_named_and_three_where_none_is() {
        let files = |words: &[&str]| {
            let compare = parse(words).unwrap();
            let name =
                |path: Option<PathBuf>| path.map_or(String::new(), |path| path.to_str().unwrap().to_owned());
            let CompareFiles { json, csv, svg } = compare.files();
            [json, csv, svg].map(name)
        };
        assert_eq!(files(&[]), ["compare.json", "compare.csv", "compare.svg"]);
        assert_eq!(files(&["--csv", "a.csv"]), ["", "a.csv", ""]);
        assert_eq!(files(&["--json", "-", "--svg", "b.svg"]), ["-", "", "b.svg"]);
        let compare = parse(&[]).unwrap();
        let sizes = compare.sweep.sizes().unwrap();
        assert_eq!((sizes[0], sizes[sizes.len() - 1]), (8, 64 << 20));
    }
}
