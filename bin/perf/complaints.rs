//! What device processes say before they fail, made into the one line that a user is to read.

use shmccl::Error;
use shmccl::error::DeviceName;

/// Error lines of device processes, each told once, with who said so.
#[derive(Debug, Default)]
pub(super) struct Complaints(Vec<(String, Vec<DeviceName>)>);

impl Complaints {
    /// Notes the error line of a device.
    pub(super) fn add(&mut self, device: DeviceName, text: &str) {
        match self.0.iter_mut().find(|(said, _)| said == text) {
            Some((_, devices)) => devices.push(device),
            None => self.0.push((text.to_owned(), vec![device])),
        }
    }

    /// The error that the job failed with; in the words of the device that is the first cause, where it found some. What the
    /// others say of its loss is a consequence and left out.
    pub(super) fn explain(mut self, error: Error) -> anyhow::Error {
        let Error::DeviceFailed { device: cause, .. } = &error else { return error.into() };
        let Some((text, devices)) = self.0.iter_mut().find(|(_, devices)| devices.contains(cause)) else {
            return error.into();
        };
        devices.sort_by_key(|device| match device {
            DeviceName::Rank(rank) => rank.get(),
            DeviceName::Proxy => u32::MAX,
        });
        anyhow::anyhow!("{}: {text}", names(devices))
    }
}

/// `rank 3`; `ranks 0, 1 and 2`; `rank 0 and the proxy service`.
fn names(devices: &[DeviceName]) -> String {
    let ranks = devices.iter().filter(|device| matches!(device, DeviceName::Rank(_))).count();
    let name = |(index, device): (usize, &DeviceName)| match device {
        DeviceName::Rank(rank) if ranks > 1 && index == 0 => format!("ranks {rank}"),
        DeviceName::Rank(rank) if ranks > 1 => rank.to_string(),
        other => other.to_string(),
    };
    let mut names: Vec<String> = devices.iter().enumerate().map(name).collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use shmccl::Rank;
    use shmccl::error::ExitCause;

    use super::*;

    fn rank(rank: u32) -> DeviceName {
        DeviceName::Rank(Rank::new(rank, 64).unwrap())
    }

    fn failed(device: DeviceName) -> Error {
        Error::DeviceFailed { device, cause: ExitCause::Code(1) }
    }

    #[test]
    fn what_all_ranks_say_is_told_once_with_who_said_it() {
        let mut complaints = Complaints::default();
        for device in [rank(2), rank(0), rank(1)] {
            complaints.add(device, "out of device memory");
        }
        assert_eq!(complaints.explain(failed(rank(2))).to_string(), "ranks 0, 1 and 2: out of device memory");
    }

    #[test]
    fn consequences_are_left_out_and_a_cause_that_said_nothing_is_named_as_it_ended() {
        let complaints = || {
            let mut complaints = Complaints::default();
            complaints.add(rank(0), "rank 1 was lost");
            complaints.add(rank(1), "out of device memory");
            complaints
        };
        assert_eq!(complaints().explain(failed(rank(1))).to_string(), "rank 1: out of device memory");
        assert_eq!(complaints().explain(failed(rank(2))).to_string(), "rank 2 exited with code 1");
        let interrupted = Error::Interrupted { signal: 2 };
        assert_eq!(complaints().explain(interrupted).to_string(), "interrupted by SIGINT");
    }

    #[test]
    fn the_service_process_is_named_behind_the_ranks() {
        assert_eq!(names(&[rank(4), DeviceName::Proxy]), "rank 4 and the proxy service");
        assert_eq!(names(&[rank(4), rank(7), DeviceName::Proxy]), "ranks 4, 7 and the proxy service");
    }
}
