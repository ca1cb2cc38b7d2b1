//! The legs of a session have the congestion control that the configuration names, also after a spliced reply.

use longsplice_tests::switch::{Backend, Mode, More, Switch};

#[test]
fn a_leg_to_a_server_keeps_its_own_over_a_spliced_reply() {
    for mode in Mode::ALL {
        let more = More {
            upstream: "congestion = \"reno\"",
            ..More::default()
        };
        let switch = Switch::with("reno", mode, more);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        for _ in 0..2 {
            switch.get_halves(&mut client, &server);
            assert_eq!(client.get("/a").text(), "ok");
            let to = switch.target().to_string();
            let ss = ["-tnHi", "state", "established", "dst", &to];
            let legs = switch.net.forwarder.command("ss").args(ss).output().unwrap();
            let legs = String::from_utf8_lossy(&legs.stdout).into_owned();
            assert!(
                legs.split_whitespace().any(|word| word == "reno"),
                "{mode:?}: {legs}"
            );
        }
        assert_eq!(server.connections(), 1, "{mode:?}");
    }
}
