//! Heat spreads over a plate. Each rank owns a band of rows. At every step it puts its two edge
//! rows straight into the memory of its neighbours, which never ask for data. At the end each rank
//! compares its band, bit for bit, with the whole plate computed by itself.
//!
//! Run it alone (`cargo run --release --example halo_exchange`), or under `shmccl run -n N -- ...`
//! for any N.

#![allow(clippy::print_stdout, reason = "examples print")]

use shmccl::Rank;
use shmccl::channel::{Channel, MemoryChannel};
use shmccl::launch::launch;

const WIDTH: usize = 512;
const HEIGHT: usize = 384;
const STEPS: usize = 500;

type Row = [f64; WIDTH];

/// The first row is always hot; the last one and the sides are cold.
fn initial(y: usize) -> Row {
    std::array::from_fn(|x| if y == 0 { (x % 7) as f64 * 10.0 } else { 0.0 })
}

/// One step of a row: every inner cell becomes the mean of its four neighbours.
fn relax(above: &Row, row: &Row, below: &Row) -> Row {
    std::array::from_fn(|x| match x {
        0 => row[0],
        _ if x == WIDTH - 1 => row[x],
        _ => 0.25 * (above[x] + below[x] + row[x - 1] + row[x + 1]),
    })
}

/// One step of the rows from number `first` on, between the rows `above` and `below` them.
fn step(first: usize, above: &Row, band: &[Row], below: &Row) -> Vec<Row> {
    let is_edge = |y: usize| y == 0 || y == HEIGHT - 1;
    let next = |(i, row): (usize, &Row)| match is_edge(first + i) {
        true => *row,
        false => relax(if i == 0 { above } else { &band[i - 1] }, row, band.get(i + 1).unwrap_or(below)),
    };
    band.iter().enumerate().map(next).collect()
}

fn main() -> shmccl::Result<()> {
    launch(2, |comm| {
        let (me, n_ranks) = (comm.rank().get(), comm.n_ranks());
        let (rank, ranks) = (me as usize, n_ranks as usize);
        let (first, end) = (rank * HEIGHT / ranks, (rank + 1) * HEIGHT / ranks);
        let mut band: Vec<Row> = (first..end).map(initial).collect();

        // Neighbours put their edge rows here: one row above and one below this rank's band. Two
        // such pairs take turns, since a neighbour may be in its next step while this rank still
        // reads the rows of this one. Without a signal of this rank it cannot be further ahead.
        let halo = comm.alloc::<Row>(4)?;
        let open = |peer| -> shmccl::Result<MemoryChannel> { comm.memory_channel(Rank::new(peer, n_ranks)?) };
        let mut above = if me > 0 { Some(open(me - 1)?) } else { None };
        let mut below = if me + 1 < n_ranks { Some(open(me + 1)?) } else { None };

        for turn in 0..STEPS {
            let (row_above, row_below) = (2 * (turn % 2), 2 * (turn % 2) + 1);
            if let Some(channel) = &mut above {
                channel.put_slice(halo.part(row_below, 1)?.offset, &band[..1])?; // I am below it
                channel.signal()?;
            }
            if let Some(channel) = &mut below {
                channel.put_slice(halo.part(row_above, 1)?.offset, &band[band.len() - 1..])?;
                channel.signal()?;
            }
            for channel in [&mut above, &mut below].into_iter().flatten() {
                channel.wait()?;
            }
            band = step(first, &halo.get(row_above)?, &band, &halo.get(row_below)?);
        }

        let mut plate: Vec<Row> = (0..HEIGHT).map(initial).collect();
        for _ in 0..STEPS {
            plate = step(0, &[0.0; WIDTH], &plate, &[0.0; WIDTH]);
        }
        assert!(
            band == plate[first..end],
            "rank {rank}: rows {first} to {end} differ from the plate computed alone"
        );
        comm.barrier()?;
        if me == 0 {
            println!(
                "{STEPS} steps of {HEIGHT} x {WIDTH} cells, ranks: {n_ranks}; every bit as computed alone"
            );
        }
        Ok(())
    })
    .map(drop)
}
