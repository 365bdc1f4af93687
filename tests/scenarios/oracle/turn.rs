//! How calls are submitted: one of them at once, or some together, in a group, on a stream, or in a
//! group on a stream.
//!
//! A result does not depend on that: it follows from the call and the algorithm ([`Algorithm`]). So
//! each call of a group has to give what it gives alone, bit by bit, whether it is fused with those
//! around it or not.

use shmccl::collective::{Algorithm, Operation};
use shmccl::{Communicator, Group, Result, Stream};

use crate::harness::Random;
use crate::oracle::answer::Question;
use crate::oracle::call::Ready;
use crate::oracle::memory::Zone;
use crate::oracle::plan::{Plan, Task, Wrong, told};
use crate::oracle::table::{Combination, LONG, below, elements, one_of};

/// The most calls of one turn.
pub(crate) const MOST: usize = 4;

/// Calls that are submitted together.
#[derive(Debug)]
pub(crate) struct Turn {
    way: Way,
    /// Of all but the first no buffer has more than [`LONG`] bytes.
    pub(crate) calls: Vec<Combination>,
    /// Which of them is submitted first; the others follow, round the end.
    first: usize,
}

impl Turn {
    /// Any among `n` ranks.
    pub(crate) fn draw(random: &mut Random, n: usize) -> Self {
        let (way, length) = (Way::draw(random), Length::draw(random));
        let mut call = match way.is_group() && length.is_of_all() {
            true => length.call(random, n, None),
            false => Combination::draw(random, n),
        };
        if way.is_group() && random.below(2) == 0 {
            // Nothing else is fused.
            call.algorithm = one_of(random, &[None, Some(Algorithm::OneShot)]);
        }
        Self::around(random, n, (way, length), call)
    }

    /// `call`, submitted in any way among `n` ranks.
    pub(crate) fn with(random: &mut Random, n: usize, call: Combination) -> Self {
        let drawn = (Way::draw(random), Length::draw(random));
        Self::around(random, n, drawn, call)
    }

    fn around(random: &mut Random, n: usize, (way, length): (Way, Length), call: Combination) -> Self {
        let mut calls = vec![call];
        for _ in 0..way.others(random) {
            let algorithm = if way.is_group() { call.algorithm } else { None };
            let other = length.call(random, n, algorithm);
            // A group has one.
            let algorithm = if way.is_group() { algorithm } else { other.algorithm };
            calls.push(Combination { algorithm, ..other });
        }
        let first = below(random, calls.len());
        Self { way, calls, first }
    }

    /// Executes its calls, which `questions` ask for, in buffers of `zones`, and looks at all that
    /// may have changed.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn run(
        &self,
        questions: &[Question<'_>],
        comm: &mut Communicator,
        zones: &mut [(Zone, Zone)],
        stream: &Stream,
    ) -> Result<(), Wrong> {
        let lay_out = |(question, zones)| Plan::of(question).lay_out(zones, self.way.is_on_stream());
        let mut tasks: Vec<_> = questions.iter().zip(zones).map(lay_out).collect();
        tasks.rotate_left(self.first);
        match self.way {
            Way::Direct => direct(comm, &mut tasks),
            Way::Group => group(comm, &mut tasks),
            Way::Stream => on_stream(comm, &mut tasks, stream),
            Way::GroupOnStream => group_on_stream(comm, &mut tasks, stream),
        }
        .map_err(told)?;
        tasks.iter_mut().try_for_each(|task| {
            let found = task.check();
            found.map_err(|wrong| format!("{wrong} of {:?}", task.call()))
        })
    }
}

/// How calls are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By itself, at once.
    Direct,
    Group,
    /// One after the other on a stream.
    Stream,
    /// As a group that a stream executes.
    GroupOnStream,
}

impl Way {
    /// 5 of 8 are direct.
    fn draw(random: &mut Random) -> Self {
        match random.below(16) {
            0..=9 => Self::Direct,
            10..=12 => Self::Group,
            13..=14 => Self::Stream,
            _ => Self::GroupOnStream,
        }
    }

