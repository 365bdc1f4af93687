//! Every pair of ranks in turn, and then all at once.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result};
use shmccl::Rank;
use shmccl::shm::CopyKernel;

use super::Bench;
use crate::perf::barrier::Ensemble;
use crate::perf::collective::gathering::Gathering;
use crate::perf::collective::settings::Average;
use crate::perf::contest::{Company, Outcome, contest};
use crate::perf::duet::Duet;
use crate::perf::figures::best_of;
use crate::perf::lane::Lane;
use crate::perf::matrix::exchange::{Exchange, Ground, others};
use crate::perf::matrix::figure::Figure;
use crate::perf::matrix::settings::Settings;
use crate::perf::test::TestChannel;
use crate::perf::transfer::{Mover, PlainCopy, Put};

impl Bench<'_> {
    pub(super) fn matrix(&mut self) -> Result<()> {
        let settings = self.plan.matrix.as_ref().context("the plan does not say what to measure")?;
        let n_ranks = self.comm.n_ranks();
        for leader in 0..n_ranks {
            for other in (0..n_ranks).filter(|other| *other != leader) {
                self.pair = settings.pair(leader, other)?;
                let mut duet = Duet::new(self.comm, self.pair)?;
                for figure in Figure::OF_PAIRS {
                    self.figure = Some(figure);
                    self.of_pair(figure, duet.as_mut(), settings)?;
                }
            }
        }
        self.figure = Some(Figure::AllToAll);
        let ground = Ground::new(self.comm, settings.block(), self.plan.check)?;
        match self.channel {
            Some(TestChannel::Port) => {
                let puts = self.to_all(ground, |bench, peer| Ok(bench.comm.port_channel(peer)?));
                self.all_at_once(ground, puts?)
            }
            _ => {
                let puts = self.to_all(ground, |bench, peer| Ok(bench.comm.memory_channel(peer)?));
                self.all_at_once(ground, puts?)
            }
        }
    }

    fn of_pair(&mut self, figure: Figure, duet: Option<&mut Duet>, settings: &Settings) -> Result<()> {
        match figure {
            Figure::Latency => self.two(duet, &[settings.latency_bytes], Self::put_latency),
            Figure::Bidirectional => self.two(duet, &[settings.bandwidth_bytes], Self::put_bidirectional),
            _ => self.two(duet, &[settings.bandwidth_bytes], Self::put_bandwidth),
        }
    }

    /// A put to each other rank.
    fn to_all<C>(&self, ground: Ground, open: impl Fn(&Self, Rank) -> Result<C>) -> Result<Vec<Put<C>>> {
        let put = |peer| {
            let (source, target) = (ground.source(peer), ground.target(self.comm.rank()));
            Ok(Put { channel: open(self, peer)?, source, target, len: ground.block() })
        };
        others(self.comm)?.into_iter().map(put).collect()
    }

    /// A plain copy by `kernel` to each other rank.
    fn copies(&self, ground: Ground, kernel: CopyKernel) -> Result<Vec<PlainCopy>> {
        let me = self.comm.rank();
        let copy = |peer| {
            let source = ground.span(self.comm, me, ground.source(peer))?;
            let target = ground.span(self.comm, peer, ground.target(me))?;
            Ok(PlainCopy { source, target, kernel })
        };
        others(self.comm)?.into_iter().map(copy).collect()
    }

    /// The puts of all ranks at the same time, against plain copies by every kernel that this processor has.
    fn all_at_once<M: Mover>(&mut self, ground: Ground, puts: Vec<M>) -> Result<()> {
        let kernels: Vec<_> = CopyKernel::ALL.into_iter().filter(|kernel| kernel.is_supported()).collect();
        let gathering = Gathering::new(self.comm, Average::Most, self.plan.one_core)?;
        let gathering = Rc::new(RefCell::new(gathering));
        let mut test = Exchange::new(self.comm, ground, puts, &gathering)?;
        let mut plain = Vec::new();
        for &kernel in &kernels {
            let copies = self.copies(ground, kernel)?;
            plain.push(Exchange::new(self.comm, ground, copies, &gathering)?);
        }
        let mut ensemble = Ensemble::new(self.comm)?;
        let mut lanes: Vec<&mut dyn Lane> = vec![&mut test];
        lanes.extend(plain.iter_mut().map(|lane| lane as &mut dyn Lane));
        let effort = self.plan.effort(self.test, self.channel);
        let outcome = contest(Company::All(&mut ensemble), &mut lanes, &best_of(kernels.len()), effort)?;
        let wrong = gathering.borrow_mut().total(outcome.wrong)?;
        let leads = ensemble.leads();
        let Some((best, outcome)) = (Outcome { wrong, ..outcome }).with_lowest_limit() else { return Ok(()) };
        let limit = format!("plain copies ({})", kernels[best]);
        let n_ranks = u64::from(self.comm.n_ranks());
        self.report(leads, &outcome, Some(ground.block()), &limit, |row| {
            row.set_bandwidth(n_ranks * (n_ranks - 1) * ground.block());
        })
    }
}
