//! The limit of an operation on buffers of the heap: all ranks meet, each does its share by the
//! plainest loop over the buffers of all ranks, and all meet again.

use std::ops::Range;

use shmccl::collective::Operation;
use shmccl::heap::Region;
use shmccl::shm::{CopyKernel, Span};
use shmccl::{Communicator, Rank, Result};
use shmccl_harness::case::{CaseData, CaseSpec, CollectiveBuffers};
use shmccl_harness::sync::Gathering;
use shmccl_harness::timed_case::RunCase;
use shmccl_limits::sum::{self, SumKernel};

use crate::perf::bench::copy_kernels;

/// Shares end at multiples of so many bytes: no two ranks write to one pair of cache lines.
const SHARE_ALIGN: u64 = 128;

/// The share of one rank in an operation on `f32` elements.
#[derive(Clone, Debug)]
pub(crate) enum HeapLimit {
    /// Adds.
    Sum { name: String, kernel: SumKernel, sources: Vec<Span>, targets: Vec<Span> },
    /// Copies each first to each second.
    Copies { name: String, kernel: CopyKernel, pairs: Vec<(Span, Span)> },
}

impl HeapLimit {
    /// Returns the share of this rank, in every variant.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn all(all: &RankBuffers<'_>) -> Result<Vec<Self>> {
        if all.spec.operation.reduces() { Self::sums(all) } else { Self::all_copies(all) }
    }

    fn sums(all: &RankBuffers<'_>) -> Result<Vec<Self>> {
        let (sources, targets) = all.sum()?;
        let alike = SumKernel::ALL.into_iter().filter(|kernel| kernel.is_supported());
        let alike = alike.map(|kernel| (kernel.name().to_owned(), kernel));
        let of = |(name, kernel)| {
            let name = format!("bare sum, {name}");
            Self::Sum { name, kernel, sources: sources.clone(), targets: targets.clone() }
        };
        Ok(alike.chain(all.unlike_sums()).map(of).collect())
    }

    fn all_copies(all: &RankBuffers<'_>) -> Result<Vec<Self>> {
        let alike = || copy_kernels().into_iter().map(|kernel| (kernel.name().to_owned(), kernel));
        let of = |(name, kernel): (String, CopyKernel), pairs: &[(Span, Span)]| Self::Copies {
            name: format!("bare copy, {name}"),
            kernel,
            pairs: pairs.to_vec(),
        };
        let divided = all.copies()?;
        let mut shares: Vec<_> = alike().map(|way| of(way, &divided)).collect();
        if all.spec.operation.has_root() {
            let own = all.own_copy()?;
            let ways = alike().map(|(name, kernel)| (format!("{name}, each its own"), kernel));
            shares.extend(ways.chain(all.unlike_copies()).map(|way| of(way, &own)));
        }
        Ok(shares)
    }

    /// Returns the name in tables.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Sum { name, .. } | Self::Copies { name, .. } => name,
        }
    }
}

impl RunCase<f32> for HeapLimit {
    #[inline]
    fn run(&mut self, _data: &mut CaseData<f32>, gathering: &mut Gathering) -> Result<()> {
        gathering.meet()?;
        self.work()?;
        gathering.meet()
    }
}

impl HeapLimit {
    /// Does the work between two meetings.
    fn work(&self) -> Result<()> {
        match self {
            Self::Sum { kernel, sources, targets, .. } => sum::add(*kernel, sources, targets),
            Self::Copies { kernel, pairs, .. } => {
                pairs.iter().try_for_each(|(source, target)| source.copy_with(*kernel, target))
            }
        }
    }
}

/// Writes the name of a variant in which the root and the others differ.
fn unlike(root: &str, others: &str) -> String {
    format!("{root} at the root, {others} elsewhere")
}

