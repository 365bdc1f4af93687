//! The rules that no history may break.

use std::collections::{BTreeMap, BTreeSet};

use super::world::World;
use crate::coordinator::call::GroupWork;
use crate::coordinator::id::DeviceId;
use crate::coordinator::machine::CoordinatorMachine;
use crate::coordinator::machine::comm::{Comm, CommStage};
use crate::coordinator::machine::repeat::{MOST_TRIES, Repeat};
use crate::coordinator::order::{CommFormation, DeviceMembership, DevicePhase};
use crate::coordinator::request::{CommState, CommStatus};

/// Checks what has to hold after every step.
///
/// # Errors
/// The rule that was broken, and by which device or communicator.
pub(super) fn always(world: &World) -> Result<(), String> {
    if let Some(machine) = &world.machine {
        one_owner(machine)?;
        for comm in machine.comms.values() {
            ready_together(world, comm)?;
            calls_fit(comm)?;
            what_is_finalized_takes_nothing_more(comm)?;
            newest_group_is_known(world, comm)?;
            nobody_is_lost_by_mistake(world, comm)?;
            failed_groups_are_taken_back(world, comm)?;
            tries_come_to_an_end(comm)?;
        }
        what_has_ended_says_so(machine)?;
        free_devices_are_free(world, machine)?;
        what_is_counted_adds_up(world, machine)?;
    }
    one_ready_epoch(world)?;
    if let Some(left) = world.killed.iter().find(|killed| world.devices.contains_key(killed)) {
        return Err(format!("device {left} was given up and is the coordinator's own, and lives"));
    }
    match world.asked.iter().find(|(_, answers)| **answers > 1) {
        Some((request, answers)) => Err(format!("request {request:?} was answered {answers} times")),
        None => Ok(()),
    }
}

/// Checks what has to hold when nothing happens any more.
///
/// # Errors
/// The rule that was broken, and by which device or communicator.
pub(super) fn at_rest(world: &World) -> Result<(), String> {
    let machine = world.machine.as_ref().ok_or("no coordinator")?;
    if let Some((request, _)) = world.asked.iter().find(|(_, answers)| **answers == 0) {
        return Err(format!("request {request:?} was not answered"));
    }
    for (device, is) in &world.devices {
        let Some(found) = machine.table.get(*device) else {
            return Err(format!("device {device} is lost to the coordinator"));
        };
        let is_held = found.owner.is_some_and(|owner| machine.comms.contains_key(&owner));
        // A device whose worker hangs never leaves its communicator.
        if !found.is_free() && !is_held && !is.is_stuck {
            return Err(format!("device {device} is neither free nor anybody's"));
        }
    }
    let is_quiet = |stage: &CommStage| matches!(stage, CommStage::Ready | CommStage::Failed { .. });
    match machine.comms.values().find(|comm| !is_quiet(&comm.stage)) {
        Some(comm) => Err(format!("communicator {} stays {:?}", comm.id, comm.stage)),
        None => Ok(()),
    }
}

/// Returns the devices with an order that is not confirmed, as far as the coordinator knows.
pub(super) fn unheard(machine: &CoordinatorMachine) -> BTreeSet<DeviceId> {
    machine.table.iter().filter(|(_, device)| device.unconfirmed_since.is_some()).map(|(id, _)| id).collect()
}

/// Checks that the patience with an order begins when it is given.
///
/// # Errors
/// The device with which it began earlier.
pub(super) fn stamped_now(
    before: &BTreeSet<DeviceId>,
    machine: &CoordinatorMachine,
    now_ms: u64,
) -> Result<(), String> {
    let stamps = machine.table.iter().filter(|(id, _)| !before.contains(id));
    let mut stamps = stamps.filter_map(|(id, device)| Some((id, device.unconfirmed_since?)));
    match stamps.find(|(_, since)| *since != now_ms) {
        Some((id, since)) => Err(format!("device {id} got an order at {now_ms} that is stamped {since}")),
        None => Ok(()),
    }
}

