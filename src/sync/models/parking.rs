//! Models of going to sleep (P1, P2).

use super::*;

#[test]
fn no_wake_is_missed_between_the_last_look_and_the_sleep() {
    model(|| {
        let world = World::new();
        let waker = spawn(&world, |world| {
            world.ghosts[0].write(1);
            world.park.wake(&world.kernel);
        });
        world.wait_for_ghost(0, PARK).unwrap();
        waker.join().unwrap();
    });
}

#[test]
fn two_sleepers_on_one_cell_each_get_their_own_news() {
    // The first to be woken wakes the second: neither may sleep through a wake that the other consumed, nor on
    // a bit that the other has set again.
    model(|| {
        let world = World::new();
        let first = spawn(&world, |world| {
            world.wait_for_ghost(0, PARK).unwrap();
            world.ghosts[1].write(1);
            world.park.wake(&world.kernel);
        });
        let second = spawn(&world, |world| world.wait_for_ghost(1, PARK).unwrap());
        world.ghosts[0].write(1);
        world.park.wake(&world.kernel);
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn one_wake_reaches_all_sleepers_of_a_cell() {
    model(|| {
        let world = World::new();
        let sleepers = [0, 1].map(|_| spawn(&world, |world| world.wait_for_ghost(0, PARK).unwrap()));
        world.ghosts[0].write(1);
        world.park.wake(&world.kernel);
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    });
}

#[test]
fn two_wakers_do_not_leave_each_others_sleeper_asleep() {
    model(|| {
        let world = World::new();
        let wakers = [0, 1].map(|index| {
            spawn(&world, move |world| {
                world.ghosts[index].write(1);
                world.park.wake(&world.kernel);
            })
        });
        let both = || (world.ghosts[0].read() & world.ghosts[1].read() == 1).then_some(());
        wait_until(&world.waiting(PARK), &world.park, both).unwrap();
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}
