//! The execution plans that are registered with a communicator, and which calls they fit.

use std::sync::Arc;

use shmccl_plan::collective::CollectiveKind;
use shmccl_plan::lower::{granule, smallest};
use shmccl_plan::plan::Operator;
use shmccl_plan::{ExecutionPlan, Problem, RefusedPlan, lower};

use super::runnable;
use crate::collective::call::{Call, Operation};
use crate::collective::execute::planned::CompiledPlan;
use crate::error::{Error, Result};
use crate::reduce::ReduceOp;

/// How many sizes of a plan are kept as they were lowered.
const SIZES: usize = 16;

/// The plans of a communicator, in the order in which they were registered.
#[derive(Debug, Default)]
pub(crate) struct RegisteredPlans {
    plans: Vec<PlanEntry>,
    /// How many there were ever: each has a number of its own, by which calls name it.
    pushed: u32,
}

/// A plan, what it is for, and the sizes that were asked for last.
#[derive(Debug)]
pub(crate) struct PlanEntry {
    number: u32,
    plan: Arc<ExecutionPlan>,
    operation: Operation,
    granule: u64,
    /// How it reduces, if it does.
    operators: Vec<Operator>,
    /// By message: nothing where the plan cannot run at that size.
    sizes: Vec<(u64, Option<Arc<CompiledPlan>>)>,
}

impl RegisteredPlans {
    /// Returns whether there is none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// Adds a plan.
    pub(super) fn push(&mut self, plan: PlanEntry) {
        self.plans.push(PlanEntry { number: self.pushed, ..plan });
        self.pushed += 1;
    }

    /// Returns the names and numbers of all plans.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, u32)> {
        self.plans.iter().map(|plan| (plan.plan.name.as_str(), plan.number))
    }

    /// Returns the place of the first plan called `name`.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.plans.iter().position(|registered| registered.plan.name == name)
    }

    /// Removes a plan.
    pub(super) fn remove(&mut self, index: usize) {
        self.plans.remove(index);
    }

    /// Returns whether some plan may do `call` among `n_members`. Whether it does is known once it
    /// is lowered.
    pub(super) fn may_fit(&self, call: &Call<'_>, n_members: usize) -> bool {
        self.plans.iter().any(|plan| plan.fitting(call, n_members).is_some())
    }

    /// Returns the first plan that does `call` among `n_members`, of those whose name `is_meant`.
    pub(super) fn find(
        &mut self,
        call: &Call<'_>,
        n_members: usize,
        is_meant: impl Fn(&str) -> bool,
    ) -> Option<usize> {
        let does = |plan: &mut PlanEntry| plan.compiled(call, n_members).is_some();
        self.plans.iter_mut().position(|plan| is_meant(&plan.plan.name) && does(plan))
    }

    /// Returns the place of the plan that `call` names by its number, if that does the call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub(super) fn named(&mut self, call: &Call<'_>, n_members: usize) -> Result<usize> {
        let index = self.plans.iter().position(|plan| plan.number == call.tag);
        let index = index.ok_or_else(|| {
            Error::invalid("the number of a plan", call.tag.into(), "that of one that is still registered")
        })?;
        let expected = "a multiple of the plan's unit, within its limits and of elements that it aligns";
        let refused =
            || Error::invalid("the bytes of a call by a plan", call.block_len().unwrap_or(0), expected);
        let does = self.plans[index].compiled(call, n_members).is_some();
        does.then_some(index).ok_or_else(refused)
    }

    /// Returns plan number `index`, compiled for `call`, which it does.
    pub(super) fn compiled(&mut self, index: usize, call: &Call<'_>, n_members: usize) -> &Arc<CompiledPlan> {
        self.plans[index].compiled(call, n_members).expect("the plan was found to fit")
    }
}

