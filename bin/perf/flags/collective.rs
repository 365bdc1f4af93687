//! Flags of the collective tests, in the manner of nccl-tests.

use std::path::PathBuf;

use clap::Args;
use shmccl::collective::{Algorithm, AlgorithmName, Operation};
use shmccl::reduce::{DataType, ReduceOp};
use shmccl_harness::pattern::check_operator;
use shmccl_harness::report::Memory;
use shmccl_harness::sync::RankAverage;
use shmccl_harness::test::{Test, TestChannel};

use crate::failure::UsageError;
use crate::perf::flags::PerfArgs;
use crate::perf::spec::CollectiveSettings;
use crate::planned::PlannedTest;
use crate::units::parse_size;

/// The operator that multiplies by a scalar first. The scalar is not part of the name.
const SCALED: &str = "mulsum";

/// The word for all types, operators or ranks.
const ALL: &str = "all";

/// All operators, in the order in which nccl-tests goes through them, then those that it has not.
const OPERATORS: [&str; 9] = ["sum", "prod", "max", "min", "avg", SCALED, "band", "bor", "bxor"];

/// All types, in the order in which nccl-tests goes through them, then those that it has not.
const TYPES: [DataType; 17] = [
    DataType::I8,
    DataType::U8,
    DataType::I32,
    DataType::U32,
    DataType::I64,
    DataType::U64,
    DataType::F16,
    DataType::F32,
    DataType::F64,
    DataType::Bf16,
    DataType::F8E4M3,
    DataType::F8E5M2,
    DataType::I16,
    DataType::U16,
    DataType::Bool,
    DataType::Complex64,
    DataType::Complex128,
];

/// Bytes from one size to the next where the user does not say, as in nccl-tests.
const STEP: u64 = 1 << 20;

/// More than the steps of any table.
const MOST_STEPS: u64 = 100_000;

/// Flags for collective tests only.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options for collective operations")]
pub(crate) struct CollectiveArgs {
    /// Operator: sum, prod, max, min, avg, mulsum, band, bor or bxor; or all that are defined on
    /// the type
    #[arg(short = 'o', long, value_name = "OP", value_parser = parse_op, default_value = "sum")]
    op: String,
    /// Type of the elements: int8, uint8, int16, uint16, int32, uint32, int64, uint64, half,
    /// bfloat16, float, double, f8e4m3, f8e5m2, bool, complex64 or complex128; or all on which the
    /// operator is defined
    #[arg(short = 'd', long, value_name = "TYPE", value_parser = parse_type, default_value = "float")]
    datatype: String,
    /// Root rank; all or -1 for each in turn
    #[arg(short = 'r', long, value_name = "RANK", value_parser = parse_root, allow_hyphen_values = true, default_value = "0")]
    root: Root,
    /// Which rank's time counts: 0 that of rank 0, 1 the mean over the ranks, 2 the shortest, 3 the
    /// longest. What the table shows as time, and bandwidths are of, is the median over the
    /// operations (nccl-tests: the mean). Up to 8 KiB 64 operations are timed as one, with the
    /// rewriting of inputs and the reading of results between them (without the reading by -c 0),
    /// in limits as well
    #[arg(short = 'a', long, value_name = "0-3", value_parser = clap::value_parser!(u8).range(0..=3), default_value_t = 1)]
    average: u8,
    /// Bytes from one size to the next, instead of a factor [default with --stepfactor 1: 1MiB]
    #[arg(short = 'i', long, value_name = "SIZE", value_parser = parse_step)]
    stepbytes: Option<u64>,
    /// Where the buffers are
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Memory::Heap)]
    memory: Memory,
    /// Algorithm: one_shot, two_shot, ring, recursive_doubling, halving_doubling, tree, double_tree
    /// or naive; or plan:NAME for an execution plan in the directory of --plans [default: what
    /// suits the size]
    #[arg(long, value_name = "NAME", value_parser = parse_algorithm)]
    algo: Option<AlgorithmName>,
    /// Do the operation by this MSCCL++ execution plan, with as many ranks as it is for
    #[arg(long, value_name = "FILE", conflicts_with_all = ["algo", "channel"])]
    plan: Option<PathBuf>,
    /// Show the machine's limit in columns of the table, and not in a table of its own on stderr,
    /// where it has a name. What is reduced is held against float sums, whatever the type and the
    /// operator, and what is exchanged in place against an exchange out of place. Loops over
    /// ordinary memory there are for an all-reduce past 8 KiB alone: all else is held against loops
    /// in the heap. An all-reduce in the heap out of place is held against loops that stage, too
    #[arg(long)]
    pub(crate) bound: bool,
    /// Show the least, the median, the 99th percentile and the greatest time as well, of operations
    /// that are timed one by one. Up to 8 KiB, where ranks have cores of their own, that is by the
    /// processor's counter, from the end of one operation to that of the next, less the 10 ns or so
    /// that a look at it takes: an all-reduce of 8 B takes up to a tenth longer for being looked
    /// at. Where there is no such counter, these are percentiles of means of 64 operations
    #[arg(short = 'I', long)]
    pub(crate) percentiles: bool,
}

