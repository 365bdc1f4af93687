//! Signs of life: devices give them whether they have orders or not, and who gives too few of them hangs.

use super::CoordinatorMachine;
use crate::coordinator::id::DeviceId;
use crate::launch::HangRule;

impl CoordinatorMachine {
    /// When it looks next, if there is anybody to look for.
    pub(super) fn next_look_ms(&self) -> Option<u64> {
        (self.settings.hang_rule.is_some() && self.pool.len() > 0).then_some(self.looks_ms)
    }

    /// Looks, if it is time. A look that comes late is one look.
    pub(super) fn look_for_signs(&mut self) {
        let Some(rule) = self.settings.hang_rule.filter(|_| self.now_ms >= self.looks_ms) else { return };
        self.looks_ms = self.now_ms.saturating_add(period_ms(rule));
        let hung: Vec<DeviceId> = self.pool.look(rule);
        for device in hung {
            self.give_up_on(device, format!("it hangs, without a sign of life in {rule}"));
        }
    }
}

fn period_ms(rule: HangRule) -> u64 {
    u64::try_from(rule.period().as_millis()).unwrap_or(u64::MAX).max(1)
}
