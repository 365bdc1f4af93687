//! Figures whose contenders share one case: a memory beside another, and algorithms beside each
//! other.

use std::cell::RefCell;

use anyhow::Result;
use shmccl::collective::{Algorithm, Operation};
use shmccl::reduce::ReduceOp;
use shmccl_harness::case::CaseData;
use shmccl_harness::interleave::{Contender, Effort, NamedLimit, Participants, interleave_with_limits};
use shmccl_harness::pattern::{ForType, TestElement};
use shmccl_harness::puts::{ByPuts, PUTS};
use shmccl_harness::report::Memory;
use shmccl_harness::sync::Gathering;
use shmccl_harness::timed_case::{ByLibrary, RunCase, TimedCase};
use shmccl_limits::staged_sum::{StagedLimit, StagedVariant};

use super::{CollectiveBench, Wanted};

/// Slices of each algorithm, however long they take: there are many algorithms.
const FEWEST_SLICES_OF_ALGORITHMS: u64 = 9;

/// A figure of ordinary memory, beside the operation in the heap and a hand-written loop.
///
/// Each contender has buffers of its own, and those of all do not fit into the caches. So each
/// slice begins with operations that are not timed ([`TimedCase::settled`]): what is compared is
/// what a program gets that has only these buffers.
pub(crate) struct InBothMemories<'b, 'a, 'w>(pub(crate) &'b mut CollectiveBench<'a>, pub(crate) Wanted<'w>);

impl ForType for InBothMemories<'_, '_, '_> {
    type Outcome = Result<()>;

    fn run<T: TestElement>(self) -> Result<()> {
        self.0.in_both_memories::<T>(self.1)
    }
}

/// The figures of all algorithms, which take turns on one case.
pub(crate) struct BetweenAlgorithms<'b, 'a, 'w>(
    pub(crate) &'b mut CollectiveBench<'a>,
    pub(crate) Wanted<'w>,
);

impl ForType for BetweenAlgorithms<'_, '_, '_> {
    type Outcome = Result<()>;

    fn run<T: TestElement>(self) -> Result<()> {
        self.0.between_algorithms::<T>(self.1)
    }
}

/// One of several contenders that share a case. Each arranges the case for itself before a slice,
/// and again after it.
struct SharedCase<'t, T, R, A> {
    case: &'t RefCell<TimedCase<T, R>>,
    arrange: A,
    /// Elements that were wrong in its slices.
    wrong: u64,
}

impl<'t, T, R, A> SharedCase<'t, T, R, A> {
    fn new(case: &'t RefCell<TimedCase<T, R>>, arrange: A) -> Self {
        Self { case, arrange, wrong: 0 }
    }
}

impl<T: TestElement, R: RunCase<T>, A: FnMut(&mut TimedCase<T, R>)> Contender for SharedCase<'_, T, R, A> {
    fn slice(&mut self, ops: u64, samples: &mut Vec<f64>) -> shmccl::Result<()> {
        let mut case = self.case.borrow_mut();
        (self.arrange)(&mut case);
        let before = case.wrong();
        case.slice(ops, samples)?;
        self.wrong += case.wrong() - before;
        (self.arrange)(&mut case);
        Ok(())
    }

    fn batch(&self) -> u64 {
        self.case.borrow().batch()
    }

    fn per_sample(&self) -> u64 {
        self.case.borrow().per_sample()
    }

    fn wrong(&self) -> u64 {
        self.wrong
    }
}

/// The operation done by the library, or by puts of a program's own.
struct ByEither<'c> {
    library: ByLibrary<'c>,
    puts: Option<ByPuts>,
    by_puts: bool,
}

impl ByEither<'_> {
    /// Sets the way: an algorithm, the choice of the library, or puts.
    fn set_way(&mut self, way: CaseWay) {
        self.by_puts = matches!(way, CaseWay::Puts);
        if let CaseWay::Library(algorithm) = way {
            self.library.0.set_algorithm(algorithm);
        }
    }
}

/// A way to do an operation.
#[derive(Clone, Copy)]
enum CaseWay {
    Library(Option<Algorithm>),
    Puts,
}

impl<T: TestElement> RunCase<T> for ByEither<'_> {
    #[inline]
    fn run(&mut self, data: &mut CaseData<T>, gathering: &mut Gathering) -> shmccl::Result<()> {
        match &mut self.puts {
            Some(puts) if self.by_puts => puts.run(),
            _ => self.library.run(data, gathering),
        }
    }
}

