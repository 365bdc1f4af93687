//! What `shmccl perf` and `shmccl compare` report: the machine, and a row for each figure.

use serde::{Deserialize, Serialize};
use shmccl_harness::report::PerfRow;

use crate::host::MachineInfo;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PerfReport {
    /// Where it ran.
    pub(crate) machine: MachineInfo,
    /// The rows, in the order in which they were measured.
    pub(crate) rows: Vec<PerfRow>,
}

impl PerfReport {
    /// Returns how many rows carry wrong data. The run fails when there is one.
    pub(crate) fn wrong_rows(&self) -> usize {
        self.rows.iter().filter(|row| row.wrong.is_some_and(|wrong| wrong > 0)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmccl_harness::test::Test;

    #[test]
    fn a_row_with_wrong_data_is_counted_and_one_that_was_not_checked_is_not() {
        let mut report =
            PerfReport { machine: MachineInfo::detect(), rows: vec![PerfRow::new(Test::PutLatency, 2); 3] };
        report.rows[0].wrong = Some(0);
        report.rows[1].wrong = Some(7);
        assert_eq!(report.wrong_rows(), 1);
    }
}
