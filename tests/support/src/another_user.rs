//! What takes root: to play another user.

use std::io::Write;

/// Whether this process can play another user, for `test`. Where it cannot, it says so past the
/// harness, which would swallow it; under `.ci/run` that is a failure.
pub fn can_be_played(test: &str) -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    let told = format!("{test}: NOT TRIED, since only root can play another user");
    assert!(std::env::var_os("SHMCCL_CI_SIGNALS").is_none(), "{told}");
    let _ = writeln!(std::io::stderr(), "{told}");
    false
}
