//! The trigger, the fifo and the serving loop.
#![forbid(unsafe_code)]
