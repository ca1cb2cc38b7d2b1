//! An unrequested reply of a server never reaches the next client.

use longsplice_tests::{
    soon,
    switch::{Backend, Mode, Switch, content},
};

#[test]
fn a_second_reply_ends_its_connection_and_answers_nothing() {
    for mode in Mode::ALL {
        let switch = Switch::new("unasked", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        for n in 1..=10 {
            let mut client = switch.connect();
            let half = switch.get_half("twice", &mut client);
            server.go_on();
            switch.get_other_half(half, &mut client);
            soon("the second one has come", || server.unasked() == n);
            // Send another client's request right after that.
            let mut other = switch.connect();
            assert!(other.get("/length/1000").body == content(1000), "{mode:?}");
            assert_eq!(client.get("/length/10").body, content(10), "{mode:?}");
        }
        switch.assert_mode();
    }
}
