//! One collective call of one rank: what is to be done, and where its data are.

use super::algorithm::{Algorithm, Manner};
use super::operation::{Operation, Summary};
use super::team::Team;
use crate::error::{Error, Result};
use crate::heap::{HeapOffset, HeapView, Region};
use crate::reduce::{DataType, Reducer, Source, SourcePlace, Target};
use crate::shm::{CacheHint, GivenBytes, Span, TakenBytes};

/// Where a rank's input is.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// In the symmetric heap of this rank.
    Heap(HeapOffset),
    /// In ordinary memory of this process.
    Memory(&'a [u8]),
    /// In the ordinary memory of the output, this many bytes into it: the call is in place.
    InOutput(u64),
    /// Nowhere: this rank contributes nothing.
    None,
}

impl<'a> Input<'a> {
    /// Where the `len` bytes at `at` are. What is in an output is said to be where the first target is: the call is in place.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn place<'p>(&self, view: &'p HeapView, at: u64, len: u64) -> Result<SourcePlace<'p>>
    where
        'a: 'p,
    {
        match self {
            Input::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                Ok(SourcePlace::Shared(view.reach(view.rank(), region)?, region.offset.get()))
            }
            Input::Memory(bytes) => Ok(SourcePlace::Slice(part(bytes, at, len)?)),
            Input::InOutput(_) => Ok(SourcePlace::Target(0)),
            Input::None => Ok(SourcePlace::Slice(&[])),
        }
    }

    /// Copies the bytes from `at` on into `target`, which is ordinary memory of the engine's own. What is in an output has to be asked of
    /// its call.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn read(&self, view: &HeapView, at: u64, target: &mut [u8]) -> Result<()> {
        let len = target.len() as u64;
        match self {
            Input::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                view.reach(view.rank(), region)?.copy_out(region.offset.get(), target)
            }
            Input::Memory(bytes) => {
                target.copy_from_slice(part(bytes, at, len)?);
                Ok(())
            }
            Input::InOutput(_) | Input::None => Ok(()),
        }
    }

    /// Copies the bytes from `at` on over all of `target`, a region of the heap `span`. What is in an output has to be asked of its
    /// call.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn copy(&self, view: &HeapView, at: u64, span: &Span, target: Region) -> Result<()> {
        let len = target.len;
        match self {
            Input::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                let mine = view.reach(view.rank(), region)?;
                mine.copy_to(region.offset.get(), span, target.offset.get(), len, CacheHint::Keep)
            }
            Input::Memory(bytes) => span.copy_in(target.offset.get(), part(bytes, at, len)?),
            Input::InOutput(_) | Input::None => Ok(()),
        }
    }
}

/// Where a rank's output goes.
#[derive(Debug)]
pub(crate) enum Output<'a> {
    /// Into the symmetric heap of this rank.
    Heap(HeapOffset),
    /// Into ordinary memory of this process.
    Memory(&'a mut [u8]),
    /// Into ordinary memory, this many bytes into what the input is in, too: the call is in place.
    Within(&'a mut [u8], u64),
    /// Nowhere: this rank gets nothing.
    None,
}

impl Output<'_> {
    /// Copies `source` to the bytes at `at`, if there is an output.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn write(&mut self, view: &HeapView, at: u64, source: &[u8]) -> Result<()> {
        let len = source.len() as u64;
        match self {
            Output::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                view.reach(view.rank(), region)?.copy_in(region.offset.get(), source)
            }
            Output::Memory(bytes) => {
                part_mut(bytes, at, len)?.copy_from_slice(source);
                Ok(())
            }
            Output::Within(bytes, start) => {
                part_mut(bytes, start.saturating_add(at), len)?.copy_from_slice(source);
                Ok(())
            }
            Output::None => Ok(()),
        }
    }

    /// Copies `len` bytes at `source` of the heap `span` to `at`, if there is an output.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn copy(
        &mut self,
        view: &HeapView,
        at: u64,
        span: &Span,
        source: u64,
        len: u64,
    ) -> Result<()> {
        match self {
            Output::Heap(offset) => {
                let region = Region::new(shifted(*offset, at), len);
                let mine = view.reach(view.rank(), region)?;
                span.copy_to(source, mine, region.offset.get(), len, CacheHint::Keep)
            }
            Output::Memory(bytes) => span.copy_out(source, part_mut(bytes, at, len)?),
            Output::Within(bytes, start) => {
                span.copy_out(source, part_mut(bytes, start.saturating_add(at), len)?)
            }
            Output::None => Ok(()),
        }
    }
}

/// Some elements of a buffer: where the first is, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) at: u64,
    pub(crate) count: u64,
}

