//! Synchronisation that nothing needs.

use super::classes;
use super::machine::{Machine, Model};
use super::{outcome, stuck, too_large};
use crate::plan::{Code, Operation, Plan};
use crate::problem::Place;
use crate::rules::each_operation;

/// Returns the `nop`s without each of which, one at a time, the plan is proved right all the same.
/// Nothing is redundant in a plan that is not.
#[must_use]
pub fn redundant(plan: &Plan) -> Vec<Place> {
    let mut candidates = Vec::new();
    for (rank, program) in plan.ranks.iter().enumerate() {
        for (index, block) in program.blocks.iter().enumerate() {
            each_operation(&block.operations, Place::block(rank, index), &mut |operation, at| {
                candidates.extend((operation.code == Code::Nop).then_some(at));
            });
        }
    }
    if !is_right(plan) {
        return Vec::new();
    }
    candidates.into_iter().filter(|&at| is_right(&without(plan, at))).collect()
}

/// Returns a plan without one operation.
fn without(plan: &Plan, at: Place) -> Plan {
    let mut less = plan.clone();
    if let (Some(rank), Some(block), Some((index, inner))) = (at.rank, at.block, at.operation) {
        let operations = &mut less.ranks[rank].blocks[block].operations;
        let of_pipeline = |operation: &mut Operation, inner| {
            operation.pipeline.as_mut().map(|pipeline| pipeline.operations.remove(inner))
        };
        match inner {
            Some(inner) => drop(of_pipeline(&mut operations[index], inner)),
            None => drop(operations.remove(index)),
        }
    }
    less
}

/// Whether a plan is right in the strict model, at all sizes that it allows.
fn is_right(plan: &Plan) -> bool {
    let Ok(classes) = classes::all(plan) else { return false };
    classes.iter().all(|class| {
        if too_large(plan, &class.lowered).is_some() {
            return false;
        }
        let mut machine = Machine::new(&class.lowered, plan.alignment, Model::STRICT);
        machine.run();
        !machine.is_cut_short
            && machine.memory.races.is_empty()
            && machine.chances.is_empty()
            && stuck::findings(&machine).is_none()
            && !outcome::values(plan, &mut machine).iter().any(|finding| finding.kind.is_error())
    })
}
