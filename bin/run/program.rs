//! Finds out whether a program can be executed, before it is started many times.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};

/// The reason why a program cannot be executed. It reads as one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProgramError {
    program: OsString,
    reason: ProgramFault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ProgramFault {
    /// The program is not in `PATH`, but perhaps in the working directory.
    NotInPath {
        is_here: bool,
    },
    Missing,
    Directory,
    /// It has no execute bit.
    NotExecutable,
    /// Its file system is mounted so that nothing of it is executed.
    OnNoExec,
    /// It is another user's to execute.
    NotPermitted,
    /// The interpreter of a script is missing.
    NoInterpreter(String),
    /// Any other error of the system.
    Other(String),
}

impl ProgramError {
    /// Returns why `error` kept `program` from being executed; `None` for an error of another kind.
    pub(super) fn of(program: &OsStr, error: &shmccl::Error) -> Option<Self> {
        let shmccl::Error::Os { source, .. } = error else { return None };
        let reason = match source.kind() {
            ErrorKind::NotFound => ProgramFault::Missing,
            ErrorKind::PermissionDenied => {
                examine(Path::new(program)).err().unwrap_or(ProgramFault::NotPermitted)
            }
            _ => ProgramFault::Other(source.to_string()),
        };
        Some(Self { program: program.to_owned(), reason })
    }

    /// Returns the exit code that a shell would give.
    pub(super) fn exit_code(&self) -> u8 {
        match self.reason {
            ProgramFault::NotInPath { .. } | ProgramFault::Missing | ProgramFault::NoInterpreter(_) => 127,
            _ => 126,
        }
    }
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = Path::new(&self.program).display();
        write!(f, "cannot run {program}: ")?;
        match &self.reason {
            ProgramFault::NotInPath { is_here: true } => {
                write!(f, "it is not in PATH; for the one here say ./{program}")
            }
            ProgramFault::NotInPath { is_here: false } => {
                f.write_str("it is not in PATH; give the path to it")
            }
            ProgramFault::Missing => f.write_str("no such file"),
            ProgramFault::Directory => f.write_str("it is a directory"),
            ProgramFault::NotExecutable => write!(f, "it may not be executed; try chmod +x {program}"),
            ProgramFault::OnNoExec => f.write_str(
                "its file system is mounted noexec; copy it to another, or name its interpreter first",
            ),
            ProgramFault::NotPermitted => f.write_str("this user may not execute it"),
            ProgramFault::NoInterpreter(interpreter) => {
                write!(f, "its interpreter {interpreter} does not exist")
            }
            ProgramFault::Other(error) => f.write_str(error),
        }
    }
}

/// Checks whether `program` can be executed, and finds it as the system does.
pub(super) fn check(program: &OsStr) -> Result<(), ProgramError> {
    check_in(program, std::env::var_os("PATH").as_deref())
}

fn check_in(program: &OsStr, search: Option<&OsStr>) -> Result<(), ProgramError> {
    let verdict = if program.as_bytes().contains(&b'/') {
        examine(Path::new(program))
    } else {
        let directories =
            search.map(|search| std::env::split_paths(search).collect::<Vec<_>>()).unwrap_or_default();
        let candidates: Vec<PathBuf> = directories.iter().map(|directory| directory.join(program)).collect();
        let verdicts: Vec<_> = candidates.iter().map(|path| examine(path)).collect();
        // The first that works, or else the first that exists.
        let found = verdicts.iter().find(|verdict| verdict.is_ok());
        let found =
            found.or_else(|| verdicts.iter().find(|verdict| !matches!(verdict, Err(ProgramFault::Missing))));
        let is_here = !program.is_empty() && Path::new(program).is_file();
        found.cloned().unwrap_or(Err(ProgramFault::NotInPath { is_here }))
    };
    verdict.map_err(|reason| ProgramError { program: program.to_owned(), reason })
}

fn examine(path: &Path) -> Result<(), ProgramFault> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(ProgramFault::Missing);
        }
        Err(error) => return Err(ProgramFault::Other(error.to_string())),
    };
    if metadata.is_dir() {
        return Err(ProgramFault::Directory);
    }
    // Root may access everything, but executes only files that have an execute bit.
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(ProgramFault::NotExecutable);
    }
    if statvfs(path).is_ok_and(|it| it.flags().contains(FsFlags::ST_NOEXEC)) {
        return Err(ProgramFault::OnNoExec);
    }
    if access(path, AccessFlags::X_OK).is_err() {
        return Err(ProgramFault::NotPermitted);
    }
    match interpreter(path) {
        Some(interpreter) if !Path::new(&interpreter).exists() => {
            Err(ProgramFault::NoInterpreter(interpreter))
        }
        _ => Ok(()),
    }
}

/// Returns the interpreter in the first line of a script; `None` for any other file.
fn interpreter(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    String::from_utf8_lossy(line).split_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of a test's own with the files of the given modes.
    fn scratch(name: &str, files: &[(&str, u32, &str)]) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("shmccl-program-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for (file, mode, text) in files {
            let path = directory.join(file);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode)).unwrap();
        }
        directory
    }

    fn told(program: &Path) -> (String, u8) {
        let refusal = check_in(program.as_os_str(), None).unwrap_err();
        (refusal.to_string(), refusal.exit_code())
    }

    #[test]
    fn whatever_cannot_be_executed_is_told_with_the_exit_code_of_a_shell() {
        let files =
            [("plain", 0o644, "x"), ("script", 0o755, "#! /no/such/sh -e\n"), ("fine", 0o755, "#!/bin/sh\n")];
        let directory = scratch("refused", &files);
        let line = |file: &str, reason: &str| format!("cannot run {}/{file}: {reason}", directory.display());
        let plain = directory.join("plain");
        let chmod = format!("it may not be executed; try chmod +x {}", plain.display());
        assert_eq!(told(&plain), (line("plain", &chmod), 126));
        assert_eq!(told(&directory.join("gone")), (line("gone", "no such file"), 127));
        assert_eq!(told(&directory.join("plain/below")), (line("plain/below", "no such file"), 127));
        assert_eq!(told(&directory.join("")), (line("", "it is a directory"), 126));
        let missing = "its interpreter /no/such/sh does not exist";
        assert_eq!(told(&directory.join("script")), (line("script", missing), 127));
        assert_eq!(check_in(directory.join("fine").as_os_str(), None), Ok(()));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_bare_name_is_looked_for_in_the_whole_path() {
        let first = scratch("first", &[("tool", 0o644, "x"), ("only", 0o644, "x")]);
        let second = scratch("second", &[("tool", 0o755, "x")]);
        let search = std::env::join_paths([&first, &second]).unwrap();
        let check = |name: &str| check_in(OsStr::new(name), Some(&search));
        assert_eq!(check("tool"), Ok(()), "the first one is no program, the second one is");
        assert_eq!(check("only").unwrap_err().reason, ProgramFault::NotExecutable);
        assert_eq!(check("none").unwrap_err().reason, ProgramFault::NotInPath { is_here: false });
        assert_eq!(check("").unwrap_err().exit_code(), 126);
        assert_eq!(
            check("Cargo.toml").unwrap_err().to_string(),
            "cannot run Cargo.toml: it is not in PATH; for the one here say ./Cargo.toml"
        );
        std::fs::remove_dir_all(first).unwrap();
        std::fs::remove_dir_all(second).unwrap();
    }
}
