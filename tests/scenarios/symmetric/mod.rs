//! Verbs by rank and offset, without a channel.

mod atomics;
mod moves;
