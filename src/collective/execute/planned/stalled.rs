//! What a member tells of a launch that its blocks have waited in, in vain.

use std::sync::Arc;

use shmccl_plan::check::FindingKind;
use shmccl_plan::escaped;
use shmccl_plan::lower::smallest;
use shmccl_plan::{ExecutionPlan, check};

use super::launch::Launch;
use super::transfer::Mover;
use crate::error::Error;

/// Says of a timeout which blocks of `plan` wait for what, and whether the plan can end at all.
pub(super) fn stalled(error: Error, plan: &ExecutionPlan, mover: &Mover<'_>, launch: &Launch<'_>) -> Error {
    let Error::Timeout { .. } = error else { return error };
    let me = mover.members.me();
    Error::PlanStalled {
        plan: format!("plan:{}", escaped(&plan.name)),
        blocks: launch.told(me, &mover.compiled.blocks[me]),
        cause: cause(plan, mover.compiled.lowered.message),
        source: Arc::new(error),
    }
}

/// Says what the checker finds of a plan that did not end for a message: first for the shortest
/// message, which takes the checker no time.
fn cause(plan: &ExecutionPlan, message: u64) -> String {
    let mut is_decided = true;
    for message in smallest(plan).into_iter().chain([message]) {
        let Ok(report) = check(plan, Some(message)) else { continue };
        let findings = || report.classes.iter().flat_map(|class| &class.findings);
        if let Some(found) = findings().find(|finding| finding.kind == FindingKind::Deadlock) {
            return format!("no launch of the plan ends: {}; {}", found.what, found.remedy);
        }
        is_decided &= !findings().any(|finding| finding.kind == FindingKind::Undecided);
    }
    match is_decided {
        true => "the plan ends if all ranks run it, so see what keeps its peers, or wait longer",
        false => "check the plan by `shmccl plan check`",
    }
    .to_owned()
}
