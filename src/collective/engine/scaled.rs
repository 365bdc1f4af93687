//! Sums of inputs that each member multiplies by a scalar of its own, which the others need not know.

use super::Engine;
use crate::collective::algorithm::Manner;
use crate::collective::call::Call;
use crate::collective::staged::{self, Form};
use crate::collective::{noting, small, team::Team};
use crate::error::Result;

impl AsMut<Team> for Engine {
    fn as_mut(&mut self) -> &mut Team {
        &mut self.team
    }
}

impl Engine {
    /// Executes `call`, a sum of scaled inputs, in `manner`: multiplied in the scratch, and added there by whatever way suits.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    #[inline(never)]
    pub(super) fn run_scaled(&mut self, call: &mut Call<'_>, manner: Manner) -> Result<()> {
        call.check_manner(manner)?;
        small::input_len(call, self.team.n_members())?;
        // Where members differ is found here: what they add has another operator, and may have another type.
        let met = self.team.board.meet(call.summary().in_manner(manner), call.operation, [0; 2], &[]);
        noting::prepare(&mut self.team, call);
        let execute = |engine: &mut Self, piece: &mut Call<'_>| engine.execute(piece, manner);
        let done = met.and_then(|()| staged::run(self, call, Form::Widened, execute));
        self.team.board.or_revoke(done)
    }
}
