//! Checks that the kernel half would outlive this process: its pins can be removed by hand.

use longsplice_dataplane::Dataplane;
use parking_lot::Mutex;

/// State of the pins.
#[derive(Debug, Default)]
pub(crate) struct Pinning {
    /// Reason that they cannot be put back; `None`: they are in place.
    lost: Mutex<Option<String>>,
}

impl Pinning {
    /// Puts back pins that were removed, and logs that once. Spliced flows run on either way. If the pins cannot be put
    /// back, other pairs stay in the relay.
    pub(crate) fn look(&self, plane: &Dataplane) {
        match plane.mend_pins() {
            Ok(0) => {}
            Ok(pins) => {
                tracing::warn!(
                    pins,
                    "pins of this instance were removed, and are put back: without them spliced flows would end with this process"
                );
                *self.lost.lock() = None;
            }
            Err(error) => {
                if self.lost.lock().replace(error.to_string()).is_none() {
                    tracing::warn!(
                        %error,
                        "pins of this instance were removed and cannot be put back: new connections are relayed, and those that are \
                         spliced would end with this process"
                    );
                }
            }
        }
    }

    /// Returns true if a flow that is spliced now would outlive this process.
    pub(crate) fn holds(&self) -> bool {
        self.lost.lock().is_none()
    }

    /// Returns the reason that it would not.
    pub(crate) fn why_lost(&self) -> Option<String> {
        self.lost.lock().clone()
    }
}
