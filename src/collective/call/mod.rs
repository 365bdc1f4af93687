//! One collective call of one rank: what is to be done, and where its data are.
//!
//! Tried by its unit tests, `lists` and `scenarios call_values::`.

mod algorithm;
mod algorithm_name;
mod buffers;
pub(crate) mod footprint;
mod operation;
mod request;
mod signature;
mod status;

use crate::error::{Error, Result};
use crate::heap::{HeapView, Region};
use crate::reduce::{DataType, Reducer, SourcePlace, Target};
use crate::shm::{CacheHint, GivenBytes, Span, TakenBytes};
use buffers::{move_within, range};

pub(crate) use algorithm::Choice;
pub use algorithm::{Algorithm, ChannelKind, UnknownAlgorithm};
pub use algorithm_name::AlgorithmName;
pub(crate) use buffers::{Input, Output, part, part_mut, shifted};
pub(crate) use operation::Side;
pub use operation::{Operation, UnknownOperation};
pub use request::Request;
pub use signature::{CallMismatch, CallSignature};
pub(crate) use status::Receipt;
pub use status::{MessageSelector, MessageStatus, StatusHandle};

/// Some elements of a buffer: where the first is, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallBlock {
    pub(crate) at: u64,
    pub(crate) count: u64,
}

/// The blocks of both buffers of a call, by the members that they go to and come from. Those that
/// come lie apart.
#[derive(Debug)]
pub(crate) struct BlockLayout {
    pub(crate) sent: Vec<CallBlock>,
    pub(crate) received: Vec<CallBlock>,
}

impl BlockLayout {
    /// Returns the length of each block, in elements, if those of all `n_members` are alike on both
    /// sides and each lies right behind the one before it.
    fn even_count(&self, n_members: usize) -> Option<u64> {
        let count = self.sent.first()?.count;
        let are_even = |blocks: &[CallBlock]| {
            let places = (0..).map(|index: u64| index.checked_mul(count));
            let is_even = |(block, at): (&CallBlock, _)| block.count == count && Some(block.at) == at;
            blocks.len() == n_members && blocks.iter().zip(places).all(is_even)
        };
        (are_even(&self.sent) && are_even(&self.received)).then_some(count)
    }
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
    /// The tag of a message; 0 where there is none.
    pub(crate) tag: u32,
    /// Which messages a receive from any member takes, and where it leaves the status.
    pub(crate) receipt: Option<Box<Receipt>>,
    /// How elements are combined, where they are.
    pub(crate) reducer: Option<Reducer>,
    /// Where blocks are whose lengths differ; `count` says nothing then.
    pub(crate) layout: Option<Box<BlockLayout>>,
    pub(crate) input: Input<'a>,
    pub(crate) output: Output<'a>,
}

impl<'a> Call<'a> {
    /// Takes the call, and leaves one without buffers.
    pub(crate) fn take(&mut self) -> Self {
        let rest: Call<'a> = self.bare();
        std::mem::replace(self, rest)
    }
}

