//! Files that are written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::output;

/// The file name that stands for standard output.
const STDOUT: &str = "-";

/// Writes a file in one step: readers see the old content or the new one, and a failure leaves the
/// old.
///
/// A path that is no regular file (`/dev/stdout`, a pipe) is written in place; `-` is standard
/// output.
///
/// # Errors
/// Returns the errors of writing, with the remedy if the directory is missing.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    if path == Path::new(STDOUT) {
        return output::print_report(content);
    }
    replace(path, content).with_context(|| cannot_write(path))
}

/// Returns the name of a file for messages.
pub(crate) fn name(path: &Path) -> String {
    if path == Path::new(STDOUT) { "standard output".to_owned() } else { path.display().to_string() }
}

/// Writes a value as indented JSON, in one step.
///
/// # Errors
/// Fails as [`write()`] does.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).with_context(|| cannot_write(path))?;
    text.push(b'\n');
    write(path, &text)
}

/// Checks before the work starts that its result can be written afterwards. If the path is standard
/// output, tables go to stderr from now on.
///
/// # Errors
/// Fails as [`write()`] does.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    if path == Path::new(STDOUT) {
        output::take_stdout();
        return Ok(());
    }
    let probe = || {
        if is_special(path)? {
            return OpenOptions::new().write(true).open(path).map(drop);
        }
        let temporary = Temporary::beside(path)?;
        drop(temporary);
        Ok(())
    };
    probe().with_context(|| cannot_write(path))
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    if is_special(path)? {
        return OpenOptions::new().write(true).open(path)?.write_all(content);
    }
    let mut temporary = Temporary::beside(path)?;
    temporary.file.write_all(content)?;
    temporary.rename()
}

/// Whether the path exists and is no regular file, so that a file must not replace it. A directory
/// is an error.
fn is_special(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) => Ok(!found.is_file()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn cannot_write(path: &Path) -> String {
    let directory = directory_of(path);
    if path.is_relative() && std::env::current_dir().is_err() {
        let path = path.display();
        format!(
            "cannot write {path}: the working directory was removed; change to another one, or name a path from the root"
        )
    } else if directory.is_dir() {
        format!("cannot write {}", path.display())
    } else {
        let directory = directory.display();
        format!(
            "cannot write {}: directory {directory} does not exist; create it with 'mkdir -p {directory}'",
            path.display()
        )
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file beside its target. Dropping it removes the file, unless it was renamed.
struct Temporary {
    file: File,
    path: Option<PathBuf>,
    target: PathBuf,
}

impl Temporary {
    fn beside(target: &Path) -> io::Result<Self> {
        // A symbolic link stays: its target is replaced.
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.tmp", std::process::id()));
        let path = directory_of(&target).join(hidden);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        Ok(Self { file, path: Some(path), target })
    }

    fn rename(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        if let Some(path) = &self.path {
            fs::rename(path, &self.target)?;
        }
        self.path = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::chain;

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("shmccl-file-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let directory = directory("replace");
        let path = directory.join("report.json");
        check_writable(&path).unwrap();
        assert!(names(&directory).is_empty());
        write(&path, b"a long first version").unwrap();
        write_json(&path, &[1, 2]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[\n  1,\n  2\n]\n");
        assert_eq!(names(&directory), ["report.json"]);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_missing_directory_is_named_with_its_remedy() {
        let path = Path::new("/nonexistent/deep/report.json");
        for error in [write(path, b"").unwrap_err(), check_writable(path).unwrap_err()] {
            let line = chain(&error);
            assert!(line.contains("directory /nonexistent/deep does not exist"), "{line}");
            assert!(line.contains("mkdir -p /nonexistent/deep"), "{line}");
        }
    }

    #[test]
    fn a_directory_is_no_file() {
        let directory = directory("directory");
        assert!(chain(&write(&directory, b"").unwrap_err()).contains("directory"));
        assert!(check_writable(&directory).is_err());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        write(Path::new("/dev/null"), b"gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_symbolic_link_stays_one() {
        let directory = directory("link");
        let (target, link) = (directory.join("target"), directory.join("link"));
        fs::write(&target, b"old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        fs::remove_dir_all(directory).unwrap();
    }
}
