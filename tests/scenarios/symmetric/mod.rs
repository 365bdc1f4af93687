//! Verbs by rank and offset, without a channel.

mod atomics;
mod locks;
mod moves;
mod proxied;
mod signals;
mod waits;