/// Checks that a device belongs to one communicator, and both agree on that.
fn one_owner(machine: &CoordinatorMachine) -> Result<(), String> {
    let mut owners = BTreeMap::new();
    for comm in machine.comms.values() {
        let unique: BTreeSet<_> = comm.members.iter().collect();
        if unique.len() != comm.members.len() {
            return Err(format!("communicator {} has a member twice", comm.id));
        }
        let is_loose = matches!(comm.stage, CommStage::Leaving { .. } | CommStage::Adopting { .. });
        for member in comm.living() {
            let owner = machine.table.get(member).and_then(|device| device.owner);
            if owner != Some(comm.id) && !is_loose {
                return Err(format!(
                    "device {member} is of communicator {}, and is given to {owner:?}",
                    comm.id
                ));
            }
            if owner == Some(comm.id) && owners.insert(member, comm.id).is_some() {
                return Err(format!("device {member} has two owners"));
            }
        }
        for newcomer in &comm.newcomers {
            let owner = machine.table.get(*newcomer).and_then(|device| device.owner);
            if owner == Some(comm.id) && owners.insert(*newcomer, comm.id).is_some() {
                return Err(format!("newcomer {newcomer} has two owners"));
            }
        }
    }
    match machine.table.iter().find(|(id, device)| device.owner != owners.get(id).copied()) {
        Some((id, device)) => {
            Err(format!("device {id} is given to {:?}, which does not have it", device.owner))
        }
        None => Ok(()),
    }
}

/// Checks that all members of a ready communicator are in its epoch.
fn ready_together(world: &World, comm: &Comm) -> Result<(), String> {
    if comm.stage != CommStage::Ready {
        return Ok(());
    }
    for member in &comm.members {
        let Some(device) = world.devices.get(member).filter(|device| device.is_connected()) else { continue };
        let membership = device.agent.report().membership.as_ref();
        let is_there = |it: &&DeviceMembership| {
            let is_busy = matches!(
                it.phase,
                DevicePhase::Joining(_)
                    | DevicePhase::Growing { .. }
                    | DevicePhase::GoingOn(_)
                    | DevicePhase::Running(_)
            );
            !is_busy
                && (it.formation.comm, it.formation.epoch, &it.formation.members)
                    == (comm.id, comm.epoch, &comm.members)
        };
        if membership.filter(is_there).is_none() {
            return Err(format!(
                "communicator {} is ready in epoch {}, device {member} is in {membership:?}",
                comm.id, comm.epoch
            ));
        }
    }
    Ok(())
}

/// Checks that groups have begun before they ended, and devices have registered, if this
/// coordinator has seen all of it.
fn what_is_counted_adds_up(world: &World, machine: &CoordinatorMachine) -> Result<(), String> {
    let counts = machine.counts;
    let running =
        machine.comms.values().filter(|comm| matches!(comm.stage, CommStage::Running { .. })).count();
    let has_begun = counts.started >= counts.succeeded + counts.failed + running as u64;
    let are_here = counts.registered == counts.lost + machine.table.len() as u64;
    if are_here && (has_begun || world.seen.contains("restart")) {
        return Ok(());
    }
    Err(format!(
        "{} devices are here, {running} groups run, and counted were {counts:?}",
        machine.table.len()
    ))
}

/// Checks that a finalized communicator executes its last group, perhaps again, or is being left.
fn what_is_finalized_takes_nothing_more(comm: &Comm) -> Result<(), String> {
    let is_busy = matches!(comm.stage, CommStage::Running { .. } | CommStage::Leaving { .. });
    if comm.ending && !is_busy && comm.repeat.is_none() {
        return Err(format!("communicator {} was finalized, and is {:?}", comm.id, comm.stage));
    }
    Ok(())
}

/// Checks that a remembered communicator has ended, and says how.
fn what_has_ended_says_so(machine: &CoordinatorMachine) -> Result<(), String> {
    let is_told = |it: &CommStatus| match it.state {
        CommState::Finalized => it.why.is_none(),
        state => state.has_ended() && it.why.is_some(),
    };
    match machine.ended.values().find(|it| !is_told(it)) {
        Some(it) => Err(format!("communicator {} has ended as {it:?}", it.comm)),
        None => Ok(()),
    }
}

