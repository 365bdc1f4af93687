//! The answer to a Hello: what was decided for all, or what does not fit.

use std::rc::Rc;

use bytemuck::Zeroable;

use super::{BootstrapRoot, MemberId, MemberPhase, RootEvent};
use crate::bootstrap::message::{
    self, ControlMessage, Hello, LAYOUT_VERSION, MemberRefusal, Refused, Welcome,
};
use crate::error::ExitCause;

/// What does not fit, as the launcher expects it, and as it was found.
type Misfit = (MemberRefusal, u64, u64);

impl BootstrapRoot {
    /// Answers a Hello.
    pub(super) fn welcome(&mut self, id: MemberId, bytes: &[u8], sender: Option<(i32, u32)>) -> Option<()> {
        let member = &self.members[id.0];
        let code = message::member_code(member.device);
        let (pid, user) = sender?;
        let version = message::header_of(bytes)?.version;
        let fits = if version == message::VERSION {
            self.check_hello(&message::read(bytes)?, code, user)
        } else {
            Err((MemberRefusal::Version, message::VERSION.into(), version.into()))
        };
        if let Err(misfit) = fits {
            self.refuse(id, misfit);
            return Some(());
        }
        let options = &self.offer.options;
        let name = options.backing.name().as_bytes();
        let mut welcome = Welcome {
            header: Welcome::header(self.offer.job_id),
            epoch: self.offer.epoch,
            heap_len: options.heap_len,
            timeout_ms: u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX),
            member: code,
            n_ranks: self.offer.n_ranks,
            proxy_mode: options.proxy.code(),
            backing: options.backing.code(),
            cpu: member.placement.cpu.unwrap_or(message::NO_CPU),
            devices: member.placement.devices,
            proxies: member.placement.proxies,
            backing_name_len: u32::try_from(name.len()).ok()?,
            restarts: member.restarts,
            restarting: self.offer.restarting.into(),
            traced: self.traced.into(),
            beat_us: self.offer.beat.map_or(0, |beat| u64::try_from(beat.as_micros()).unwrap_or(u64::MAX)),
            ..Welcome::zeroed()
        };
        welcome.backing_name.get_mut(..name.len())?.copy_from_slice(name);
        let restarts = self.members[id.0].restarts;
        self.members[id.0].phase = if restarts == 0 { MemberPhase::Welcomed } else { MemberPhase::Returning };
        self.members[id.0].has_joined = true;
        self.post(id, &welcome, Rc::clone(&self.descriptors));
        self.invite.into_iter().for_each(|invite| self.pass_on(id, &invite));
        self.tell_not_restarted(id);
        self.events.push_back(RootEvent::Joined(id, pid));
        Some(())
    }

    fn refuse(&mut self, id: MemberId, (refusal, expected, found): Misfit) {
        let (header, reason) = (Refused::header(self.offer.job_id), refusal.code());
        self.post(id, &Refused { header, reason, reserved: 0, expected, found }, Rc::new([]));
        let cause = match refusal {
            MemberRefusal::Version | MemberRefusal::Layout => {
                ExitCause::Version { what: refusal.what(), launcher: expected, device: found }
            }
            MemberRefusal::Job | MemberRefusal::User | MemberRefusal::Member => ExitCause::Protocol,
        };
        self.cut_off(id, cause);
    }

    fn check_hello(&self, hello: &Hello, code: u32, user: u32) -> std::result::Result<(), Misfit> {
        let differs = |refusal, expected: u64, found: u64| {
            if expected == found { Ok(()) } else { Err((refusal, expected, found)) }
        };
        differs(MemberRefusal::User, nix::unistd::getuid().as_raw().into(), user.into())?;
        differs(MemberRefusal::Layout, LAYOUT_VERSION.into(), hello.layout_version.into())?;
        differs(MemberRefusal::Job, self.offer.job_id, hello.header.job_id)?;
        differs(MemberRefusal::Member, code.into(), hello.member.into())
    }
}
