//! Which counter each channel counts on.

use std::collections::BTreeMap;

use super::code::Counter;
use crate::plan::{ChannelKind, ExecutionPlan};

/// The counters of all ranks.
#[derive(Debug)]
pub(crate) struct Counters {
    /// The counters that each rank waits on.
    inbound: Vec<Vec<Counter>>,
    /// The two ends of each channel, by rank, kind and channel.
    ends: BTreeMap<(usize, ChannelKind), Vec<ChannelEnds>>,
}

impl Counters {
    /// Pairs the channels of a plan: the k-th of a kind from a to b with the k-th from b to a. What
    /// one side has more of exists at the other side, too.
    pub(crate) fn of(plan: &ExecutionPlan) -> Self {
        let mut channels: BTreeMap<(ChannelKind, usize, usize), usize> = BTreeMap::new();
        for (rank, program) in plan.ranks.iter().enumerate() {
            for kind in [ChannelKind::Memory, ChannelKind::Port] {
                for &peer in program.channels(kind) {
                    *channels.entry((kind, rank, peer as usize)).or_default() += 1;
                }
            }
        }
        let mut inbound = vec![Vec::new(); plan.ranks.len()];
        let mut index = BTreeMap::new();
        for kind in [ChannelKind::Memory, ChannelKind::Port] {
            for (rank, counters) in inbound.iter_mut().enumerate() {
                for peer in 0..plan.ranks.len() {
                    let of = |from, to| channels.get(&(kind, from, to)).copied().unwrap_or(0);
                    for ordinal in 0..of(rank, peer).max(of(peer, rank)) {
                        let counter = Counter { kind, peer, ordinal };
                        index.insert((rank, counter), counters.len());
                        counters.push(counter);
                    }
                }
            }
        }
        let mut ends: BTreeMap<_, Vec<ChannelEnds>> = BTreeMap::new();
        for (rank, program) in plan.ranks.iter().enumerate() {
            for kind in [ChannelKind::Memory, ChannelKind::Port] {
                let mut opened = vec![0; plan.ranks.len()];
                for peer in program.channels(kind).iter().map(|&peer| peer as usize) {
                    let inbound = |holder, peer, ordinal| index[&(holder, Counter { kind, peer, ordinal })];
                    let ordinal = opened[peer];
                    opened[peer] += 1;
                    let (outbound, inbound) = (inbound(peer, rank, ordinal), inbound(rank, peer, ordinal));
                    ends.entry((rank, kind)).or_default().push(ChannelEnds { peer, outbound, inbound });
                }
            }
        }
        Self { inbound, ends }
    }

    /// Returns the counters that a rank waits on.
    pub(crate) fn of_rank(&self, rank: usize) -> Vec<Counter> {
        self.inbound[rank].clone()
    }

    /// Returns the two ends of a channel of a rank.
    pub(crate) fn ends(&self, rank: usize, kind: ChannelKind, channel: usize) -> ChannelEnds {
        self.ends[&(rank, kind)][channel]
    }
}

/// The two ends of a channel, as one rank sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelEnds {
    /// The other rank.
    pub(crate) peer: usize,
    /// The counter of the other rank.
    pub(crate) outbound: usize,
    /// The counter of this rank.
    pub(crate) inbound: usize,
}
