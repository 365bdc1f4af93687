//! `shmccl grpc`: becomes `shmccl-grpc`, the gRPC front of a pool, which is a program of its own.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

/// The name of the program.
const PROGRAM: &str = "shmccl-grpc";

/// Flags of `shmccl grpc`: those of the front.
#[derive(Clone, Debug, Args)]
pub(crate) struct GrpcArgs {
    /// What the front is told; `shmccl grpc -- --help` lists it
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// Becomes the front that lies beside this program, or is in `PATH`, with these `arguments`.
///
/// # Errors
/// No such program; those of the system.
pub(crate) fn become_front(arguments: &[impl AsRef<OsStr>]) -> Result<u8> {
    let beside = std::env::current_exe().ok().and_then(|this| Some(this.parent()?.join(PROGRAM)));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(arguments).exec();
    if error.kind() == ErrorKind::NotFound {
        bail!(
            "{PROGRAM} is neither beside this program nor in PATH; install it with \
             `cargo install --path bindings/grpc`"
        );
    }
    Err(error).with_context(|| format!("starting {}", program.display()))
}
