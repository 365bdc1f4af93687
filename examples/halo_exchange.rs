//! Heat spreads over a plate. Each rank owns a block of it, in a grid of ranks. At every step it
//! puts its edges straight into the memory of its neighbours, which never ask for data. The same is
//! done by an `all_to_all`, and both times are told. Each rank compares its block, bit for bit,
//! with the whole plate computed by itself.
//!
//! Run it alone (`cargo run --release --example halo_exchange`), or under `shmccl run -n N -- ...`
//! for any N up to 240. `halo_exchange.c` and `halo_exchange.py` are the same program.

#![allow(clippy::print_stdout, reason = "examples print")]

use std::ops::Range;
use std::time::Instant;

use shmccl::heap::DeviceBuffer;
use shmccl::launch::launch;
use shmccl::symmetric::{Comparison, Symmetric, WordSignal};
use shmccl::{Collectives, Communicator, Error, Rank};

const SIZE: usize = 240;
const STEPS: u64 = 60;

/// A block of the plate within a border of one cell: the edges of its neighbours, or the border of
/// the plate, which is hot above and cold elsewhere.
struct Block {
    height: usize,
    width: usize,
    cells: Vec<f64>,
}

impl Block {
    fn new(rows: &Range<usize>, columns: &Range<usize>) -> Self {
        let (height, width) = (rows.len(), columns.len());
        let mut cells = vec![0.0; (height + 2) * (width + 2)];
        if rows.start == 0 {
            columns.clone().for_each(|x| cells[1 + x - columns.start] = (x % 7) as f64 * 10.0);
        }
        Self { height, width, cells }
    }

    /// Every cell becomes the mean of its four neighbours.
    fn step(&mut self) {
        let (old, across) = (self.cells.clone(), self.width + 2);
        for y in 1..=self.height {
            for at in y * across + 1..=y * across + self.width {
                self.cells[at] = 0.25 * (old[at - across] + old[at + across] + old[at - 1] + old[at + 1]);
            }
        }
    }

    /// Where the cells along a side are: above, below, left, right. The border is at depth 0, and
    /// the block's own edge at depth 1.
    fn line(&self, side: usize, depth: usize) -> impl Iterator<Item = usize> + use<> {
        let (height, width, across) = (self.height, self.width, self.width + 2);
        let (first, stride, len) = match side {
            0 => (depth * across + 1, 1, width),
            1 => ((height + 1 - depth) * across + 1, 1, width),
            2 => (across + depth, across, height),
            _ => (across + width + 1 - depth, across, height),
        };
        (0..len).map(move |index| first + index * stride)
    }

    fn edge(&self, side: usize) -> Vec<f64> {
        self.line(side, 1).map(|at| self.cells[at]).collect()
    }

    fn set_border(&mut self, side: usize, edge: &[f64]) {
        self.line(side, 0).zip(edge).for_each(|(at, cell)| self.cells[at] = *cell);
    }
}

/// The sides of a block that have a neighbour, and who that is.
type Neighbours = Vec<(usize, Rank)>;

/// Puts edges into the memory of neighbours, and raises a word of theirs behind each.
struct ByPuts {
    all: Symmetric,
    /// One edge for each side, twice: a neighbour may be in its next step while this rank still
    /// reads what came in this one. Without a signal of this rank it cannot be further ahead.
    edges: DeviceBuffer<f64>,
    /// The step whose edge has come, for each side.
    arrived: DeviceBuffer<u64>,
}

impl ByPuts {
    fn exchange(&self, step: u64, block: &mut Block, neighbours: &Neighbours) -> shmccl::Result<()> {
        let place = |side: usize| (if step.is_multiple_of(2) { side } else { 4 + side }) * SIZE;
        for &(side, neighbour) in neighbours {
            let (edge, its_side) = (block.edge(side), side ^ 1);
            let target = self.edges.part(place(its_side), edge.len())?.offset;
            let signal = WordSignal::set(self.arrived.part(its_side, 1)?.offset, step);
            self.all.put_signal(neighbour, target, &edge, signal)?;
        }
        for &(side, _) in neighbours {
            self.all.wait_until(self.arrived.part(side, 1)?.offset, Comparison::GreaterOrEqual, step)?;
            let mut edge = block.edge(side);
            self.edges.copy_to_slice(place(side), &mut edge)?;
            block.set_border(side, &edge);
        }
        Ok(())
    }
}

