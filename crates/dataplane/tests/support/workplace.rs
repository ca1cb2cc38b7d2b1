//! Hands data planes from test to test: loading the programs takes longer than most tests.

use std::{cell::RefCell, fs::File, rc::Rc};

use parking_lot::Mutex;

use super::{net::Net, plane::Plane};

/// Idle data planes, each with its namespace if that is in its original state.
static IDLE: Mutex<Vec<(Plane, Option<File>)>> = Mutex::new(Vec::new());

thread_local! {
    /// Last data plane of this test.
    static LAST: RefCell<Last> = const { RefCell::new(Last(None)) };
}

struct Last(Option<(Rc<Plane>, Rc<Net>)>);

impl Last {
    /// Gives up the old one. Returns those parts that are as good as new, if no test uses them.
    fn take(&mut self) -> Option<(Plane, Option<Net>)> {
        let (plane, net) = self.0.take()?;
        let is_clean = Rc::strong_count(&plane) == 1 && net.is_here() && plane.is_clean();
        let plane = Rc::into_inner(plane).filter(|_| is_clean)?;
        Some((plane, Rc::into_inner(net).filter(Net::is_pristine)))
    }

    /// Takes the old one, or an idle one, or a new one.
    fn renew(&mut self) {
        let old = self.take();
        let idle = || {
            let (plane, namespace) = IDLE.lock().pop()?;
            Some((plane, namespace.map(Net::enter)))
        };
        let (plane, net) = match old.or_else(idle) {
            Some((plane, Some(net))) => (plane, net),
            Some((plane, None)) => {
                let net = Net::new();
                plane.move_here(net.inode());
                (plane, net)
            }
            None => {
                let net = Net::new();
                (Plane::open(), net)
            }
        };
        self.0 = Some((Rc::new(plane), Rc::new(net)));
    }
}

impl Drop for Last {
    /// Returns the data plane to the idle ones at the end of the test.
    fn drop(&mut self) {
        if let Some((plane, net)) = self.take() {
            IDLE.lock().push((plane, net.map(Net::leave)));
        }
    }
}

/// Returns a data plane in its namespace without any flow, which no other test uses.
pub fn workplace() -> (Rc<Plane>, Rc<Net>) {
    LAST.with_borrow_mut(|last| {
        last.renew();
        last.0.clone().expect("it is there")
    })
}