/// Checks that calls have an address for each member.
fn calls_fit(comm: &Comm) -> Result<(), String> {
    let running = match &comm.stage {
        CommStage::Running { work: GroupWork::Calls(calls) } => Some(calls),
        _ => None,
    };
    match running
        .into_iter()
        .chain(comm.open.as_ref().map(|open| &open.calls))
        .flatten()
        .find(|it| it.send.len() != comm.members.len())
    {
        Some(call) => Err(format!("communicator {} has {:?}, and {call:?}", comm.id, comm.members)),
        None => Ok(()),
    }
}

/// Checks that a ready communicator knows how its newest group has ended, or that it cannot know.
fn newest_group_is_known(world: &World, comm: &Comm) -> Result<(), String> {
    let is_known = match &comm.last {
        Some(last) => last.group == comm.groups,
        None => comm.groups == 0 || world.seen.contains("restart"),
    };
    match comm.stage {
        CommStage::Ready if !is_known => Err(format!(
            "communicator {} is ready after group {}, and knows {:?}",
            comm.id, comm.groups, comm.last
        )),
        _ => Ok(()),
    }
}

/// Checks that a lost device has died or was dropped, or the coordinator has not known it.
fn nobody_is_lost_by_mistake(world: &World, comm: &Comm) -> Result<(), String> {
    match comm.lost.iter().find(|lost| world.devices.contains_key(lost) && !world.dropped.contains(lost)) {
        Some(lost) if !world.seen.contains("restart") => {
            Err(format!("communicator {} has lost device {lost}, which was there all the time", comm.id))
        }
        _ => Ok(()),
    }
}

/// Checks that the members of an epoch that may work have taken back what has failed before.
fn failed_groups_are_taken_back(world: &World, comm: &Comm) -> Result<(), String> {
    // Another coordinator may not know of the failure.
    let works = matches!(comm.stage, CommStage::Ready | CommStage::Running { .. });
    if !works || world.seen.contains("restart") {
        return Ok(());
    }
    for member in comm.living() {
        let device = world.devices.get(&member).filter(|device| device.is_in(comm.id, comm.epoch));
        let mut executed = device.into_iter().flat_map(|device| &device.memory.executed);
        if let Some(group) = executed.find(|group| world.failed.contains(&(comm.id, **group))) {
            return Err(format!(
                "group {group} of communicator {} has failed, device {member} has it",
                comm.id
            ));
        }
    }
    Ok(())
}

/// Checks that no group is repeated for ever, and that its calls have an address for each member.
fn tries_come_to_an_end(comm: &Comm) -> Result<(), String> {
    let Some(Repeat { calls, failures }) = &comm.repeat else { return Ok(()) };
    let fits = calls.iter().all(|call| call.send.len() == comm.members.len());
    match *failures < MOST_TRIES && fits {
        true => Ok(()),
        false => {
            Err(format!("communicator {} of {:?} repeats {calls:?}, {failures} times", comm.id, comm.members))
        }
    }
}

/// Checks that devices that count as free are in no communicator.
fn free_devices_are_free(world: &World, machine: &CoordinatorMachine) -> Result<(), String> {
    for (id, _) in machine.table.iter().filter(|(_, device)| device.is_free()) {
        let Some(device) = world.devices.get(&id).filter(|device| device.is_connected()) else { continue };
        if device.agent.comm().is_some() || !device.inbox.is_empty() {
            return Err(format!("device {id} counts as free, and is in {:?}", device.agent.comm()));
        }
    }
    Ok(())
}

/// Checks that no two epochs of a communicator are alive, after a loss or growing.
fn one_ready_epoch(world: &World) -> Result<(), String> {
    let mut alive = BTreeMap::new();
    for device in world.devices.values() {
        let Some(membership) = &device.agent.report().membership else { continue };
        let Some(job) = &device.job else { continue };
        let is_up = matches!(membership.phase, DevicePhase::Ready(_) | DevicePhase::Running(_));
        let CommFormation { comm, incarnation, epoch, .. } = membership.formation;
        let place = (job.clone(), epoch);
        if is_up && world.network.epochs.get(&place).is_some_and(|epoch| !epoch.has_ended) {
            let other = alive.entry((comm, incarnation)).or_insert_with(|| place.clone());
            if *other != place {
                return Err(format!("epochs {other:?} and {place:?} of {comm} are both ready"));
            }
        }
    }
    Ok(())
}