impl Call<'_> {
    /// Returns the call without buffers, layout and operator.
    pub(crate) fn bare(&self) -> Call<'static> {
        Call { receipt: None, layout: None, reducer: None, input: Input::None, output: Output::None, ..*self }
    }

    /// Refuses what cannot be done in `choice`.
    ///
    /// # Errors
    /// [`Error::UnsupportedAlgorithm`] when the algorithm cannot do the operation.
    pub(crate) fn check_choice(&self, choice: Choice) -> Result<()> {
        match choice.algorithm {
            Some(algorithm) if !self.operation.is_by_messages() && self.operation != Operation::RunPlan => {
                algorithm.check(self.operation)
            }
            _ => Ok(()),
        }
    }

    /// Refuses a message of the member `me` to itself, which by itself nobody receives.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    #[inline]
    pub(crate) fn check_peer(&self, me: usize) -> Result<()> {
        if matches!(self.operation, Operation::Send | Operation::Recv) && self.root == me {
            return Err(Error::InvalidArgument {
                name: "the peer of a message",
                value: self.root as u64,
                expected: "another rank; to oneself, a send and a receive in one group",
            });
        }
        Ok(())
    }

    /// Returns whether elements are combined by an operator that is told by its name alone, or not
    /// combined.
    #[inline]
    pub(crate) fn has_plain_operator(&self) -> bool {
        self.reducer.as_ref().is_none_or(Reducer::is_plain)
    }

    /// Returns whether each rank scales its input.
    pub(crate) fn is_scaled(&self) -> bool {
        self.reducer.as_ref().is_some_and(Reducer::is_scaled)
    }

    /// Returns this rank's own scalar, as it stands in its post; 0 where it multiplies nothing.
    #[inline]
    pub(crate) fn scalar(&self) -> u64 {
        self.reducer.as_ref().map_or(0, Reducer::scalar)
    }

    /// Returns the length of a block in bytes.
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

    /// Returns the most bytes that one of `n_members` contributes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it cannot be counted.
    #[inline]
    pub(crate) fn input_len(&self, n_members: usize) -> Result<u64> {
        let (blocks, _) = self.operation.blocks(n_members as u64);
        Ok(self.block_len()?.saturating_mul(blocks))
    }

    /// Returns the operation that the other members are told of. An exchange of blocks stays one
    /// where it [is done](Call::even_out) as `all_to_all`.
    #[inline]
    pub(crate) const fn told(&self) -> Operation {
        if self.layout.is_some() { Operation::AllToAllV } else { self.operation }
    }

    /// Has an exchange of blocks among `n_members` done as `all_to_all`, if it is one: all blocks
    /// have one length, and lie one behind the other on both sides. Returns whether.
    pub(crate) fn even_out(&mut self, n_members: usize) -> bool {
        let Some(count) = self.layout.as_ref().and_then(|layout| layout.even_count(n_members)) else {
            return false;
        };
        let len = count.saturating_mul(self.data_type.size() as u64).saturating_mul(n_members as u64);
        if let (&Input::Heap(source), &Output::Heap(target)) = (&self.input, &self.output)
            && source != target
            && Region::new(source, len).overlaps(Region::new(target, len))
        {
            return false;
        }
        (self.operation, self.count) = (Operation::AllToAll, count);
        true
    }

    /// Takes back [`Call::even_out`].
    pub(crate) fn take_apart(&mut self) {
        (self.operation, self.count) = (Operation::AllToAllV, 0);
    }

    /// Returns what all ranks have to agree on.
    #[inline]
    pub(crate) fn signature(&self) -> CallSignature {
        let root = u8::try_from(self.root).expect("there are at most 256 members");
        let signature = CallSignature::new(self.told()).of(self.count, self.data_type).rooted(root);
        match (&self.reducer, &self.receipt) {
            (Some(reducer), _) => signature.by(reducer.code()),
            (None, Some(receipt)) if receipt.has_any_tag => signature.of_any_tag(),
            _ => signature.tagged(self.tag),
        }
    }

    /// Returns the first `len` bytes of the input, at most 8, in a word.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn input_word(&self, view: &HeapView, len: u64) -> Result<u64> {
        let mut word = [0; 8];
        match len {
            // A copy of a constant length needs no call of the C library.
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
            8 => self.output.write(view, 0, &word),
            4 => self.output.write(view, 0, &word[..4]),
            _ => self.output.write(view, 0, part(&word, 0, len)?),
        }
    }

    /// Returns where the `len` bytes at `at` of the input are, also where these are in the output.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn source<'p>(&'p self, view: &'p HeapView, at: u64, len: u64) -> Result<SourcePlace<'p>> {
        match (&self.input, &self.output) {
            (Input::InOutput(start), Output::Memory(bytes) | Output::Within(bytes, _)) => {
                Ok(SourcePlace::Slice(part(bytes, start.saturating_add(at), len)?))
            }
            (input, _) => input.place(view, at, len),
        }
    }

    /// Copies the bytes at `at` of the input into `target`, which is ordinary memory of the
    /// engine's own.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    #[inline]
    pub(crate) fn read_input(&self, view: &HeapView, at: u64, target: &mut [u8]) -> Result<()> {
        self.source(view, at, target.len() as u64)?.read(target)
    }

    /// Copies bytes of the input, from `at` on, over all of `target`, a region of the heap `span`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    pub(crate) fn copy_input(&self, view: &HeapView, at: u64, span: &Span, target: Region) -> Result<()> {
        self.source(view, at, target.len)?.copy(span, target)
    }

    /// Copies `len` bytes of the input, from `input_at` on, to `output_at` of the output, if there
    /// is one and they are not there already.
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
            (input, output) => output.put(view, output_at, input.place(view, input_at, len)?, len),
        }
    }

    /// Copies `region` of the heap `span` to `output_at` of the output
    /// ([`take_result`](Self::take_result)), and then the bytes of the input from `input_at` on
    /// over that region ([`give_input`](Self::give_input)). The input lies behind the output. Both
    /// are one pass where they can be. Results go as `cache_hint` says if the output is another
    /// buffer.
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
            (Input::InOutput(start), Output::Memory(both)) => {
                let middle = range(both.len(), start.saturating_add(input_at), len)?.start;
                let (output, input) = both.split_at_mut(middle);
                span.exchange(offset, part_mut(output, output_at, len)?, part(input, 0, len)?, cache_hint)
            }
            (input @ Input::Memory(_), output @ Output::Memory(_))
            | (input @ Input::Heap(_), output @ Output::Heap(_)) => {
                let given = given(input.place(view, input_at, len)?, len);
                span.exchange_any(offset, taken(output.target(view, output_at, len)?, len), given, cache_hint)
            }
            _ => {
                self.take_result(view, output_at, span, region, cache_hint)?;
                self.give_input(view, input_at, span, region)
            }
        }
    }

    /// Copies the input from `at` on over all of `target`, a region of the heap `span`: half of an
    /// [`exchange`](Self::exchange), by a loop where a result comes back to `target`. Where none
    /// does, as to all but the root of a reduce, a copy like any other is up to four times as quick
    /// between separate cores (AMD Zen 4, 4 MiB).
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for bytes that are not allocated.
    pub(crate) fn give_input(&self, view: &HeapView, at: u64, span: &Span, target: Region) -> Result<()> {
        let source = self.source(view, at, target.len)?;
        match self.output {
            Output::Memory(_) | Output::Heap(_) => span.give(target.offset.get(), given(source, target.len)),
            Output::Within(..) | Output::None => source.copy(span, target),
        }
    }

    /// Copies `source`, a region of the heap `span`, to `at` of the output, if there is one: the
    /// other half.
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
        let (from, len) = (source.offset.get(), source.len);
        match &mut self.output {
            output @ (Output::Memory(_) | Output::Heap(_)) => {
                span.take(from, taken(output.target(view, at, len)?, len), cache_hint)
            }
            output => output.copy(view, at, span, from, len),
        }
    }

    /// Returns where results go that go to the output: in place its lines are in the cache, and
    /// results go there.
    fn cache_hint(&self, apart: CacheHint) -> CacheHint {
        match (&self.input, &self.output) {
            (Input::InOutput(_), _) => CacheHint::Keep,
            (Input::Heap(from), Output::Heap(to)) if from == to => CacheHint::Keep,
            _ => apart,
        }
    }
}

/// Returns the `len` bytes at `source`, to be put into a place that is shared.
fn given(source: SourcePlace<'_>, len: u64) -> GivenBytes<'_> {
    match source {
        SourcePlace::Shared(span, offset) => GivenBytes::Shared { span, offset, len },
        SourcePlace::Slice(bytes) => GivenBytes::Slice(bytes),
        SourcePlace::Target(_) => GivenBytes::Slice(&[]),
    }
}

/// Returns the `len` bytes at `target`, as the place that a result is taken to.
fn taken(target: Option<Target<'_>>, len: u64) -> TakenBytes<'_> {
    match target {
        Some(Target::Shared(span, offset)) => TakenBytes::Shared { span, offset, len },
        Some(Target::Slice(bytes)) => TakenBytes::Slice(bytes),
        None => TakenBytes::Slice(&mut []),
    }
}
