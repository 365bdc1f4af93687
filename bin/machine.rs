//! The machine as a report names it.

use serde::{Deserialize, Serialize};

use crate::host::HostFiles;

/// Where a run took place: enough to tell whether two reports may be compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineInfo {
    /// Cores that this process may run on.
    pub(crate) cores: usize,
    /// Cores that are online.
    pub(crate) cores_online: usize,
    /// Whether two of the cores were seen to be hyper-threads of one: by the kernel's word, or by a probe that differed from others in
    /// this run. Where all were alike nothing tells, but for the `probe_ns` of the rows.
    pub(crate) siblings_seen: bool,
    /// The share of slices in which a probe found the two cores to be siblings; `None` when nothing probed.
    pub(crate) sibling_slices: Option<f64>,
    /// Whether the processor says that it is virtual.
    pub(crate) virtual_machine: bool,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The processor's name.
    pub(crate) cpu: String,
    /// The version of this program.
    pub(crate) version: String,
    /// The commit that it was built from, where it was built in a clone.
    pub(crate) commit: Option<String>,
    /// Whether it was built with optimisation.
    pub(crate) optimised: bool,
}

impl MachineInfo {
    /// Describes the machine that this process runs on.
    pub(crate) fn detect() -> Self {
        let host = HostFiles::new();
        let allowed = host.allowed_cpus();
        Self {
            cores: allowed.len(),
            cores_online: host.online_cpus().len(),
            siblings_seen: !host.siblings_among(&allowed).is_empty(),
            sibling_slices: None,
            virtual_machine: host.is_virtual(),
            kernel: host.kernel_release(),
            cpu: host.cpu_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("SHMCCL_COMMIT").map(str::to_owned),
            optimised: !cfg!(debug_assertions),
        }
    }

    /// Notes in what share of the slices the probes found siblings.
    pub(crate) fn saw_siblings(&mut self, share: f64) {
        self.siblings_seen |= share > 0.0;
        self.sibling_slices = Some(share);
    }

    /// One line for the head of a table.
    pub(crate) fn line(&self) -> String {
        let siblings = match (self.sibling_slices, self.siblings_seen) {
            (Some(share), _) if share > 0.0 => {
                format!(", hyper-thread siblings in {:.0} % of the slices", share * 100.0)
            }
            (_, true) => ", some of them hyper-thread siblings".to_owned(),
            _ => String::new(),
        };
        let kind = if self.virtual_machine { "virtual cores" } else { "cores" };
        let build = if self.optimised { "" } else { ", NOT OPTIMISED (build with --release)" };
        let commit = self.commit.as_deref().unwrap_or("no commit");
        format!(
            "{}, {} {kind}{siblings}, Linux {}, shmccl {} ({commit}){build}",
            self.cpu, self.cores, self.kernel, self.version
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_core_and_a_name() {
        let machine = MachineInfo::detect();
        assert!(machine.cores >= 1);
        assert!(!machine.kernel.is_empty() && !machine.cpu.is_empty());
    }

    #[test]
    fn siblings_seen_by_a_probe_are_named_in_the_head_line() {
        let mut machine = MachineInfo { siblings_seen: false, sibling_slices: None, ..MachineInfo::detect() };
        machine.saw_siblings(0.0);
        assert!(!machine.siblings_seen && !machine.line().contains("hyper-thread"));
        machine.saw_siblings(0.25);
        assert!(
            machine.siblings_seen && machine.line().contains("hyper-thread siblings in 25 % of the slices")
        );
    }
}
