//! A rank's process ends with the one that has launched it.

use std::os::unix::process::parent_id;
use std::path::Path;

use pyo3::prelude::*;

/// Asks the kernel to kill this process when its parent ends. Returns whether `parent` is there
/// still.
#[pyfunction]
pub fn end_with_parent(parent: i32) -> bool {
    // SAFETY: takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // A server of forks may stand between the two.
    u32::try_from(parent) == Ok(parent_id()) || Path::new(&format!("/proc/{parent}")).exists()
}
