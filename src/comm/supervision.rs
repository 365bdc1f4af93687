//! The line to the launcher, which a rank keeps from epoch to epoch.
//!
//! The launcher numbers ranks as the first epoch does. What it reports, and its own end, ends every epoch that the rank is in
//! and that concerns it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::bootstrap::{Link, LinkEvent, LinkWatch};
use crate::channel::World;
use crate::error::{DeviceName, Result};
use crate::rank::Rank;
use crate::sync::Revocation;

/// A line to the launcher that is listened to.
#[derive(Debug)]
pub(super) struct Supervision {
    // Dropped before the link says good-bye.
    _watch: LinkWatch,
    link: Link,
    followed: Arc<Mutex<Vec<Followed>>>,
}

/// An epoch that ends with what the launcher reports.
#[derive(Debug)]
struct Followed {
    world: Weak<World>,
    /// The launcher's number of each of its ranks that the launcher has started.
    numbers: Vec<Option<Rank>>,
}

impl Supervision {
    /// Listens to `link` in the epoch of `world`, the job's first.
    ///
    /// # Errors
    /// Those of [`Link::watch`].
    pub(super) fn begin(link: Link, world: &Arc<World>) -> Result<Self> {
        let numbers = (0..world.n_ranks()).map(Rank::known).map(Some).collect();
        let followed = Arc::new(Mutex::new(vec![Followed { world: Arc::downgrade(world), numbers }]));
        let listening = Arc::clone(&followed);
        let watch = link.watch(move |event| lock(&listening).iter().for_each(|epoch| epoch.hear(event)))?;
        Ok(Self { _watch: watch, link, followed })
    }

    /// Follows the epoch of `world`, too, from now on, whose ranks the launcher knows by `numbers`.
    pub(super) fn follow(&self, world: &Arc<World>, numbers: Vec<Option<Rank>>) {
        let mut followed = lock(&self.followed);
        followed.retain(|epoch| epoch.world.strong_count() > 0);
        followed.push(Followed { world: Arc::downgrade(world), numbers });
    }

    /// Tells the launcher that a device is lost, by the number that the launcher has for it.
    pub(super) fn report(&self, lost: DeviceName) {
        self.link.report_loss(lost);
    }
}

impl Followed {
    fn hear(&self, event: LinkEvent) {
        let Some(world) = self.world.upgrade() else { return };
        let reason = match event {
            LinkEvent::Lost(DeviceName::Rank(lost)) => {
                // One that was left behind before concerns nobody here.
                let Some(rank) = self.numbers.iter().position(|number| *number == Some(lost)) else { return };
                Revocation::PeerLost(Rank::known(u32::try_from(rank).expect("at most 64 ranks")))
            }
            LinkEvent::Lost(DeviceName::Proxy) => Revocation::ProxyLost,
            LinkEvent::LauncherGone => Revocation::Aborted(None),
        };
        world.control().revoke(world.kernel(), reason);
    }
}

fn lock(followed: &Mutex<Vec<Followed>>) -> MutexGuard<'_, Vec<Followed>> {
    // One is added as a whole: a panic leaves nothing half done.
    followed.lock().unwrap_or_else(PoisonError::into_inner)
}