/// Which ranks are roots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Root {
    All,
    One(u32),
}

impl CollectiveArgs {
    /// Whether the root is that of operations without one, too.
    pub(crate) fn has_usual_root(&self) -> bool {
        self.root == Root::One(0)
    }
}

impl PerfArgs {
    /// Returns the execution plan that the operation is to be done by, if any.
    ///
    /// # Errors
    /// A file that is no such plan, or that is not there.
    pub(crate) fn planned(&self) -> anyhow::Result<Option<PlannedTest>> {
        match (&self.collective.plan, &self.collective.algo) {
            (Some(file), _) => PlannedTest::read(file).map(Some),
            (None, Some(AlgorithmName::Plan(name))) => match &self.job.plans {
                Some(directory) => PlannedTest::find(directory, name).map(Some),
                None => Err(UsageError::new(format!("--algo plan:{name} needs --plans DIR")).into()),
            },
            _ => Ok(None),
        }
    }

    /// Returns what the collective test `test` is to measure with `n_ranks`, by no execution plan.
    ///
    /// # Errors
    /// A root that is no rank; an algorithm that cannot do the operation.
    pub(crate) fn settings(&self, test: Test, n_ranks: u32) -> Result<CollectiveSettings, UsageError> {
        let args = &self.collective;
        let (reduces, has_root) =
            test.operation().map_or((false, false), |operation| (operation.reduces(), operation.has_root()));
        let roots = match args.root {
            _ if !has_root => Vec::new(),
            Root::All => (0..n_ranks).collect(),
            Root::One(root) if root < n_ranks => vec![root],
            Root::One(root) => {
                let most = n_ranks - 1;
                return Err(UsageError::new(format!(
                    "--root {root} is no rank; of {n_ranks} the last is {most}"
                )));
            }
        };
        let algorithm = match args.algo {
            Some(AlgorithmName::BuiltIn(algorithm)) => Some(algorithm),
            _ => None,
        };
        if let (Some(algorithm), Some(operation)) = (algorithm, test.operation())
            && !algorithm.supports(operation)
        {
            let able = Algorithm::ALL.into_iter().filter(|other| other.supports(operation));
            let able = able.map(Algorithm::name).collect::<Vec<_>>().join(", ");
            return Err(UsageError::new(format!("{algorithm} cannot do {operation}; these can: {able}")));
        }
        let types = named(&args.datatype, TYPES.into_iter().map(DataType::name));
        let ops = match test {
            _ if reduces => named(&args.op, OPERATORS.into_iter()),
            // nccl-tests names an operator there, though none is applied.
            Test::Operation(Operation::Send) => vec![ReduceOp::Sum.name().to_owned()],
            _ => vec!["none".to_owned()],
        };
        if let ([data_type], [op], true) = (types.as_slice(), ops.as_slice(), reduces) {
            check_operator(data_type.parse().map_err(refused)?, op).map_err(refused)?;
        }
        Ok(CollectiveSettings {
            algorithm: algorithm.map(|algorithm| algorithm.name().to_owned()),
            plan: None,
            channel: self.channel.unwrap_or(TestChannel::Memory),
            types,
            ops,
            roots,
            average: RankAverage::numbered(args.average),
            memory: args.memory,
            percentiles: args.percentiles,
            algorithms: Vec::new(),
            landing_len: 0,
        })
    }

