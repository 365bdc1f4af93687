//! Tells the command the commit that it was built from, so that reports can name it.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Every commit and checkout touches the reflog, in worktrees too.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    // Outside a clone (an unpacked archive, a registry) there is no commit to name.
    if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo:rustc-env=SHMCCL_COMMIT={commit}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
