#![allow(clippy::all)]
use shmccl::launch::launch;
use shmccl::reduce::{DataType, ReduceOp};
use shmccl::{Collectives, Communicator, Result};
use std::time::Instant;
fn lent(v: &mut Vec<u8>) -> &'static mut [u8] {
    unsafe { &mut *std::ptr::from_mut(v.as_mut_slice()) }
}
fn main() -> Result<()> {
    let mode = std::env::var("MODE").unwrap_or_default();
    let n: u32 = std::env::var("N").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let size: usize = std::env::var("SIZE").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let loops = if mode.is_empty() { 20_000 } else { 3_000_000 };
    launch(n, |comm: &mut Communicator| {
        let mut v = vec![0_u8; size];
        let heap = comm.alloc::<u8>(size)?;
        let mut best = [f64::MAX; 4];
        for _ in 0..if mode.is_empty() { 15 } else { 1 } {
            for way in 0..4 {
                if !mode.is_empty() && mode != way.to_string() { continue; }
                let mut rounds = 20;
                if size > 4096 { rounds = 1; }
                for _ in 0..rounds {
                comm.barrier()?;
                let per = loops / 20 / rounds.max(1);
                let begun = Instant::now();
                for _ in 0..per {
                    match way {
                        0 => comm.untyped(DataType::F32).all_reduce_in_place(&mut v, &ReduceOp::Sum)?,
                        1 => { let b = lent(&mut v); comm.start(|_| (), |c| c.untyped(DataType::F32).all_reduce_in_place(b, &ReduceOp::Sum))?.wait()? }
                        2 => comm.untyped(DataType::F32).all_reduce_in_place(&heap, &ReduceOp::Sum)?,
                        _ => comm.start(|_| (), |c| c.untyped(DataType::F32).all_reduce_in_place(&heap, &ReduceOp::Sum))?.wait()?,
                    }
                }
                let t = begun.elapsed().as_nanos() as f64 / per as f64;
                best[way] = best[way].min(t);
                }
            }
        }
        if comm.rank().get() == 0 { println!("{n} ranks {size} B: memory sync {:.0} async {:.0} ({:.2}x) heap sync {:.0} async {:.0} ({:.2}x)", best[0], best[1], best[1]/best[0], best[2], best[3], best[3]/best[2]); }
        Ok(())
    }).map(drop)
}
