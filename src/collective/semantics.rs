//! What collective calls and messages promise, in one place. The methods of
//! [`Collectives`](crate::Collectives) link here.
//!
//! # Calls
//! All ranks of a communicator make the same collective calls in the same order, with the same
//! arguments. Buffers may differ: each rank may use the symmetric heap or ordinary memory, at any
//! address. Counts are elements.
//!
//! A [`Communicator`](crate::Communicator) executes a call at once. The call returns when its
//! output is there and its input may be written again. A return says little of the other ranks: at
//! most that they have entered the call. They may still be reading their inputs and writing their
//! outputs.
//!
//! A [group](crate::Group) and a [stream](crate::Stream) take the same calls and execute them
//! later. So does [`Communicator::start`](crate::Communicator::start), whose
//! [`Work`](crate::Work) the program waits for.
//!
//! # In place
//! The two buffers of a call lie apart, or the call is *in place*:
//! - both buffers are the same, or
//! - one buffer has a block for each rank, and the other one is this rank's block of it.
//!
//! Heap buffers that overlap otherwise are refused ([`Error::InvalidArgument`]). For heap buffers
//! it is enough to name them so. Ordinary memory cannot be borrowed twice, so it goes to the calls
//! that end in `_in_place`, which also take heap buffers. One rank may call in place while another
//! does not.
//!
//! # The same bits
//! The result of a reduction is bit for bit the same on all ranks, always.
//!
//! The built-in table combines elements in the order of the ranks, and floats of 16 and 8 bits in
//! `f32` over all of them. So every run gives the same bits.
//!
//! Another [`Algorithm`](crate::collective::Algorithm) may combine in another order. A program can
//! choose one, and so can a [table from a file](crate::collective::tuning), which may also name
//! another one where ranks share cores. Runs give the same bits when they use the same table and as
//! many cores.
//!
//! # The first call
//! The first call of a job's first communicator prepares memory, and all ranks take part in it. No
//! rank returns from its first call before every rank has entered its own first one. These first
//! calls need not be the same, and a message counts as one.
//!
//! A barrier, `alloc` and `free` are none: a rank that makes one of these instead is in another
//! call ([`Error::CallMismatch`]).
//!
//! Where the first messages concern only some ranks, all ranks call
//! [`Communicator::prepare`](crate::Communicator::prepare) once, after joining.
//!
//! # Mismatches and failures
//! An argument that is wrong in itself is an error of the call, on this rank alone.
//!
//! Ranks that make different calls get [`Error::CallMismatch`], which names both calls. Two ranks
//! that wait for each other's messages get it as well. Three and more ranks that wait in a circle
//! of messages get [`Error::Timeout`], and so do ranks in calls of different communicators.
//!
//! A call that fails while data move ends the epoch, because nobody knows how much the others have.
//! - A rank that enters such a call later learns of the end by its next wait. It writes into no
//!   buffer of the others. A short call, or a message, may still be answered.
//! - A rank that entered earlier may still be writing, and learns of the end by its next wait. So
//!   an output in the heap may change until all ranks have left the call.
//!
//! [`comm::failure`](crate::comm::failure) says how a job goes on.
//!
//! # Ordering
//! A rank that gets elements of another one by a call acquires everything that the other one did
//! before its own call (edges C1, C2, S1), as by a barrier. That includes its puts over direct
//! channels, and those over proxied channels that it has flushed. So a call of one element or more
//! acquires:
//!
//! | call | acquires what was done before it by |
//! |---|---|
//! | all_reduce, all_gather, reduce_scatter, all_to_all | all ranks |
//! | scan | all ranks up to it |
//! | exscan | all ranks before it; nobody, on the first rank, which may return first |
//! | reduce, gather | all ranks, on the root; nobody, on the others |
//! | broadcast, scatter | the root, on the others; nobody, on the root, which may return first |
//! | all_to_all_v | each rank whose block for this one is not empty |
//! | recv, recv_any | the sender |
//! | send | nobody |
//!
//! The input of a call is there when the call begins: on a stream, at its turn; in a group, at the
//! end of the group. The call may read the input from then on. What others put into it needs a wait
//! for their signal first, or an earlier call.
//!
//! A call without elements orders nothing. No call orders what other ranks do after they have
//! entered it: another call does, or a [`barrier`](crate::Communicator::barrier).
//!
//! What a rank did before it ended a group, enqueued a call on a stream, or started it, comes
//! before the call. Who has seen that a started call is done sees what it has written.
//!
//! # Messages
//! A message has a *tag*, any `u32`: 0 unless the call names one. A receive takes the next message
//! of its tag. Between two ranks, messages of one tag are received in the order in which they were
//! sent, those of different tags in any. The receiver asks for the same count and type.
//!
//! A receive passes over messages of other tags. They are copied to memory of the receiver's own,
//! up to 32 MiB of each sender and one message more; the sender goes on. From then on they stay
//! where they are, and their sender waits. If the receiver waits for one behind them, both ranks
//! get [`Error::CallMismatch`], which names both tags.
//!
//! [`recv_any`](crate::Communicator::recv_any) takes a message of any other rank, and tells which
//! one it was. Ranks whose messages are there are served in turn. Any tag is taken by
//! [`recv_selected_into`](crate::Collectives::recv_selected_into).
//! Where receives from one rank and from any are in one group, a message goes to the first of them
//! that it is for.
//!
//! [`send`](crate::Collectives::send) returns when its buffer may be written again. Up to 1 KiB,
//! that is before the receiver has called, unless four such messages wait for it already. Longer
//! messages may have to wait. Other ranks are not concerned.
//!
//! Every rank makes its collective calls and messages in one order. A message that was sent before
//! a collective call is received before it, or passed over.
//!
//! A rank that sends and receives at the same time puts both into one [group](crate::Group): two
//! ranks that send first may wait for each other.
//!
//! Messages that were [started](crate::comm::start) one after the other are on their way at the
//! same time, too.
//!
//! # Exchanges of blocks
//! `all_to_all_v` is one operation, whatever blocks each rank has. Where those of all ranks are
//! even, of one length and one behind the other, it costs what `all_to_all` does. The two are
//! different calls all the same ([`Error::CallMismatch`]).
//!
//! # Groups
//! A group takes the calls of one rank, on one or several communicators of one job, and executes
//! them at its outermost end:
//! 1. Collective calls, in the order in which they were put in. That order is the same on all ranks
//!    of a communicator. Each rank may interleave communicators as it likes. `all_to_all_v` is one
//!    of them.
//! 2. All sends and receives at once, so that no order of them blocks.
//!
//! Small collective calls that follow each other cost little more than one. So all ranks put the
//! same calls into a group: a rank that makes them one by one is in other calls
//! ([`Error::CallMismatch`]) where some of them are small.
//!
//! A message of a group moves when all collective calls of that group are done. A peer that waits
//! for the message before it enters such a call waits for ever, unless it puts both into a group as
//! well.
//!
//! Small calls that share memory are executed one after the other, as
//! [below](#calls-that-share-memory).
//!
//! The rules are those of NCCL, with three differences:
//! - A call that fails at once is left out, and its own return says so; `ncclGroupEnd` returns that
//!   error and executes nothing. A caller that returns the error drops the group, which executes
//!   nothing either. A caller that goes on has to leave the same collective call out on all ranks.
//!   Otherwise the next call takes its place: differing calls are found, equal ones give a
//!   meaningless result.
//! - A group belongs to one rank, and [`Group::end`](crate::Group::end) executes it on the calling
//!   thread, which cannot wait for itself. With [`Group::end_on`](crate::Group::end_on) one thread
//!   may end groups of several ranks.
//! - The communicators are of one job, because collective calls of two jobs have no common order.
//!
//! # Calls that share memory
//! Collective calls of one communicator behave as one after the other, whatever memory they share,
//! on one rank or on all. An output may be the input of a later call, in whole or in part, or be
//! overwritten by it. That holds for calls at once, in a group, on streams, started and by plans,
//! at every length. Where they share nothing, calls of a group may be executed together.
//!
//! This has no order:
//! - *Messages* of a group move when all its collective calls are done. So one that was put in
//!   before a collective call cannot share memory with it, unless both only read. This is refused
//!   at the end of the group ([`Error::InvalidArgument`]), when nothing has moved.
//! - *Messages among each other* move at once: those of one group, and those that were started one
//!   after the other. None of them may write what another one reads or writes. Nor may a collective
//!   call that is started while such a message is not done.
//! - *Memory that is mapped twice*, at several addresses, is taken for several memories, and so are
//!   views of other ranks' heaps.
//! - *Communicators* go their own ways: in one group, on several streams, or started. Their calls
//!   share no memory that one of them writes. In one group this is refused.
//!
//! [`Error::CallMismatch`]: crate::Error::CallMismatch
//! [`Error::InvalidArgument`]: crate::Error::InvalidArgument
//! [`Error::Timeout`]: crate::Error::Timeout
