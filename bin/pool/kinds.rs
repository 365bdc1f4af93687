//! The devices of a pool, as a TOML file lists them: each kind has what `shmccl device` takes.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::Deserialize;
use shmccl::coordinator::{DeviceKind, MAX_DEVICES};
use toml::Spanned;

use super::flags::parse_memory;
use crate::units::parse_timeout;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceList {
    #[serde(default)]
    device: Vec<DeviceEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceEntry {
    name: Option<String>,
    count: Option<Spanned<usize>>,
    memory: Option<Spanned<String>>,
    timeout: Option<Spanned<String>>,
    core: Option<Spanned<usize>>,
}

/// An error, and where it is in the text.
type ListError = (Option<Range<usize>>, String);

/// Reads the devices that a file lists.
///
/// # Errors
/// The file, the line, the key and the error, in one line.
pub(super) fn read(file: &Path) -> Result<Vec<DeviceKind>> {
    let content = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read devices from {}", file.display()))?;
    match parse(&content) {
        Ok(kinds) => Ok(kinds),
        Err((None, what)) => bail!("{}: {what}", file.display()),
        Err((Some(span), what)) => {
            let start = span.start.min(content.len());
            let line = content[..start].matches('\n').count();
            let key =
                content.lines().nth(line).and_then(|text| text.split_once('=')).map(|(key, _)| key.trim());
            let key = key.map_or_else(String::new, |key| format!("{key}: "));
            bail!("{}:{}: {key}{what}", file.display(), line + 1)
        }
    }
}

fn parse(content: &str) -> Result<Vec<DeviceKind>, ListError> {
    let list: DeviceList =
        toml::from_str(content).map_err(|error| (error.span(), in_words(error.message())))?;
    if list.device.is_empty() {
        return Err((None, "it lists no device; each begins with [[device]]".to_owned()));
    }
    let mut total = 0;
    list.device
        .into_iter()
        .map(|entry| {
            let span = entry.count.as_ref().map(Spanned::span);
            let kind = entry.check()?;
            total += kind.count.min(MAX_DEVICES + 1);
            if total > MAX_DEVICES {
                return Err((span, format!("expected no more than {MAX_DEVICES} devices in all")));
            }
            Ok(kind)
        })
        .collect()
}

/// Writes an error of the TOML reader without programming terms. If a table stands for a list, it
/// names the remedy.
fn in_words(message: &str) -> String {
    // Line breaks of a longer message are for a terminal.
    let line = message.lines().collect::<Vec<_>>().join(", ");
    let line = line.replace("expected usize", "expected a whole number").replace(" as i128", "");
    match line.split_once("expected a sequence") {
        Some((found, _)) => format!("{found}expected a list; each device begins with [[device]]"),
        None => line,
    }
}

impl DeviceEntry {
    fn check(self) -> Result<DeviceKind, ListError> {
        let plain = DeviceKind::new(1);
        let count = value(self.count, plain.count, |count| match count {
            0 => Err("expected one device at least".to_owned()),
            _ => Ok(*count),
        })?;
        let memory = value(self.memory, plain.memory, |text| parse_memory(text))?;
        let timeout = value(self.timeout, plain.timeout, |text| parse_timeout(text))?;
        let core = value(self.core, None, |core| match is_to_be_had(*core) {
            true => Ok(Some(*core)),
            false => {
                Err("expected a core that this process may run on; `shmccl doctor` lists them".to_owned())
            }
        })?;
        Ok(DeviceKind { name: self.name, memory, timeout, core, ..DeviceKind::new(count) })
    }
}

/// Whether a device may run on this core. The core may be outside of those of this process, so a
/// thread tries it out.
fn is_to_be_had(core: usize) -> bool {
    let try_out = move || {
        let mut cores = CpuSet::new();
        cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores)).is_ok()
    };
    std::thread::spawn(try_out).join().unwrap_or(false)
}

/// Returns the checked value of a key, or the default.
fn value<T, V>(
    given: Option<Spanned<T>>,
    otherwise: V,
    check: impl Fn(&T) -> Result<V, String>,
) -> Result<V, ListError> {
    let Some(given) = given else { return Ok(otherwise) };
    check(given.get_ref()).map_err(|what| (Some(given.span()), what))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_not_said_of_a_device_is_as_the_command_has_it() {
        let content = "[[device]]\n[[device]]\nname = \"big\"\ncount = 2\nmemory = \"1G\"\ntimeout = \"5s\"\ncore = 0\n";
        let kinds = parse(content).unwrap();
        assert_eq!(kinds[0], DeviceKind::new(1));
        let big = DeviceKind {
            name: Some("big".to_owned()),
            memory: 1 << 30,
            timeout: Duration::from_secs(5),
            core: Some(0),
            ..DeviceKind::new(2)
        };
        assert_eq!(kinds[1..], [big]);
    }

    #[test]
    fn what_is_wrong_is_told_in_one_line_with_file_line_and_key() {
        let file = std::env::temp_dir().join(format!("shmccl-kinds-{}.toml", std::process::id()));
        let refused = |content: &str| {
            std::fs::write(&file, content).unwrap();
            crate::failure::chain(&read(&file).unwrap_err())
        };
        for (content, line, expected) in [
            ("[[device]]\nmemry = \"1G\"", 2, "memry: unknown field `memry`, expected one of `name`, "),
            ("[[device]]\n\nmemory = \"much\"", 3, "memory: expected a whole number with K, M, G or T"),
            ("[[device]]\nmemory = \"5K\"", 2, "memory: expected a multiple of 4K"),
            ("[[device]]\nmemory = 5", 2, "memory: invalid type: integer `5`, expected a string"),
            (
                "[[device]]\ntimeout = \"5 parsecs\"",
                2,
                "timeout: expected a whole number with us, ms, s or m",
            ),
            ("[[device]]\ncore = -1", 2, "core: invalid value: integer `-1`, expected a whole number"),
            (
                "[[device]]\ncount = 1.5",
                2,
                "count: invalid type: floating point `1.5`, expected a whole number",
            ),
            (
                "[device]\ncount = 1",
                1,
                "invalid type: map, expected a list; each device begins with [[device]]",
            ),
            ("device = 3", 1, "device: invalid type: integer `3`, expected a list; each device begins with "),
            ("[[devices]]", 1, "unknown field `devices`, expected `device`"),
            ("[[device]]\ncount = 2\ncore = 999", 3, "core: expected a core that this process may run on; "),
            ("[[device]]\ncore = 1000000", 2, "core: expected a core that this process may run on; "),
            ("[[device]]\ncount = 0", 2, "count: expected one device at least"),
            ("[[device]]\ncount = 1025", 2, "count: expected no more than 1024 devices in all"),
            ("[[device]]\ncore = 1\ncore = 2", 3, "core: duplicate key"),
            ("[device", 1, ""),
            ("devices = 3", 1, "devices: unknown field `devices`, expected `device`"),
        ] {
            let error = refused(content);
            assert!(
                error.starts_with(&format!("{}:{line}: {expected}", file.display())),
                "{content}: {error}"
            );
            assert_eq!(error.lines().count(), 1);
        }
        assert!(refused("").ends_with("it lists no device; each begins with [[device]]"));
        std::fs::remove_file(&file).unwrap();
        assert!(refused_missing(&file).contains("cannot read devices from "));
    }

    fn refused_missing(file: &Path) -> String {
        read(file).unwrap_err().to_string()
    }
}