impl CollectiveBench<'_> {
    fn in_both_memories<T: TestElement>(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let spec = self.spec_of::<T>(wanted)?;
        let by_hand = self.by_hand(wanted)?;
        let deviation = self.deviation(wanted);
        let mut limits = match &by_hand {
            Some(case) => by_variants(case, wanted, &deviation),
            None => self.limits(wanted)?,
        };
        let on_heap = RefCell::new(CaseData::<T>::new(self.comm, spec.clone(), self.buffers, Memory::Heap)?);
        let mut data = CaseData::<T>::new(self.comm, spec.clone(), self.buffers, Memory::Ordinary)?;
        self.check_plan(&mut data, wanted)?;
        let case = TimedCase::new(ByLibrary(self.comm), data, &self.gathering, wanted.bytes);
        let case = RefCell::new(case.settled(Memory::Ordinary));
        let mut test = SharedCase::new(&case, |_: &mut _| ());
        let swap = |case: &mut TimedCase<T, _>| case.swap(&mut on_heap.borrow_mut());
        let mut heap = SharedCase::new(&case, swap);
        let participants = Participants::of(self.sync.as_deref_mut(), &mut self.all);
        let contenders: Vec<&mut dyn Contender> = vec![&mut test, &mut heap];
        let effort = self.spec.effort(self.test, None);
        let run = interleave_with_limits(participants, contenders, &mut limits, 1, effort)?;
        let wrong = case.borrow().wrong() + on_heap.borrow().wrong;
        let wrong = self.gathering.borrow_mut().total(wrong)?;
        if self.comm.rank().get() == 0 {
            let heap = run.compare(0, |samples| samples[1].clone());
            let measured = run.against_limits(0, 2, wrong);
            self.report(wanted, &spec, &self.settings.algorithm, &limits, measured, heap.as_ref())?;
        }
        Ok(())
    }

    /// Returns the hand-written loop over ordinary memory, where there is one for this operation.
    fn by_hand(&mut self, wanted: Wanted<'_>) -> Result<Option<RefCell<TimedCase<f32, StagedLimit>>>> {
        if self.operation != Operation::AllReduce {
            return Ok(None);
        }
        let spec = self.spec(wanted, Some(ReduceOp::Sum), size_of::<f32>() as u64)?;
        let mut data = CaseData::<f32>::new(self.comm, spec, self.buffers, Memory::Ordinary)?;
        let behind = data.own().map_or(0, |own| own.behind_line());
        let staged = StagedLimit::new(self.comm, self.buffers.staging, behind)?;
        let case = TimedCase::new(staged, data, &self.gathering, wanted.bytes);
        Ok(Some(RefCell::new(case.settled(Memory::Ordinary))))
    }

    fn between_algorithms<T: TestElement>(&mut self, wanted: Wanted<'_>) -> Result<()> {
        let spec = self.spec_of::<T>(wanted)?;
        let mut limits = self.limits(wanted)?;
        let data = CaseData::<T>::new(self.comm, spec.clone(), self.buffers, self.settings.memory)?;
        let mut names = self.settings.algorithms.clone();
        let has_puts = names.iter().any(|name| name.as_deref() == Some(PUTS));
        let puts = if has_puts {
            ByPuts::if_there_is_room(self.comm, &spec, T::DATA_TYPE, self.buffers)?
        } else {
            None
        };
        names.retain(|name| puts.is_some() || name.as_deref() != Some(PUTS));
        let runner = ByEither { library: ByLibrary(self.comm), puts, by_puts: false };
        let case = TimedCase::new(runner, data, &self.gathering, wanted.bytes);
        let case = RefCell::new(case.warmed(wanted.bytes));
        let contender = |name: &Option<String>| {
            let way = match name.as_deref() {
                Some(PUTS) => CaseWay::Puts,
                name => CaseWay::Library(name.map(str::parse).transpose()?),
            };
            let arrange = move |case: &mut TimedCase<T, ByEither<'_>>| case.runner().set_way(way);
            Ok(SharedCase::new(&case, arrange))
        };
        let mut all = names.iter().map(contender).collect::<Result<Vec<_>>>()?;
        let contenders: Vec<&mut dyn Contender> =
            all.iter_mut().map(|each| each as &mut dyn Contender).collect();
        let participants = Participants::of(self.sync.as_deref_mut(), &mut self.all);
        let fewest_slices = FEWEST_SLICES_OF_ALGORITHMS.div_ceil(self.spec.rounds);
        let effort = self.spec.effort(self.test, Some(self.settings.channel));
        let effort = Effort { fewest_slices, ..effort };
        let run = interleave_with_limits(participants, contenders, &mut limits, names.len(), effort)?;
        let wrong: Vec<u64> = all.iter().map(|each| each.wrong).collect();
        for (test, (name, wrong)) in names.iter().zip(wrong).enumerate() {
            let wrong = self.gathering.borrow_mut().total(wrong)?;
            if self.comm.rank().get() == 0 {
                let measured = run.against_limits(test, names.len(), wrong);
                self.report(wanted, &spec, name, &limits, measured, None)?;
            }
        }
        Ok(())
    }
}

/// Returns `case` in each variant for what is `wanted`. The `deviation` stands behind the names.
fn by_variants<'t>(
    case: &'t RefCell<TimedCase<f32, StagedLimit>>,
    wanted: Wanted<'_>,
    deviation: &str,
) -> Vec<NamedLimit<'t>> {
    let limit = |variant: StagedVariant| {
        let arrange = move |case: &mut TimedCase<f32, StagedLimit>| case.runner().set_variant(variant);
        let limit: Box<dyn Contender + 't> = Box::new(SharedCase::new(case, arrange));
        (variant.name() + deviation, limit)
    };
    StagedVariant::all_of(wanted.bytes, wanted.in_place).into_iter().map(limit).collect()
}
