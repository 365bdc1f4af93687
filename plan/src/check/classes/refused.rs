//! Messages that are refused, as they make an operation reach beyond scratch.

use crate::check::findings;
use crate::lower::{Sizes, lower_sized, message_of};
use crate::plan::ExecutionPlan;
use crate::problem::Problem;

use super::{SizeClass, messages};

/// Returns the class of the messages that are refused, of those whose chunks are longer than so
/// many bytes and `most` at most. Where one is, longer ones are, too.
pub(super) fn refused(plan: &ExecutionPlan, chunk: usize, most: usize) -> Option<SizeClass> {
    let (right, wrong, problem) = boundary(plan, chunk, most)?;
    let about = messages(plan, "more than ", right);
    Some(SizeClass {
        about,
        chunk: wrong,
        message: message_of(plan, wrong),
        above: Some(message_of(plan, right)),
        lowered: None,
        undecided: vec![findings::out_of_bounds(plan, right, wrong, &problem)],
    })
}

/// Returns the longest chunk that is not refused, the next one, and why that is.
fn boundary(plan: &ExecutionPlan, chunk: usize, most: usize) -> Option<(usize, usize, Problem)> {
    let mut right = chunk / plan.alignment;
    let most = most / plan.alignment;
    let (mut wrong, mut problem) = first_doubled(plan, right, most)?;
    while wrong - right > 1 {
        let middle = right + (wrong - right) / 2;
        match problem_at(plan, middle * plan.alignment) {
            Some(found) => (wrong, problem) = (middle, found),
            None => right = middle,
        }
    }
    Some((right * plan.alignment, wrong * plan.alignment, problem))
}

/// Looks for a chunk that is refused, ever farther away. Lengths are in units of the plan.
fn first_doubled(plan: &ExecutionPlan, right: usize, most: usize) -> Option<(usize, Problem)> {
    let mut step = 1;
    loop {
        let units = right.saturating_add(step).min(most);
        if units <= right {
            return None;
        }
        if let Some(problem) = problem_at(plan, units * plan.alignment) {
            return Some((units, problem));
        }
        if units == most || step > right.saturating_mul(FARTHEST) {
            return None;
        }
        step *= 2;
    }
}

/// How many times as long as the first ones chunks are tried.
const FARTHEST: usize = 8;

fn problem_at(plan: &ExecutionPlan, chunk: usize) -> Option<Problem> {
    let sizes = Sizes::of_chunk(plan, chunk, None).ok()?;
    lower_sized(plan, &sizes).err()?.into_iter().next()
}