impl PlanEntry {
    /// Looks at a plan for `n_members`, and returns it also as it is compiled for its smallest
    /// size.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for another number of ranks; [`Error::Unavailable`] for a
    /// collective that is no call, or without a size that fits; [`Error::Plan`] for what the engine
    /// does not run.
    pub(crate) fn new(plan: Arc<ExecutionPlan>, n_members: usize) -> Result<(Self, Arc<CompiledPlan>)> {
        if plan.ranks.len() != n_members {
            let expected = "as many as the communicator has";
            return Err(Error::invalid("the number of ranks of the plan", plan.ranks.len() as u64, expected));
        }
        let refused = |needs| Error::Unavailable { operation: "register_plan", needs };
        let operation = operation_of(&plan);
        let operation = operation
            .ok_or_else(|| refused("a plan of allreduce, allgather, reducescatter, alltoall or sendrecv"))?;
        let sizes = granule(&plan).filter(|&unit| unit > 0).zip(smallest(&plan));
        let (granule, message) = sizes.ok_or_else(|| refused("counts of chunks that some message fits"))?;
        let lowered = lower(&plan, message).map_err(|problems| cannot_run(&plan, problems))?;
        let problems = runnable::problems(&plan, &lowered);
        if !problems.is_empty() {
            return Err(cannot_run(&plan, problems));
        }
        let operators = plan.operators();
        let compiled = Arc::new(CompiledPlan::new(lowered));
        let sizes = vec![(message, Some(Arc::clone(&compiled)))];
        Ok((Self { number: 0, plan, operation, granule, operators, sizes }, compiled))
    }

    /// Returns the message of `call` among `n_members`, if the plan may do it.
    fn fitting(&self, call: &Call<'_>, n_members: usize) -> Option<u64> {
        let (inputs, outputs) = call.operation.blocks(n_members as u64);
        let blocks = if call.operation == Operation::AllGather { outputs } else { inputs };
        let message = call.block_len().ok()?.checked_mul(blocks)?;
        let fits = call.operation == self.operation
            && message > 0
            && message.is_multiple_of(self.granule)
            && (self.plan.min_message..=self.plan.max_message).contains(&message)
            && self.plan.alignment.is_multiple_of(call.data_type.size())
            && self.combines_as(call);
        fits.then_some(message)
    }

    /// Returns whether the plan reduces as `call` asks for: sums stand for any operator that
    /// combines pairs and takes no last step.
    fn combines_as(&self, call: &Call<'_>) -> bool {
        let Some(reducer) = &call.reducer else { return self.operators.is_empty() };
        let plain = ReduceOp::PLAIN.into_iter().find(|op| op.plain_code() == Some(reducer.code()));
        self.operators.iter().all(|operator| match operator {
            Operator::Sum => plain.as_ref().is_some_and(|op| !op.has_last_step()),
            Operator::Min => plain == Some(ReduceOp::Min),
            Operator::Max => plain == Some(ReduceOp::Max),
        })
    }

    /// Returns the plan, compiled for `call`, if it does that.
    fn compiled(&mut self, call: &Call<'_>, n_members: usize) -> Option<&Arc<CompiledPlan>> {
        let message = self.fitting(call, n_members)?;
        let known = self.sizes.iter().position(|(known, _)| *known == message);
        let index = known.unwrap_or_else(|| {
            if self.sizes.len() == SIZES {
                self.sizes.remove(0);
            }
            self.sizes.push((
                message,
                lower(&self.plan, message).ok().map(|lowered| Arc::new(CompiledPlan::new(lowered))),
            ));
            self.sizes.len() - 1
        });
        self.sizes[index].1.as_ref()
    }
}

/// Returns the operation that a plan is for, if it is one that plans do.
pub(crate) fn operation_of(plan: &ExecutionPlan) -> Option<Operation> {
    match CollectiveKind::of(plan) {
        CollectiveKind::AllReduce => Some(Operation::AllReduce),
        CollectiveKind::AllGather => Some(Operation::AllGather),
        CollectiveKind::ReduceScatter => Some(Operation::ReduceScatter),
        CollectiveKind::AllToAll => Some(Operation::AllToAll),
        CollectiveKind::SendRecv => Some(Operation::RunPlan),
        CollectiveKind::Other => None,
    }
}

fn cannot_run(plan: &ExecutionPlan, problems: Vec<Problem>) -> Error {
    RefusedPlan { file: plan.name.clone(), problems }.into()
}
