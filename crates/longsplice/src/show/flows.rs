//! Shows flows for `longsplice flows`.

use longsplice_engine::{FlowInfo, FlowState};

use super::{
    age, bytes, nanoseconds,
    table::{Align, Table},
};
use crate::{accelerator::PassedThrough, admin::Listed};

/// Returns a table with a line for each flow: the legs as the client and the server see them. Connections that an
/// accelerator has passed through come last.
pub(crate) fn flows(listed: &[Listed]) -> String {
    if listed.is_empty() {
        return "no flows\n".to_owned();
    }
    use Align::{Left, Right};
    let mut table = Table::new(vec![
        ("ID", Right),
        ("STATE", Left),
        ("CLIENT", Left),
        ("LISTENER", Left),
        ("SOURCE", Left),
        ("SERVER", Left),
        ("TO SERVER", Right),
        ("TO CLIENT", Right),
        ("AGE", Right),
        ("IDLE", Right),
        ("ROUND TRIPS", Left),
        ("REASON", Left),
    ]);
    for one in listed {
        table.row(match one {
            Listed::Flow(flow) => flow_cells(flow),
            Listed::PassedThrough(passed) => passed_cells(passed),
        });
    }
    table.to_string()
}

/// Returns the cells of a flow. Its reason is why it is not spliced.
fn flow_cells(flow: &FlowInfo) -> Vec<String> {
    vec![
        flow.id.to_string(),
        state(flow),
        flow.client.peer.to_string(),
        flow.client.local.to_string(),
        flow.server.local.to_string(),
        flow.server.peer.to_string(),
        bytes(flow.to_server.bytes),
        bytes(flow.to_client.bytes),
        age(flow.age_seconds),
        flow.idle_seconds.map_or_else(nothing, age),
        round_trips(flow),
        flow.reason.map(|r| r.to_string()).unwrap_or_default(),
    ]
}

/// Returns the cells of a connection that was passed through. Its reason is why it was not taken over.
fn passed_cells(passed: &PassedThrough) -> Vec<String> {
    let (client, server) = (passed.client.to_string(), passed.server.to_string());
    vec![
        nothing(),
        "passed through".to_owned(),
        client.clone(),
        server.clone(),
        client,
        server,
        nothing(),
        nothing(),
        age(passed.age_seconds as f64),
        nothing(),
        nothing(),
        passed.reason.clone(),
    ]
}

fn nothing() -> String {
    "-".to_owned()
}

/// Returns the round-trip times of both legs, as far as they are known.
fn round_trips(flow: &FlowInfo) -> String {
    let time = |micros: Option<u64>| {
        micros.map_or_else(
            || "?".to_owned(),
            |micros| nanoseconds(micros.saturating_mul(1_000)),
        )
    };
    match (flow.client_round_trip_us, flow.server_round_trip_us) {
        (None, None) => nothing(),
        (client, server) => format!("{} + {}", time(client), time(server)),
    }
}

fn state(flow: &FlowInfo) -> String {
    let state = match flow.state {
        FlowState::Relay => "relay",
        FlowState::Coupling => "coupling",
        FlowState::Draining => "draining",
        FlowState::Dormant => "dormant",
        FlowState::Detached => "detached",
        FlowState::Undraining => "undraining",
        FlowState::Closing => "closing",
    };
    match flow.is_identity() {
        true => format!("{state}, identity"),
        false => state.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use longsplice_engine::{DirectionInfo, FlowId, LegInfo, reason::RelayReason};

    use super::*;
    use crate::accelerator::passed::PassedState;

    #[test]
    fn a_table_is_aligned() {
        let leg = |peer: &str, local: &str| LegInfo {
            peer: peer.parse().unwrap(),
            local: local.parse().unwrap(),
        };
        let direction = |bytes| DirectionInfo {
            bytes,
            ..DirectionInfo::default()
        };
        let one = FlowInfo {
            id: FlowId(7),
            client: leg("198.18.0.1:50000", "198.18.0.2:80"),
            server: leg("198.18.1.2:80", "198.18.1.1:20000"),
            state: FlowState::Detached,
            reason: None,
            to_server: direction(10),
            to_client: direction(3 << 30),
            age_seconds: 75.0,
            idle_seconds: None,
            client_round_trip_us: None,
            server_round_trip_us: None,
            rules: Vec::new(),
            ruled: None,
        };
        let two = FlowInfo {
            id: FlowId(12),
            client: leg("[2001:db8::1]:50000", "[2001:db8::2]:80"),
            state: FlowState::Relay,
            reason: Some(RelayReason::LinkLocal),
            idle_seconds: Some(1.5),
            client_round_trip_us: Some(300),
            server_round_trip_us: Some(92_000),
            ..one.clone()
        };
        let three = PassedThrough {
            state: PassedState::PassedThrough,
            client: "198.18.0.1:50001".parse().unwrap(),
            server: "198.18.1.2:80".parse().unwrap(),
            reason: "short_path".to_owned(),
            age_seconds: 3,
        };
        let listed = [
            Listed::Flow(Box::new(one)),
            Listed::Flow(Box::new(two)),
            Listed::PassedThrough(three),
        ];
        assert_eq!(
            flows(&listed),
            "\
ID  STATE           CLIENT               LISTENER          SOURCE            SERVER         TO SERVER  TO CLIENT    AGE  IDLE  ROUND TRIPS         REASON
 7  detached        198.18.0.1:50000     198.18.0.2:80     198.18.1.1:20000  198.18.1.2:80       10 B   3.00 GiB  1m15s     -  -
12  relay           [2001:db8::1]:50000  [2001:db8::2]:80  198.18.1.1:20000  198.18.1.2:80       10 B   3.00 GiB  1m15s    1s  300.0 µs + 92.0 ms  link_local
 -  passed through  198.18.0.1:50001     198.18.1.2:80     198.18.0.1:50001  198.18.1.2:80          -          -     3s     -  -                   short_path
"
        );
        assert_eq!(flows(&[]), "no flows\n");
    }
}
