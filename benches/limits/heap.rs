//! The limit of an operation on buffers of the heap: all ranks meet, each does its share by the
//! plainest loop over the buffers of all ranks, and all meet again.

use std::ops::Range;

use arrayvec::ArrayVec;
use shmccl::Result;
use shmccl::collective::Operation;
use shmccl::rank::MAX_RANKS;
use shmccl::shm::{CopyKernel, Span};

use crate::rank_buffers::{RankBuffers, SIZE, moving, sources};
use crate::sum::{self, SumKernel};

/// Shares end at multiples of so many bytes: no two ranks write to one pair of cache lines.
const SHARE_ALIGN: u64 = 128;

/// The share of one rank in an operation on `f32` elements.
#[derive(Clone, Debug)]
pub struct HeapLimit {
    name: String,
    work: HeapWork,
}

/// What a rank does between two meetings.
#[derive(Clone, Debug)]
enum HeapWork {
    /// Adds.
    Sum { kernel: SumKernel, sources: Vec<Span>, targets: Vec<Span> },
    /// Adds for one rank after the other, a piece of all at a time.
    Prefixes { kernel: SumKernel, prefixes: Vec<PrefixSum> },
    /// Copies each first to each second.
    Copies { kernel: CopyKernel, pairs: Vec<(Span, Span)> },
}

/// What is added for one rank.
#[derive(Clone, Debug)]
struct PrefixSum {
    sources: Vec<Span>,
    target: Span,
}

/// Bytes of each sum that are added before the next ones: those of all ranks stay in a cache.
const PREFIX_PIECE: u64 = 16 << 10;

impl HeapLimit {
    /// Returns the share of this rank, in every variant.
    ///
    /// # Errors
    /// Too little memory.
    pub fn all(all: &RankBuffers<'_>) -> Result<Vec<Self>> {
        match all.operation {
            operation if operation.is_prefix() => Self::prefixes(all),
            operation if operation.reduces() => Self::sums(all),
            _ => Self::all_copies(all),
        }
    }

    fn prefixes(all: &RankBuffers<'_>) -> Result<Vec<Self>> {
        let prefixes = all.prefixes()?;
        let of = |kernel: SumKernel| Self {
            name: format!("bare prefix sums, {}", kernel.name()),
            work: HeapWork::Prefixes { kernel, prefixes: prefixes.clone() },
        };
        Ok(SumKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()).map(of).collect())
    }

    fn sums(all: &RankBuffers<'_>) -> Result<Vec<Self>> {
        let (sources, targets) = all.sum()?;
        let alike = SumKernel::ALL.into_iter().filter(|kernel| kernel.is_supported());
        let alike = alike.map(|kernel| (kernel.name().to_owned(), kernel));
        let of = |(name, kernel)| {
            let work = HeapWork::Sum { kernel, sources: sources.clone(), targets: targets.clone() };
            Self { name: format!("bare sum, {name}"), work }
        };
        Ok(alike.chain(all.unlike_sums()).map(of).collect())
    }

    fn all_copies(all: &RankBuffers<'_>) -> Result<Vec<Self>> {
        let kernels = || CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported());
        let alike = || kernels().map(|kernel| (kernel.name().to_owned(), kernel));
        let of = |(name, kernel): (String, CopyKernel), pairs: &[(Span, Span)]| Self {
            name: format!("bare copy, {name}"),
            work: HeapWork::Copies { kernel, pairs: pairs.to_vec() },
        };
        let divided = all.copies()?;
        let mut shares: Vec<_> = alike().map(|way| of(way, &divided)).collect();
        if all.operation.has_root() {
            let own = all.own_copy()?;
            let ways = alike().map(|(name, kernel)| (format!("{name}, each its own"), kernel));
            shares.extend(ways.chain(all.unlike_copies()).map(|way| of(way, &own)));
        }
        Ok(shares)
    }

    /// Returns the name in tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Does the operation. All ranks `meet` before and after.
    ///
    /// # Errors
    /// Those of `meet`.
    #[inline]
    pub fn run(&self, mut meet: impl FnMut() -> Result<()>) -> Result<()> {
        meet()?;
        match &self.work {
            HeapWork::Sum { kernel, sources, targets } => sum::add(*kernel, sources, targets)?,
            HeapWork::Prefixes { kernel, prefixes } => add_prefixes(*kernel, prefixes)?,
            HeapWork::Copies { kernel, pairs } => {
                pairs.iter().try_for_each(|(source, target)| source.copy_with(*kernel, target))?;
            }
        }
        meet()
    }
}

