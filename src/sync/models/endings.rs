//! Models of how an epoch ends and of how a rank does.

use super::*;

mod r1_revoke {
    use super::*;

    #[test]
    fn a_revocation_wakes_a_sleeper_that_nobody_signals() {
        model(|| {
            let world = World::new();
            let sleeper = spawn(&world, |world| world.wait_for_ghost(0, PARK));
            world.revoke.revoke(&world.kernel, Revocation::PeerLost(known(2)));
            assert_eq!(sleeper.join().unwrap(), Err(Stop::PeerLost(known(2))));
        });
    }

    #[test]
    fn a_revocation_carries_what_the_revoker_knew() {
        model(|| {
            let world = World::new();
            let revoker = spawn(&world, |world| {
                world.ghosts[0].write(7);
                world.revoke.revoke(&world.kernel, Revocation::ProxyLost);
            });
            if world.revoke.read().is_some() {
                assert_eq!(world.ghosts[0].read(), 7);
            }
            revoker.join().unwrap();
        });
    }

    #[test]
    fn what_was_signalled_before_the_revocation_is_still_received() {
        for policy in [POLL, PARK] {
            model(move || {
                let world = World::new();
                let revoker = spawn(&world, |world| {
                    world.ghosts[0].write(1);
                    world.revoke.revoke(&world.kernel, Revocation::Aborted(None));
                });
                assert_eq!(world.wait_for_ghost(0, policy), Ok(()));
                revoker.join().unwrap();
            });
        }
    }

    #[test]
    fn the_first_reason_stands_for_everybody() {
        model(|| {
            let world = World::new();
            let other =
                spawn(&world, |world| world.revoke.revoke(&world.kernel, Revocation::PeerLost(known(1))));
            let mine = world.revoke.revoke(&world.kernel, Revocation::Aborted(Some(known(0))));
            let theirs = other.join().unwrap();
            assert_eq!(mine, theirs);
            assert_eq!(world.revoke.read(), Some(mine));
        });
    }
}

mod l1_end {
    use super::*;

    const THREAD: u32 = 4711;

    fn carries(
        end: impl Fn(&World) + Copy + Send + Sync + 'static,
        look: impl Fn(&LifeCell) -> LifeStatus + Copy + Send + Sync + 'static,
    ) {
        model(move || {
            let world = World::new();
            world.life.take(&world.kernel, THREAD).unwrap();
            let rank = spawn(&world, move |world| {
                world.ghosts[0].write(7);
                end(world);
            });
            if look(&world.life) != LifeStatus::Alive {
                assert_eq!(world.ghosts[0].read(), 7);
            }
            rank.join().unwrap();
        });
    }

    #[test]
    fn leaving_carries_what_the_rank_did() {
        carries(|world| world.life.leave(&world.kernel, THREAD), LifeCell::status);
    }

    #[test]
    fn giving_a_rank_up_carries_what_was_known() {
        carries(|world| world.life.mark_lost(&world.kernel), LifeCell::status);
    }

    #[test]
    fn a_watcher_acquires_it_too() {
        carries(|world| world.life.mark_lost(&world.kernel), |cell| cell.observe().0);
    }

    #[test]
    fn a_watcher_never_sleeps_through_the_end() {
        model(|| {
            let world = World::new();
            world.life.take(&world.kernel, THREAD).unwrap();
            let watcher = spawn(&world, |world| {
                loop {
                    let (status, word) = world.life.observe();
                    if status == LifeStatus::Lost {
                        break;
                    }
                    world.kernel.sleep(&[word, world.revoke.bell()], Duration::MAX);
                }
            });
            world.life.mark_lost(&world.kernel);
            watcher.join().unwrap();
        });
    }
}
