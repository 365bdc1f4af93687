//! Execution plans that Python reads and checks.

use std::path::PathBuf;

use pyo3::prelude::*;
use shmccl::plan::check::{self, CheckReport, Finding};
use shmccl::plan::read::{read, read_file};
use shmccl::plan::{ExecutionPlan, Place, RefusedPlan};

use crate::error::exception;

/// What texts are called in errors, which name files otherwise.
const TEXT: &str = "the text";

/// Reads a plan: from a text, which begins with a brace, or from the file of that path.
///
/// # Errors
/// `Plan` for what is none; `TypeError` for something else.
pub fn read_plan(source: &Bound<'_, PyAny>) -> PyResult<ExecutionPlan> {
    let py = source.py();
    let text = source.extract::<String>().ok().filter(|text| text.trim_start().starts_with('{'));
    let reading = match text {
        Some(text) => py.detach(|| read(TEXT, text.as_bytes())),
        None => {
            let path: PathBuf = source.extract()?;
            py.detach(|| read_file(&path))
        }
    };
    reading.map(|reading| reading.plan).map_err(|refusal| exception(py, &refusal.into()))
}

/// Rank, block, index and name of an operation, as far as a finding knows them.
type PyPlace = (Option<usize>, Option<usize>, Option<usize>, Option<&'static str>);

/// What a check has found. `str(finding)` says it in a line, with what would mend it.
#[pyclass(frozen, module = "shmccl.plan", name = "Finding")]
pub struct PyFinding {
    finding: Finding,
    /// The sizes of messages for which it was found.
    #[pyo3(get)]
    sizes: String,
}

#[pymethods]
impl PyFinding {
    /// "deadlock", "value", "race", "unbalanced", "race-gpu", "out of bounds", "undecided", or the
    /// kind of a note.
    #[getter]
    fn kind(&self) -> &'static str {
        self.finding.kind.name()
    }

    /// Whether a plan with it is not proved right. Otherwise it is a note.
    #[getter]
    fn error(&self) -> bool {
        self.finding.kind.is_error()
    }

    /// What is wrong.
    #[getter]
    fn what(&self) -> &str {
        &self.finding.what
    }

    /// What would mend it.
    #[getter]
    fn remedy(&self) -> &str {
        &self.finding.remedy
    }

    /// The operations that are part of it: rank, block, index, and the name.
    #[getter]
    fn places(&self) -> Vec<PyPlace> {
        let place = |place: &Place| {
            let name = place.code.map(|code| code.name());
            (place.rank, place.block, place.operation.map(|(index, _)| index), name)
        };
        self.finding.places.iter().map(place).collect()
    }

    fn __str__(&self) -> String {
        self.finding.to_string()
    }

    fn __repr__(&self) -> String {
        format!("Finding({:?})", self.finding.to_string())
    }
}

/// Checks the plan in a file, or in a text, and returns what was found: an empty list where it is
/// proved right and there is nothing to note. `size` checks messages of so many bytes only.
#[pyfunction]
#[pyo3(signature = (plan, *, size=None))]
pub fn check_plan(plan: &Bound<'_, PyAny>, size: Option<u64>) -> PyResult<Vec<PyFinding>> {
    let py = plan.py();
    let plan = read_plan(plan)?;
    let report = py.detach(|| check::check(&plan, size));
    let report = report.map_err(|problems| RefusedPlan { file: plan.name.clone(), problems });
    let CheckReport { classes, .. } = report.map_err(|refusal| exception(py, &refusal.into()))?;
    let findings = classes.into_iter().flat_map(|class| {
        let sizes = class.about;
        class.findings.into_iter().map(move |finding| PyFinding { finding, sizes: sizes.clone() })
    });
    Ok(findings.collect())
}