impl RankBuffers<'_> {
    /// Returns where this rank's share of `len` bytes starts, and its length.
    fn share(&self, len: u64) -> (u64, u64) {
        let each = len.div_ceil(u64::from(self.comm.n_ranks())).next_multiple_of(SHARE_ALIGN);
        let start = (each * u64::from(self.comm.rank().get())).min(len);
        (start, each.min(len - start))
    }

    /// Returns `root` on the root, which has the lines of its output, and `elsewhere` on other
    /// ranks.
    fn at_root<K>(&self, root: K, elsewhere: K) -> K {
        if self.comm.rank() == self.spec.root { root } else { elsewhere }
    }

    /// Returns variants where all sums go to one rank: it stores through the cache and the others
    /// past it, or the other way round.
    fn unlike_sums(&self) -> Vec<(String, SumKernel)> {
        let [through, past] = SumKernel::by_widest();
        if self.spec.operation != Operation::Reduce || !past.is_supported() {
            return Vec::new();
        }
        let way = |(root, others): (SumKernel, SumKernel)| {
            (unlike(root.name(), others.name()), self.at_root(root, others))
        };
        [(through, past), (past, through)].map(way).into()
    }

    /// Returns such a variant where all data go to one rank.
    fn unlike_copies(&self) -> Option<(String, CopyKernel)> {
        let past = Some(CopyKernel::Avx2Streaming).filter(|kernel| kernel.is_supported())?;
        let name = unlike(CopyKernel::Memcpy.name(), past.name());
        (self.spec.operation == Operation::Gather).then(|| (name, self.at_root(CopyKernel::Memcpy, past)))
    }

    /// Returns the inputs that this rank adds, and where it writes the sums.
    fn sum(&self) -> Result<(Vec<Span>, Vec<Span>)> {
        let (n_ranks, me) = (self.comm.n_ranks(), self.comm.rank().get());
        let block = self.spec.layout.block * SIZE;
        let (at, len) = match self.spec.operation {
            Operation::ReduceScatter => (u64::from(me) * block, block),
            _ => self.share(block),
        };
        let sources = (0..n_ranks).map(|rank| self.input(rank, at, len)).collect::<Result<_>>()?;
        let targets = match self.spec.operation {
            // This rank's own first: from there they may be copied to the others.
            Operation::AllReduce => {
                (me..n_ranks).chain(0..me).map(|rank| self.output(rank, at, len)).collect::<Result<_>>()?
            }
            Operation::Reduce => vec![self.output(self.spec.root.get(), at, len)?],
            _ => vec![self.output(me, 0, len)?],
        };
        Ok((sources, targets))
    }

    /// Returns the copies of this rank. Where one rank has everything, all ranks help it, or all
    /// but one core would be idle.
    fn copies(&self) -> Result<Vec<(Span, Span)>> {
        let (n_ranks, me) = (self.comm.n_ranks(), self.comm.rank().get());
        let whole = self.spec.layout.block * SIZE;
        if self.spec.operation == Operation::Send {
            return Ok(vec![self.pair(self.comm.left().get(), 0..whole)?]);
        }
        let (start, len) = self.share(whole);
        let pairs = (me..n_ranks).chain(0..me).map(|rank| self.pair(rank, start..start + len));
        Ok(moving(pairs.collect::<Result<_>>()?))
    }

    /// Returns the copy of this rank alone, from the root or to it: quicker for few bytes.
    fn own_copy(&self) -> Result<Vec<(Span, Span)>> {
        let whole = 0..self.spec.layout.block * SIZE;
        Ok(moving(vec![self.pair(self.comm.rank().get(), whole)?]))
    }

    /// Returns a copy from or to `rank`; between it and the root, the bytes `part` of a block.
    fn pair(&self, rank: u32, part: Range<u64>) -> Result<(Span, Span)> {
        let (at, len) = (part.start, part.end - part.start);
        let (me, root) = (self.comm.rank().get(), self.spec.root.get());
        let block = self.spec.layout.block * SIZE;
        let of = |rank: u32| u64::from(rank) * block;
        match self.spec.operation {
            Operation::Broadcast => Ok((self.input(root, at, len)?, self.output(rank, at, len)?)),
            Operation::Gather => Ok((self.input(rank, at, len)?, self.output(root, of(rank) + at, len)?)),
            Operation::Scatter => Ok((self.input(root, of(rank) + at, len)?, self.output(rank, at, len)?)),
            Operation::Send => Ok((self.input(rank, at, len)?, self.output(me, at, len)?)),
            Operation::AllGather => Ok((self.input(rank, 0, block)?, self.output(me, of(rank), block)?)),
            _ => {
                let [(from, count), (to, _)] = [(rank, me), (me, rank)]
                    .map(|(rank, index)| self.spec.layout.part(rank.into(), index.into()));
                let len = count * SIZE;
                Ok((self.input(rank, from * SIZE, len)?, self.output(me, to * SIZE, len)?))
            }
        }
    }
}

/// Bytes of an element: of `f32`, which the loops know alone.
pub(crate) const SIZE: u64 = size_of::<f32>() as u64;

/// The buffers of all ranks in a case.
pub(crate) struct RankBuffers<'a> {
    pub(crate) comm: &'a Communicator,
    pub(crate) spec: &'a CaseSpec,
    pub(crate) buffers: CollectiveBuffers,
}

impl RankBuffers<'_> {
    /// Returns the `len` bytes at `at` of the input of `rank`.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn input(&self, rank: u32, at: u64, len: u64) -> Result<Span> {
        let (send, _) = self.buffers.regions(self.spec.layout, rank.into(), SIZE, self.spec.in_place)?;
        self.span(rank, send, at, len)
    }

    /// Returns the `len` bytes at `at` of the output of `rank`.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn output(&self, rank: u32, at: u64, len: u64) -> Result<Span> {
        let (_, recv) = self.buffers.regions(self.spec.layout, rank.into(), SIZE, self.spec.in_place)?;
        self.span(rank, recv, at, len)
    }

    fn span(&self, rank: u32, region: Region, at: u64, len: u64) -> Result<Span> {
        self.comm.span(Rank::new(rank, self.comm.n_ranks())?, region.part(at, len)?)
    }
}

/// Returns those of `pairs` whose data are not in place already.
pub(crate) fn moving(pairs: Vec<(Span, Span)>) -> Vec<(Span, Span)> {
    pairs.into_iter().filter(|(source, target)| source.start() != target.start()).collect()
}
