//! Proxies in a world of this process: when they count, when they stop, whom they wake.

use std::time::Duration;

use super::super::fabric::Fabric;
use super::super::testing::world;
use super::*;

const OWN: Rank = Rank::known(0);

#[test]
fn a_service_process_counts_as_a_spinner_while_it_is_awake() {
    let world = world(2, |world| world);
    let alone = || Fabric::new(Arc::clone(&world), OWN, 1, Duration::from_secs(20)).unwrap();
    let (beside, elsewhere) = (alone().beside_service(), alone());
    let doorbell = world.control().proxy_doorbell();
    let policies = || (beside.policy(), elsewhere.policy());
    assert_eq!(policies(), (WaitPolicy::CROWDED, WaitPolicy::DEDICATED));
    doorbell.announce(world.kernel());
    assert_eq!(policies(), (WaitPolicy::DEDICATED, WaitPolicy::DEDICATED));
    // What whoever pushes does, before it waits.
    doorbell.wake(world.kernel());
    assert_eq!(policies(), (WaitPolicy::CROWDED, WaitPolicy::DEDICATED));
    assert!(!beside.crowded(), "what is tuned for leaves proxies aside");
}