    /// Returns the bytes from one size of a collective test to the next, where there is no factor.
    pub(crate) fn step_in_bytes(&self) -> Option<u64> {
        self.collective.stepbytes.or((self.sweep.stepfactor == 1).then_some(STEP))
    }

    /// Returns the sizes that collective tests measure.
    ///
    /// # Errors
    /// Flags that contradict each other, or name no size or too many.
    pub(crate) fn collective_sizes(&self) -> Result<Vec<u64>, UsageError> {
        let Some(step) = self.step_in_bytes() else { return self.sweep.climbed() };
        let factor = self.sweep.stepfactor;
        if factor > 1 && self.given.contains(&"stepfactor") {
            return Err(UsageError::new(format!(
                "--stepbytes cannot be used with --stepfactor {factor}; leave one out, or say --stepfactor 1"
            )));
        }
        let (least, most) = (self.sweep.minbytes, self.sweep.maxbytes);
        match most.checked_sub(least).map(|range| range / step) {
            None => self.sweep.climbed(),
            Some(steps @ 0..MOST_STEPS) => Ok((0..=steps).map(|index| least + index * step).collect()),
            Some(_) => {
                Err(UsageError::new(format!("--stepbytes {step} makes too many sizes; take larger steps")))
            }
        }
    }
}

fn refused(error: impl std::fmt::Display) -> UsageError {
    UsageError::new(error.to_string())
}

fn named<'n>(name: &str, all: impl Iterator<Item = &'n str>) -> Vec<String> {
    if name == ALL { all.map(str::to_owned).collect() } else { vec![name.to_owned()] }
}

fn parse_algorithm(text: &str) -> Result<AlgorithmName, String> {
    text.parse().map_err(|error| format!("{error}, or plan:NAME"))
}

fn parse_op(text: &str) -> Result<String, String> {
    match text.to_ascii_lowercase().as_str() {
        name @ (ALL | SCALED) => Ok(name.to_owned()),
        name => match name.parse::<ReduceOp>() {
            Ok(op) => Ok(op.name().to_owned()),
            Err(error) => Err(format!("{error}, or {SCALED} or {ALL}")),
        },
    }
}

fn parse_type(text: &str) -> Result<String, String> {
    match text.to_ascii_lowercase().as_str() {
        ALL => Ok(ALL.to_owned()),
        name => match name.parse::<DataType>() {
            Ok(data_type) => Ok(data_type.name().to_owned()),
            Err(error) => Err(format!("{error}, or {ALL}")),
        },
    }
}

fn parse_root(text: &str) -> Result<Root, String> {
    match text {
        ALL | "-1" => Ok(Root::All),
        _ => text.parse().map(Root::One).map_err(|_| "expected a rank, all or -1".to_owned()),
    }
}

fn parse_step(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("expected steps of at least a byte".to_owned()),
        step => Ok(step),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_there_is_stands_in_the_order_of_nccl_tests() {
        for data_type in DataType::ALL {
            assert_eq!(TYPES.into_iter().filter(|listed| *listed == data_type).count(), 1, "{data_type}");
        }
        let names: Vec<_> = ReduceOp::PLAIN.iter().map(ReduceOp::name).chain([SCALED]).collect();
        for name in &names {
            assert!(OPERATORS.contains(name), "{name}");
        }
        assert_eq!(OPERATORS.len(), names.len());
    }
}