/// Lets a collective move the edges: a place for each rank, of which most stay unused.
struct ByCollective {
    sent: DeviceBuffer<f64>,
    received: DeviceBuffer<f64>,
}

impl ByCollective {
    fn exchange(
        &self,
        comm: &mut Communicator,
        block: &mut Block,
        neighbours: &Neighbours,
    ) -> shmccl::Result<()> {
        for &(side, neighbour) in neighbours {
            self.sent.copy_from_slice(neighbour.index() * SIZE, &block.edge(side))?;
        }
        comm.all_to_all(&self.sent, &self.received)?;
        for &(side, neighbour) in neighbours {
            let mut edge = block.edge(side);
            self.received.copy_to_slice(neighbour.index() * SIZE, &mut edge)?;
            block.set_border(side, &edge);
        }
        Ok(())
    }
}

fn main() -> shmccl::Result<()> {
    launch(4, |comm| {
        let (rank, n_ranks) = (comm.rank().get(), comm.n_ranks());
        if n_ranks as usize > SIZE {
            let expected = "at most 240, so that each has a column of cells";
            return Err(Error::InvalidArgument { name: "ranks", value: n_ranks.into(), expected });
        }
        let down =
            (1..=n_ranks).filter(|down| n_ranks % down == 0 && down * down <= n_ranks).max().unwrap_or(1);
        let across = n_ranks / down;
        let (row, column) = (rank / across, rank % across);
        let share = |index: u32, parts: u32| {
            index as usize * SIZE / parts as usize..(index + 1) as usize * SIZE / parts as usize
        };
        let (rows, columns) = (share(row, down), share(column, across));
        let beside = [
            (row > 0).then(|| rank - across),
            (row + 1 < down).then(|| rank + across),
            (column > 0).then(|| rank - 1),
            (column + 1 < across).then(|| rank + 1),
        ];
        let neighbours = beside.into_iter().enumerate().filter_map(|(side, rank)| Some((side, rank?)));
        let neighbours = neighbours
            .map(|(side, rank)| Ok((side, Rank::new(rank, n_ranks)?)))
            .collect::<shmccl::Result<Neighbours>>()?;

        let places = n_ranks as usize * SIZE;
        let by_puts =
            ByPuts { all: comm.symmetric(), edges: comm.alloc(2 * 4 * SIZE)?, arrived: comm.alloc(4)? };
        let by_collective = ByCollective { sent: comm.alloc(places)?, received: comm.alloc(places)? };
        let mut plate = Block::new(&(0..SIZE), &(0..SIZE));
        (0..STEPS).for_each(|_| plate.step());
        let expected = |y: usize, x: usize| plate.cells[(y + 1) * (SIZE + 2) + x + 1];

        let mut us_of_step = [0.0; 2];
        for (way, us_of_step) in us_of_step.iter_mut().enumerate() {
            let mut block = Block::new(&rows, &columns);
            comm.barrier()?;
            let start = Instant::now();
            for step in 1..=STEPS {
                block.step();
                match way {
                    0 => by_puts.exchange(step, &mut block, &neighbours)?,
                    _ => by_collective.exchange(comm, &mut block, &neighbours)?,
                }
            }
            comm.barrier()?;
            *us_of_step = start.elapsed().as_secs_f64() * 1e6 / STEPS as f64;
            for (y, line) in rows.clone().zip(block.cells.chunks(columns.len() + 2).skip(1)) {
                let is_right = columns.clone().zip(&line[1..]).all(|(x, cell)| *cell == expected(y, x));
                assert!(is_right, "rank {rank}: row {y} differs from the plate computed alone");
            }
        }
        if rank == 0 {
            let [puts, collective] = us_of_step;
            println!(
                "halo exchange, {down} x {across} ranks, {SIZE} x {SIZE} cells, every bit as computed alone: \
                 a step takes {puts:.1} us by puts, {collective:.1} us by all_to_all"
            );
        }
        Ok(())
    })
    .map(drop)
}
