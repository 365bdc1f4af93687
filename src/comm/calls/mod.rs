//! Collective calls and messages: how a program asks for them, and when they are executed.
//!
//! Each method of a [typed call](collectives) makes a [call](mod@call), a value, of its [buffers],
//! and [submits](submit) it. A communicator executes calls at once, and a [group] puts several
//! together. [Started](start) calls and those of a [stream] are executed later, from the
//! [queue](call_queue) of their communicator. Its [`settings`] concern all of them.
//!
//! Tried by its unit tests and `scenarios groups:: order:: started:: call_values:: switch::`.

pub(super) mod buffers;
pub(super) mod call;
pub(super) mod call_queue;
pub(super) mod collectives;
pub(super) mod group;
pub(super) mod monitor;
pub(super) mod placement;
pub(super) mod settings;
pub mod start;
pub mod stream;
pub(super) mod submit;
pub(super) mod switch;
