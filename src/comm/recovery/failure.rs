//! How a job goes on after a loss, and how it grows, in one place. [`shrink`], [`recover`] and
//! [`grow`] link here.
//!
//! # An epoch and its end
//! A communicator lives in an *epoch*. The loss of a rank ends the epoch: every wait of every rank
//! returns [`Error::PeerLost`] within milliseconds. So do [`revoke`], which gives
//! [`Error::Revoked`], and [`give_up`], which declares a rank lost that hangs.
//!
//! An epoch that has ended moves nothing any more. Its heaps can still be read until the
//! communicator is dropped, also those of dead ranks ([`Communicator::span`]).
//!
//! | to go on | ranks afterwards | needs |
//! |---|---|---|
//! | [`shrink`] | those that are left, numbered anew | the job's first communicator |
//! | [`recover`] | as many as before, with the same numbers | a launcher with [`Launch::restart`] |
//! | [`grow`] | the members, and joining ranks behind them | nothing: the old epoch goes on |
//!
//! # The new communicator
//! Each of the three returns a communicator of a new epoch:
//! - Its heap is as long as before, and empty. Its segments are anonymous and its proxies are
//!   threads.
//! - Tuning tables and algorithms have to be set again.
//! - Channels, buffers and streams stay with the epoch in which they were made. Enqueued work of a
//!   stream is waited for first.
//! - Everything that the other ranks did before they called has happened when the call returns.
//! - It returns on all ranks or on none. All ranks get the same list of lost or restarted ranks.
//! - A death while it runs makes [`shrink`] and [`recover`] start over, and makes [`grow`] fail.
//!
//! # Shrinking
//! All ranks that are left call [`shrink`] on the job's first communicator, once a call has failed.
//! It ends the epoch where it has not ended. It waits until every rank has called it, has left, or
//! is lost. No rank in particular is needed, and no launcher.
//!
//! The ranks meet like those of a [`UniqueId`](crate::UniqueId), which the first one makes. They
//! may be in PID namespaces of their own, but need one network namespace. So do [`recover`] and
//! [`grow`].
//!
//! A launcher goes on after a loss only with [`Launch::keep_going`], also where it restarts ranks.
//! It restarts them until no restart is left, even if nobody takes them back.
//!
//! A rank that was given up in the middle of a call may still write into outputs of that call.
//!
//! # Recovering
//! All ranks that are left call [`recover`] on the job's first communicator. The launcher has
//! restarted the dead ranks; each of them gets its communicator where it
//! [joins](crate::comm::join_job) the job.
//!
//! Each survivor passes the number of its last completed step. All ranks get the least of these
//! numbers, restarted ones included ([`Communicator::on_recovery`]), and go on from there. A
//! restarted rank can read the heap of its predecessor
//! ([`Recovery::inherited`](crate::comm::Recovery::inherited)).
//!
//! A launcher that has no restart left tells the survivors, who get [`Error::Unavailable`] at once
//! and can shrink instead.
//!
//! # Growing
//! All members call [`grow`] with the number of ranks to be. Joining ranks call
//! [`Communicator::join`] with a [`UniqueId`](crate::UniqueId), which one member makes and passes
//! to `grow`. Members keep their ranks. Joining ranks get those behind, in the order of their
//! arrival.
//!
//! The old communicator stays as it was, unless a member has died. While `grow` waits, [`revoke`]
//! and an [`Aborter`](crate::comm::Aborter) do not interrupt it. A death does, the end of the
//! launcher does, and so does the timeout.
//!
//! The new communicator is a job of its own. A launcher keeps watching the ranks that it has
//! started and no others, so [`Launch::detect_hangs`] does not find a joining rank that hangs.
//! Deadlines do.
//!
//! # Errors of all three
//! - [`Error::Timeout`] names the rank that has not come. It can be called again, after [`give_up`]
//!   if that rank is not to be waited for.
//! - [`Error::Excluded`]: the others have given this rank up and go on without it.
//! - [`Error::Revoked`]: the launcher is gone, and nobody goes on.
//! - [`Error::ResourceLimit`] and [`Error::Os`] on one rank are [`Error::FailedElsewhere`] on the
//!   others. All ranks get an error, and can call it again.
//! - [`Error::Unavailable`]: the communicator cannot do it, or has gone on already.
//! - [`Error::Exhausted`]: it has failed too often.
//!
//! [`shrink`]: crate::Communicator::shrink
//! [`recover`]: crate::Communicator::recover
//! [`grow`]: crate::Communicator::grow
//! [`revoke`]: crate::Communicator::revoke
//! [`give_up`]: crate::Communicator::give_up
//! [`Communicator::span`]: crate::Communicator::span
//! [`Communicator::join`]: crate::Communicator::join
//! [`Communicator::on_recovery`]: crate::Communicator::on_recovery
//! [`Launch::restart`]: crate::launch::Launch::restart
//! [`Launch::keep_going`]: crate::launch::Launch::keep_going
//! [`Launch::detect_hangs`]: crate::launch::Launch::detect_hangs
//! [`Error::PeerLost`]: crate::Error::PeerLost
//! [`Error::Revoked`]: crate::Error::Revoked
//! [`Error::Timeout`]: crate::Error::Timeout
//! [`Error::Excluded`]: crate::Error::Excluded
//! [`Error::ResourceLimit`]: crate::Error::ResourceLimit
//! [`Error::Os`]: crate::Error::Os
//! [`Error::FailedElsewhere`]: crate::Error::FailedElsewhere
//! [`Error::Unavailable`]: crate::Error::Unavailable
//! [`Error::Exhausted`]: crate::Error::Exhausted