/// Adds up the first piece of all `prefixes`, then the next.
fn add_prefixes(kernel: SumKernel, prefixes: &[PrefixSum]) -> Result<()> {
    let len = prefixes.first().map_or(0, |prefix| prefix.target.len());
    for at in (0..len.div_ceil(PREFIX_PIECE)).map(|number| number * PREFIX_PIECE) {
        let piece = |span: &Span| span.part(at, PREFIX_PIECE.min(len - at));
        for PrefixSum { sources, target } in prefixes {
            let mut from = ArrayVec::<_, { MAX_RANKS as usize }>::new();
            for source in sources {
                from.push(piece(source)?);
            }
            sum::add(kernel, &from, std::slice::from_ref(&piece(target)?))?;
        }
    }
    Ok(())
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
        if self.comm.rank() == self.root { root } else { elsewhere }
    }

    /// Returns variants where all sums go to one rank: it stores through the cache and the others
    /// past it, or the other way round.
    fn unlike_sums(&self) -> Vec<(String, SumKernel)> {
        let [through, past] = SumKernel::by_widest();
        if self.operation != Operation::Reduce || !past.is_supported() {
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
        (self.operation == Operation::Gather).then(|| (name, self.at_root(CopyKernel::Memcpy, past)))
    }

    /// Returns the inputs that this rank adds, and where it writes the sums.
    fn sum(&self) -> Result<(Vec<Span>, Vec<Span>)> {
        let (n_ranks, me) = (self.comm.n_ranks(), self.comm.rank().get());
        let block = self.block * SIZE;
        let (at, len) = match self.operation {
            Operation::ReduceScatter => (u64::from(me) * block, block),
            _ => self.share(block),
        };
        let sources = (0..n_ranks).map(|rank| self.input(rank, at, len)).collect::<Result<_>>()?;
        let targets = match self.operation {
            // This rank's own first: from there they may be copied to the others.
            Operation::AllReduce => {
                (me..n_ranks).chain(0..me).map(|rank| self.output(rank, at, len)).collect::<Result<_>>()?
            }
            Operation::Reduce => vec![self.output(self.root.get(), at, len)?],
            _ => vec![self.output(me, 0, len)?],
        };
        Ok((sources, targets))
    }

    /// Returns the sums of this rank's share for all ranks that get one, the shortest first: each
    /// is the one before, and more inputs. In place a sum may replace an input that is no part of
    /// it. Then each has all its inputs, and the longest is added first.
    fn prefixes(&self) -> Result<Vec<PrefixSum>> {
        let (start, len) = self.share(self.block * SIZE);
        let input = |rank: &u32| self.input(*rank, start, len);
        let output = |rank: &u32| self.output(*rank, start, len);
        let (n, root) = (self.comm.n_ranks(), self.root.get());
        let sources = |rank| (rank, sources(self.operation, n, root, rank));
        let mut all: Vec<_> = (0..n).map(sources).filter(|(_, sources)| !sources.is_empty()).collect();
        all.sort_by_key(|(_, sources)| sources.len());
        let is_in_place = input(&0)?.start() == output(&0)?.start();
        let is_reused = !is_in_place || all.iter().all(|(rank, sources)| sources.contains(rank));
        let mut sums = Vec::new();
        for (at, (rank, sources)) in all.iter().enumerate() {
            let before = at.checked_sub(1).filter(|_| is_reused).map(|at| &all[at]);
            let more = sources.iter().filter(|from| before.is_none_or(|(_, known)| !known.contains(from)));
            let sources = before.map(|(rank, _)| output(rank)).into_iter().chain(more.map(input));
            sums.push(PrefixSum { sources: sources.collect::<Result<_>>()?, target: output(rank)? });
        }
        if !is_reused {
            sums.reverse();
        }
        // In place a sum of one input is there already.
        sums.retain(|sum| sum.sources.len() > 1 || sum.sources[0].start() != sum.target.start());
        Ok(sums)
    }

    /// Returns the copies of this rank. Where one rank has everything, all ranks help it, or all
    /// but one core would be idle.
    fn copies(&self) -> Result<Vec<(Span, Span)>> {
        let (n_ranks, me) = (self.comm.n_ranks(), self.comm.rank().get());
        let whole = self.block * SIZE;
        if self.operation == Operation::Send {
            return Ok(vec![self.pair(self.comm.left().get(), 0..whole)?]);
        }
        let (start, len) = self.share(whole);
        let pairs = (me..n_ranks).chain(0..me).map(|rank| self.pair(rank, start..start + len));
        Ok(moving(pairs.collect::<Result<_>>()?))
    }

    /// Returns the copy of this rank alone, from the root or to it: quicker for few bytes.
    fn own_copy(&self) -> Result<Vec<(Span, Span)>> {
        let whole = 0..self.block * SIZE;
        Ok(moving(vec![self.pair(self.comm.rank().get(), whole)?]))
    }

    /// Returns a copy from or to `rank`; between it and the root, the bytes `part` of a block.
    fn pair(&self, rank: u32, part: Range<u64>) -> Result<(Span, Span)> {
        let (at, len) = (part.start, part.end - part.start);
        let (me, root) = (self.comm.rank().get(), self.root.get());
        let block = self.block * SIZE;
        let of = |rank: u32| u64::from(rank) * block;
        match self.operation {
            Operation::Broadcast => Ok((self.input(root, at, len)?, self.output(rank, at, len)?)),
            Operation::Gather => Ok((self.input(rank, at, len)?, self.output(root, of(rank) + at, len)?)),
            Operation::Scatter => Ok((self.input(root, of(rank) + at, len)?, self.output(rank, at, len)?)),
            Operation::Send => Ok((self.input(rank, at, len)?, self.output(me, at, len)?)),
            Operation::AllGather => Ok((self.input(rank, 0, block)?, self.output(me, of(rank), block)?)),
            _ => {
                let ((from, len), (to, _)) = (self.part(rank, me), self.part(me, rank));
                Ok((self.input(rank, from, len)?, self.output(me, to, len)?))
            }
        }
    }
}
