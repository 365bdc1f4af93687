//! Odd surroundings of a command: refused system calls, signals as no shell leaves them, limits,
//! another user.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{Gid, Pid, Uid, setgid, setgroups, setuid};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// A description of surroundings, which one command is started in.
#[derive(Debug, Default)]
pub struct Surroundings {
    filters: Vec<BpfProgram>,
    ignored: Vec<Signal>,
    blocked: Option<SigSet>,
    limits: Vec<(Resource, u64)>,
    user: Option<u32>,
    core: Option<CpuSet>,
    heeded: Vec<Signal>,
}

/// What asks a process to end, and is ignored in one that a shell has started in the background, or
/// `nohup`.
const INTERRUPTS: [Signal; 4] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP, Signal::SIGTERM];

/// Has `command` started as from a terminal, whatever this process was started by: interrupts end
/// it, and none is blocked.
pub fn heeding_interrupts(command: &mut Command) -> &mut Command {
    Surroundings { heeded: INTERRUPTS.to_vec(), ..Surroundings::plain() }.around(command)
}

impl Surroundings {
    /// Returns the surroundings of this process.
    #[must_use]
    pub fn plain() -> Self {
        Self::default()
    }

    /// Refuses a system call, by its number, as a sandbox or an old kernel does.
    #[must_use]
    pub fn refusing(self, call: i64, errno: Errno) -> Self {
        self.filtered(call, Vec::new(), errno)
    }

    /// Refuses one command of a system call: `command` as its second argument.
    #[must_use]
    pub fn refusing_command(self, call: i64, command: i32, errno: Errno) -> Self {
        let is_it = SeccompCondition::new(
            1,
            SeccompCmpArgLen::Dword,
            SeccompCmpOp::Eq,
            u64::from(command.cast_unsigned()),
        );
        let rule = SeccompRule::new(vec![is_it.expect("an argument")]).expect("a rule");
        self.filtered(call, vec![rule], errno)
    }

    fn filtered(mut self, call: i64, rules: Vec<SeccompRule>, errno: Errno) -> Self {
        let refusal = SeccompAction::Errno(u32::try_from(errno as i32).expect("errors are positive"));
        let rules = [(call, rules)].into();
        let arch = if cfg!(target_arch = "aarch64") { TargetArch::aarch64 } else { TargetArch::x86_64 };
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch).expect("a filter");
        self.filters.push(filter.try_into().expect("a short filter"));
        self
    }

    /// Ignores a signal, as some starters do.
    #[must_use]
    pub fn ignoring(mut self, signal: Signal) -> Self {
        self.ignored.push(signal);
        self
    }

    /// Blocks a signal, as starters with threads do.
    #[must_use]
    pub fn blocking(mut self, signal: Signal) -> Self {
        self.blocked.get_or_insert_with(SigSet::empty).add(signal);
        self
    }

    /// Limits a resource, softly and hard.
    #[must_use]
    pub fn limited(mut self, resource: Resource, limit: u64) -> Self {
        self.limits.push((resource, limit));
        self
    }

    /// Plays a user (and group) of this number. Only root can.
    #[must_use]
    pub fn as_user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    /// Leaves the first of the cores of this process.
    ///
    /// # Panics
    /// Where the system does not say which cores there are.
    #[must_use]
    pub fn on_one_core(mut self) -> Self {
        let all = sched_getaffinity(Pid::from_raw(0)).expect("the cores of this process");
        let first = (0..CpuSet::count()).find(|&core| all.is_set(core).unwrap_or(false));
        let mut one = CpuSet::new();
        one.set(first.expect("a core")).expect("it is in range");
        self.core = Some(one);
        self
    }

    /// Has `command` started in these surroundings.
    pub fn around(self, command: &mut Command) -> &mut Command {
        // SAFETY: what runs between fork and exec makes system calls only; all memory was had
        // before.
        unsafe { command.pre_exec(move || self.enter()) }
    }

    fn enter(&self) -> io::Result<()> {
        for heeded in &self.heeded {
            // SAFETY: no handler is installed.
            unsafe { signal(*heeded, SigHandler::SigDfl) }?;
        }
        if !self.heeded.is_empty() {
            self.heeded.iter().copied().collect::<SigSet>().thread_unblock()?;
        }
        for ignored in &self.ignored {
            // SAFETY: no handler of this program is replaced by one that could not run; it is about
            // to be another.
            unsafe { signal(*ignored, SigHandler::SigIgn) }?;
        }
        if let Some(blocked) = &self.blocked {
            blocked.thread_block()?;
        }
        for &(resource, limit) in &self.limits {
            setrlimit(resource, limit, limit)?;
        }
        if let Some(core) = &self.core {
            sched_setaffinity(Pid::from_raw(0), core)?;
        }
        if let Some(user) = self.user {
            setgroups(&[])?;
            setgid(Gid::from_raw(user))?;
            setuid(Uid::from_raw(user))?;
        }
        for filter in &self.filters {
            apply_filter(filter).map_err(|_| io::Error::from_raw_os_error(Errno::EINVAL as i32))?;
        }
        Ok(())
    }
}
