//! Steps of MSCCL as operations: mailboxes for messages, semaphores for dependences.

use std::collections::BTreeMap;

use super::xml::{ChunkPlace, MscclAlgorithm, MscclStep};
use crate::build::{BlockId, BlockSemaphore, ChannelEnd, Chunks, CollectiveProgram};
use crate::plan::{Buffer, ExecutionPlan};

/// A link: from rank, to rank, channel.
type MscclConnection = (usize, usize, u32);

/// Where what is sent over a link waits until it is received.
struct Mailbox {
    /// Its first chunk in the receiver's scratch, the chunks of a slot, and the slots.
    first: u32,
    size: u32,
    slots: usize,
    /// The ends of its channel.
    sender: ChannelEnd,
    receiver: ChannelEnd,
    sent: usize,
    received: usize,
}

impl Mailbox {
    fn slot(&self, message: usize) -> u32 {
        self.first + u32::try_from(message % self.slots).unwrap_or(0) * self.size
    }
}

/// A dependence: the rank, then the block and step that come first, then those that wait.
type Dependence = (usize, (usize, usize), (usize, usize));

struct MscclLowering<'a> {
    algorithm: &'a MscclAlgorithm,
    program: CollectiveProgram,
    mailboxes: BTreeMap<MscclConnection, Mailbox>,
    semaphores: BTreeMap<Dependence, BlockSemaphore>,
}

/// Lowers a program with mailboxes of at most so many slots.
pub(super) fn lower(algorithm: &MscclAlgorithm, slots: usize) -> Result<ExecutionPlan, String> {
    let first = &algorithm.ranks[0];
    let ranks = algorithm.ranks.len();
    let same = algorithm
        .ranks
        .iter()
        .all(|rank| (rank.input_chunks, rank.output_chunks) == (first.input_chunks, first.output_chunks));
    if !same {
        return Err("ranks have different numbers of chunks; give all the same".to_owned());
    }
    let most = if algorithm.max_bytes == 0 { u64::MAX } else { algorithm.max_bytes };
    let mut program = CollectiveProgram::new(&algorithm.name, &algorithm.collective, ranks)
        .chunks(first.input_chunks, first.output_chunks, 0)
        .limits(algorithm.min_bytes, most);
    if algorithm.in_place {
        program = program.in_place();
    }
    let mut lowering =
        MscclLowering { algorithm, program, mailboxes: BTreeMap::new(), semaphores: BTreeMap::new() };
    lowering.open_mailboxes(slots)?;
    lowering.make_semaphores()?;
    for rank in 0..ranks {
        for block in 0..algorithm.ranks[rank].blocks.len() {
            lowering.block(rank, block)?;
        }
    }
    lowering.program.finish_unproved().map_err(|error| error.to_string())
}

