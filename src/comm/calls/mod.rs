//! Collective calls and messages: how a program asks for them, and when they are executed.
//!
//! A [typed call](collectives) is the [call by a type at run time](untyped) of its element, which
//! [submits](submit) a request of its [buffers]. A communicator executes requests at once, and a
//! [group] puts several together. [Started](start) calls and those of a [stream] are executed
//! later, from the [queue](call_queue) of their communicator. Its [`settings`] concern all of them.
//!
//! Tried by its unit tests and `scenarios groups:: order:: started:: untyped:: switch::`.

pub(super) mod buffers;
pub(super) mod call_queue;
pub(super) mod collectives;
pub(super) mod group;
pub(super) mod monitor;
pub(super) mod settings;
pub mod start;
pub mod stream;
pub(super) mod submit;
pub(super) mod switch;
pub(super) mod untyped;
