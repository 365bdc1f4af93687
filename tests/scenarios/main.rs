//! What ranks do together, each scenario written once and run as threads of one process and as real
//! processes.

#[macro_use]
mod harness;

mod again;
mod agreements;
mod algorithms;
mod barriers;
mod blocks;
mod checkpoints;
mod checksums;
mod collectives;
mod communicators;
mod custom;
mod departures;
mod endings;
mod faults;
mod fifos;
mod groups;
mod growth;
mod hostile;
mod idle;
mod kill;
mod large;
mod late;
mod mismatches;
mod model;
mod oracle;
mod oversubscription;
mod packets;
mod point_to_point;
mod proxies;
mod refused;
mod replaced_blocks;
mod reports;
mod seats;
mod sorts;
mod standoffs;
mod stream_failures;
mod streams;
mod survivors;
mod switch;
mod tag_programs;
mod tags;
mod tuning;
mod verbs;