impl MscclLowering<'_> {
    /// Gives each link a place in the receiver's scratch, behind what the program uses itself.
    fn open_mailboxes(&mut self, slots: usize) -> Result<(), String> {
        let mut links: BTreeMap<MscclConnection, (usize, u32)> = BTreeMap::new();
        for (rank, of) in self.algorithm.ranks.iter().enumerate() {
            for block in &of.blocks {
                for step in block.steps.iter().filter(|step| sends(&step.kind)) {
                    let to = block.send.filter(|&to| to < self.algorithm.ranks.len() && to != rank);
                    let to =
                        to.ok_or_else(|| format!("rank {rank} sends to nobody; give its <tb> a `send`"))?;
                    let (count, size) = links.entry((rank, to, block.channel)).or_default();
                    *count += 1;
                    *size = step.count.max(*size);
                }
            }
        }
        let mut ends: Vec<u32> = self.algorithm.ranks.iter().map(|rank| rank.scratch_chunks).collect();
        for (link, (count, size)) in links {
            let (from, to, _) = link;
            let slots = slots.min(count).max(1);
            let sender = self.program.memory_channel(from, to);
            let receiver = self.program.memory_channel(to, from);
            let mailbox = Mailbox { first: ends[to], size, slots, sender, receiver, sent: 0, received: 0 };
            let chunks = u32::try_from(slots).ok().and_then(|slots| slots.checked_mul(size));
            ends[to] = chunks
                .and_then(|chunks| ends[to].checked_add(chunks))
                .ok_or("the mailboxes are too large; send less at once")?;
            self.mailboxes.insert(link, mailbox);
        }
        for (rank, end) in ends.into_iter().enumerate() {
            self.program.set_scratch(rank, end);
        }
        Ok(())
    }

    fn make_semaphores(&mut self) -> Result<(), String> {
        for (rank, of) in self.algorithm.ranks.iter().enumerate() {
            for (block, steps) in of.blocks.iter().enumerate() {
                for (index, step) in steps.steps.iter().enumerate() {
                    let Some(before) = step.after.filter(|(other, _)| *other != block) else { continue };
                    if of.blocks.get(before.0).is_none_or(|block| before.1 >= block.steps.len()) {
                        return Err(format!(
                            "rank {rank} block {block} step {index} waits for step {} of block {}; name one there is",
                            before.1, before.0
                        ));
                    }
                    let semaphore = self.program.semaphore(rank, 0);
                    self.semaphores.insert((rank, before, (block, index)), semaphore);
                }
            }
        }
        Ok(())
    }

    fn block(&mut self, rank: usize, index: usize) -> Result<(), String> {
        let algorithm = self.algorithm;
        let of = &algorithm.ranks[rank].blocks[index];
        let block = self.program.block(rank);
        for (number, step) in of.steps.iter().enumerate() {
            let told =
                |error: String| format!("rank {rank} block {index} step {number} ({}): {error}", step.kind);
            if let Some(before) = step.after
                && let Some(&semaphore) = self.semaphores.get(&(rank, before, (index, number)))
            {
                self.program.acquire(block, semaphore).map_err(|error| told(error.to_string()))?;
            }
            let outbound = of.send.map(|to| (rank, to, of.channel));
            let inbound = of.receive.map(|from| (from, rank, of.channel));
            self.step(block, rank, step, outbound, inbound).map_err(told)?;
            let waiting = self
                .semaphores
                .range((rank, (index, number), (0, 0))..=(rank, (index, number), (usize::MAX, 0)));
            for semaphore in waiting.map(|(_, &semaphore)| semaphore).collect::<Vec<_>>() {
                self.program.release(block, semaphore).map_err(|error| told(error.to_string()))?;
            }
        }
        let link = of.send.map(|to| (rank, to, of.channel));
        if let Some(mailbox) = link.and_then(|link| self.mailboxes.get(&link)) {
            for _ in 0..mailbox.sent.min(mailbox.slots) {
                self.program.wait(block, mailbox.sender).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        block: BlockId,
        rank: usize,
        step: &MscclStep,
        outbound: Option<MscclConnection>,
        inbound: Option<MscclConnection>,
    ) -> Result<(), String> {
        let source = chunks(rank, step.source, step.count);
        let target = chunks(rank, step.target, step.count);
        let fail = |error: crate::build::BuildError| error.to_string();
        match step.kind.as_str() {
            "nop" => {}
            "cpy" => self.program.copy(block, source, target).map_err(fail)?,
            "re" => self.program.reduce(block, &[target, source], &[target]).map_err(fail)?,
            "s" => self.send(block, outbound, source)?,
            "r" | "rcs" => {
                let (slot, credit) = self.receive(block, rank, inbound, step.count)?;
                self.program.copy(block, slot, target).map_err(fail)?;
                self.program.signal(block, credit).map_err(fail)?;
                if step.kind == "rcs" {
                    self.send(block, outbound, target)?;
                }
            }
            "rrc" | "rrcs" => {
                let (slot, credit) = self.receive(block, rank, inbound, step.count)?;
                self.program.reduce(block, &[slot, source], &[target]).map_err(fail)?;
                self.program.signal(block, credit).map_err(fail)?;
                if step.kind == "rrcs" {
                    self.send(block, outbound, target)?;
                }
            }
            "rrs" => {
                let (slot, credit) = self.receive(block, rank, inbound, step.count)?;
                self.program.reduce(block, &[slot, source], &[slot]).map_err(fail)?;
                self.send(block, outbound, slot)?;
                self.program.signal(block, credit).map_err(fail)?;
            }
            _ => return Err("no type of step; give s, r, rcs, rrc, rrs, rrcs, re, cpy or nop".to_owned()),
        }
        Ok(())
    }

    /// Puts chunks into the next slot of a mailbox.
    fn send(&mut self, block: BlockId, link: Option<MscclConnection>, from: Chunks) -> Result<(), String> {
        let (link, mailbox) = mailbox(&mut self.mailboxes, link)?;
        let (message, slot, channel) = (mailbox.sent, mailbox.slot(mailbox.sent), mailbox.sender);
        mailbox.sent += 1;
        let is_used = message >= mailbox.slots;
        let to = Chunks { rank: link.1, buffer: Buffer::Scratch, index: slot, size: from.size };
        let mut call = || {
            if is_used {
                self.program.wait(block, channel)?;
            }
            self.program.put(block, from, to)?;
            self.program.signal(block, channel)
        };
        call().map_err(|error| error.to_string())
    }

    /// Waits for the next message of a mailbox. Returns its slot, and the channel of its credit.
    fn receive(
        &mut self,
        block: BlockId,
        rank: usize,
        link: Option<MscclConnection>,
        size: u32,
    ) -> Result<(Chunks, ChannelEnd), String> {
        let (_, mailbox) = mailbox(&mut self.mailboxes, link)?;
        let slot = mailbox.slot(mailbox.received);
        mailbox.received += 1;
        let channel = mailbox.receiver;
        self.program.wait(block, channel).map_err(|error| error.to_string())?;
        Ok((Chunks { rank, buffer: Buffer::Scratch, index: slot, size }, channel))
    }
}

fn mailbox(
    mailboxes: &mut BTreeMap<MscclConnection, Mailbox>,
    link: Option<MscclConnection>,
) -> Result<(MscclConnection, &mut Mailbox), String> {
    let found = link.and_then(|link| mailboxes.get_mut(&link).map(|mailbox| (link, mailbox)));
    found.ok_or_else(|| "no other block sends or receives on that channel; pair them".to_owned())
}

fn sends(kind: &str) -> bool {
    matches!(kind, "s" | "rcs" | "rrs" | "rrcs")
}

fn chunks(rank: usize, ChunkPlace { buffer, index }: ChunkPlace, size: u32) -> Chunks {
    Chunks { rank, buffer, index, size }
}