/// The blocks of both buffers of a call, by the members that they go to and come from. Those that come lie apart.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) sent: Vec<Block>,
    pub(crate) received: Vec<Block>,
}

/// A collective call of one rank, as far as it can be checked alone.
#[derive(Debug)]
// Counts are those of NCCL: elements of one block.
pub struct Call<'a> {
    pub(crate) operation: Operation,
    pub(crate) data_type: DataType,
    /// Elements of a block.
    pub(crate) count: u64,
    /// The member at the root, where there is one, or at the other end; 0 otherwise.
    pub(crate) root: usize,
    /// How elements are combined, where they are.
    pub(crate) reducer: Option<Reducer>,
    /// Where blocks are whose lengths differ; `count` says nothing then.
    pub(crate) layout: Option<Box<Layout>>,
    pub(crate) input: Input<'a>,
    pub(crate) output: Output<'a>,
}

impl<'a> Call<'a> {
    /// The call itself, leaving one without buffers.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            layout: self.layout.take(),
            reducer: self.reducer.take(),
            input: std::mem::replace(&mut self.input, Input::None),
            output: std::mem::replace(&mut self.output, Output::None),
            ..*self
        }
    }
}

impl Call<'_> {
    /// The same call without buffers, layout and operator.
    pub(crate) fn bare(&self) -> Call<'static> {
        Call { layout: None, reducer: None, input: Input::None, output: Output::None, ..*self }
    }

    /// Refuses what cannot be done in `manner`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the algorithm cannot do the operation.
    pub(crate) fn check_manner(&self, manner: Manner) -> Result<()> {
        match manner.algorithm {
            Some(algorithm) if !self.operation.is_by_messages() => algorithm.check(self.operation),
            _ => Ok(()),
        }
    }

    /// Refuses a message of the member `me` to itself, which by itself nobody receives.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    #[inline]
    pub(crate) fn check_peer(&self, me: usize) -> Result<()> {
        if self.operation.has_peer() && self.root == me {
            return Err(Error::InvalidArgument {
                name: "the peer of a message",
                value: self.root as u64,
                expected: "another rank; to oneself, a send and a receive in one group",
            });
        }
        Ok(())
    }

    /// Whether elements are combined by an operator that is told by its name alone, or not combined.
    #[inline]
    pub(crate) fn has_plain_operator(&self) -> bool {
        self.reducer.as_ref().is_none_or(Reducer::is_plain)
    }

    /// Whether each rank scales its input.
    pub(crate) fn is_scaled(&self) -> bool {
        self.reducer.as_ref().is_some_and(Reducer::is_scaled)
    }

    /// What does it where a table says `algorithm`: another one, where it matters that this passes partial results on: to operators that
    /// need an order, and to elements that would have to be widened, of whose cost a table knows nothing.
    pub(crate) fn by_table(&self, algorithm: Algorithm) -> Algorithm {
        let is_touchy = |reducer: &Reducer| reducer.is_custom() || reducer.data_type().is_short_float();
        if !algorithm.keeps_rank_order() && self.reducer.as_ref().is_some_and(is_touchy) {
            return Algorithm::TwoShot;
        }
        algorithm
    }

    /// The length of a block in bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it cannot be counted.
    #[inline]
    pub(crate) fn block_len(&self) -> Result<u64> {
        let size = self.data_type.size() as u64;
        self.count.checked_mul(size).ok_or_else(|| Error::OutOfRange {
            what: "elements of a collective call",
            offset: 0,
            len: self.count,
            limit: u64::MAX / size,
        })
    }

    /// What all ranks have to agree on.
    #[inline]
    pub(crate) fn summary(&self) -> Summary {
        let root = u8::try_from(self.root).expect("there are at most 64 members");
        let summary = Summary::new(self.operation).of(self.count, self.data_type).rooted(root);
        match &self.reducer {
            Some(reducer) => summary.by(reducer.code()),
            None => summary,
        }
    }

    /// The first `len` bytes of the input, at most 8, in a word.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn input_word(&self, view: &HeapView, len: u64) -> Result<u64> {
        let mut word = [0; 8];
        match len {
            // Of a length that is known here, or a copy is a call of the C library.
            8 => self.read_input(view, 0, &mut word)?,
            4 => self.read_input(view, 0, &mut word[..4])?,
            _ => self.read_input(view, 0, part_mut(&mut word, 0, len)?)?,
        }
        Ok(u64::from_ne_bytes(word))
    }

    /// Writes the first `len` bytes of `word` to the output, if this rank has one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn write_word(&mut self, view: &HeapView, word: u64, len: u64) -> Result<()> {
        let word = word.to_ne_bytes();
        match len {
            8 => self.write_output(view, 0, &word),
            4 => self.write_output(view, 0, &word[..4]),
            _ => self.write_output(view, 0, part(&word, 0, len)?),
        }
    }

    /// Copies the bytes at `at` of the input into `target`, which is ordinary memory of the engine's own.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn read_input(&self, view: &HeapView, at: u64, target: &mut [u8]) -> Result<()> {
        match (&self.input, &self.output) {
            (Input::InOutput(start), Output::Memory(bytes) | Output::Within(bytes, _)) => {
                let len = target.len() as u64;
                target.copy_from_slice(part(bytes, start.saturating_add(at), len)?);
                Ok(())
            }
            (input, _) => input.read(view, at, target),
        }
    }

    /// Copies `source` to the bytes at `at` of the output, if this rank has one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn write_output(&mut self, view: &HeapView, at: u64, source: &[u8]) -> Result<()> {
        self.output.write(view, at, source)
    }

    /// Copies bytes of the input, from `at` on, over all of `target`, a region of the heap `span`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    pub(crate) fn copy_input(&self, view: &HeapView, at: u64, span: &Span, target: Region) -> Result<()> {
        match (&self.input, &self.output) {
            (Input::InOutput(start), Output::Memory(bytes) | Output::Within(bytes, _)) => {
                let source = part(bytes, start.saturating_add(at), target.len)?;
                span.copy_in(target.offset.get(), source)
            }
            (input, _) => input.copy(view, at, span, target),
        }
    }

    /// Copies `len` bytes of the input, from `input_at` on, to `output_at` of the output, if there is one and they are not there already.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    pub(crate) fn keep(&mut self, view: &HeapView, input_at: u64, output_at: u64, len: u64) -> Result<()> {
        match (&self.input, &mut self.output) {
            (Input::InOutput(start), Output::Memory(both)) => {
                move_within(both, start.saturating_add(input_at), output_at, len)
            }
            (Input::InOutput(start), Output::Within(both, to)) => {
                move_within(both, start.saturating_add(input_at), to.saturating_add(output_at), len)
            }
            (Input::Heap(from), Output::Heap(to)) if shifted(*from, input_at) == shifted(*to, output_at) => {
                Ok(())
            }
            (Input::Heap(from), output) => {
                let region = Region::new(shifted(*from, input_at), len);
                let mine = view.reach(view.rank(), region)?;
                output.copy(view, output_at, mine, region.offset.get(), len)
            }
            (Input::Memory(bytes), output) => output.write(view, output_at, part(bytes, input_at, len)?),
            (Input::InOutput(_) | Input::None, _) => Ok(()),
        }
    }

    /// Copies `region` of the heap `span` to `output_at` of the output ([`take_result`](Self::take_result)), and then the bytes of
    /// the input from `input_at` on, which lies behind that, over the same region ([`give_input`](Self::give_input)): in one pass
    /// if it can, and past the cache if the output is another buffer that is not `cache_hint`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    pub(crate) fn exchange(
        &mut self,
        view: &HeapView,
        output_at: u64,
        input_at: u64,
        span: &Span,
        region: Region,
        cache_hint: CacheHint,
    ) -> Result<()> {
        let (offset, len, cache_hint) = (region.offset.get(), region.len, self.cache_hint(cache_hint));
        match (&self.input, &mut self.output) {
            (Input::Memory(input), Output::Memory(output)) => {
                let (output, input) = (part_mut(output, output_at, len)?, part(input, input_at, len)?);
                span.exchange(offset, output, input, cache_hint)
            }
            (Input::InOutput(start), Output::Memory(both)) => {
                let middle = range(both.len(), start.saturating_add(input_at), len)?.start;
                let (output, input) = both.split_at_mut(middle);
                span.exchange(offset, part_mut(output, output_at, len)?, part(input, 0, len)?, cache_hint)
            }
            (Input::Heap(from), Output::Heap(to)) => {
                let taken = taken_in_heap(view, shifted(*to, output_at), len)?;
                let given = given_in_heap(view, shifted(*from, input_at), len)?;
                span.exchange_any(offset, taken, given, cache_hint)
            }
            _ => {
                self.take_result(view, output_at, span, region, cache_hint)?;
                self.give_input(view, input_at, span, region)
            }
        }
    }

    /// Copies the input from `at` on over all of `target`, a region of the heap `span`: half of an [`exchange`](Self::exchange), by a
    /// loop where a result comes back to `target`. Where none does, as to all but the root of a reduce, a copy like any other is up to
    /// four times as quick between separate cores (AMD Zen 4, 4 MiB).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    pub(crate) fn give_input(&self, view: &HeapView, at: u64, span: &Span, target: Region) -> Result<()> {
        let given = match (&self.input, &self.output) {
            (Input::Memory(input), Output::Memory(_) | Output::Heap(_)) => {
                GivenBytes::Slice(part(input, at, target.len)?)
            }
            (Input::InOutput(start), Output::Memory(both)) => {
                GivenBytes::Slice(part(both, start.saturating_add(at), target.len)?)
            }
            (Input::Heap(from), Output::Memory(_) | Output::Heap(_)) => {
                given_in_heap(view, shifted(*from, at), target.len)?
            }
            _ => return self.copy_input(view, at, span, target),
        };
        span.give(target.offset.get(), given)
    }

    /// Copies `source`, a region of the heap `span`, to `at` of the output, if there is one: the other half.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    pub(crate) fn take_result(
        &mut self,
        view: &HeapView,
        at: u64,
        span: &Span,
        source: Region,
        cache_hint: CacheHint,
    ) -> Result<()> {
        let cache_hint = self.cache_hint(cache_hint);
        let taken = match &mut self.output {
            Output::Memory(output) => TakenBytes::Slice(part_mut(output, at, source.len)?),
            Output::Heap(offset) => taken_in_heap(view, shifted(*offset, at), source.len)?,
            output => return output.copy(view, at, span, source.offset.get(), source.len),
        };
        span.take(source.offset.get(), taken, cache_hint)
    }

    /// How soon results are read that go to the output: in place its lines are in the cache, and they go there.
    fn cache_hint(&self, apart: CacheHint) -> CacheHint {
        match (&self.input, &self.output) {
            (Input::InOutput(_), _) => CacheHint::Keep,
            (Input::Heap(from), Output::Heap(to)) if from == to => CacheHint::Keep,
            _ => apart,
        }
    }

    /// Combines `sources`, all of them fresh inputs of one block, each multiplied by its own one of `scalars`, if there are any, into
    /// the start of the output.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn combine(&mut self, team: &Team, scalars: &[u64], sources: &[Source<'_>]) -> Result<()> {
        let len = self.block_len()?;
        let reducer = self.reducer.as_ref().expect("an operation that reduces has a reducer");
        let view = team.view();
        let target = match &mut self.output {
            Output::Heap(offset) => {
                let region = Region::new(*offset, len);
                Target::Shared(view.reach(view.rank(), region)?, region.offset.get())
            }
            Output::Memory(bytes) => Target::Slice(part_mut(bytes, 0, len)?),
            Output::Within(bytes, start) => Target::Slice(part_mut(bytes, *start, len)?),
            Output::None => return Ok(()),
        };
        reducer.combine_scaled(scalars, sources, &mut [target], self.count)
    }
}

