//! Clients that leave while they wait: for a place at a server, or for its reply.

use std::net::Shutdown;

use longsplice_repair::{State, options::set_reset_on_close, tcp_info};
use longsplice_tests::{
    SOON, eventually,
    switch::{Backend, Client, Mode, More, Switch, content},
};

const MUTE: &str = "GET /mute HTTP/1.1\r\nHost: switch\r\n\r\n";
const GET: &str = "GET /length/10 HTTP/1.1\r\nHost: switch\r\n\r\n";

/// Starts a switch in front of a server that serves one at a time; a second listener forwards without reading.
fn switch(name: &str, listener: &str) -> (Switch, Backend) {
    let tables = format!(
        "[[listener]]\nname = \"tcp\"\nlisten = \":8081\"\nupstream = \"servers\"\n{listener}\n[[upstream]]\n\
         name = \"unused\"\nservers = [\"@SECOND@\"]\n"
    );
    let more = More {
        listener,
        upstream: "max_connections = 1\nqueue_timeout = \"1m\"",
        tables: &tables,
        ..More::default()
    };
    let switch = Switch::with(name, Mode::Plain, more);
    let server = Backend::start(&switch.net.server, switch.target());
    (switch, server)
}

fn wait_for(switch: &Switch, queued: u64, open: u64) {
    switch.daemon.wait_upstream("servers", queued, open);
}

/// Makes three waiting clients: one whose request is at the server, which does not reply, and one on either listener
/// that waits for a place there.
fn waiting(switch: &Switch) -> [Client; 3] {
    let mut served = switch.connect();
    served.send(MUTE);
    wait_for(switch, 0, 1);
    let mut queued = switch.connect();
    queued.send(GET);
    wait_for(switch, 1, 1);
    let mut front = switch.front();
    front.set_port(8081);
    let over_tcp = Client::connect(&switch.net.client, front);
    wait_for(switch, 2, 1);
    [served, queued, over_tcp]
}

#[test]
fn a_client_that_says_its_last_frees_its_place_where_that_is_configured() {
    let (switch, server) = switch("abort", "abort_on_close = true");
    let [served, queued, over_tcp] = waiting(&switch);
    for (client, left) in [(queued, 1), (over_tcp, 0)] {
        client.stream.shutdown(Shutdown::Write).unwrap();
        wait_for(&switch, left, 1);
    }
    served.stream.shutdown(Shutdown::Write).unwrap();
    wait_for(&switch, 0, 0);
    // The waiting clients have not reached the server, and it serves the next one.
    assert_eq!(server.take_seen().len(), 1);
    let mut next = switch.connect();
    assert_eq!(next.get("/length/10").status, 200);
}

#[test]
fn elsewhere_it_waits_on_and_gets_its_reply() {
    let (switch, _server) = switch("noabort", "");
    let [served, mut queued, _over_tcp] = waiting(&switch);
    queued.stream.shutdown(Shutdown::Write).unwrap();
    set_reset_on_close(&served.stream, true).unwrap();
    drop(served);
    assert_eq!(queued.reply().status, 200);
}

#[test]
fn a_client_that_was_reset_leaves_the_queue_whatever_is_configured() {
    let (switch, server) = switch("leaves", "");
    let [served, queued, over_tcp] = waiting(&switch);
    for (client, left) in [(queued, 1), (over_tcp, 0)] {
        set_reset_on_close(&client.stream, true).unwrap();
        drop(client);
        wait_for(&switch, left, 1);
    }
    set_reset_on_close(&served.stream, true).unwrap();
    drop(served);
    wait_for(&switch, 0, 0);
    assert_eq!(server.take_seen().len(), 1);
}

/// Some servers take the end of a client's stream for its wish that they stop.
#[test]
fn a_server_does_not_hear_of_it_before_the_end_of_its_reply() {
    const LONG: usize = 16 << 20;
    for mode in Mode::ALL {
        let switch = Switch::new("halfway", mode);
        let server = Backend::start(&switch.net.server, switch.target());
        let mut client = switch.connect();
        client.send(format!("GET /strict/{LONG} HTTP/1.1\r\nHost: switch\r\n\r\n"));
        client.stream.shutdown(Shutdown::Write).unwrap();
        eventually("the end of its half to come", SOON, || {
            (tcp_info(&client.stream).unwrap().state() == State::FinWait2).then_some(())
        });
        server.go_on();
        let reply = client
            .try_reply(false)
            .unwrap_or_else(|why| panic!("{mode:?}: {why}"));
        assert!(reply.body == content(LONG), "{mode:?}");
        client.expect_end();
    }
}
