//! Who has to go where there are too many, or what they have sent and not read is too much.

use super::Coordinator;
use super::peer::{Kind, MAX_CLIENTS, Room};
use crate::coordinator::frame::MAX_MESSAGE;
use crate::coordinator::id::DeviceId;
use crate::coordinator::machine::MAX_DEVICES;

/// How much may be kept for all peers together: of messages that have not come whole, and of those that have not been read.
const MAX_BURDEN: usize = 64 * MAX_MESSAGE;

impl Coordinator {
    /// What room there is for one who may be about to greet, or `None` where nobody is there.
    pub(super) fn room(&self, number: u64) -> Option<Room> {
        let peer = self.peers.get(&number)?;
        if !matches!(peer.kind, Kind::Stranger { .. }) {
            return Some(Room::default());
        }
        let is_back = self.devices.contains_key(&DeviceId::new(peer.pid));
        let is_full_of_clients = self.clients() >= MAX_CLIENTS && self.most_idle().is_none();
        Some(Room { is_full_of_devices: self.devices.len() >= MAX_DEVICES && !is_back, is_full_of_clients })
    }

    /// Parts with the client that has waited for no answer for longest, where the newest one is one too many.
    pub(super) fn make_room(&mut self) {
        if self.clients() > MAX_CLIENTS {
            self.most_idle().into_iter().for_each(|number| self.part(number));
        }
    }

    fn clients(&self) -> usize {
        self.peers.values().filter(|peer| matches!(peer.kind, Kind::Client { .. })).count()
    }

    fn most_idle(&self) -> Option<u64> {
        let idle = self.peers.iter().filter_map(|(number, peer)| Some((peer.idle_since()?, *number)));
        idle.min().map(|(_, number)| number)
    }

    /// Parts with those for whom most is kept, until it is not too much.
    pub(super) fn unburden(&mut self) {
        let burden = |it: &Self| it.peers.values().map(|peer| peer.link.burden()).sum::<usize>();
        while burden(self) > MAX_BURDEN {
            let most =
                self.peers.iter().max_by_key(|(_, peer)| peer.link.burden()).map(|(number, _)| *number);
            most.into_iter().for_each(|number| self.part(number));
        }
    }
}