    fn is_group(self) -> bool {
        matches!(self, Self::Group | Self::GroupOnStream)
    }

    fn is_on_stream(self) -> bool {
        matches!(self, Self::Stream | Self::GroupOnStream)
    }

    /// How many calls go with the first one.
    fn others(self, random: &mut Random) -> usize {
        match self {
            Self::Direct => 0,
            Self::Group | Self::GroupOnStream => 1 + below(random, MOST - 1),
            // Half of the calls of streams are alone.
            Self::Stream => below(random, 4).saturating_sub(1),
        }
    }
}

/// How long the calls are that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// Reductions of a word, which are combined in registers where they are fused.
    Words,
    /// As a rule all inputs fit into one post.
    Tiny,
    /// As a rule all but the first are small.
    Short,
    /// Any.
    Any,
}

impl Length {
    fn draw(random: &mut Random) -> Self {
        one_of(random, &[Self::Words, Self::Tiny, Self::Short, Self::Any])
    }

    /// Whether it is that of the first call, too.
    fn is_of_all(self) -> bool {
        matches!(self, Self::Words | Self::Tiny)
    }

    /// Any call of this length among `n` ranks that `algorithm` can do.
    fn call(self, random: &mut Random, n: usize, algorithm: Option<Algorithm>) -> Combination {
        loop {
            let call = Combination::draw(random, n);
            let is_able = algorithm.is_none_or(|algorithm| algorithm.supports(call.operation));
            let is_word = matches!(call.operation, Operation::AllReduce | Operation::Reduce);
            if is_able && (is_word || self != Self::Words) {
                return Combination { count: self.count(random, n, &call), ..call };
            }
        }
    }

    /// The elements of a block of `call`.
    fn count(self, random: &mut Random, n: usize, call: &Combination) -> usize {
        match self {
            Self::Words => 1 + below(random, (8 / call.dtype.size()).max(1)),
            Self::Tiny => below(random, 6),
            Self::Short => below(random, 2 * n + 70),
            Self::Any => call.count.min(elements(call.operation, call.dtype, n, LONG)),
        }
    }
}

fn direct(comm: &mut Communicator, tasks: &mut [Task<'_>]) -> Result<()> {
    for task in tasks {
        task.put()?;
        comm.set_algorithm(task.call().algorithm);
        task.ready(comm)?(comm)?;
    }
    Ok(())
}

fn group(comm: &mut Communicator, tasks: &mut [Task<'_>]) -> Result<()> {
    comm.set_algorithm(tasks[0].call().algorithm);
    tasks.iter_mut().try_for_each(Task::put)?;
    let calls = tasks.iter_mut().map(|task| task.ready(comm)).collect::<Result<Vec<_>>>()?;
    grouped(comm, calls)?.end()
}

fn on_stream(comm: &mut Communicator, tasks: &mut [Task<'_>], stream: &Stream) -> Result<()> {
    for task in tasks {
        task.put_by(comm, stream)?;
        comm.set_algorithm(task.call().algorithm);
        task.ready_for_stream(comm)?(&mut stream.on(comm))?;
        task.fetch_by(comm, stream)?;
    }
    stream.synchronise()
}

fn group_on_stream(comm: &mut Communicator, tasks: &mut [Task<'_>], stream: &Stream) -> Result<()> {
    comm.set_algorithm(tasks[0].call().algorithm);
    tasks.iter_mut().try_for_each(|task| task.put_by(comm, stream))?;
    let calls = tasks.iter_mut().map(|task| task.ready_for_stream(comm)).collect::<Result<Vec<_>>>()?;
    grouped(comm, calls)?.end_on(stream)?;
    tasks.iter_mut().try_for_each(|task| task.fetch_by(comm, stream))?;
    stream.synchronise()
}

/// A group of `calls` of `comm`.
fn grouped<'c, 'b>(comm: &'c mut Communicator, calls: Vec<Ready<'b>>) -> Result<Group<'c, 'b>> {
    let mut group = Group::start();
    let joined = group.join(comm);
    for call in calls {
        call(&mut group.on(joined))?;
    }
    Ok(group)
}
