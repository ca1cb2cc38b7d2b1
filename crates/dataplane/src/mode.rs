//! Names the modes of a slot.

use crate::skel::types::ls_mode;

/// Says how a slot treats packets. This process switches from Track to Drain to Final. The kernel half switches back to
/// Undrain, at a trap or on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Packets pass untouched.
    Free,
    /// Packets go to the sockets; sequence numbers are noted.
    Track,
    /// New payload is forwarded while the sockets deliver the old.
    Drain,
    /// Segments are translated by constants.
    Final,
    /// A new connection took the place of the closing flow.
    Replaced,
    /// A socket was reset while it held bytes.
    Aborted,
    /// New payload goes to the sockets while the ends deliver the forwarded bytes.
    Undrain,
    /// Segments are translated as in Final, but new payload is held for user space.
    Freeze,
    /// The records have the current state.
    Moved,
}

impl Mode {
    /// Converts the mode; `None` while a processor is just changing it (LS_WAKING).
    pub(crate) fn from_raw(raw: u32) -> Option<Mode> {
        Some(match ls_mode(raw) {
            ls_mode::LS_WAKING => return None,
            ls_mode::LS_TRACK => Mode::Track,
            ls_mode::LS_DRAIN => Mode::Drain,
            ls_mode::LS_FINAL => Mode::Final,
            ls_mode::LS_REPLACED => Mode::Replaced,
            ls_mode::LS_ABORTED => Mode::Aborted,
            ls_mode::LS_UNDRAIN => Mode::Undrain,
            ls_mode::LS_FREEZE => Mode::Freeze,
            ls_mode::LS_MOVED => Mode::Moved,
            _ => Mode::Free,
        })
    }

    /// Returns the kernel half's number of the mode.
    pub(crate) fn raw(self) -> u32 {
        match self {
            Mode::Free => ls_mode::LS_FREE,
            Mode::Track => ls_mode::LS_TRACK,
            Mode::Drain => ls_mode::LS_DRAIN,
            Mode::Final => ls_mode::LS_FINAL,
            Mode::Replaced => ls_mode::LS_REPLACED,
            Mode::Aborted => ls_mode::LS_ABORTED,
            Mode::Undrain => ls_mode::LS_UNDRAIN,
            Mode::Freeze => ls_mode::LS_FREEZE,
            Mode::Moved => ls_mode::LS_MOVED,
        }
        .0
    }
}
