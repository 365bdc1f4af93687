//! `shmccl top`: what the ranks of all jobs do, again and again.
//!
//! Each picture is made of two looks at the shared words, an interval apart. On a terminal a picture takes the place of the one before,
//! drawn over it from where that began: no mode of the terminal is changed, so whatever ends the command leaves it as it was.

mod picture;
mod rates;

use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shmccl::observe::Report;

use crate::failure;
use crate::jobs::{self, Misnomer};
use crate::output::{self, Look};
use crate::units::parse_timeout;

/// What `shmccl top --help` ends with.
pub(crate) const HELP: &str = "\
Numbers are those of the last interval. Operations are collective ones; bytes are what this rank put into them, for the small ones by the \
mean of the last eight; signals are those that the rank was sent. Waiting is the share of the interval spent in waits that \
took more than some microseconds. Beat is how long ago a rank has beaten, which it does twice a second. Where the output is no terminal, pictures follow each other as plain text.";

/// The lines and columns of a terminal that does not say how many it has.
const USUAL: (usize, usize) = (24, 80);

/// Flags of `shmccl top`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TopArgs {
    /// One job only: the beginning of its number, four digits at least, or one of its processes
    #[arg(value_name = "JOB|PID")]
    pub(crate) job: Option<String>,
    /// The time between two looks, such as 500ms or 2s
    #[arg(short, long, value_name = "TIME", value_parser = parse_timeout, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print one picture, and end
    #[arg(long)]
    pub(crate) once: bool,
}

/// Runs the command.
///
/// # Errors
/// When there is no job of that name, or stdout cannot be written.
pub(crate) fn run(args: &TopArgs) -> Result<u8> {
    let mut before = look(args)?;
    let mut lines_up = 0;
    loop {
        pause(args.interval);
        let now = match look(args) {
            Ok(now) => now,
            // It was there before, and has ended; or a second one has begun that the word names as well.
            Err(error @ Misnomer::Several(_)) => return Err(error.into()),
            Err(_) => return Ok(failure::DONE),
        };
        let (look, (height, width)) = (Look::of_tables(), USUAL);
        let (height, width) = (look.height.unwrap_or(height), look.width.unwrap_or(width));
        let look = Look { width: Some(width).filter(|_| look.terminal), ..look };
        let picture = picture::draw(look, &rates::between(&before, &now));
        if look.terminal && !args.once {
            // The cursor takes a line of its own.
            let picture = picture::cut(&picture, height.saturating_sub(1), width);
            let lines = picture.lines().count();
            output::print(&picture::over(&picture, lines_up))?;
            lines_up = lines;
        } else {
            output::print(&picture)?;
        }
        if args.once {
            return Ok(failure::DONE);
        }
        before = now;
    }
}

/// All jobs, or the one that was named.
fn look(args: &TopArgs) -> Result<Vec<Report>, Misnomer> {
    match &args.job {
        Some(word) => Ok(vec![jobs::named(word)?.report]),
        None => Ok(jobs::all().into_iter().map(|seen| seen.report).collect()),
    }
}

fn pause(interval: Duration) {
    let (_nobody_sends, never) = mpsc::channel::<()>();
    let _timeout = never.recv_timeout(interval);
}
