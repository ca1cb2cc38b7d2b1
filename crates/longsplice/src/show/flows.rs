//! Shows flows for `longsplice flows`.

use longsplice_engine::{FlowInfo, FlowState};

use super::{
    age, bytes,
    table::{Align, Table},
};

/// Returns a table with a line for each flow: the legs as the client and the server see them.
pub fn flows(flows: &[FlowInfo]) -> String {
    if flows.is_empty() {
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
        ("NOT SPLICED BECAUSE", Left),
    ]);
    for flow in flows {
        table.row(vec![
            flow.id.to_string(),
            state(flow),
            flow.client.peer.to_string(),
            flow.client.local.to_string(),
            flow.server.local.to_string(),
            flow.server.peer.to_string(),
            bytes(flow.to_server.bytes),
            bytes(flow.to_client.bytes),
            age(flow.age_seconds),
            flow.idle_seconds.map_or_else(|| "-".to_owned(), age),
            flow.reason.map(|r| r.to_string()).unwrap_or_default(),
        ]);
    }
    table.to_string()
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
        };
        let two = FlowInfo {
            id: FlowId(12),
            client: leg("[2001:db8::1]:50000", "[2001:db8::2]:80"),
            state: FlowState::Relay,
            reason: Some(RelayReason::LinkLocal),
            idle_seconds: Some(1.5),
            ..one.clone()
        };
        assert_eq!(
            flows(&[one, two]),
            "\
ID  STATE     CLIENT               LISTENER          SOURCE            SERVER         TO SERVER  TO CLIENT    AGE  IDLE  NOT SPLICED BECAUSE
 7  detached  198.18.0.1:50000     198.18.0.2:80     198.18.1.1:20000  198.18.1.2:80       10 B   3.00 GiB  1m15s     -
12  relay     [2001:db8::1]:50000  [2001:db8::2]:80  198.18.1.1:20000  198.18.1.2:80       10 B   3.00 GiB  1m15s    1s  link_local
"
        );
        assert_eq!(flows(&[]), "no flows\n");
    }
}
