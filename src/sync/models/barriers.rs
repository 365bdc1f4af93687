//! Models of all ranks meeting (B1).

use super::*;

struct Hall {
    world: Arc<World>,
    cells: Vec<BarrierCell>,
}

impl Hall {
    fn new(members: usize) -> Arc<Self> {
        let cells = (0..members).map(|_| BarrierCell::new(0)).collect();
        Arc::new(Self { world: World::new(), cells })
    }

    /// Each member writes its ghost, meets the others, and reads all ghosts; `passages` times.
    fn attend(&self, member: usize, passages: u64, policy: WaitPolicy) {
        let mut barrier = Barrier::new(&self.cells[..], &self.world.park, member, 0);
        for passage in 1..=passages {
            self.world.ghosts[member].write(passage);
            barrier.barrier(&self.world.waiting(policy)).unwrap();
            for ghost in &self.world.ghosts[..self.cells.len()] {
                assert!(ghost.read() >= passage);
            }
        }
    }
}

fn meet(members: usize, passages: u64, policy: WaitPolicy) {
    model(move || {
        let hall = Hall::new(members);
        let others: Vec<_> = (1..members)
            .map(|member| {
                let hall = Arc::clone(&hall);
                thread::spawn(move || hall.attend(member, passages, policy))
            })
            .collect();
        hall.attend(0, passages, policy);
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn two_members_that_poll_see_what_each_did_before() {
    meet(2, 2, POLL);
}

#[test]
fn two_members_that_sleep_wake_each_other_in_every_generation() {
    meet(2, 2, PARK);
}

#[test]
fn the_last_of_three_members_wakes_the_others() {
    meet(3, 1, PARK);
}

#[test]
fn who_finds_that_a_member_has_arrived_sees_what_it_did_before() {
    model(|| {
        let hall = Hall::new(2);
        let other = {
            let hall = Arc::clone(&hall);
            thread::spawn(move || {
                hall.world.ghosts[1].write(1);
                Barrier::new(&hall.cells[..], &hall.world.park, 1, 0).arrive(&hall.world.kernel);
            })
        };
        if hall.cells[1].shows(1) {
            assert_eq!(hall.world.ghosts[1].read(), 1);
        }
        other.join().unwrap();
    });
}

#[test]
fn a_member_that_arrives_and_does_not_wait_still_wakes_the_sleeper() {
    model(|| {
        let hall = Hall::new(3);
        let others = [1, 2].map(|member| {
            let hall = Arc::clone(&hall);
            thread::spawn(move || {
                hall.world.ghosts[member].write(1);
                Barrier::new(&hall.cells[..], &hall.world.park, member, 0).arrive(&hall.world.kernel);
            })
        });
        hall.attend(0, 1, PARK);
        for other in others {
            other.join().unwrap();
        }
    });
}
