//! The limit of an operation: all ranks meet, each does its share by the plainest loop over all ranks' buffers, all meet again.

use shmccl::Result;
use shmccl::collective::Operation;
use shmccl::shm::{CopyKernel, Span};
use shmccl_limits::sum::{self, SumKernel};

use super::gathering::Gathering;
use super::places::{Places, SIZE, moving};
use super::trial::Way;
use super::workload::Workload;

/// Shares end at multiples of so many bytes: no two ranks write to one pair of cache lines.
const SHARE_ALIGN: u64 = 128;

/// What one rank does for an operation on `f32` elements.
#[derive(Clone, Debug)]
pub(super) enum Share {
    /// Adds.
    Sum { name: String, kernel: SumKernel, sources: Vec<Span>, targets: Vec<Span> },
    /// Copies each first to each second.
    Copies { name: String, kernel: CopyKernel, pairs: Vec<(Span, Span)> },
}

impl Share {
    /// The share of this rank in the task of `places`, in every way in which it can be done.
    ///
    /// # Errors
    /// Too little ground.
    pub(super) fn all(places: &Places<'_>) -> Result<Vec<Self>> {
        if places.task.operation.reduces() { Self::sums(places) } else { Self::all_copies(places) }
    }

    fn sums(places: &Places<'_>) -> Result<Vec<Self>> {
        let (sources, targets) = places.sum()?;
        let alike = SumKernel::ALL.into_iter().filter(|kernel| kernel.is_supported());
        let alike = alike.map(|kernel| (kernel.name().to_owned(), kernel));
        let of = |(name, kernel)| {
            let name = format!("bare sum, {name}");
            Self::Sum { name, kernel, sources: sources.clone(), targets: targets.clone() }
        };
        Ok(alike.chain(places.unlike_sums()).map(of).collect())
    }

    fn all_copies(places: &Places<'_>) -> Result<Vec<Self>> {
        let supported = || CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported());
        let alike = || supported().map(|kernel| (kernel.name().to_owned(), kernel));
        let of = |(name, kernel): (String, CopyKernel), pairs: &[(Span, Span)]| Self::Copies {
            name: format!("bare copy, {name}"),
            kernel,
            pairs: pairs.to_vec(),
        };
        let divided = places.copies()?;
        let mut shares: Vec<_> = alike().map(|way| of(way, &divided)).collect();
        if places.task.operation.has_root() {
            let own = places.own_copy()?;
            let ways = alike().map(|(name, kernel)| (format!("{name}, each its own"), kernel));
            shares.extend(ways.chain(places.unlike_copies()).map(|way| of(way, &own)));
        }
        Ok(shares)
    }

    /// Its name in tables.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Sum { name, .. } | Self::Copies { name, .. } => name,
        }
    }
}

impl Way<f32> for Share {
    #[inline]
    fn go(&mut self, _workload: &mut Workload<f32>, gathering: &mut Gathering) -> Result<()> {
        gathering.meet()?;
        self.work()?;
        gathering.meet()
    }
}

impl Share {
    /// What is done between two meetings.
    fn work(&self) -> Result<()> {
        match self {
            Self::Sum { kernel, sources, targets, .. } => sum::add(*kernel, sources, targets),
            Self::Copies { kernel, pairs, .. } => {
                pairs.iter().try_for_each(|(source, target)| source.copy_with(*kernel, target))
            }
        }
    }
}

/// The name of a way in which the root does it otherwise than the others.
fn unlike(root: &str, others: &str) -> String {
    format!("{root} at the root, {others} elsewhere")
}