/// The bytes at `offset` of this rank's heap, to be put into a place that is shared.
fn given_in_heap(view: &HeapView, offset: HeapOffset, len: u64) -> Result<GivenBytes<'_>> {
    let region = Region::new(offset, len);
    Ok(GivenBytes::Shared { span: view.reach(view.rank(), region)?, offset: offset.get(), len })
}

/// The same bytes, as the place that a result is taken to.
fn taken_in_heap(view: &HeapView, offset: HeapOffset, len: u64) -> Result<TakenBytes<'_>> {
    let region = Region::new(offset, len);
    Ok(TakenBytes::Shared { span: view.reach(view.rank(), region)?, offset: offset.get(), len })
}

/// `offset` and `bytes` more; what is past all addresses is found out of range by whoever uses it.
#[inline]
pub(crate) fn shifted(offset: HeapOffset, bytes: u64) -> HeapOffset {
    HeapOffset::new(offset.get().saturating_add(bytes))
}

#[inline]
fn range(total: usize, at: u64, len: u64) -> Result<std::ops::Range<usize>> {
    let limit = total as u64;
    match (usize::try_from(at), at.checked_add(len).map(usize::try_from)) {
        (Ok(start), Some(Ok(end))) if end <= total => Ok(start..end),
        _ => Err(Error::OutOfRange { what: "memory of a collective call", offset: at, len, limit }),
    }
}

/// Copies `len` bytes at `from` to `to`, unless they are there.
fn move_within(bytes: &mut [u8], from: u64, to: u64, len: u64) -> Result<()> {
    let (from, to) = (range(bytes.len(), from, len)?, range(bytes.len(), to, len)?);
    if from != to {
        bytes.copy_within(from, to.start);
    }
    Ok(())
}

#[inline]
pub(crate) fn part(bytes: &[u8], at: u64, len: u64) -> Result<&[u8]> {
    Ok(&bytes[range(bytes.len(), at, len)?])
}

#[inline]
pub(crate) fn part_mut(bytes: &mut [u8], at: u64, len: u64) -> Result<&mut [u8]> {
    let range = range(bytes.len(), at, len)?;
    Ok(&mut bytes[range])
}
