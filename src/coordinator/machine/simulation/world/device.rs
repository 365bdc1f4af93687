//! A device process, which is an agent and what it is about to do.

use std::collections::VecDeque;

use super::super::network::Position;
use crate::coordinator::agent::{Agent, DeviceTask};
use crate::coordinator::id::DeviceId;
use crate::coordinator::order::{DeviceOrder, DevicePhase};

/// A device process.
pub(in super::super) struct SimDevice {
    pub(in super::super) agent: Agent,
    /// The orders that are on their way to it.
    pub(in super::super) inbox: VecDeque<DeviceOrder>,
    /// The meeting that its communicator came of.
    pub(in super::super) job: Option<String>,
    pub(super) task: Option<DeviceTask>,
    pub(super) is_stopped: bool,
    /// Its worker hangs for ever, though it hears and gives signs of life.
    pub(in super::super) is_stuck: bool,
    /// Its task is not to wait at a meeting any longer.
    pub(super) is_called_off: bool,
    /// The number of its connection, if it has one.
    pub(super) link: Option<u64>,
}

impl SimDevice {
    pub(in super::super) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Whether it is about to grow, as a member or as a newcomer.
    pub(super) fn grows(&self) -> bool {
        let membership = self.agent.report().membership.as_ref();
        membership.is_some_and(|it| it.is_outside() || matches!(it.phase, DevicePhase::Growing { .. }))
    }

    /// Whether it writes a checkpoint, or reads one.
    pub(super) fn is_in_checkpoint(&self) -> bool {
        let membership = self.agent.report().membership.as_ref();
        membership.is_some_and(|it| match &it.phase {
            DevicePhase::Running { work: Some(work), .. } => work.directory().is_some(),
            _ => false,
        })
    }

    /// Whether it is in what does not last long, and is to be hit.
    pub(super) fn is_soon_over(&self) -> bool {
        self.grows() || self.is_in_checkpoint()
    }

    pub(super) fn place(&self, device: DeviceId) -> Position {
        let membership = self.agent.report().membership.as_ref();
        let group = match membership.map(|membership| &membership.phase) {
            Some(DevicePhase::Running { group, .. }) => *group,
            _ => 0,
        };
        Position {
            device,
            job: self.job.clone(),
            epoch: membership.map_or(0, |membership| membership.formation.epoch),
            group,
            is_called_off: self.is_called_off,
        }
    }
}