impl Places<'_> {
    /// Where this rank's share of `len` bytes starts, and how long it is.
    fn share(&self, len: u64) -> (u64, u64) {
        let each = len.div_ceil(u64::from(self.comm.n_ranks())).next_multiple_of(SHARE_ALIGN);
        let start = (each * u64::from(self.comm.rank().get())).min(len);
        (start, each.min(len - start))
    }

    /// What this rank takes where the root takes the first, which has the lines of its output, and the others the second.
    fn at_root<K>(&self, root: K, elsewhere: K) -> K {
        if self.comm.rank() == self.task.root { root } else { elsewhere }
    }

    /// Where all sums go to one rank: that one stores through the cache and the others past it, or the other way round.
    fn unlike_sums(&self) -> Vec<(String, SumKernel)> {
        let [through, past] = SumKernel::by_widest();
        if self.task.operation != Operation::Reduce || !past.is_supported() {
            return Vec::new();
        }
        let way = |(root, others): (SumKernel, SumKernel)| {
            (unlike(root.name(), others.name()), self.at_root(root, others))
        };
        [(through, past), (past, through)].map(way).into()
    }

    /// The same where all data go to one rank.
    fn unlike_copies(&self) -> Option<(String, CopyKernel)> {
        let wide = [CopyKernel::Avx512Streaming, CopyKernel::Avx2Streaming];
        let past = wide.into_iter().find(|kernel| kernel.is_supported())?;
        let name = unlike(CopyKernel::Memcpy.name(), past.name());
        (self.task.operation == Operation::Gather).then(|| (name, self.at_root(CopyKernel::Memcpy, past)))
    }

    /// Inputs that this rank adds, and where it writes the sums.
    fn sum(&self) -> Result<(Vec<Span>, Vec<Span>)> {
        let (n_ranks, me) = (self.comm.n_ranks(), self.comm.rank().get());
        let block = self.task.layout.block * SIZE;
        let (at, len) = match self.task.operation {
            Operation::ReduceScatter => (u64::from(me) * block, block),
            _ => self.share(block),
        };
        let sources = (0..n_ranks).map(|rank| self.input(rank, at, len)).collect::<Result<_>>()?;
        let targets = match self.task.operation {
            // This rank's own first: from there they may be copied to the others.
            Operation::AllReduce => {
                (me..n_ranks).chain(0..me).map(|rank| self.output(rank, at, len)).collect::<Result<_>>()?
            }
            Operation::Reduce => vec![self.output(self.task.root.get(), at, len)?],
            _ => vec![self.output(me, 0, len)?],
        };
        Ok((sources, targets))
    }

    /// What this rank copies where. Where one rank has everything, all ranks help it, or all but one core would be idle.
    fn copies(&self) -> Result<Vec<(Span, Span)>> {
        let (n_ranks, me) = (self.comm.n_ranks(), self.comm.rank().get());
        let whole = self.task.layout.block * SIZE;
        if self.task.operation == Operation::Send {
            return Ok(vec![self.pair(self.comm.left().get(), (0, whole))?]);
        }
        let share = self.share(whole);
        let pairs = (me..n_ranks).chain(0..me).map(|rank| self.pair(rank, share));
        Ok(moving(pairs.collect::<Result<_>>()?))
    }

    /// The same where each rank copies just what it gets from the root or gives to it: for few bytes that is quicker.
    fn own_copy(&self) -> Result<Vec<(Span, Span)>> {
        let whole = (0, self.task.layout.block * SIZE);
        Ok(moving(vec![self.pair(self.comm.rank().get(), whole)?]))
    }

    /// A copy that has to do with `rank`; between it and the root the bytes `at..at + len` of a block.
    fn pair(&self, rank: u32, (at, len): (u64, u64)) -> Result<(Span, Span)> {
        let (me, root) = (self.comm.rank().get(), self.task.root.get());
        let block = self.task.layout.block * SIZE;
        let of = |rank: u32| u64::from(rank) * block;
        match self.task.operation {
            Operation::Broadcast => Ok((self.input(root, at, len)?, self.output(rank, at, len)?)),
            Operation::Gather => Ok((self.input(rank, at, len)?, self.output(root, of(rank) + at, len)?)),
            Operation::Scatter => Ok((self.input(root, of(rank) + at, len)?, self.output(rank, at, len)?)),
            Operation::Send => Ok((self.input(rank, at, len)?, self.output(me, at, len)?)),
            Operation::AllGather => Ok((self.input(rank, 0, block)?, self.output(me, of(rank), block)?)),
            _ => {
                let [(from, count), (to, _)] = [(rank, me), (me, rank)]
                    .map(|(rank, index)| self.task.layout.part(rank.into(), index.into()));
                let len = count * SIZE;
                Ok((self.input(rank, from * SIZE, len)?, self.output(me, to * SIZE, len)?))
            }
        }
    }
}
