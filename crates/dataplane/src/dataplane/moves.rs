//! Moves a flow between slot and records, or changes its mode, while segments pass: the kernel half does it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use longsplice_core::seq::Seq;

use super::Dataplane;
use crate::{
    abi::{Leg, PerSide, Pod, ls_move, ls_wake},
    flows::is_identity,
    mode::Mode,
    run,
    skel::types::ls_wake_how,
    slot::Slot,
};

impl Dataplane {
    /// Moves a spliced flow from its slot into its records; `toward` are the interfaces toward the far ends, hints. The
    /// slot is in mode Moved then. `NotFound`: a new connection has taken the flow's place. `ResourceBusy`: it was not in
    /// mode Final, and nothing has changed.
    pub fn demote(&self, slot: &Slot, legs: PerSide<Leg>, toward: PerSide<u32>) -> io::Result<()> {
        loop {
            match self.r#move(self.moves.demote.as_fd(), slot, legs, toward) {
                // It met a wake, which was refused: the sockets are parked as before.
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy && slot.mode() == Mode::Final => {}
                moved => return moved,
            }
        }
    }

    /// Moves a detached flow from its records into a free slot, which is in mode Final then, without sockets. `NotFound`:
    /// there is no such flow, or it has a slot. In that case neither record has changed, or the flow is being replaced.
    pub fn promote(&self, slot: &Slot, serial: u32, legs: PerSide<Leg>) -> io::Result<()> {
        slot.fill(serial, Default::default(), Mode::Final);
        self.r#move(self.moves.promote.as_fd(), slot, legs, PerSide::default())
    }

    fn r#move(
        &self,
        program: BorrowedFd<'_>,
        slot: &Slot,
        legs: PerSide<Leg>,
        toward: PerSide<u32>,
    ) -> io::Result<()> {
        let identity = PerSide::from_fn(|side| {
            let (leg, far) = (legs[side], legs[side.other()]);
            u32::from(is_identity(leg, far, &slot.leg(side).rec))
        });
        let argument = ls_move {
            key: legs.map(Leg::tuple).into(),
            slot: slot.index(),
            r#where: toward.into(),
            identity: identity.into(),
        };
        match (self.flows).at_rest(|| run::with_argument(program, argument.bytes()))? {
            0 => Ok(()),
            2 => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the flow's sockets are awake",
            )),
            _ => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the flow's records are gone",
            )),
        }
    }

    /// Takes the sockets of a slot back into the path, if they can carry on now. Returns the mode after it:
    /// [`Mode::Undrain`] if the pair is awake.
    pub fn wake(&self, slot: &Slot) -> io::Result<Mode> {
        self.change(slot, ls_wake_how::LS_W_GO_ON, PerSide::default(), false)
    }

    /// Switches from Final to Freeze: new data is held from now on. Returns the mode after it.
    pub fn freeze(&self, slot: &Slot) -> io::Result<Mode> {
        self.change(slot, ls_wake_how::LS_W_FREEZE, PerSide::default(), false)
    }

    /// Switches from Freeze to Track: the sockets have all forwarded bytes that the far ends may lack, the one toward
    /// each side from `acked` on (in that side's peer's acknowledgements). Returns the mode after it.
    pub fn take_over(&self, slot: &Slot, acked: PerSide<Seq>) -> io::Result<Mode> {
        self.change(slot, ls_wake_how::LS_W_TAKE_OVER, acked, false)
    }

    /// Switches from Drain to Final, if a local socket was given nothing since the pair was found drained at these cuts.
    /// Returns the mode after it. `wakeable`: the sockets could carry on at any moment, so a trap may wake them.
    pub fn finish(&self, slot: &Slot, cuts: PerSide<Seq>, wakeable: bool) -> io::Result<Mode> {
        self.change(slot, ls_wake_how::LS_W_FINISH, cuts, wakeable)
    }

    fn change(&self, slot: &Slot, how: ls_wake_how, at: PerSide<Seq>, wakeable: bool) -> io::Result<Mode> {
        let argument = ls_wake {
            slot: slot.index(),
            serial: slot.serial(),
            how: how.0,
            at: at.map(Seq::raw).into(),
            wakeable: wakeable.into(),
            mode: 0,
        };
        let answer: ls_wake = run::question(self.moves.wake.as_fd(), &argument)?;
        // A processor in the middle of a change may be stopped (by a virtual one's host) for longer than a program waits.
        Ok(Mode::from_raw(answer.mode).unwrap_or_else(|| slot.mode()))
    }
}
